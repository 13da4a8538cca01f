from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from cotune.learners.tolerant import (
    TolerantBoostingRegressor,
    TolerantPerceptronClassifier,
    TolerantPerceptronRegressor,
)

SETTINGS = {"early_stopping": True, "batch_size": 256, "max_iter": 2, "random_state": 0}


def rows(n):
    return np.random.default_rng(0).normal(size=(n, 3))


@pytest.fixture(autouse=True)
def no_clipping_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("error", message="Got `batch_size`")
        yield


@pytest.mark.parametrize(
    "y",
    [[0, 1], [0] * 50 + [1], [0, 1, 2] * 4, [0, 1] * 60],
    ids=["two rows", "a class of one", "fewer held out than classes", "enough"],
)
def test_a_classifier_is_fitted_to_any_number_of_rows(y):
    X = rows(len(y))
    model = TolerantPerceptronClassifier(**SETTINGS).fit(X, np.array(y))
    assert model.predict(X).shape == (len(y),)
    assert {name: model.get_params()[name] for name in SETTINGS} == SETTINGS


@pytest.mark.parametrize("n", [1, 2, 10, 11, 120])
def test_a_regressor_is_fitted_to_any_number_of_rows(n):
    X = rows(n)
    assert TolerantPerceptronRegressor(**SETTINGS).fit(X, X[:, 0]).predict(X).shape == (n,)


def test_early_stopping_is_scikit_learns_where_the_rows_allow_it():
    X = rows(200)
    y = (X[:, 0] > 0).astype(int)
    settings = {**SETTINGS, "batch_size": "auto", "max_iter": 30}
    ours = TolerantPerceptronClassifier(**settings).fit(X, y)
    theirs = MLPClassifier(**settings).fit(X, y)
    assert ours.validation_scores_ == theirs.validation_scores_
    np.testing.assert_array_equal(ours.predict_proba(X), theirs.predict_proba(X))


def test_boosting_ignores_a_column_without_values():
    X = rows(100)
    y = X[:, 0] + X[:, 2]
    empty = X.copy()
    empty[:, 1] = np.nan
    model = TolerantBoostingRegressor(max_iter=5).fit(empty, y)
    np.testing.assert_array_equal(model.predict(X), model.predict(empty))
    np.testing.assert_array_equal(
        model.predict(X),
        HistGradientBoostingRegressor(max_iter=5).fit(X[:, [0, 2]], y).predict(X[:, [0, 2]]),
    )
