from __future__ import annotations

import pytest

from cotune.errors import UsageError
from cotune.learners import learner
from cotune.space import Space
from tests.learners.rows import make_schema


def test_the_paper_space_is_the_appendix():
    """DASH, appendix A."""
    expected = {"tol": (1e-4, 1e-3), "C": (0.2, 1.0), "max_iter": (80, 100)}
    assert learner("logistic_regression").space("classification", "paper") == Space(expected)


def test_regression_is_refused_with_the_learners_that_can():
    chosen = learner("logistic_regression")
    able = "cannot do regression: choose among hgb, svm, mlp, random_forest"
    with pytest.raises(UsageError, match=able):
        chosen.space("regression")
    with pytest.raises(UsageError, match=able):
        chosen.defaults("regression")
    with pytest.raises(UsageError, match=able):
        chosen.estimator({}, task="regression", seed=0, schema=make_schema("regression"))
