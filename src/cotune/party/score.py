"""What a fitted estimator predicts on test rows, and its loss there, for every metric."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import metrics

from cotune.model.predictors import probabilities
from cotune.problem import Problem
from cotune.protocol.tally import row_log_losses


class NotFinite(Exception):
    """The estimator predicted NaN or infinity."""


def score(
    problem: Problem, estimator: Any, present: np.ndarray, X: np.ndarray, y: np.ndarray
) -> float:
    """The loss on rows X, y. `present` are the classes the estimator was fitted on, in its order.

    NaN where a fold does not define the metric: a ROC curve needs two classes.
    """
    return loss(problem, y, predictions(problem, estimator, present, X))


def predictions(problem: Problem, estimator: Any, present: np.ndarray, X: np.ndarray) -> np.ndarray:
    """What the metric looks at: scores of all classes, codes of classes, or numbers."""
    if problem.metric_name in ("log_loss", "roc_auc"):
        return _class_scores(estimator, X, present, len(problem.schema.classes))
    predicted = finite(estimator.predict(X))
    if problem.task == "classification":
        predicted = present[predicted.astype(int)]
    return predicted


def loss(problem: Problem, y: np.ndarray, predicted: np.ndarray) -> float:
    """The loss of predictions; NaN where the rows do not define the metric."""
    found = float(_LOSSES[problem.metric_name](y, predicted))
    worst = problem.metric.worst(problem.schema)
    return worst if found > worst else found


_LOSSES: dict[str, Any] = {
    "log_loss": lambda y, scores: log_loss(y, scores),
    "roc_auc": lambda y, scores: 1.0 - roc_auc(y, scores),
    "balanced_accuracy": lambda y, p: 1.0 - balanced_accuracy(y, p),
    "accuracy": lambda y, p: 1.0 - np.mean(y == p),
    "f1": lambda y, p: 1.0 - metrics.f1_score(y, p, average="macro", zero_division=0.0),
    "rmse": metrics.root_mean_squared_error,
    "mae": metrics.mean_absolute_error,
    "r2": lambda y, p: 1.0 - metrics.r2_score(y, p),
}


def balanced_accuracy(y: np.ndarray, predicted: np.ndarray) -> float:
    """scikit-learn's figure without its checks, which take longer than predicting a small fold."""
    rows = np.bincount(y)
    right = np.bincount(y[y == predicted], minlength=len(rows))
    return float(np.mean(right[rows > 0] / rows[rows > 0]))


def _class_scores(estimator: Any, X: np.ndarray, present: np.ndarray, classes: int) -> np.ndarray:
    """One column per class of the schema; a class that was not there to learn scores lowest."""
    full = np.zeros((len(X), classes))
    full[:, present] = finite(probabilities(estimator, X))
    return full


def log_loss(y: np.ndarray, scores: np.ndarray) -> float:
    return float(row_log_losses(y, scores).mean())


def roc_auc(y: np.ndarray, scores: np.ndarray) -> float:
    """One-vs-rest, averaged over the classes that have rows of their own and rows of others."""
    labels = np.unique(y)
    if len(labels) < 2:
        return float("nan")
    if scores.shape[1] == 2:
        labels = labels[1:]
    return float(np.mean([metrics.roc_auc_score(y == c, scores[:, c]) for c in labels]))


def finite(values: np.ndarray) -> np.ndarray:
    if not np.all(np.isfinite(values)):
        raise NotFinite
    return values
