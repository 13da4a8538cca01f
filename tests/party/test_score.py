from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from cotune.data.schema import Schema
from cotune.party.score import NotFinite, log_loss, roc_auc, score
from cotune.problem import Problem

RANDOM = np.random.default_rng(0)


def stated(metric, classes="abc"):
    task = "regression" if metric in ("rmse", "mae", "r2") else "classification"
    schema = Schema("t", task, (), classes=tuple(classes), target_scale=0.001)
    return Problem(schema, (), {}, metric)


class Fixed:
    """Predicts what it was given."""

    def __init__(self, predicted=None, probabilities=None):
        self._predicted = predicted
        if probabilities is not None:
            self.predict_proba = lambda X: probabilities

    def predict(self, X):
        return self._predicted


class Deciding:
    def __init__(self, decision):
        self._decision = decision

    def decision_function(self, X):
        return self._decision


def probabilities(rows, classes):
    raw = RANDOM.random((rows, classes))
    return raw / raw.sum(axis=1, keepdims=True)


def test_log_loss_is_scikit_learns():
    for classes in (2, 3):
        y, p = np.arange(60) % classes, probabilities(60, classes)
        assert log_loss(y, p) == pytest.approx(metrics.log_loss(y, p), abs=1e-12)


def test_a_probability_of_zero_costs_no_more_than_the_worst_loss():
    loss = log_loss(np.array([0]), np.array([[0.0, 1.0]]))
    assert 36 < loss < stated("log_loss").metric.worst(stated("log_loss").schema)


def test_roc_auc_is_scikit_learns_one_vs_rest():
    y, p = np.arange(60) % 3, probabilities(60, 3)
    expected = metrics.roc_auc_score(y, p, multi_class="ovr", average="macro")
    assert roc_auc(y, p) == pytest.approx(expected, abs=1e-12)
    y, p = np.arange(60) % 2, probabilities(60, 2)
    assert roc_auc(y, p) == pytest.approx(metrics.roc_auc_score(y, p[:, 1]), abs=1e-12)


def test_a_class_without_rows_does_not_count_in_roc_auc():
    y = np.array([0, 0, 2, 2])
    p = np.array([[0.9, 0.0, 0.1], [0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.2, 0.1, 0.7]])
    assert roc_auc(y, p) == 1.0


def test_roc_auc_of_one_class_is_undefined():
    assert np.isnan(roc_auc(np.zeros(4, dtype=int), probabilities(4, 3)))


def test_a_class_that_was_not_there_to_learn_has_probability_zero():
    estimator = Fixed(probabilities=np.array([[0.25, 0.75]] * 2))
    present, X = np.array([0, 2]), np.zeros((2, 1))
    known = score(stated("log_loss"), estimator, present, X, np.array([2, 2]))
    assert known == pytest.approx(-np.log(0.75))
    assert score(stated("log_loss"), estimator, present, X, np.array([1, 1])) > 36


def test_predictions_are_read_in_the_schemas_codes():
    estimator = Fixed(predicted=np.array([0, 1, 1]))
    y = np.array([0, 2, 2])
    assert score(stated("accuracy"), estimator, np.array([0, 2]), np.zeros((3, 1)), y) == 0.0


@pytest.mark.parametrize("metric", ["log_loss", "roc_auc"])
def test_a_learner_without_probabilities_is_read_by_its_decisions(metric):
    y = np.array([0, 1, 1, 0])
    two = Deciding(np.array([-3.0, 4.0, 3.0, -2.0]))
    three = Deciding(np.array([[5.0, 0, 0], [0, 5.0, 0], [0, 5.0, 0], [5.0, 0, 0]]))
    X = np.zeros((4, 1))
    assert score(stated(metric, "ab"), two, np.array([0, 1]), X, y) < 0.1
    assert score(stated(metric), three, np.array([0, 1, 2]), X, y) < 0.1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_predictions_that_are_not_finite_are_an_error(value):
    y, X = np.array([0, 1]), np.zeros((2, 1))
    with pytest.raises(NotFinite):
        score(stated("rmse"), Fixed(np.array([0.0, value])), np.empty(0), X, y)
    bad = np.array([[0.5, 0.5], [value, 0.5]])
    with pytest.raises(NotFinite):
        score(stated("log_loss"), Fixed(probabilities=bad), np.array([0, 1]), X, y)


@pytest.mark.parametrize("metric", ["rmse", "mae", "r2"])
def test_the_loss_of_a_regression_has_a_bound(metric):
    problem = stated(metric)
    loss = score(
        problem, Fixed(np.array([1e9, -1e9])), np.empty(0), np.zeros((2, 1)), np.array([0.0, 1.0])
    )
    assert loss == problem.metric.worst(problem.schema)
