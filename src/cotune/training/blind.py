"""The figure of a model that knows the class shares, or the target's mean, and no column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cotune.data.schema import Schema
from cotune.problem import Problem
from cotune.trial import HeldOut


def blind_loss(problem: Problem, class_rows: Sequence[int] = ()) -> float:
    """The loss of the best constant prediction, from the schema.

    With `class_rows` it is that on rows of which there are so many of every class: those that a
    figure counts may be of fewer classes. The mean absolute error of the target's mean is not
    known, but at most the target's deviation: that is taken.
    """
    schema, name = problem.schema, problem.metric_name
    if problem.task == "regression":
        return 1.0 if name == "r2" else schema.target_scale
    if name == "log_loss":
        return entropy(schema)
    if name == "roc_auc":
        return 0.5
    shares = _shares(class_rows if any(class_rows) else _known(schema))
    largest = float(shares.max())
    if name == "accuracy":
        return 1.0 - largest
    recalled = 2.0 * largest / (1.0 + largest) if name == "f1" else 1.0
    return 1.0 - recalled / len(shares)


def entropy(schema: Schema) -> float:
    """The log loss of the class shares as probabilities."""
    shares = _shares(_known(schema))
    return float(-(shares @ np.log(shares)))


def _known(schema: Schema) -> Sequence[int]:
    return schema.class_rows or (1,) * len(schema.classes)


def _shares(class_rows: Sequence[int]) -> np.ndarray:
    """Of the classes that have rows."""
    rows = np.array([count for count in class_rows if count], dtype=float)
    shares: np.ndarray = rows / rows.sum()
    return shares


def sees_nothing(problem: Problem, found: HeldOut) -> str:
    """Why a model is no better than that, in a sentence; empty if it is, by a standard error."""
    verdict = against_blind(problem, found)
    if not verdict:
        return ""
    value = problem.metric.value
    where = "in cross-validation" if found.folds else "on the rows set aside"
    most = "at most " if problem.metric_name == "mae" else ""
    return (
        f"its model is {verdict}: {value(found.loss):.4g} +- {found.error:.2g} {where}, where that "
        f"has {most}{value(_blind(problem, found)):.4g}"
    )


def against_blind(problem: Problem, found: HeldOut) -> str:
    """That a model is not better than that, in words; empty if it is, by a standard error."""
    blind = _blind(problem, found)
    if found.loss < blind - found.error:
        return ""
    how = "not clearly better" if found.loss < blind else "no better"
    return f"{how} than {what_is_blind(problem)}"


def what_is_blind(problem: Problem) -> str:
    """What a constant prediction is made of."""
    return "the target's mean" if problem.task == "regression" else "the class shares"


def _blind(problem: Problem, found: HeldOut) -> float:
    return blind_loss(problem) if found.blind is None else found.blind
