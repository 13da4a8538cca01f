from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from xgboost import XGBClassifier

from cotune.coordinator.journal import Journal
from cotune.data.encode import encode
from cotune.data.schema import Column, Schema
from cotune.errors import UsageError
from cotune.model.predictors import OfBooster
from cotune.party.task import Configuration
from cotune.party.train.bins import MOST_BINS
from cotune.problem import Budget
from cotune.protocol.wire import Refusal
from cotune.run.settings import Settings
from cotune.training import Stage
from cotune.training.bins import shared_bins
from cotune.training.histogram import histogram
from tests.parts import diabetes, federation_of, iris, parts, people, problem_of, unreliable, wine
from tests.training.trained import stages_and_model

LEARNERS = ["hgb", "xgboost", "lightgbm"]
FEW = {
    "hgb": {"max_iter": 8, "min_samples_leaf": 3},
    "xgboost": {"n_estimators": 8, "max_depth": 4},
    "lightgbm": {"n_estimators": 8, "min_child_samples": 3},
}


def trained(tables, learner="hgb", params=None, *, problem=None):
    """The model of a federation of tables, and the problem it solves."""
    if problem is None:
        problem = problem_of(*tables.values(), learners=(learner,))
    with federation_of(tables) as federation:
        params = FEW[learner] | (params or {})
        return stages_and_model(federation, problem, learner, params)[1], problem


def mixed(rows=240, labels="xyz") -> pd.DataFrame:
    """Missing values and categories that have to do with the target."""
    frame = people(rows, seed=1, cities="abcdefgh", labels=labels)
    frame["dose"] = np.random.default_rng(2).integers(0, 4, rows)
    known = frame["city"].isin(["b", "e", "g"]) | frame["rare"].notna() | (frame["age"] > 45)
    frame.loc[known & (frame["dose"] > 0), "target"] = labels[0]
    return frame


def numbers() -> pd.DataFrame:
    frame = mixed().drop(columns="target")
    likes = frame["city"].isin(["b", "e"]) * 50.0 + frame["age"].fillna(30)
    return frame.assign(target=1000 + likes + np.random.default_rng(3).normal(0, 5, len(frame)))


TABLES = {"binary": lambda: mixed(labels="xy"), "classes": mixed, "numbers": numbers}


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("kind", TABLES)
def test_the_trees_are_the_same_however_the_rows_lie_at_the_parties(learner, kind):
    frame = TABLES[kind]()
    model, problem = trained(parts(frame, 3), learner)
    shuffled = frame.sample(frac=1.0, random_state=5).reset_index(drop=True)
    uneven = {"a": shuffled[:11], "b": shuffled[11:60], "c": shuffled[60:61], "d": shuffled[61:]}
    for tables in ({"all": frame}, uneven):
        again, _ = trained(tables, learner, problem=problem)
        assert again.save_raw("json") == model.save_raw("json")


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("kind", TABLES)
def test_what_is_to_be_learnt_is_learnt(learner, kind):
    frame = TABLES[kind]()
    model, problem = trained(parts(frame), learner, {"learning_rate": 0.3})
    found = OfBooster(model, len(problem.schema.classes)).predict(
        encode(frame, problem.schema, "codes")
    )
    if kind == "numbers":
        assert np.sqrt(np.mean((found - frame["target"]) ** 2)) < 0.5 * frame["target"].std()
    else:
        right = np.array(problem.schema.classes)[found] == frame["target"]
        assert right.mean() > frame["target"].value_counts(normalize=True).max() + 0.05


def cross_validated(frame, learner, params, reference, score):
    """The federation's score and the reference's, on the same rows that were held out."""
    held = np.arange(len(frame)) % 3 == 0
    model, problem = trained(parts(frame[~held]), learner, params)
    X, Z = (encode(frame[rows], problem.schema, "codes") for rows in (~held, held))
    ours = OfBooster(model, len(problem.schema.classes)).predict(Z)
    theirs = reference.fit(X, frame.loc[~held, "target"]).predict(Z)
    y = frame.loc[held, "target"].to_numpy()
    return score(ours, y), score(theirs, y)


def accuracy(found, y):
    return float(np.mean(found == y))


