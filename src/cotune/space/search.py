"""A search for the best configuration of one space: ask for one, tell its loss."""

from __future__ import annotations

import math
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cotune.errors import UsageError, choices
from cotune.space.space import Space

if TYPE_CHECKING:
    import optuna

_QUIET = threading.RLock()
SAMPLERS = ("tpe", "random", "gp", "cmaes", "grid")


@dataclass(frozen=True)
class Asked:
    """A configuration that waits for its loss."""

    number: int
    params: dict[str, Any]


class Search:
    """Ask and tell over one of Optuna's samplers, or over a grid.

    The same seed and the same losses give the same configurations. Several may be asked for
    before their losses are told, in any order.

    >>> search = Search(Space({"x": (0.0, 1.0)}), sampler="grid", trials=5)
    >>> while asked := search.ask():
    ...     search.tell(asked, (asked.params["x"] - 0.7) ** 2)
    >>> search.best[0]
    {'x': 0.75}
    """

    def __init__(
        self,
        space: Space,
        sampler: str = "tpe",
        seed: int = 0,
        first: Mapping[str, Any] | None = None,
        trials: int | None = None,
    ) -> None:
        """Begin a search.

        space: what to search; a space of fixed values is asked over and over.
        sampler: one of `SAMPLERS`.
        first: the configuration to ask first, brought into the space where it lies outside.
        trials: how many will be asked; the grid is the finest that fits, others do not need it.
        """
        self._space = space
        self._study = _study(sampler, seed)
        self._planned = deque([] if first is None else [space.clip(first)])
        self._ends_with_plan = sampler == "grid"
        self._waiting: set[int] = set()
        self._best: tuple[dict[str, Any], float] | None = None
        if self._ends_with_plan:
            self._plan_grid(trials)

    def _plan_grid(self, trials: int | None) -> None:
        if trials is None:
            raise UsageError("sampler 'grid' needs the number of trials: give trials=...")
        grid = self._space.finest_grid(trials - len(self._planned))
        if not grid:
            raise UsageError(
                f"sampler 'grid' cannot cover this space in trials={trials}: "
                "give more, or take sampler 'random'"
            )
        self._planned.extend(params for params in grid if params not in self._planned)

    def ask(self) -> Asked | None:
        """The configuration to try next; None once a grid is exhausted, and only then."""
        if self._planned:
            self._study.enqueue_trial(self._planned.popleft())
        elif self._ends_with_plan:
            return None
        with _quiet():
            trial = self._study.ask()
            params = self._space.suggest(trial)
        self._waiting.add(trial.number)
        return Asked(trial.number, params)

    def tell(self, asked: Asked, loss: float) -> None:
        """Report the loss of a configuration, once; lower is better."""
        _check(loss, f"trial {asked.number}")
        if asked.number not in self._waiting:
            raise UsageError(f"trial {asked.number} does not wait for a loss: tell each one once")
        self._waiting.remove(asked.number)
        self._study.tell(asked.number, float(loss))
        self._note(asked.params, loss)

    def learn(self, params: Mapping[str, Any], loss: float) -> None:
        """Take note of a configuration that was judged without being asked for.

        >>> search = Search(Space({"x": (0.0, 1.0)}))
        >>> search.learn({"x": 0.25}, 0.1)
        >>> search.best
        ({'x': 0.25}, 0.1)
        """
        import optuna

        _check(loss, f"configuration {dict(params)}")
        valid = self._space.validate(params)
        given: Any = optuna.trial.FixedTrial(valid)
        self._space.suggest(given)  # leaves the distributions of the active parameters in it
        with _quiet():
            self._study.add_trial(
                optuna.trial.create_trial(
                    params=given.params, distributions=given.distributions, value=float(loss)
                )
            )
        self._note(valid, loss)

    def _note(self, params: dict[str, Any], loss: float) -> None:
        if self._best is None or loss < self._best[1]:
            self._best = (params, float(loss))

    @property
    def best(self) -> tuple[dict[str, Any], float]:
        """The configuration with the lowest loss and that loss; of equals, the one told first."""
        if self._best is None:
            raise UsageError("the search has no best configuration before a loss is told")
        return self._best


def _check(loss: float, whose: str) -> None:
    if not math.isfinite(loss):
        raise UsageError(f"the loss of {whose} is {loss}: tell a finite number")


def _study(sampler: str, seed: int) -> optuna.Study:
    import optuna

    with _quiet():
        return optuna.create_study(sampler=_sampler(sampler, seed))


def _sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    from optuna import samplers

    match name:
        case "tpe":
            return samplers.TPESampler(seed=seed)
        case "gp":
            if find_spec("torch") is None:
                raise UsageError("sampler 'gp' needs PyTorch: pip install 'cotune[torch]'")
            return samplers.GPSampler(seed=seed)
        case "cmaes":
            return samplers.CmaEsSampler(seed=seed)
        case "random" | "grid":
            return samplers.RandomSampler(seed=seed)
    raise UsageError(choices(name, "sampler", SAMPLERS))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna's notes on new studies and on fallbacks to itself, for as long as this lasts.

    One thread at a time: what is set and put back here belongs to the whole process.
    """
    import optuna

    with _QUIET:
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                yield
        finally:
            optuna.logging.set_verbosity(before)
