"""Decision trees and forests of scikit-learn; category codes are read as numbers."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from cotune.learners.contract import Estimator
from cotune.learners.declared import DeclaredLearner, Only, table

if TYPE_CHECKING:
    from cotune.data.schema import Schema

_PAPER_TREE = table(
    max_depth=(4, 20),
    min_samples_split=(2, 6),
    min_samples_leaf=(1, 3),
)
_WIDE_TREE = table(
    max_depth=(2, 32, "log"),
    min_samples_split=(2, 32, "log"),
    min_samples_leaf=(1, 32, "log"),
    max_features=(0.1, 1.0),
    criterion=Only("classification", ["gini", "entropy"]),
)
_TREE_BASELINE = table(max_depth=None, min_samples_split=2, min_samples_leaf=1)


class DecisionTree(DeclaredLearner):
    """One tree. Paper space: DASH, appendix A, "DecisionTree"."""

    name = "decision_tree"
    features = "codes"
    trained_by = "tree"
    classifier = "sklearn.tree:DecisionTreeClassifier"
    regressor = "sklearn.tree:DecisionTreeRegressor"
    paper = _PAPER_TREE
    # Pruning costs are impurities: bounded for classes, in squared units of the target otherwise.
    wide = table(**_WIDE_TREE, ccp_alpha=Only("classification", (1e-5, 1e-1, "log")))
    baseline = table(**_TREE_BASELINE, max_features=1.0, ccp_alpha=Only("classification", 0.0))


class ExtraTree(DecisionTree):
    """One tree with random thresholds. Paper space: DASH, appendix A, "ExtraTree"."""

    name = "extra_tree"
    classifier = "sklearn.tree:ExtraTreeClassifier"
    regressor = "sklearn.tree:ExtraTreeRegressor"


class RandomForest(DeclaredLearner):
    """Trees on resampled rows. Paper space: DASH, appendix A, "RandomForest"."""

    name = "random_forest"
    features = "codes"
    trained_by = "forest"
    classifier = "sklearn.ensemble:RandomForestClassifier"
    regressor = "sklearn.ensemble:RandomForestRegressor"
    paper = table(n_estimators=(50, 300), **_PAPER_TREE)
    wide = table(n_estimators=(20, 500, "log"), **_WIDE_TREE)
    baseline = table(n_estimators=100, **_TREE_BASELINE)
    iterations = "n_estimators"

    def settings(self, seed: int, schema: Schema) -> dict[str, Any]:
        return {"random_state": seed, "n_jobs": 1}

    def truncated(self, estimator: Any, count: int) -> Estimator | None:
        view: Estimator = copy(estimator)
        vars(view).update(estimators_=estimator.estimators_[:count], n_estimators=count)
        return view


class ExtraTrees(RandomForest):
    """Trees with random thresholds.

    No paper searches it: its paper space is DASH's for "ExtraTree", with the library's 100 trees.
    """

    name = "extra_trees"
    classifier = "sklearn.ensemble:ExtraTreesClassifier"
    regressor = "sklearn.ensemble:ExtraTreesRegressor"
    paper = table(n_estimators=100, **_PAPER_TREE)
