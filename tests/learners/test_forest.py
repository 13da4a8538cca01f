from __future__ import annotations

import numpy as np
import pytest

from cotune.learners import learner
from cotune.space import Space
from tests.learners.rows import KINDS, make_rows, make_schema, task_of

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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["random_forest", "extra_trees"])
def test_the_first_trees_of_a_forest_are_a_smaller_forest(name, kind):
    chosen = learner(name)
    X, y = make_rows(chosen, kind)

    def fitted(trees):
        params = {"n_estimators": trees, "max_features": 0.5}
        schema = make_schema(kind)
        return chosen.estimator(params, task=task_of(kind), seed=3, schema=schema).fit(X, y)

    forest = fitted(12)
    view = chosen.truncated(forest, 5)
    np.testing.assert_array_equal(view.predict(X), fitted(5).predict(X))
    if kind != "regression":
        np.testing.assert_array_equal(view.predict_proba(X), fitted(5).predict_proba(X))
    assert len(forest.estimators_) == 12


def test_a_single_tree_has_no_iterations():
    assert learner("decision_tree").iterations is None
    with pytest.raises(NotImplementedError, match="does not count iterations"):
        learner("decision_tree").truncated(None, 1)
