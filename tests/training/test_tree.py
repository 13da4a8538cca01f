from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.tree import (
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExtraTreeClassifier,
    ExtraTreeRegressor,
)

import cotune
from cotune.coordinator.journal import Journal
from cotune.data.encode import encode
from cotune.errors import FederationError, UsageError
from cotune.party.task import Configuration
from cotune.problem import Budget
from cotune.protocol.wire import Refusal
from cotune.training.tree import tree
from tests.parts import diabetes, federation_of, iris, parts, people, problem_of, unreliable, wine
from tests.training.trained import stages_and_model


def trained(tables, params=None, learner="decision_tree", *, problem=None):
    if problem is None:
        problem = problem_of(*tables.values(), learners=(learner,))
    with federation_of(tables) as federation:
        return stages_and_model(federation, problem, learner, params or {})[1], problem


def same(one, other) -> bool:
    first, second = one.tree_.__getstate__(), other.tree_.__getstate__()
    return first["nodes"].tobytes() == second["nodes"].tobytes() and np.array_equal(
        first["values"], second["values"]
    )


def numbers() -> pd.DataFrame:
    frame = people(200, seed=3)
    target = frame["age"].fillna(60) + 9 * (frame["city"] == "b")
    return frame.assign(target=target * 100 + np.arange(200) % 7 / 7)


TABLES = {
    "binary": lambda: people(200, seed=1),
    "classes": lambda: people(200, seed=2, labels="uvxyz"),
    "numbers": numbers,
}


@pytest.mark.parametrize("learner", ["decision_tree", "extra_tree"])
@pytest.mark.parametrize("kind", TABLES)
def test_the_tree_is_the_same_however_the_rows_lie_at_the_parties(kind, learner):
    frame = TABLES[kind]()
    params = {"min_samples_leaf": 2, "max_features": 0.6}
    model, problem = trained(parts(frame), params, learner)
    shuffled = frame.sample(frac=1.0, random_state=5).reset_index(drop=True)
    for tables in ({"all": frame}, {"a": shuffled[:9], "b": shuffled[9:10], "c": shuffled[10:]}):
        again, _ = trained(tables, params, learner, problem=problem)
        assert same(again, model)
    assert model.tree_.node_count > 10


def test_a_tree_on_few_values_is_scikit_learns_own():
    frame = iris()
    model, problem = trained(parts(frame), {"max_depth": 3})
    X = encode(frame, problem.schema, "codes")
    own = DecisionTreeClassifier(max_depth=3, random_state=0).fit(X, frame["target"])
    np.testing.assert_allclose(model.predict_proba(X), own.predict_proba(X))
    assert np.sort(model.tree_.impurity) == pytest.approx(np.sort(own.tree_.impurity))


@pytest.mark.parametrize("kind", TABLES)
def test_a_tree_without_limits_learns_all_rows(kind):
    frame = TABLES[kind]()
    frame["id"] = np.random.default_rng(0).permutation(len(frame))
    model, problem = trained(parts(frame))
    found = model.predict(encode(frame, problem.schema, "codes"))
    if kind == "numbers":
        np.testing.assert_allclose(found, frame["target"], atol=0.01 * frame["target"].std())
    else:
        assert np.array_equal(np.array(problem.schema.classes)[found], frame["target"])


@pytest.mark.parametrize("criterion", ["gini", "entropy"])
def test_classes_are_told_as_well_as_by_scikit_learn_on_all_rows(criterion):
    frame = load_digits(as_frame=True).frame.iloc[:900]
    held = np.arange(len(frame)) % 3 == 0
    params = {"criterion": criterion, "max_depth": 9}
    model, problem = trained(parts(frame[~held]), params)
    X, Z = (encode(frame[rows], problem.schema, "codes") for rows in (~held, held))
    own = DecisionTreeClassifier(**params, random_state=0).fit(X, frame.loc[~held, "target"])
    y = frame.loc[held, "target"]
    assert model.score(Z, y) >= own.score(Z, y) - 0.05
    assert model.tree_.node_count == pytest.approx(own.tree_.node_count, rel=0.1)


def test_numbers_are_predicted_as_well_as_by_scikit_learn_on_all_rows():
    frame = diabetes()
    held = np.arange(len(frame)) % 3 == 0
    model, problem = trained(parts(frame[~held]), {"max_depth": 3})
    X, Z = (encode(frame[rows], problem.schema, "codes") for rows in (~held, held))
    own = DecisionTreeRegressor(max_depth=3, random_state=0).fit(X, frame.loc[~held, "target"])
    y = frame.loc[held, "target"]
    assert model.score(Z, y) == pytest.approx(own.score(Z, y), abs=0.05)
    np.testing.assert_allclose(model.tree_.impurity[0], own.tree_.impurity[0], rtol=1e-4)


