"""Federated training of a configuration: one model of all parties' rows, which stay there."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import msgspec

from cotune import learners
from cotune.errors import UsageError, choices

if TYPE_CHECKING:
    from cotune.federation.federation import Federation
    from cotune.model import Model
    from cotune.party.task import Configuration
    from cotune.problem import Problem


class Stage(msgspec.Struct, frozen=True):
    """How far a training is: `done` of `of` steps (trees, epochs, iterations)."""

    done: int
    of: int


#: Yields how far it is and returns the fitted estimator, which predicts class codes 0..k-1 (or
#: numbers) from encoded rows: scikit-learn's interface, or an `xgboost.Booster`.
Trainer = Callable[["Federation", "Problem", "Configuration"], Generator[Stage, None, Any]]

#: Ways of training, by the name that a learner gives in `trained_by`.
TRAINERS = {
    "linear": "cotune.training.linear:linear",
    "fourier": "cotune.training.fourier:fourier",
    "averaging": "cotune.training.averaging:averaging",
    "histogram": "cotune.training.histogram:histogram",
    "tree": "cotune.training.tree:tree",
    "forest": "cotune.training.forest:forest",
    "ensemble": "cotune.training.ensemble:ensemble",
}


def trainer(learner: str) -> Trainer:
    """How the federation trains the learner of that name."""
    name = learners.learner(learner).trained_by
    if name not in TRAINERS:
        raise UsageError(choices(name, f"way of training {learner!r}", TRAINERS))
    found: Trainer = resolve_name(TRAINERS[name])
    return found


def train(
    federation: Federation,
    problem: Problem,
    configuration: Configuration,
    watch: Callable[[Stage], None] = lambda _: None,
) -> Model:
    """Train a configuration over the federation; `watch` is told how far it is."""
    from cotune.model import Model

    begun = federation.ledger.rounds
    steps = trainer(configuration.learner)(federation, problem, configuration)
    while True:
        try:
            watch(next(steps))
        except StopIteration as end:
            estimator = end.value
            break
    rounds = list(federation.ledger)[begun:]
    about = {
        "parties": len(federation.parties),
        "rounds": len(rounds),
        "bytes_up": sum(entry.bytes_up for entry in rounds),
        "bytes_down": sum(entry.bytes_down for entry in rounds),
    }
    return Model.of(problem, configuration, estimator, about)