def test_cancer_is_told_as_well_as_by_scikit_learn_on_all_rows():
    frame = load_breast_cancer(as_frame=True).frame
    pooled = HistGradientBoostingClassifier(max_iter=30, early_stopping=False)
    ours, theirs = cross_validated(
        frame, "hgb", {"max_iter": 30, "min_samples_leaf": 20}, pooled, accuracy
    )
    assert ours >= theirs - 0.02
    assert ours > 0.94


def test_digits_are_read_as_well_as_by_xgboost_on_all_rows():
    frame = load_digits(as_frame=True).frame.iloc[:900]
    pooled = XGBClassifier(n_estimators=8, max_depth=4, n_jobs=1)
    ours, theirs = cross_validated(frame, "xgboost", {}, pooled, accuracy)
    assert ours >= theirs - 0.03
    assert ours > 0.85


def test_diabetes_is_predicted_as_well_as_by_scikit_learn_on_all_rows():
    pooled = HistGradientBoostingRegressor(max_iter=30, early_stopping=False)
    ours, theirs = cross_validated(
        diabetes(),
        "hgb",
        {"max_iter": 30, "min_samples_leaf": 20},
        pooled,
        lambda found, y: float(np.sqrt(np.mean((found - y) ** 2))),
    )
    assert ours == pytest.approx(theirs, rel=0.05)


def described(model):
    return json.loads(model.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]


def depth_of(tree) -> int:
    depths = [0] * len(tree["parents"])
    for node, parent in enumerate(tree["parents"][1:], start=1):
        depths[node] = depths[parent] + 1
    return max(depths)


def leaves_of(tree) -> int:
    return tree["left_children"].count(-1)


@pytest.mark.parametrize(
    ("learner", "limit"),
    [
        ("hgb", {"max_depth": 2}),
        ("xgboost", {"max_depth": 2}),
        ("lightgbm", {"max_depth": 2}),
    ],
)
def test_trees_are_no_deeper_than_allowed(learner, limit):
    model, _ = trained(parts(mixed()), learner, limit)
    assert max(depth_of(tree) for tree in described(model)) == 2


@pytest.mark.parametrize(
    ("learner", "limit"), [("hgb", {"max_leaf_nodes": 5}), ("lightgbm", {"num_leaves": 5})]
)
def test_trees_have_no_more_leaves_than_allowed(learner, limit):
    model, _ = trained(parts(mixed()), learner, limit)
    assert max(leaves_of(tree) for tree in described(model)) == 5


@pytest.mark.parametrize(
    ("learner", "limit"),
    [("hgb", {"min_samples_leaf": 30}), ("lightgbm", {"min_child_samples": 30})],
)
def test_every_leaf_has_the_rows_it_must_have(learner, limit):
    frame = mixed(labels="xy")
    model, problem = trained(parts(frame), learner, limit)
    leaves = landed(model, frame, problem)
    for tree in range(leaves.shape[1]):
        assert np.unique(leaves[:, tree], return_counts=True)[1].min() >= 30
    assert any(leaves_of(tree) > 1 for tree in described(model))


def test_every_leaf_has_the_curvature_it_must_have():
    frame = mixed(labels="xy")
    model, problem = trained(parts(frame), "xgboost", {"min_child_weight": 6.0, "n_estimators": 1})
    share = problem.schema.class_rows[1] / len(frame)
    rows = np.unique(landed(model, frame, problem)[:, 0], return_counts=True)[1]
    assert len(rows) > 1
    assert rows.min() * share * (1 - share) >= 6.0 - 1e-3


def landed(model, frame, problem):
    """The leaf of every row in every tree."""
    from xgboost import DMatrix

    names, types = model.feature_names, model.feature_types
    X = encode(frame, problem.schema, "codes")
    rows = DMatrix(X, feature_names=names, feature_types=types, enable_categorical=True)
    return model.predict(rows, pred_leaf=True).reshape(len(frame), -1)


@pytest.mark.parametrize(
    ("learner", "more", "less"),
    [
        ("hgb", {"l2_regularization": 0.0}, {"l2_regularization": 50.0}),
        ("xgboost", {"reg_lambda": 0.0}, {"reg_lambda": 50.0}),
        ("xgboost", {"reg_alpha": 0.0}, {"reg_alpha": 5.0}),
        ("xgboost", {"gamma": 0.0}, {"gamma": 5.0}),
        ("lightgbm", {"reg_lambda": 0.0}, {"reg_lambda": 50.0}),
        ("lightgbm", {"reg_alpha": 0.0}, {"reg_alpha": 5.0}),
    ],
)
def test_penalties_make_the_trees_say_less(learner, more, less):
    frame = mixed(labels="xy")

    def said(params):
        model, problem = trained(parts(frame), learner, params)
        chances = OfBooster(model, 2).predict_proba(encode(frame, problem.schema, "codes"))
        return np.abs(chances[:, 1] - chances[:, 1].mean()).mean()

    assert said(less) < 0.9 * said(more)


