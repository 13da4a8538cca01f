from __future__ import annotations

import msgspec
import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from cotune.errors import Malformed
from cotune.model.sklearn_trees import NODE, PackedTree, unpack
from cotune.party.task import Configuration
from cotune.party.train.forest import GrownTrees, GrowTrees, Weigh, Weight
from cotune.problem import seed_of
from cotune.protocol.wire import Refusal
from tests.parts import ask, diabetes, iris, party_of, people, problem_of

FOREST = Configuration("random_forest", {"n_estimators": 50, "max_depth": 3})
TASK = GrowTrees(FOREST, {"party-1": 3, "party-2": 1})


def grown_by(frame, tmp_path, task=TASK, **options) -> tuple[GrownTrees, object]:
    problem = problem_of(frame, learners=("random_forest",), **options)
    answer = ask(party_of(frame, tmp_path), task, problem)
    return msgspec.msgpack.decode(answer.body, type=GrownTrees), problem


def test_a_party_grows_as_many_trees_as_it_is_told_with_a_seed_of_its_own(tmp_path):
    frame = iris()
    grown, problem = grown_by(frame, tmp_path)
    TASK.check(grown, problem)
    seed = seed_of(problem.seed, "forest", "party-1", 0)
    own = RandomForestClassifier(3, max_depth=3, random_state=seed)
    own.fit(frame.drop(columns="target").to_numpy(), frame["target"])
    assert grown.classes == (0, 1, 2)
    for packed, expected in zip(grown.trees, own.estimators_, strict=True):
        nodes, values = unpack(packed, 3)
        for name in ("feature", "threshold", "impurity", "n_node_samples", "missing_go_to_left"):
            np.testing.assert_array_equal(nodes[name], getattr(expected.tree_, name))
        np.testing.assert_array_equal(nodes["left_child"], expected.tree_.children_left)
        np.testing.assert_array_equal(values, expected.tree_.value[:, 0, :])


def test_another_batch_has_other_trees(tmp_path):
    one, _ = grown_by(iris(), tmp_path / "0")
    again, _ = grown_by(iris(), tmp_path / "1")
    other, _ = grown_by(iris(), tmp_path / "2", msgspec.structs.replace(TASK, batch=1))
    assert one == again
    assert one != other


def test_a_party_that_is_not_named_grows_nothing(tmp_path):
    grown, problem = grown_by(iris(), tmp_path, GrowTrees(FOREST, {"party-2": 3}))
    assert grown == GrownTrees((), ())
    TASK.check(grown, problem)


def test_trees_of_rows_with_gaps_and_of_numbers_pass_the_check(tmp_path):
    """scikit-learn splits missing values from all others with an infinite threshold."""
    for number, frame in enumerate((people(80), diabetes())):
        for learner in ("random_forest", "extra_trees"):
            task = GrowTrees(Configuration(learner, {}), {"party-1": 10})
            folder = tmp_path / f"{learner}{number}"
            grown, problem = grown_by(frame, folder, task)
            task.check(grown, problem)
            assert len(grown.trees) == 10


def test_a_party_tells_its_rows_as_its_weight(tmp_path):
    frame = iris()
    for weights, expected in (("rows", 150.0), ("equal", 1.0)):
        problem = problem_of(frame, weights=weights)
        answer = ask(party_of(frame, tmp_path / weights), Weigh(), problem)
        assert msgspec.msgpack.decode(answer.body, type=Weight) == Weight(expected)
    for weight in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(Malformed):
            Weigh().check(Weight(weight), problem)


def test_a_learner_that_is_not_there_is_refused(tmp_path):
    frame = iris()
    task = GrowTrees(Configuration("poplars", {}), {"party-1": 1})
    answer = ask(party_of(frame, tmp_path), task, problem_of(frame))
    assert isinstance(answer, Refusal)
    assert answer.code == "unknown_learner"


def small_tree() -> tuple[np.ndarray, np.ndarray]:
    """A root with an inner node on its left."""
    nodes = np.zeros(5, dtype=NODE)
    nodes["left_child"] = [1, 2, -1, -1, -1]
    nodes["right_child"] = [4, 3, -1, -1, -1]
    nodes["feature"] = [3, 0, -2, -2, -2]
    nodes["n_node_samples"] = nodes["weighted_n_node_samples"] = [10, 6, 3, 3, 4]
    return nodes, np.tile([0.5, 0.25, 0.25], (5, 1))


def reply_of(nodes, values, classes=(0, 1, 2)) -> GrownTrees:
    return GrownTrees(classes, (PackedTree(len(nodes), nodes.tobytes(), values.tobytes()),))


PROBLEM = problem_of(iris(), learners=("random_forest",))


def test_a_well_formed_tree_passes():
    TASK.check(reply_of(*small_tree()), PROBLEM)


@pytest.mark.parametrize(
    ("name", "position", "value"),
    [
        ("left_child", 0, 0),  # its own child
        ("left_child", 1, 0),  # a child before its parent
        ("left_child", 1, 3),  # one node, two parents
        ("left_child", 0, 5),
        ("left_child", 0, -7),
        ("right_child", 0, 2**31 - 1),
        ("right_child", 4, 1),  # a leaf with one child
        ("right_child", 1, -1),
        ("feature", 0, 4),
        ("feature", 1, -2),
        ("threshold", 0, np.nan),
        ("threshold", 1, -np.inf),
        ("impurity", 2, np.nan),
        ("weighted_n_node_samples", 3, np.inf),
        ("weighted_n_node_samples", 3, -1.0),
        ("n_node_samples", 3, 0),
        ("missing_go_to_left", 0, 2),
    ],
)
def test_a_tree_with_a_wrong_node_is_refused(name, position, value):
    nodes, values = small_tree()
    nodes[name][position] = value
    with pytest.raises(Malformed):
        TASK.check(reply_of(nodes, values), PROBLEM)


@pytest.mark.parametrize("share", [np.nan, np.inf, -0.5, 0.75])
def test_a_tree_with_a_wrong_share_is_refused(share):
    nodes, values = small_tree()
    values[2, 0] = share
    with pytest.raises(Malformed):
        TASK.check(reply_of(nodes, values), PROBLEM)


@pytest.mark.parametrize("classes", [(), (0, 1), (0, 1, 3), (2, 1, 0), (0, 0, 1), (-1, 0, 1)])
def test_classes_that_are_not_the_schemas_are_refused(classes):
    with pytest.raises(Malformed):
        TASK.check(reply_of(*small_tree(), classes), PROBLEM)


def test_a_tree_of_another_size_than_it_says_is_refused():
    whole = reply_of(*small_tree()).trees[0]
    for changed in ({"count": 4}, {"count": 0}, {"nodes": b""}, {"values": whole.values[:-1]}):
        tree = msgspec.structs.replace(whole, **changed)
        with pytest.raises(Malformed):
            TASK.check(GrownTrees((0, 1, 2), (tree,)), PROBLEM)


def test_more_trees_than_anyone_was_asked_for_are_refused():
    tree = reply_of(*small_tree()).trees[0]
    with pytest.raises(Malformed, match="4 trees"):
        TASK.check(GrownTrees((0, 1, 2), (tree,) * 4), PROBLEM)
