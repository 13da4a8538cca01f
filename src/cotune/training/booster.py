"""Grown trees as a model of XGBoost, which predicts them fast wherever XGBoost runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit

from cotune.data.schema import Schema
from cotune.model import boosters
from cotune.model.sklearn_trees import LEAF
from cotune.party.train.bins import LARGEST, Bins
from cotune.party.train.grow import Tree


def booster(
    schema: Schema,
    bins: Bins,
    base: Sequence[float],
    rounds: Sequence[Sequence[Tree]],
) -> Any:
    """An `xgboost.Booster` of the trees; it predicts probabilities, or numbers in their unit.

    Its rows are encoded as `cotune.data.encode.trees_form` does it. A regression's trees are in
    deviations of the target from its mean.
    """
    scale = schema.target_scale if schema.task == "regression" else 1.0
    trees = [tree for trees in rounds for tree in trees]
    described = [
        _tree(tree, number, bins, len(schema.columns), scale) for number, tree in enumerate(trees)
    ]
    return boosters.booster(schema, _base_score(schema, base), described)


def _base_score(schema: Schema, base: Sequence[float]) -> list[float]:
    """In the unit of the prediction, but for several classes: there, before the softmax."""
    if len(schema.classes) > 2:
        return list(base)
    return [float(expit(base[0]))] if schema.classes else [schema.target_mean]


def _tree(tree: Tree, number: int, bins: Bins, columns: int, scale: float) -> boosters.Tree:
    """One tree as XGBoost has it."""
    nodes = 1 + 2 * len(tree.splits)
    left, right, sets = [LEAF] * nodes, [LEAF] * nodes, {}
    conditions, columns_of, kinds = [0.0] * nodes, [0] * nodes, [0] * nodes
    default_left, gains, covers = [0] * nodes, [0.0] * nodes, [0.0] * nodes
    for i, split in enumerate(tree.splits):
        node, first = split.node, 1 + 2 * i
        left[node], right[node] = first, first + 1
        columns_of[node], default_left[node] = split.column, int(split.missing_left)
        gains[node] = _single(tree.gains[i] * scale**2)
        covers[node] = tree.covers[i]
        edges = bins.edges[split.column]
        if edges is None:
            kinds[node] = 1
            sets[node] = list(split.right)
        else:
            conditions[node] = threshold(edges, split.bin)
    for node, value in tree.leaves:
        conditions[node] = _single(value * scale)
    return boosters.tree(
        number,
        columns,
        left=left,
        right=right,
        sets=sets,
        base_weights=[0.0 if left[i] >= 0 else conditions[i] for i in range(nodes)],
        default_left=default_left,
        loss_changes=gains,
        split_conditions=conditions,
        split_indices=columns_of,
        split_type=kinds,
        sum_hessian=covers,
    )


def _single(number: float) -> float:
    """The number in single precision, beyond which XGBoost knows only infinity."""
    return float(np.float32(np.clip(number, -LARGEST, LARGEST)))


def threshold(edges: np.ndarray, place: int) -> float:
    """What a number must be below to be in this bin or before it; none is for place -1."""
    return float(edges[place]) if place >= 0 else -LARGEST
