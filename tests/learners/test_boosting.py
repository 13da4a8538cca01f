from __future__ import annotations

import numpy as np
import pytest

from cotune.errors import UsageError
from cotune.learners import learner
from cotune.space import Space
from tests.learners.rows import KINDS, make_rows, make_schema, task_of

PAPER = {
    # FLoRA, appendix D.2.1
    "hgb": {
        "max_iter": (10, 200),
        "learning_rate": (1e-3, 1.0, "log"),
        "min_samples_leaf": (1, 40),
        "l2_regularization": (1e-4, 1.0, "log"),
    },
    # DASH, appendix A
    "xgboost": {
        "learning_rate": (0.1, 0.3),
        "min_child_weight": (1, 3),
        "max_depth": (3, 12),
    },
    "lightgbm": {
        "subsample": (0.5, 1.0),
        "colsample_bytree": (0.5, 1.0),
        "max_depth": (3, 12),
        "min_child_samples": (20, 30),
        "num_leaves": (20, 80),
    },
}


def build(name, params):
    return learner(name).estimator(params, task="classification", seed=0, schema=make_schema())


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_paper_space_is_the_appendix(name, task):
    assert learner(name).space(task, "paper") == Space(PAPER[name])


def test_the_untuned_baseline_is_the_one_of_flora():
    flora = {"max_iter": 100, "learning_rate": 0.1, "min_samples_leaf": 20, "l2_regularization": 0}
    library = {"max_leaf_nodes": 31, "max_features": 1.0}  # what the paper leaves open
    assert learner("hgb").defaults("classification") == flora | library


def test_hgb_never_stops_early():
    model = build("hgb", {"max_iter": 3})
    assert model.get_params()["early_stopping"] is False
    with pytest.raises(UsageError, match="cotune sets the hgb parameter 'early_stopping'"):
        build("hgb", {"early_stopping": True})


def test_hgb_reads_codes_as_categories():
    X, y = make_rows(learner("hgb"), "binary")
    model = build("hgb", {"max_iter": 3}).fit(X, y)
    np.testing.assert_array_equal(model.is_categorical_, [False, False, False, True])


def test_xgboost_reads_codes_as_categories():
    X, y = make_rows(learner("xgboost"), "binary")
    model = build("xgboost", {"n_estimators": 3}).fit(X, y)
    assert model.get_booster().feature_types == ["q", "q", "q", "c"]


def test_lightgbm_reads_codes_as_categories():
    X, y = make_rows(learner("lightgbm"), "binary")
    model = build("lightgbm", {"n_estimators": 3}).fit(X, y)
    ranges = [info["values"] for info in model.booster_.dump_model()["feature_infos"].values()]
    assert [bool(values) for values in ranges] == [False, False, False, True]


def test_lightgbm_draws_rows_in_the_wide_space():
    sample = learner("lightgbm").space("classification").sample(np.random.default_rng(0))
    assert sample["subsample_freq"] == 1


def test_lightgbm_seeds_change_the_drawn_rows():
    chosen = learner("lightgbm")
    X, y = make_rows(chosen, "regression")
    params = {"n_estimators": 5, "subsample": 0.5, "subsample_freq": 1}
    one, two = (
        chosen.estimator(params, task="regression", seed=seed, schema=make_schema("regression"))
        for seed in (1, 2)
    )
    assert not np.array_equal(one.fit(X, y).predict(X), two.fit(X, y).predict(X))


@pytest.mark.parametrize("name", PAPER)
def test_a_table_without_categories_is_fitted(name):
    schema = make_schema()
    numeric = type(schema)(schema.target, schema.task, schema.columns[:3], schema.classes)
    X, y = make_rows(learner(name), "binary")
    model = learner(name).estimator({}, task="classification", seed=0, schema=numeric)
    assert model.fit(X[:, :3], y).predict(X[:, :3]).shape == y.shape


SUBSAMPLED = {
    "hgb": {"max_iter": 12, "max_features": 0.5},
    "xgboost": {"n_estimators": 12, "subsample": 0.6, "colsample_bytree": 0.6},
    "lightgbm": {
        "n_estimators": 12,
        "subsample": 0.6,
        "subsample_freq": 1,
        "colsample_bytree": 0.6,
        "min_child_samples": 5,
    },
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SUBSAMPLED)
@pytest.mark.parametrize("count", [1, 5, 11])
def test_the_first_rounds_of_a_fit_are_a_fit_with_fewer_rounds(name, kind, count):
    chosen = learner(name)
    X, y = make_rows(chosen, kind)

    def fitted(params):
        task, schema = task_of(kind), make_schema(kind)
        return chosen.estimator(params, task=task, seed=3, schema=schema).fit(X, y)

    view = chosen.truncated(fitted(SUBSAMPLED[name]), count)
    fewer = fitted(SUBSAMPLED[name] | {chosen.iterations: count})
    np.testing.assert_array_equal(view.predict(X), fewer.predict(X))
    if kind != "regression":
        np.testing.assert_array_equal(view.predict_proba(X), fewer.predict_proba(X))


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("xgboost", {"booster": "dart"}),
        ("lightgbm", {"boosting_type": "dart"}),
        ("lightgbm", {"subsample": 0.5, "subsample_freq": 1, "min_child_samples": 28}),
    ],
    ids=["xgboost dart", "lightgbm dart", "rounds without a tree"],
)
def test_a_fit_that_cannot_tell_shows_nothing(name, params):
    X, y = make_rows(learner(name), "binary")
    model = build(name, params | {"n_estimators": 40}).fit(X, y)
    assert learner(name).truncated(model, 5) is None
