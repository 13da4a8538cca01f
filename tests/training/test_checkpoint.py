from __future__ import annotations

import msgspec
import numpy as np
import pytest

from cotune.coordinator.federation import Federation
from cotune.coordinator.journal import Journal
from cotune.errors import FederationError
from cotune.model.sklearn_trees import LEAF, NODE
from cotune.problem import Budget
from cotune.training import forest, histogram, merging, tree
from cotune.training.checkpoint import read, write
from tests.parts import federation_of, iris, parts, problem_of
from tests.training.trained import stages_and_model

TABLES = parts(iris())
replace = msgspec.structs.replace


def looped(nodes: bytes) -> bytes:
    """The tree's nodes, whose last split has the root for its left child."""
    bent = np.frombuffer(nodes, dtype=NODE).copy()
    inner = np.flatnonzero(bent["left_child"] != LEAF)[-1]
    bent["left_child"][inner] = 0
    return bent.tobytes()


def bent_tree(grown):
    return replace(grown, nodes=looped(grown.nodes))


def bent_forest(growth):
    first = growth.trees[0]
    packed = replace(first.packed, nodes=looped(first.packed.nodes))
    return replace(growth, trees=(replace(first, packed=packed), *growth.trees[1:]))


def bent_rounds(rounds):
    first, *others = rounds[0]
    split = replace(first.splits[0], node=2)
    return ((replace(first, splits=(split, *first.splits[1:])), *others), *rounds[1:])


def bent_histogram(progress):
    told = replace(progress.told, trees=bent_rounds(progress.told.trees))
    return replace(progress, told=told)


def bent_merging(progress):
    return replace(progress, trees=bent_rounds(progress.trees))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("learner", "params", "every", "kind", "bend"),
    [
        ("decision_tree", {}, None, tree.Grown, bent_tree),
        ("random_forest", {"n_estimators": 5}, None, forest.Growth, bent_forest),
        ("hgb", {"max_iter": 3}, None, histogram.Progress, bent_histogram),
        ("hgb", {"max_iter": 4}, 2, merging.Progress, bent_merging),
    ],
)
def test_a_tree_in_a_checkpoint_that_leads_nowhere_is_refused(
    monkeypatch, learner, params, every, kind, bend
):
    problem = problem_of(*TABLES.values(), learners=(learner,))
    journal = Journal()
    with federation_of(TABLES) as base:
        federation = base.for_run("run", journal, Budget())
        stages_and_model(federation, problem, learner, params, every)
        _, state = journal.restored(0)
        damaged = write(bend(msgspec.msgpack.decode(state, type=kind)))
        monkeypatch.setattr(Federation, "restored", lambda self: damaged)
        again = base.for_run("again", Journal(), Budget())
        with pytest.raises(FederationError, match=r"was changed or damaged: restore the folder"):
            stages_and_model(again, problem, learner, params, every)


@pytest.mark.parametrize("content", [b"", b"\xc1", write({"nodes": b""}), write([1, 2])])
def test_what_is_no_checkpoint_is_refused_in_one_sentence(content):
    with pytest.raises(FederationError, match="was changed or damaged"):
        read(content, tree.Grown)