@pytest.mark.parametrize(
    ("learner", "params"),
    [
        ("hgb", {"max_features": 0.5}),
        ("xgboost", {"colsample_bytree": 0.5}),
        ("xgboost", {"subsample": 0.5}),
        ("lightgbm", {"subsample": 0.5, "subsample_freq": 2}),
    ],
)
def test_what_is_drawn_is_drawn_again_alike(learner, params):
    tables = parts(mixed())
    first, problem = trained(tables, learner, params)
    again, _ = trained(tables, learner, params, problem=problem)
    whole, _ = trained(tables, learner, problem=problem)
    assert first.save_raw("json") == again.save_raw("json")
    assert first.save_raw("json") != whole.save_raw("json")


def test_lightgbm_draws_no_rows_unless_it_is_told_how_often():
    never = {"subsample": 0.5, "subsample_freq": 0}
    first, problem = trained(parts(mixed()), "lightgbm")
    drawn, _ = trained(parts(mixed()), "lightgbm", never, problem=problem)
    assert first.save_raw("json") == drawn.save_raw("json")


def test_a_party_may_lack_classes_and_values():
    frame = wine()
    tables = {str(k): frame[frame["target"] == k] for k in range(3)}
    tables["0"] = tables["0"].assign(alcohol=np.nan)
    model, problem = trained(tables, "hgb", {"max_iter": 20})
    whole = pd.concat(tables.values())
    found = OfBooster(model, 3).predict(encode(whole, problem.schema, "codes"))
    assert np.mean(found == whole["target"]) > 0.95


def test_a_parameter_that_cannot_be_honoured_is_refused():
    with pytest.raises(UsageError, match=r"unknown xgboost parameter.*'booster'"):
        trained(parts(iris()), "xgboost", {"booster": "dart"})


def test_stages_count_the_rounds_of_boosting():
    problem = problem_of(*parts(iris()).values(), learners=("hgb",))
    with federation_of(parts(iris())) as federation:
        stages, _ = stages_and_model(federation, problem, "hgb", {"max_iter": 3})
    assert stages == [Stage(1, 3), Stage(2, 3), Stage(3, 3)]


class Killed(Exception):
    pass


@pytest.mark.parametrize("learner", ["hgb", "lightgbm"])
@pytest.mark.parametrize("rounds", [0, 5, 10, 14])
def test_a_killed_training_resumes_to_the_same_model(learner, rounds, tmp_path):
    frame, iterations = mixed(), {"hgb": "max_iter", "lightgbm": "n_estimators"}[learner]
    params = FEW[learner] | {
        iterations: 15,
        "max_leaf_nodes" if learner == "hgb" else "num_leaves": 6,
    }
    whole, problem = trained(parts(frame), learner, params)
    path = tmp_path / "journal.sqlite"
    with federation_of(parts(frame)) as base:
        federation = base.for_run("run", Journal(path), Budget())
        federation.problem = problem
        steps = histogram(federation, problem, Configuration(learner, params))
        for _ in range(rounds):
            next(steps)
        spent = federation.ledger.rounds
        federation.journal.close()
    with federation_of(parts(frame)) as base:  # the parties have forgotten all, too
        federation = base.for_run("run", Journal(path), Budget())
        stages, model = stages_and_model(federation, problem, learner, params)
        asked_anew = federation.ledger.rounds - spent
    assert model.save_raw("json") == whole.save_raw("json")
    assert len(stages) == 15 - rounds // 10 * 10
    assert asked_anew > 0


def test_a_party_that_forgot_everything_takes_part_again():
    frame = mixed()
    expected, problem = trained(parts(frame))
    forgetting = []

    def forget(call, party, reply):
        if call in (9, 23, 24) and party == "party-2":
            forgetting.append(call)
            federation.engine._inner._parties["party-2"].training = {}
        return reply

    federation = unreliable(parts(frame), forget)
    with federation:
        _, model = stages_and_model(federation, problem, "hgb", FEW["hgb"])
    assert forgetting == [9, 23, 24]
    assert model.save_raw("json") == expected.save_raw("json")


