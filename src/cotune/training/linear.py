"""Federated logistic regression: the same coefficients as of all rows in one place."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from cotune import learners
from cotune.data.encode import dense_width
from cotune.errors import UsageError
from cotune.party.train.linear import Slope
from cotune.party.train.losses import outputs_of
from cotune.training import Stage
from cotune.training.descent import Aim, descend

if TYPE_CHECKING:
    from cotune.coordinator.federation import Federation
    from cotune.party.task import Configuration
    from cotune.problem import Problem

#: With up to this many coefficients their whole curvature is told in each round (1 MB): Newton's
#: method takes about ten. With more, L-BFGS takes as many as scikit-learn's, often fifty.
MOST_WHOLE = 512


def linear(
    federation: Federation, problem: Problem, configuration: Configuration
) -> Generator[Stage, None, Any]:
    """A fitted `sklearn.linear_model.LogisticRegression`, trained by sums of gradients.

    The loss, its gradient and its curvature are sums over rows, so that the sum over the parties is
    what scikit-learn would compute on all rows: its multinomial loss, C, balanced class weights
    and free intercept. `tol` is scikit-learn's too; Newton's method goes on until the coefficients
    stand, which takes it a round or two more. `max_iter` counts rounds.
    """
    estimator = unfitted(problem, configuration, {"C", "tol", "max_iter", "class_weight"})
    classes = len(problem.schema.classes)
    shape = outputs_of("logistic", classes), dense_width(problem.schema) + 1
    aim = Aim(
        Slope("logistic", b"", balanced=is_balanced(estimator)),
        shape=shape,
        curvature="whole" if shape[0] * shape[1] <= MOST_WHOLE else "none",
        C=estimator.C,
        tol=estimator.tol,
        gain=0.0,
        most=estimator.max_iter,
    )
    coefficients, rounds = yield from descend(federation, aim)
    intercepts = coefficients[:, -1]
    if classes > 2:  # what all have in common changes nothing; scikit-learn's have mean 0
        intercepts = intercepts - intercepts.mean()
    estimator.classes_ = np.arange(classes)
    estimator.coef_ = coefficients[:, :-1].copy()
    estimator.intercept_ = intercepts.copy()
    estimator.n_features_in_ = shape[1] - 1
    estimator.n_iter_ = np.array([rounds], np.int32)
    return estimator


def unfitted(problem: Problem, configuration: Configuration, understood: set[str]) -> Any:
    """The learner's own estimator, if the configuration sets nothing that is not `understood`."""
    params = configuration.params
    estimator: Any = learners.learner(configuration.learner).estimator(
        params, task=problem.task, seed=problem.seed, schema=problem.schema
    )
    usual = type(estimator)().get_params()
    for name in params:
        if name not in understood and getattr(estimator, name) != usual[name]:
            raise UsageError(
                f"{configuration.learner} with {name}={getattr(estimator, name)!r} cannot be "
                f"trained by the federation: leave {name} at {usual[name]!r}"
            )
    return estimator


def is_balanced(estimator: Any) -> bool:
    if estimator.class_weight not in (None, "balanced"):
        raise UsageError(f"class_weight is {estimator.class_weight!r}: give None or 'balanced'")
    return bool(estimator.class_weight == "balanced")
