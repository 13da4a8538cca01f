"""A party's share of a forest's trees."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from cotune.errors import Malformed
from cotune.model.sklearn_trees import NODE, PackedTree, check_packed, pack
from cotune.party.task import FRAME, Configuration, Reply, Task, check_weight

if TYPE_CHECKING:
    from cotune.learners.contract import Learner
    from cotune.party.party import Party
    from cotune.problem import Problem


#: Trees that a party grows for one message, at most; usual are 100.
MOST_TREES = 2**12
#: Rows that a party may have however few the others have.
MOST_FEW = 2**16


class Weight(Reply, frozen=True):
    """A party's share in a mean: its rows, or 1."""

    weight: float


class Weigh(Task, frozen=True):
    """Tell the party's weight, so that its share of the trees can be set."""

    discloses = "its number of rows (unless all parties count equally)"
    reply = Weight

    def perform(self, party: Party) -> Weight:
        return Weight(party.weight)

    def most_bytes(self, problem: Problem | None) -> int:
        return 64

    def check(self, reply: Weight, problem: Problem | None) -> None:
        check_weight(reply.weight)


class GrownTrees(Reply, frozen=True):
    """Trees, and the classes whose shares their nodes have, by position in the schema."""

    classes: tuple[int, ...]
    trees: tuple[PackedTree, ...]


class GrowTrees(Task, frozen=True):
    """Grow some trees of a forest on the party's own rows.

    Every party is told how many trees each is to grow, and so roughly how the rows are shared out.

    Parameters
    ----------
    trees
        The number of trees by party; a party that is not named grows none.
    batch
        Counts the rounds of one training: trees of another batch are drawn anew.
    """

    discloses = (
        "whole decision trees grown on its rows: a threshold lies between the values of two rows "
        "in a column, each node tells how many (resampled) rows reach it and what share of them "
        "has each class or their mean target, and a leaf of one row tells that row's target (a "
        "min_samples_leaf of 5 or more keeps leaves from standing for single rows)"
    )
    reply = GrownTrees

    configuration: Configuration
    trees: dict[str, Annotated[int, msgspec.Meta(ge=0, le=MOST_TREES)]]
    batch: int = 0

    def perform(self, party: Party) -> GrownTrees:
        from cotune.learners import learner

        count = self.trees.get(party.name, 0)
        if count == 0:
            return GrownTrees((), ())
        party.require(self.configuration.learner)
        chosen = learner(self.configuration.learner)
        seed = party.key.seed("forest", party.name, self.batch, within=self.configuration.params)
        grown, seconds = party.compute(
            grow, party.folder(chosen.features), chosen, self.configuration, count, seed % 2**32
        )
        party.bill(1, seconds)
        return grown

    def most_fits(self, problem: Problem) -> int:
        return 1

    def longest_reply(self, problem: Problem | None) -> int:
        """A tree has fewer leaves than its party has rows: see `cotune.problem.heaviest`."""
        assert problem is not None
        nodes = 2 * max(8 * problem.schema.rows, MOST_FEW)
        tree = 64 + nodes * (NODE.itemsize + 8 * max(1, len(problem.schema.classes)))
        return FRAME + max(self.trees.values(), default=0) * tree

    def check(self, reply: GrownTrees, problem: Problem | None) -> None:
        assert problem is not None
        if len(reply.trees) > max(self.trees.values(), default=0):
            raise Malformed(f"the reply has {len(reply.trees)} trees: more than were asked for")
        known = len(problem.schema.classes)
        if list(reply.classes) != sorted(set(reply.classes) & set(range(known))):
            raise Malformed("the reply's classes are not some of the schema's in their order")
        if reply.trees and known and not reply.classes:
            raise Malformed("the reply has trees without classes")
        for tree in reply.trees:
            check_packed(tree, len(problem.schema.columns), len(reply.classes))


def grow(
    folder: Path, learner: Learner, configuration: Configuration, count: int, seed: int
) -> tuple[GrownTrees, float]:
    """The trees and the CPU seconds they took; on a worker."""
    from cotune.party.fit import as_asked
    from cotune.party.rows import open_rows

    began = time.thread_time()
    rows = open_rows(folder)
    params = configuration.params | {"n_estimators": count}
    schema = rows.problem.schema
    forest = learner.estimator(params, task=schema.task, seed=seed, schema=schema)
    with warnings.catch_warnings(), np.errstate(all="ignore"), as_asked():
        warnings.simplefilter("ignore")
        fitted = forest.fit(rows.features(learner.features), rows.y)
    classes = tuple(map(int, fitted.classes_)) if schema.task == "classification" else ()
    trees = tuple(pack(estimator.tree_) for estimator in fitted.estimators_)
    return GrownTrees(classes, trees), time.thread_time() - began


TASKS: tuple[type[Task], ...] = (Weigh, GrowTrees)
