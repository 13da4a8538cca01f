"""The registry of learners: what can be tuned, by name."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import TYPE_CHECKING

from cotune.errors import UsageError, choices
from cotune.learners.contract import Learner

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Learner", "available", "learner", "learner_names", "register_learner", "require"]

_GROUP = "cotune.learners"

_BUILT_IN = {
    "hgb": ("boosting", "HistGradientBoosting"),
    "svm": ("svm", "SupportVectorMachine"),
    "mlp": ("mlp", "MultiLayerPerceptron"),
    "random_forest": ("forest", "RandomForest"),
    "decision_tree": ("forest", "DecisionTree"),
    "extra_tree": ("forest", "ExtraTree"),
    "extra_trees": ("forest", "ExtraTrees"),
    "logistic_regression": ("linear", "LogisticRegression"),
    "xgboost": ("boosting", "XGBoost"),
    "lightgbm": ("boosting", "LightGBM"),
    "torch_mlp": ("torch", "Perceptron"),
    "cnn": ("torch", "Convolutional"),
    "char_lstm": ("torch", "CharacterLSTM"),
}

_registered: dict[str, Learner] = {}


def learner(name: str) -> Learner:
    """The learner called `name`, whether or not its library is installed.

    >>> learner("hgb").defaults("classification")["learning_rate"]
    0.1
    """
    if name in _registered:
        return _registered[name]
    if name in _BUILT_IN:
        module, attribute = _BUILT_IN[name]
        built_in: Learner = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)()
        return built_in
    for entry in _entry_points():
        if entry.name == name:
            return _load(entry)
    raise UsageError(choices(name, "learner", learner_names()))


def learner_names() -> tuple[str, ...]:
    """Every known name: the built-in ones, then registered ones, then installed entry points."""
    names = [*_BUILT_IN, *_registered, *(entry.name for entry in _entry_points())]
    return tuple(dict.fromkeys(names))


def register_learner(learner: Learner, *, replace: bool = False) -> None:
    """Make `learner` known in this process; `replace` lets it take over a name already in use.

    Parties in other processes or on other machines know it only if they register it too; an entry
    point in the group `cotune.learners` does that for all of them.
    """
    if not isinstance(learner, Learner):
        raise UsageError(f"register_learner takes an instance of cotune.Learner, not {learner!r}")
    if not replace and learner.name in learner_names():
        raise UsageError(
            f"there is a learner {learner.name!r} already: choose another name or pass replace=True"
        )
    _registered[learner.name] = learner


def available(name: str) -> bool:
    """Whether the library behind the learner called `name` is installed."""
    return _installed(learner(name))


def require(learner: Learner) -> None:
    """Raise a `UsageError` that says what to install if `learner`'s library is missing."""
    if not _installed(learner):
        package = f"'cotune[{learner.extra}]'" if learner.extra else learner.library
        raise UsageError(
            f"learner {learner.name!r} needs a package that is not installed: pip install {package}"
        )


def _installed(learner: Learner) -> bool:
    return learner.library is None or importlib.util.find_spec(learner.library) is not None


@cache
def _entry_points() -> tuple[EntryPoint, ...]:
    """Looked for once: that takes longer than many a fit."""
    import importlib.metadata

    return tuple(importlib.metadata.entry_points(group=_GROUP))


def _load(entry: EntryPoint) -> Learner:
    loaded = entry.load()
    found = loaded() if isinstance(loaded, type) else loaded
    if not isinstance(found, Learner) or found.name != entry.name:
        raise UsageError(
            f"entry point {entry.name!r} of {_GROUP} must be a Learner of that name: "
            f"{entry.value} is {found!r}"
        )
    return found
