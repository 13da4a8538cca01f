"""How boosted trees grow, as each library does it: limits, penalties and what is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cotune.errors import UsageError, choices

if TYPE_CHECKING:
    from cotune.data.schema import Schema


@dataclass(frozen=True)
class Rules:
    """The libraries' parameters under one set of names.

    Parameters
    ----------
    rounds, learning_rate
        Of boosting.
    leaves, depth
        The most that a tree may have; None is no limit. With a limit of leaves the node of the
        largest gain is divided first.
    min_rows, min_hessian
        The least that both sides of a split must have.
    l2, l1, min_gain
        Penalties of a leaf's value, and the least gain of a split.
    category_l2, smoothing
        More of `l2` for splits by categories; and what is added to the curvature of a category
        when categories are put in order, so that rare ones come to lie in the middle.
    columns, features, rows, every
        The shares of columns drawn for a round, of those for a node, and of rows; the rows anew
        every so many rounds.
    curvature
        A factor of all curvatures where there are more than two classes.
    counted
        Whether rows are counted, for `min_rows`.
    """

    rounds: int
    learning_rate: float
    leaves: int | None
    depth: int | None
    min_rows: int = 1
    min_hessian: float = 1e-3
    l2: float = 0.0
    l1: float = 0.0
    min_gain: float = 1e-9
    category_l2: float = 0.0
    smoothing: float = 10.0
    columns: float = 1.0
    features: float = 1.0
    rows: float = 1.0
    every: int = 1
    curvature: float = 1.0
    counted: bool = True


def rules_of(learner: str, params: Mapping[str, Any], schema: Schema) -> Rules:
    """The rules of a configuration; parameters that the federation cannot honour are refused."""
    if learner not in _LEARNERS:
        raise UsageError(choices(learner, "learner of boosted trees", _LEARNERS))
    build, known = _LEARNERS[learner]
    for name in params:
        if name not in known:
            raise UsageError(choices(name, f"{learner} parameter in federated training", known))
    rules = build(params, len(schema.classes))
    if schema.task == "classification":
        return rules
    # Gradients are in deviations of the target from its mean, and gains are squares of them.
    scale = schema.target_scale
    least = rules.min_gain if rules.min_gain <= 1e-6 else rules.min_gain / math.pow(scale, 2)
    return replace(rules, l1=rules.l1 / scale, min_gain=least)


def _hgb(params: Mapping[str, Any], classes: int) -> Rules:
    return Rules(
        rounds=params["max_iter"],
        learning_rate=params["learning_rate"],
        leaves=params.get("max_leaf_nodes", 31),
        depth=params.get("max_depth"),
        min_rows=params.get("min_samples_leaf", 20),
        l2=params.get("l2_regularization", 0.0),
        features=params.get("max_features", 1.0),
    )


def _xgboost(params: Mapping[str, Any], classes: int) -> Rules:
    return Rules(
        rounds=params["n_estimators"],
        learning_rate=params["learning_rate"],
        leaves=None,
        depth=params.get("max_depth", 6) or None,
        min_hessian=params.get("min_child_weight", 1.0),
        l2=params.get("reg_lambda", 1.0),
        l1=params.get("reg_alpha", 0.0),
        min_gain=max(1e-6, params.get("gamma", 0.0)),
        smoothing=params.get("reg_lambda", 1.0),
        columns=params.get("colsample_bytree", 1.0),
        rows=params.get("subsample", 1.0),
        curvature=2.0 if classes > 2 else 1.0,
        counted=False,
    )


def _lightgbm(params: Mapping[str, Any], classes: int) -> Rules:
    depth = params.get("max_depth")
    every = params.get("subsample_freq", 0)
    return Rules(
        rounds=params["n_estimators"],
        learning_rate=params["learning_rate"],
        leaves=params.get("num_leaves", 31),
        depth=None if depth is None or depth <= 0 else depth,
        min_rows=params.get("min_child_samples", 20),
        l2=params.get("reg_lambda", 0.0),
        l1=params.get("reg_alpha", 0.0),
        category_l2=10.0,
        columns=params.get("colsample_bytree", 1.0),
        rows=params.get("subsample", 1.0) if every > 0 else 1.0,
        every=max(every, 1),
        curvature=classes / (classes - 1) if classes > 2 else 1.0,
    )


_SHARED = ("n_estimators", "learning_rate", "max_depth", "reg_lambda", "reg_alpha", "subsample",
           "colsample_bytree")  # fmt: skip
_LEARNERS: dict[str, tuple[Callable[[Mapping[str, Any], int], Rules], tuple[str, ...]]] = {
    "hgb": (_hgb, ("max_iter", "learning_rate", "max_leaf_nodes", "max_depth", "min_samples_leaf",
                   "l2_regularization", "max_features")),
    "xgboost": (_xgboost, (*_SHARED, "min_child_weight", "gamma")),
    "lightgbm": (_lightgbm, (*_SHARED, "num_leaves", "min_child_samples", "subsample_freq")),
}  # fmt: skip
