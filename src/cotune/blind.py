"""The figure of a model that knows the class shares, or the target's mean, and no column."""

from __future__ import annotations

import numpy as np

from cotune.data.schema import Schema
from cotune.problem import Problem
from cotune.trial import HeldOut


def blind_loss(problem: Problem) -> float:
    """The loss of the best constant prediction, from the schema.

    The mean absolute error of the target's mean is not known, but at most the target's deviation:
    that is taken, so a model that is a little better may still be no better than the mean.
    """
    schema, name = problem.schema, problem.metric_name
    if problem.task == "regression":
        return 1.0 if name == "r2" else schema.target_scale
    if name == "log_loss":
        return entropy(schema)
    if name == "roc_auc":
        return 0.5
    shares = _shares(schema)
    largest = float(shares.max())
    if name == "accuracy":
        return 1.0 - largest
    recalled = 2.0 * largest / (1.0 + largest) if name == "f1" else 1.0
    return 1.0 - recalled / len(shares)


def entropy(schema: Schema) -> float:
    """The log loss of the class shares as probabilities."""
    shares = _shares(schema)
    return float(-(shares @ np.log(shares)))


def _shares(schema: Schema) -> np.ndarray:
    """Of the classes that have rows."""
    known = schema.class_rows or (1,) * len(schema.classes)
    rows = np.array([count for count in known if count], dtype=float)
    shares: np.ndarray = rows / rows.sum()
    return shares


def sees_nothing(problem: Problem, found: HeldOut) -> str:
    """Why a model is no better than that, in a sentence; empty if it is, by a standard error."""
    blind = blind_loss(problem)
    if found.loss < blind - found.error:
        return ""
    value, what = problem.metric.value, no_better_than(problem)
    return (
        f"its model is no better than {what}: {value(found.loss):.4g} +- {found.error:.2g} on the "
        f"rows set aside, where that has {value(blind):.4g}"
    )


def no_better_than(problem: Problem) -> str:
    """What a constant prediction is made of."""
    return "the target's mean" if problem.task == "regression" else "the class shares"
