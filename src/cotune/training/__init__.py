"""Federated training of a configuration: one model of all parties' rows, which stay there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import msgspec

from cotune import learners
from cotune.errors import DataError, Diverged, Unusable, UsageError, choices

if TYPE_CHECKING:
    from cotune.coordinator.federation import Federation
    from cotune.coordinator.ledger import Round
    from cotune.model.model import Model
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
    "rounds": "cotune.training.rounds:rounds",
    "ensemble": "cotune.training.ensemble:ensemble",
}


def trainer(learner: str, merge_every: int | None = None) -> Trainer:
    """How the federation trains the learner of that name; `merge_every` as in `train`."""
    name = learners.learner(learner).trained_by
    if name not in TRAINERS:
        raise UsageError(choices(name, f"way of training {learner!r}", TRAINERS))
    if merge_every is not None and _is_boosted(learner):
        from cotune.training.merging import merging

        return partial(merging, every=merge_every)
    found: Trainer = resolve_name(TRAINERS[name])
    return found


def _is_boosted(learner: str) -> bool:
    return learners.learner(learner).trained_by == "histogram"


def check_merging(merge_every: int, names: Iterable[str]) -> None:
    """Refuse `merge_every` where it is no number of trees, or means nothing."""
    from cotune.party.train.merging import MOST_ROUNDS

    if not isinstance(merge_every, int) or not 1 <= merge_every <= MOST_ROUNDS:
        raise UsageError(
            f"merge_every is {merge_every!r}: give a number of trees from 1 to {MOST_ROUNDS}"
        )
    if not any(_is_boosted(name) for name in names):
        raise UsageError("merge_every is about boosted trees: tune hgb, xgboost or lightgbm, too")


#: Ways of training in which every party tells a model of its own: not by sums alone.
TELLING = ("forest", "ensemble")


def by_sums(learner: str) -> bool:
    """Whether the learner is trained by totals over the parties, and nothing else."""
    return learners.learner(learner).trained_by not in TELLING


def check(learner: str, private: bool = False) -> None:
    """Refuse, before any work is done, a learner that cannot be trained here."""
    chosen = learners.learner(learner)
    without = "tune it without training (--no-train)"
    if private and not by_sums(learner):
        able = [n for n in learners.learner_names() if by_sums(n) and learners.available(n)]
        raise UsageError(
            f"a model of {learner!r} is put together from models of single parties, which private "
            f"sums rule out: {without}, or use {', '.join(able)}"
        )
    if chosen.keeps_rows:
        raise UsageError(
            f"a model of {learner!r} holds rows, which may not leave their party: {without}"
        )
    if chosen.trained_by == "histogram" and not learners.available("xgboost"):
        raise UsageError(
            f"the model of {learner!r} is one of XGBoost, which is not installed: "
            f"pip install 'cotune[boost]', or {without}"
        )


def settled(problem: Problem, configuration: Configuration) -> dict[str, Any]:
    """All parameters that matter: the configuration's and, where it says nothing, the library's.

    The same as in the search, where the library fills the gaps; not the papers' baseline.
    """
    learner = learners.learner(configuration.learner)
    estimator: Any = learner.estimator(
        configuration.params, task=problem.task, seed=problem.seed, schema=problem.schema
    )
    library = estimator.get_params()
    usual = {
        name: value if library.get(name) in (None, -1) else library[name]
        for name, value in learner.defaults(problem.task).items()
    }
    return usual | configuration.params


def train(
    federation: Federation,
    problem: Problem,
    configuration: Configuration,
    watch: Callable[[Stage], None] = lambda _: None,
    merge_every: int | None = None,
) -> Model:
    """Train a configuration over the federation; `watch` is told how far it is.

    `Diverged` is raised if the training's loss over the parties rises without end, or its sums go
    out of bounds. That is watched where a loss or a bound is part of what is summed at every stage:
    in all ways of training but single trees, forests, ensembles and merged trees.

    With `merge_every`, boosted trees are trained in few messages: see
    `cotune.training.merging`. Other learners are trained as ever.
    """
    from cotune.coordinator.federation import BudgetSpent
    from cotune.model.model import Model

    begun = federation.ledger.rounds
    of = (problem.digest, configuration, merge_every)
    known = federation.begun(msgspec.msgpack.encode(of, order="deterministic"))
    if known is not None:
        return Model.unpacked(known)
    try:
        estimator = _trained(federation, problem, configuration, watch, merge_every)
    except (BudgetSpent, DataError, UsageError) as error:
        federation.concluded(error)
        raise
    told = about(federation, list(federation.ledger)[begun:])
    if merge_every is not None and _is_boosted(configuration.learner):
        told["merged_every"] = merge_every
    model = Model.of(problem, configuration, estimator, told)
    federation.concluded(model.packed())
    return model


def _trained(
    federation: Federation,
    problem: Problem,
    configuration: Configuration,
    watch: Callable[[Stage], None],
    merge_every: int | None,
) -> Any:
    steps = trainer(configuration.learner, merge_every)(federation, problem, configuration)
    while True:
        try:
            watch(next(steps))
        except StopIteration as end:
            return end.value
        except Unusable as error:
            raise Diverged(f"its training failed: {error.reason}") from error


def about(federation: Federation, rounds: Sequence[Round]) -> dict[str, Any]:
    """What a model says of its training, which took these rounds."""
    return {
        "parties": len(federation.parties),
        "rounds": len(rounds),
        "bytes_up": sum(entry.bytes_up for entry in rounds),
        "bytes_down": sum(entry.bytes_down for entry in rounds),
    }
