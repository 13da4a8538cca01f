"""Methods by name: each a coordinator's program over `gather` and `sum`, one file each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from cotune.errors import UsageError, choices

if TYPE_CHECKING:
    from cotune.trial import Step

    Method = Callable[..., Iterator[Step]]

_BUILT_IN = {
    "dash": "cotune.methods.dash",
    "flora": "cotune.methods.flora",
    "flash": "cotune.methods.flash",
    "fedex": "cotune.methods.fedex",
    "privtuna": "cotune.methods.privtuna",
    "vote": "cotune.methods.vote",
    "multishot": "cotune.methods.multishot",
    "central": "cotune.methods.central",
    "defaults": "cotune.methods.defaults",
}
_registered: dict[str, Method] = {}


def method(name: str) -> Method:
    """The method of that name: built in, registered, or an entry point of `cotune.methods`."""
    if name in _BUILT_IN:
        found: Method = getattr(import_module(_BUILT_IN[name]), name)
        return found
    if name in _registered:
        return _registered[name]
    for point in entry_points(group="cotune.methods", name=name):
        loaded: Method = point.load()
        return loaded
    raise UsageError(choices(name, "method", method_names()))


def register_method(name: str, function: Method) -> None:
    """Make `function` known as `name`. It must pass `cotune.testing.check_method`.

    A method is a generator function `(federation, problem, *, trials, ...)` that yields `Step`s.
    It learns about the parties by `federation.gather` and `federation.sum` only and takes all
    randomness from `problem.seed`.
    """
    if name in _BUILT_IN:
        raise UsageError(f"there is a built-in method {name!r}: choose another name")
    _registered[name] = function


def method_names() -> tuple[str, ...]:
    """All names that `method` knows."""
    installed = [point.name for point in entry_points(group="cotune.methods")]
    return tuple(dict.fromkeys([*_BUILT_IN, *_registered, *installed]))


def takes(name: str, option: str) -> bool:
    """Whether the method has the option."""
    from inspect import signature

    return option in signature(method(name)).parameters


def options_of(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The given options, checked against the method's own keyword arguments."""
    from inspect import Parameter, signature

    parameters = signature(method(name)).parameters.values()
    known = [p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY]
    for option in given:
        if option not in known:
            raise UsageError(choices(option, f"option of method {name}", known))
    return given


def check_judge(name: str) -> None:
    """Refuse a method that evaluates configurations otherwise than by `methods.evaluate.evaluate`.

    Of methods that are not built in only their authors know.
    """
    if name in _BUILT_IN and name not in ("dash", "defaults"):
        raise UsageError(
            f"{name} does not ask for the loss of one configuration after the other, so none can "
            "be trained for it: use dash or defaults, or leave judge out"
        )


def check_privacy(name: str, privacy: str, options: dict[str, Any]) -> None:
    """Refuse, before any work is done, what private sums rule out.

    A method says so by a function `private` beside it, which takes the options; one without it
    learns by sums only, or is refused when it gathers.
    """
    from pkgutil import resolve_name

    if privacy == "plain" or name not in _BUILT_IN:
        return
    check = getattr(resolve_name(_BUILT_IN[name]), "private", None)
    if check is not None:
        check(**options)
