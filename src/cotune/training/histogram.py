"""Boosted trees grown on all parties' rows: the parties add up gradients, in bins that all share.

The trees are those that would be grown on the rows in one place with the same bins, bit for bit:
every row's gradient is rounded before it is added up, so that all sums are exact.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
import numpy as np

from cotune.coordinator.federation import Federation
from cotune.data.schema import Schema
from cotune.growth.grow import Answered, Finished, grow_rounds
from cotune.growth.rules import Rules, rules_of
from cotune.growth.warm_up import warm_up
from cotune.party.task import Configuration
from cotune.party.train.grow import Start, Tree, channels, check_tree
from cotune.problem import Problem, seed_of
from cotune.training import Stage, settled
from cotune.training.bins import shared_bins
from cotune.training.blind import entropy
from cotune.training.booster import booster
from cotune.training.checkpoint import read
from cotune.training.grow_ask import Asker, Told
from cotune.training.watch import check_loss

#: Rounds of boosting between two checkpoints.
EVERY = 10


class Progress(msgspec.Struct, frozen=True):
    """What a checkpoint holds: what the parties know, and the last round, which they do not yet."""

    told: Told
    last: Finished | None = None
    losses: tuple[float, ...] = ()
    judges: Answered = ()

    @property
    def trees(self) -> tuple[tuple[Tree, ...], ...]:
        return self.told.trees + ((self.last.trees,) if self.last else ())


def histogram(
    federation: Federation, problem: Problem, configuration: Configuration
) -> Generator[Stage, None, Any]:
    """Train `hgb`, `xgboost` or `lightgbm`; the model is an `xgboost.Booster` for all three."""
    schema, name = problem.schema, configuration.learner
    params = settled(problem, configuration)
    rules = rules_of(name, params, schema)
    seed = seed_of(problem.seed, "histogram", name)
    warm_up()
    progress = _restored(federation.restored()) or _begun(federation, problem, rules)
    asker = Asker(
        federation,
        progress.told,
        1,
        channels(schema, rules.counted),
        losses=list(progress.losses),
        judges=progress.judges,
    )
    start = progress.told.start
    usual = 1.0 if schema.task == "regression" else entropy(schema)
    numbers = range(len(progress.trees), rules.rounds)
    rounds = grow_rounds(asker, rules, start.bins, len(start.base), seed, numbers, progress.last)
    for done, last in zip(range(numbers.start + 1, numbers.stop + 1), rounds, strict=True):
        progress = Progress(asker.told, last, tuple(asker.losses), asker.judges)
        if asker.losses:
            check_loss(asker.losses, usual, ended=done == rules.rounds)
        if done % EVERY == 0 or done == rules.rounds:
            federation.checkpoint(msgspec.msgpack.encode(progress))
        yield Stage(done, rules.rounds)
    return booster(schema, start.bins, start.base, progress.trees)


def _begun(federation: Federation, problem: Problem, rules: Rules) -> Progress:
    bins = shared_bins(federation, problem, codes_are_numbers=False)
    base = first_predicted(problem.schema)
    return Progress(Told(Start("boost", bins, base, rules.rows, rules.every)))


def _restored(saved: bytes | None) -> Progress | None:
    return read(saved, Progress, _check) if saved is not None else None


def _check(progress: Progress) -> None:
    for trees in progress.trees:
        for tree in trees:
            check_tree(tree, progress.told.start.bins)


def first_predicted(schema: Schema) -> tuple[float, ...]:
    """What is predicted before the first tree: log-odds of the classes, or the mean (0)."""
    if schema.task == "regression":
        return (0.0,)
    rows = np.maximum(schema.class_rows or [1] * len(schema.classes), 1)
    logs = np.log(rows / rows.sum())
    if len(rows) == 2:
        return (float(np.float32(logs[1] - logs[0])),)
    return tuple(float(np.float32(value)) for value in logs)
