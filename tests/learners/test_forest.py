from __future__ import annotations

import pytest

from cotune.learners import learner
from cotune.space import Space

# DASH, appendix A
TREE = {"max_depth": (4, 20), "min_samples_split": (2, 6), "min_samples_leaf": (1, 3)}
PAPER = {
    "random_forest": {"n_estimators": (50, 300), **TREE},
    "decision_tree": TREE,
    "extra_tree": TREE,
    "extra_trees": {"n_estimators": 100, **TREE},
}


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_paper_space_is_the_appendix(name, task):
    assert learner(name).space(task, "paper") == Space(PAPER[name])


@pytest.mark.parametrize("name", PAPER)
def test_the_criterion_is_searched_for_classes_only(name):
    assert "criterion" in learner(name).space("classification").names
    assert "criterion" not in learner(name).space("regression").names


def test_the_untuned_forest_has_a_hundred_unlimited_trees():
    assert learner("random_forest").defaults("regression") == {
        "n_estimators": 100,
        "max_depth": None,
        "min_samples_split": 2,
        "min_samples_leaf": 1,
    }