def test_a_lost_reply_is_asked_for_again_and_nothing_is_counted_twice():
    frame = mixed()
    expected, problem = trained(parts(frame))

    def lose(call, party, reply):
        return None if call in (8, 15) and party == "party-1" else reply

    with unreliable(parts(frame), lose) as federation:
        _, model = stages_and_model(federation, problem, "hgb", FEW["hgb"])
    assert model.save_raw("json") == expected.save_raw("json")


def test_parties_that_come_and_go_leave_a_model_that_works():
    frame = pd.concat([mixed(labels="xy")] * 2, ignore_index=True)
    problem = problem_of(*parts(frame).values(), learners=("hgb",))

    def late(call, party, reply):
        away = party == "party-3" and call % 7 in (2, 3)
        return Refusal("timeout", "too late") if away else reply

    with unreliable(parts(frame), late) as federation:
        _, model = stages_and_model(federation, problem, "hgb", FEW["hgb"] | {"learning_rate": 0.3})
        assert any(f.code == "timeout" for f in federation.ledger.failures)
    found = OfBooster(model, 2).predict(encode(frame, problem.schema, "codes"))
    right = np.array(problem.schema.classes)[found] == frame["target"]
    assert right.mean() > frame["target"].value_counts(normalize=True).max() + 0.05


def binned(values, count=2):
    """The edges of one column that the parties share, and the bins of its values."""
    frame = pd.DataFrame({"x": values, "target": np.arange(len(values)) % 2})
    tables = parts(frame, count)
    problem = problem_of(*tables.values(), learners=("hgb",), folds=2, task="classification")
    with federation_of(tables) as federation:
        federation.problem = problem
        bins = shared_bins(federation, problem, codes_are_numbers=False)
        rounds = federation.ledger.rounds
    return bins.edges[0], bins.of(np.array(values, dtype=float)[:, None])[:, 0], rounds


single_floats = st.floats(-(2.0**100), 2.0**100, width=32)


@settings(max_examples=30, deadline=None)
@given(st.lists(single_floats, min_size=1, max_size=12, unique=True))
def test_few_values_are_all_told_apart(values):
    repeated = values * 5
    edges, found, _ = binned(repeated)
    assert np.all(np.diff(edges) > 0)
    order = np.argsort(values)
    np.testing.assert_array_equal(found[order], np.arange(len(values)))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["normal", "lognormal", "spike", "integers"]))
def test_many_values_are_shared_out_evenly(seed, kind):
    rng = np.random.default_rng(seed)
    values = {
        "normal": rng.normal(1e3, 5.0, 3000),
        "lognormal": np.exp(rng.normal(0, 6, 3000)),
        "spike": np.where(rng.random(3000) < 0.6, 0.0, rng.random(3000)),
        "integers": rng.poisson(900, 3000).astype(float),
    }[kind]
    edges, found, rounds = binned(values)
    assert np.all(np.diff(edges) > 0)
    assert len(edges) < MOST_BINS
    assert rounds <= 5
    share = len(values) / MOST_BINS
    for bin_ in np.unique(found):
        inside = np.float32(values[found == bin_])
        assert len(inside) <= 2.5 * share or len(np.unique(inside)) == 1


@pytest.mark.parametrize("step", [1.0, 0.1, 1000.0])
def test_whole_numbers_and_decimals_are_found_in_two_rounds(step):
    values = np.tile(np.arange(-50, 100) * step, 20)
    edges, found, rounds = binned(values)
    assert len(edges) == 149
    assert len(np.unique(found)) == 150
    assert rounds == 2
    np.testing.assert_allclose(edges, (np.arange(-50, 99) + 0.5) * step, atol=0.4 * step)


def test_a_column_without_values_has_one_bin():
    edges, found, _ = binned([np.nan] * 8)
    assert len(edges) == 0
    assert set(found) == {1}


def test_wide_columns_of_categories_have_a_bin_for_each_that_trees_know():
    column = Column("x", "categorical", tuple(map(str, range(400))))
    schema = Schema("y", "classification", (column,), ("a", "b"))
    problem = Settings(learners=("hgb",)).problem(schema)
    assert shared_bins(None, problem, codes_are_numbers=False).sizes == (255,)
