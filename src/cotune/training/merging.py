"""Boosted trees for slow networks: parties grow some by themselves, then all are merged."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, cast

import msgspec

from cotune.coordinator.federation import Federation
from cotune.growth.rules import rules_of
from cotune.growth.warm_up import warm_up
from cotune.party.task import Configuration
from cotune.party.train.grow import Start, Tree, check_tree
from cotune.party.train.merging import Boost, Boosted
from cotune.problem import Problem
from cotune.training import Stage, settled
from cotune.training.bins import shared_bins
from cotune.training.booster import booster
from cotune.training.checkpoint import read
from cotune.training.histogram import EVERY, first_predicted


class Progress(msgspec.Struct, frozen=True):
    """What a checkpoint holds: the trees merged so far, by how many rounds of boosting."""

    start: Start
    done: int = 0
    after: str = ""
    trees: tuple[tuple[Tree, ...], ...] = ()
    merged: tuple[tuple[Tree, ...], ...] = ()


def merging(
    federation: Federation, problem: Problem, configuration: Configuration, every: int
) -> Generator[Stage, None, Any]:
    """Train `hgb`, `xgboost` or `lightgbm` in one message for `every` rounds of boosting.

    In each, every party boosts what all have merged so far, on its own rows alone. Its trees
    count by its weight: the model predicts the mean of what the parties' trees would.
    """
    name = configuration.learner
    params = settled(problem, configuration)
    rules = rules_of(name, params, problem.schema)
    warm_up()
    saved = federation.restored()
    if saved is not None:
        progress = read(saved, Progress, _check)
    else:
        bins = shared_bins(federation, problem, codes_are_numbers=False)
        base = first_predicted(problem.schema)
        progress = Progress(Start("boost", bins, base, rules.rows, rules.every))
    saved_at = progress.done
    while progress.done < rules.rounds:
        count = min(every, rules.rounds - progress.done)
        progress = _merged(federation, progress, Configuration(name, params), count)
        if progress.done - saved_at >= EVERY or progress.done == rules.rounds:
            federation.checkpoint(msgspec.msgpack.encode(progress))
            saved_at = progress.done
        yield Stage(progress.done, rules.rounds)
    start, trees = progress.start, progress.trees + progress.merged
    return booster(problem.schema, start.bins, start.base, trees)


def _check(progress: Progress) -> None:
    for trees in progress.trees + progress.merged:
        for tree in trees:
            check_tree(tree, progress.start.bins)


def _merged(
    federation: Federation, progress: Progress, configuration: Configuration, count: int
) -> Progress:
    """Ask for some rounds more, and merge them."""
    task = Boost(
        progress.after, configuration, progress.done, count, progress.start.bins, progress.merged
    )
    whole = msgspec.structs.replace(
        task, start=msgspec.structs.replace(progress.start, trees=progress.trees)
    )
    replies = cast(
        "dict[str, Boosted]", federation.gather(task if progress.after else whole, whole)
    )
    return Progress(
        progress.start,
        progress.done + count,
        task.digest,
        progress.trees + progress.merged,
        mean_trees(replies),
    )


def mean_trees(replies: Mapping[str, Boosted]) -> tuple[tuple[Tree, ...], ...]:
    """All parties' trees, their leaves and gains multiplied by the party's share of the weight."""
    total = sum(reply.weight for reply in replies.values())
    return tuple(
        tuple(_scaled(tree, reply.weight / total) for tree in trees)
        for _, reply in sorted(replies.items())
        for trees in reply.trees
    )


def _scaled(tree: Tree, share: float) -> Tree:
    leaves = tuple((node, value * share) for node, value in tree.leaves)
    return Tree(tree.splits, leaves, tuple(gain * share for gain in tree.gains), tree.covers)
