"""Gradient boosted trees: scikit-learn's histogram version, XGBoost and LightGBM."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import partial
from itertools import compress, count
from typing import TYPE_CHECKING, Any

from cotune.learners.contract import Estimator
from cotune.learners.declared import DeclaredLearner, categorical, table

if TYPE_CHECKING:
    from cotune.data.schema import Schema

_SHARED = table(
    n_estimators=(20, 500, "log"),
    learning_rate=(1e-3, 1.0, "log"),
    subsample=(0.5, 1.0),
    colsample_bytree=(0.5, 1.0),
    reg_lambda=(1e-6, 100.0, "log"),
)


class HistGradientBoosting(DeclaredLearner):
    """scikit-learn's histogram gradient boosting, with native categories.

    Paper space and baseline: FLoRA, appendix D.2.1. Early stopping is off: scikit-learn would
    switch it on above 10 000 rows, and parties of different size would then tune different things.
    """

    name = "hgb"
    features = "codes"
    trained_by = "histogram"
    classifier = "cotune.learners.tolerant:TolerantBoostingClassifier"
    regressor = "cotune.learners.tolerant:TolerantBoostingRegressor"
    paper = table(
        max_iter=(10, 200),
        learning_rate=(1e-3, 1.0, "log"),
        min_samples_leaf=(1, 40),
        l2_regularization=(1e-4, 1.0, "log"),
    )
    wide = table(
        max_iter=(10, 500, "log"),
        learning_rate=(1e-3, 1.0, "log"),
        max_leaf_nodes=(4, 256, "log"),
        min_samples_leaf=(1, 100, "log"),
        l2_regularization=(1e-6, 100.0, "log"),
        max_features=(0.3, 1.0),
    )
    baseline = table(
        max_iter=100,
        learning_rate=0.1,
        min_samples_leaf=20,
        l2_regularization=0.0,
        max_leaf_nodes=31,
        max_features=1.0,
    )
    iterations = "max_iter"

    def settings(self, seed: int, schema: Schema) -> dict[str, Any]:
        return {
            "random_state": seed,
            "early_stopping": False,
            "categorical_features": categorical(schema),
        }

    def truncated(self, estimator: Any, count: int) -> Estimator | None:
        view: Estimator = copy(estimator)
        vars(view).update(_predictors=estimator._predictors[:count], max_iter=count)
        return view


class XGBoost(DeclaredLearner):
    """XGBoost's histogram trees, with native categories.

    Paper space: DASH, appendix A, "XGB" (its `eta` is `learning_rate` here).
    """

    name = "xgboost"
    features = "codes"
    trained_by = "histogram"
    library = "xgboost"
    extra = "boost"
    classifier = "xgboost:XGBClassifier"
    regressor = "xgboost:XGBRegressor"
    paper = table(
        learning_rate=(0.1, 0.3),
        min_child_weight=(1, 3),
        max_depth=(3, 12),
    )
    wide = table(
        **_SHARED,
        max_depth=(2, 12),
        min_child_weight=(0.1, 100.0, "log"),
        reg_alpha=(1e-6, 10.0, "log"),
    )
    baseline = table(
        learning_rate=0.3,
        min_child_weight=1,
        max_depth=6,
        n_estimators=100,
        subsample=1.0,
        colsample_bytree=1.0,
        reg_lambda=1.0,
        reg_alpha=0.0,
    )
    iterations = "n_estimators"

    def settings(self, seed: int, schema: Schema) -> dict[str, Any]:
        return {
            "random_state": seed,
            "n_jobs": 1,
            "verbosity": 0,
            "tree_method": "hist",
            "enable_categorical": True,
            "feature_types": ["c" if is_category else "q" for is_category in categorical(schema)],
        }

    def truncated(self, estimator: Any, count: int) -> Estimator | None:
        """The first rounds; None for boosters other than trees: DART rescales earlier ones."""
        if estimator.booster not in (None, "gbtree"):
            return None
        return _limited(estimator, iteration_range=(0, count))


class LightGBM(DeclaredLearner):
    """LightGBM, with native categories.

    Paper space: DASH, appendix A, "LGBM" (its `min_data_in_leaf` is `min_child_samples` here).
    As printed there, `subsample` has no effect: LightGBM draws rows only if `subsample_freq` is
    positive, which our wider space sees to.
    """

    name = "lightgbm"
    features = "codes"
    trained_by = "histogram"
    library = "lightgbm"
    extra = "boost"
    classifier = "lightgbm:LGBMClassifier"
    regressor = "lightgbm:LGBMRegressor"
    paper = table(
        subsample=(0.5, 1.0),
        colsample_bytree=(0.5, 1.0),
        max_depth=(3, 12),
        min_child_samples=(20, 30),
        num_leaves=(20, 80),
    )
    wide = table(
        **_SHARED,
        subsample_freq=1,
        num_leaves=(4, 256, "log"),
        min_child_samples=(1, 100, "log"),
    )
    baseline = table(
        subsample=1.0,
        colsample_bytree=1.0,
        max_depth=None,
        min_child_samples=20,
        num_leaves=31,
        n_estimators=100,
        learning_rate=0.1,
        reg_lambda=0.0,
    )
    iterations = "n_estimators"

    def settings(self, seed: int, schema: Schema) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "random_state": seed,
            "n_jobs": 1,
            "verbosity": -1,
            # Unforced, LightGBM times two ways of summing and takes the faster one: not repeatable.
            "deterministic": True,
            "force_col_wise": True,
        }
        columns = list(compress(count(), categorical(schema)))
        if columns:
            # The spelling `categorical_feature` also works, but with a warning that it does not.
            settings["categorical_column"] = columns
        return settings

    def translate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """None is an unlimited depth here, as in the other libraries; LightGBM calls it -1."""
        arguments = dict(params)
        if "max_depth" in arguments and arguments["max_depth"] is None:
            arguments["max_depth"] = -1
        return arguments

    def truncated(self, estimator: Any, count: int) -> Estimator | None:
        """The first rounds; None if earlier ones were rescaled (DART) or some brought no tree.

        A round that finds no split leaves no trace in the model, and with rows or columns drawn
        anew the next may find one: which trees a fit with fewer rounds would have is then unknown.
        """
        if estimator.boosting_type != "gbdt":
            return None
        if estimator.booster_.current_iteration() != estimator.n_estimators:
            return None
        return _limited(estimator, num_iteration=count)


def _limited(estimator: Any, **limit: Any) -> Estimator:
    """A copy that shares the trees, which the libraries would copy by writing them out."""
    view: Estimator = copy(estimator)
    for name in ("predict", "predict_proba"):
        if hasattr(estimator, name):
            setattr(view, name, partial(getattr(estimator, name), **limit))
    return view
