"""Forests: every party grows its share of the trees, and the union of all is the model."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from cotune import learners
from cotune.errors import FederationError, Malformed
from cotune.model.sklearn_trees import PackedTree, build, check_packed, unpack
from cotune.party.train.forest import GrownTrees, GrowTrees, Weigh, Weight
from cotune.training import Stage
from cotune.training.checkpoint import read

if TYPE_CHECKING:
    from cotune.coordinator.federation import Federation
    from cotune.data.schema import Schema
    from cotune.party.task import Configuration, Reply
    from cotune.problem import Problem

#: Roughly the trees that all parties together send in one round: what is lost with it, and the
#: size of its messages, stay bounded.
TREES_A_ROUND = 100


def forest(
    federation: Federation, problem: Problem, configuration: Configuration
) -> Generator[Stage, None, Any]:
    """scikit-learn's forest of `n_estimators` trees, each grown on the rows of one party.

    A party's share is in proportion to its weight, so a small one may grow none. The trees of a
    party that fails are grown by the others. As each tree sees one party's rows only, the union is
    weaker than a forest of the pooled rows where the parties differ; it takes two rounds.
    """
    empty: Any = learners.learner(configuration.learner).estimator(
        configuration.params, task=problem.task, seed=problem.seed, schema=problem.schema
    )
    wanted: int = empty.n_estimators
    state = federation.restored()
    if state is None:
        replies = cast("dict[str, Weight]", federation.gather(Weigh()))
        weights = {party: reply.weight for party, reply in replies.items()}
        growth = Growth(weights, apportioned(wanted, weights))
    else:
        growth = read(state, Growth, lambda growth: _check(growth, problem.schema))
    yield Stage(len(growth.trees), wanted)
    while len(growth.trees) < wanted:
        task = GrowTrees(configuration, growth.next_round(), growth.batch)
        growth = growth.after(task, federation.gather(task), wanted)
        federation.checkpoint(msgspec.msgpack.encode(growth))
        yield Stage(len(growth.trees), wanted)
    return assembled(empty, growth.trees, problem.schema)


class Tree(msgspec.Struct, frozen=True):
    """A tree as its party sent it, and the classes it knows."""

    classes: tuple[int, ...]
    packed: PackedTree


class Growth(msgspec.Struct, frozen=True):
    """How far a forest is: the trees so far, and how many each party has left to grow."""

    weights: dict[str, float]
    left: dict[str, int]
    batch: int = 0
    trees: tuple[Tree, ...] = ()

    def next_round(self) -> dict[str, int]:
        """How many trees each party grows next: all, or in proportion where they are many."""
        part = min(1.0, TREES_A_ROUND / sum(self.left.values()))
        return {party: math.ceil(part * count) for party, count in self.left.items()}

    def after(self, task: GrowTrees, replies: Mapping[str, Reply], wanted: int) -> Growth:
        """With the replies' trees; what failed parties had left falls to the others."""
        trees, left = list(self.trees), dict(self.left)
        for party, count in task.trees.items():
            reply = cast("GrownTrees | None", replies.get(party))
            if reply is None or len(reply.trees) != count:
                del left[party]
            else:
                left[party] -= count
                trees += (Tree(reply.classes, packed) for packed in reply.trees)
        weights = {party: self.weights[party] for party in left}
        if len(weights) < len(self.weights):
            if not weights:
                raise FederationError(
                    "no party is left to grow trees: see to the parties and resume the run"
                )
            left = apportioned(wanted - len(trees), weights)
        return Growth(weights, left, self.batch + 1, tuple(trees))


def _check(growth: Growth, schema: Schema) -> None:
    for tree in growth.trees:
        if not all(0 <= known < len(schema.classes) for known in tree.classes):
            raise Malformed("a tree knows a class that the schema does not have")
        check_packed(tree.packed, len(schema.columns), len(tree.classes))


def apportioned(count: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Whole shares of `count` in proportion to the weights, by largest remainders.

    >>> apportioned(10, {"a": 60.0, "b": 31.0, "c": 9.0})
    {'a': 6, 'b': 3, 'c': 1}
    """
    total = sum(weights.values())
    quotas = {party: count * weight / total for party, weight in weights.items()}
    shares = {party: math.floor(quota) for party, quota in quotas.items()}
    largest = sorted(quotas, key=lambda party: (shares[party] - quotas[party], party))
    for party in largest[: count - sum(shares.values())]:
        shares[party] += 1
    return shares


def assembled(empty: Any, trees: tuple[Tree, ...], schema: Schema) -> Any:
    """The unfitted forest with these trees, as if it had been fitted with them.

    A class that a tree's party does not have has the share 0 in its nodes.
    """
    from sklearn.base import clone

    learnt: dict[str, Any] = {"n_features_in_": len(schema.columns), "n_outputs_": 1}
    if schema.task == "classification":
        classes = len(schema.classes)
        learnt |= {"classes_": np.arange(classes), "n_classes_": classes}
    settings = {name: getattr(empty, name) for name in empty.estimator_params}
    estimators = []
    for tree in trees:
        nodes, values = unpack(tree.packed, len(tree.classes) or 1)
        if tree.classes:
            told, values = values, np.zeros((len(nodes), len(schema.classes)))
            values[:, tree.classes] = told
        estimator = clone(empty.estimator).set_params(**settings)
        vars(estimator).update(learnt, tree_=build(nodes, values, len(schema.columns)))
        estimators.append(estimator)
    vars(empty).update(learnt, estimator_=clone(empty.estimator), estimators_=estimators)
    return empty