def test_a_tree_with_drawn_thresholds_is_one_of_scikit_learns():
    frame = load_breast_cancer(as_frame=True).frame
    model, problem = trained(parts(frame), {"max_depth": 6}, "extra_tree")
    best, _ = trained(parts(frame), {"max_depth": 6}, problem=problem_of(frame))
    X = encode(frame, problem.schema, "codes")
    assert type(model) is ExtraTreeClassifier
    assert 0.93 < model.score(X, frame["target"]) < best.score(X, frame["target"])
    model, _ = trained(parts(diabetes()), {"max_depth": 6}, "extra_tree")
    assert type(model) is ExtraTreeRegressor


@pytest.mark.parametrize("kind", TABLES)
def test_limits_are_respected(kind):
    frame = TABLES[kind]()
    model, _ = trained(
        parts(frame), {"max_depth": 4, "min_samples_leaf": 7, "min_samples_split": 20}
    )
    nodes = model.tree_
    leaves = nodes.children_left < 0
    assert nodes.max_depth == model.get_depth() <= 4
    assert nodes.n_node_samples[leaves].min() >= 7
    assert nodes.n_node_samples[~leaves].min() >= 20
    assert nodes.node_count > 3


def test_pruning_makes_the_tree_smaller():
    whole, problem = trained(parts(wine()))
    pruned, _ = trained(parts(wine()), {"ccp_alpha": 0.05}, problem=problem)
    assert 1 < pruned.tree_.node_count < whole.tree_.node_count


def test_missing_values_go_where_they_went_in_training():
    frame = people(120, seed=4)
    frame["target"] = np.where(frame["rare"].isna(), "x", "y")
    model, problem = trained(parts(frame))
    X = encode(frame, problem.schema, "codes")
    assert model.tree_.node_count == 3
    assert np.array_equal(np.array(problem.schema.classes)[model.predict(X)], frame["target"])


def test_a_party_may_lack_classes():
    frame = wine()
    tables = {str(k): frame[frame["target"] == k] for k in range(3)}
    model, problem = trained(tables, {"max_depth": 3})
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.score(encode(frame, problem.schema, "codes"), frame["target"]) > 0.95


def test_a_parameter_that_cannot_be_honoured_is_refused():
    with pytest.raises(UsageError, match=r"unknown decision_tree parameter.*'max_leaf_nodes'"):
        trained(parts(iris()), {"max_leaf_nodes": 4})


def test_stages_count_rows_that_have_come_to_a_leaf():
    problem = problem_of(*parts(wine()).values())
    with federation_of(parts(wine())) as federation:
        stages, _ = stages_and_model(federation, problem, "decision_tree", {})
    done = [stage.done for stage in stages]
    assert done == sorted(done)
    assert stages[-1].done == stages[-1].of == 178


@pytest.mark.parametrize("steps", [0, 2, None])
def test_a_killed_training_resumes_to_the_same_tree(tmp_path, steps):
    frame = numbers()
    whole, problem = trained(parts(frame))
    for count in (steps, None):
        with federation_of(parts(frame)) as base:
            federation = base.for_run("run", Journal(tmp_path / "journal.sqlite"), Budget())
            federation.problem = problem
            if count is not None:
                training = tree(federation, problem, Configuration("decision_tree", {}))
                for _ in range(count):
                    next(training)
            else:
                _, model = stages_and_model(federation, problem, "decision_tree", {})
            federation.journal.close()
    assert same(model, whole)


def test_parties_that_forget_or_come_and_go_leave_a_tree():
    frame = people(200, seed=1)
    expected, problem = trained(parts(frame))

    def forget(call, party, reply):
        if call % 3 == 0 and party == "party-2":
            federation.engine._inner._parties["party-2"].training = {}
        return reply

    federation = unreliable(parts(frame), forget)
    with federation:
        assert same(stages_and_model(federation, problem, "decision_tree", {})[1], expected)

    def late(call, party, reply):
        away = party == "party-3" and call % 5 == 0
        return Refusal("timeout", "too late") if away else reply

    with unreliable(parts(frame), late) as federation:
        _, model = stages_and_model(federation, problem, "decision_tree", {})
    assert np.isfinite(model.predict_proba(encode(frame, problem.schema, "codes"))).all()


def test_noise_that_drowns_the_rows_of_nodes_stops_the_training_with_a_sentence(tmp_path):
    with (
        federation_of(parts(iris())) as federation,
        pytest.raises(FederationError, match="the noise hides how many rows lie in the nodes"),
    ):
        cotune.tune(
            federation,
            "vote",
            learners=["decision_tree"],
            trials=4,
            privacy="masked",
            noise=2.0,
            weights="equal",
            run=tmp_path,
        )
    kept = cotune.resume(tmp_path, federation=federation_of(parts(iris())), train=False)
    assert kept.headline.words.endswith("noise was added, so it may be far from the true figure")
