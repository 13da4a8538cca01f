from __future__ import annotations

import pytest

from cotune.learners import learner
from cotune.space import Space
from tests.learners.rows import make_schema

# FLoRA, appendix D.2.2
PAPER = {"C": (0.01, 1000.0, "log"), "gamma": (1e-5, 10.0, "log"), "tol": (1e-5, 1e-1, "log")}
BASELINE = {"C": 1.0, "gamma": 0.1, "tol": 1e-3}


@pytest.mark.parametrize(
    ("task", "fixed"), [("classification", {"class_weight": "balanced"}), ("regression", {})]
)
def test_the_paper_space_and_baseline_are_the_appendix(task, fixed):
    assert learner("svm").space(task, "paper") == Space({**PAPER, **fixed})
    assert learner("svm").defaults(task) == {**BASELINE, **fixed}


def test_the_width_of_the_tube_is_searched_for_regression_only():
    assert "epsilon" in learner("svm").space("regression").names
    assert "epsilon" not in learner("svm").space("classification").names


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_kernel_is_rbf(task):
    model = learner("svm").estimator({}, task=task, seed=0, schema=make_schema())
    assert model.get_params()["kernel"] == "rbf"
