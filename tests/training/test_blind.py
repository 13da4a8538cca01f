"""The figures of predictions that use no column."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from cotune.data.encode import encode_target
from cotune.protocol.tally import statistic, vectors
from cotune.training.blind import blind_loss, sees_nothing
from cotune.training.folds import scores_of
from cotune.trial import HeldOut
from tests.parts import diabetes, people, problem_of
from tests.training.test_watch import unequal


def constant(name: str, y: np.ndarray) -> float:
    """scikit-learn's figure of the class shares, or of the mean."""
    if name in ("rmse", "mae", "r2"):
        mean = np.full(len(y), y.mean())
        function = {
            "rmse": metrics.root_mean_squared_error,
            "mae": metrics.mean_absolute_error,
            "r2": metrics.r2_score,
        }[name]
        return float(function(y, mean))
    names, rows = np.unique(y, return_counts=True)
    shares = np.tile(rows / len(y), (len(y), 1))
    if name == "log_loss":
        return float(metrics.log_loss(y, shares))
    if name == "roc_auc":
        return float(metrics.roc_auc_score(y, shares, multi_class="ovr"))
    largest = np.full(len(y), names[rows.argmax()])
    function = {
        "balanced_accuracy": metrics.balanced_accuracy_score,
        "accuracy": metrics.accuracy_score,
        "f1": lambda y, predicted: metrics.f1_score(y, predicted, average="macro"),
    }[name]
    return float(function(y, largest))


@pytest.mark.parametrize(
    "name", ["balanced_accuracy", "accuracy", "f1", "log_loss", "roc_auc", "rmse", "mae", "r2"]
)
def test_the_figure_of_a_constant_is_scikit_learns(name):
    numbers = name in ("rmse", "mae", "r2")
    frame = diabetes() if numbers else unequal()
    problem = problem_of(frame, metric=name)
    found = problem.metric.value(blind_loss(problem))
    exact = constant(name, frame["target"].to_numpy())
    if name == "mae":
        assert exact <= found <= 1.5 * exact
    else:
        assert found == pytest.approx(exact, rel=1e-5, abs=1e-5)


def test_a_model_is_better_than_a_constant_by_more_than_its_standard_error():
    problem = problem_of(unequal())  # balanced accuracy of three classes: 1/3
    assert not sees_nothing(problem, HeldOut(0.60, 100, 3, error=0.05))
    assert sees_nothing(problem, HeldOut(0.64, 100, 3, error=0.05)) == (
        "its model is not clearly better than the class shares: 0.36 +- 0.05 on the rows set "
        "aside, where that has 0.3333"
    )
    assert "is no better than the class shares: 0.33 +-" in sees_nothing(
        problem, HeldOut(0.67, 100, 3, error=0.05, folds=3)
    )
    numbers = problem_of(diabetes(), metric="r2")
    assert "no better than the target's mean" in sees_nothing(
        numbers, HeldOut(1.5, 100, 3, error=0.05)
    )


def test_of_the_mean_absolute_error_a_bound_is_said():
    problem = problem_of(diabetes(), metric="mae")
    most = problem.schema.target_scale
    said = sees_nothing(problem, HeldOut(0.99 * most, 100, 3, error=0.05 * most))
    assert "not clearly better than the target's mean" in said
    assert said.endswith(f"where that has at most {most:.4g}")
    assert not sees_nothing(problem, HeldOut(0.9 * most, 100, 3, error=0.05 * most))


@pytest.mark.parametrize("name", ["balanced_accuracy", "accuracy", "f1"])
def test_a_constant_is_compared_on_the_classes_that_the_figure_counts(name):
    """The third class has four rows, which every party leaves out."""
    frame = people(400, labels="xy")
    frame.loc[:3, "target"] = "z"
    problem = problem_of(frame, metric=name)
    summed = statistic(problem)
    y = encode_target(frame, problem.schema)
    constant = np.full(len(y), np.bincount(y).argmax())
    kept = np.array([True, True, False])
    halves = [summed.tally(y[rows], constant[rows], kept) for rows in np.split(np.arange(400), 2)]
    totals = {name: np.array(found) for name, found in vectors(problem, halves).items()}
    found = scores_of(problem, totals, 3).held_out
    assert found.left_out == 4
    assert found.blind == pytest.approx(found.loss)
    assert "no better than the class shares" in sees_nothing(problem, found)
