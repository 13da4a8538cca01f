"""Grown trees as a model of XGBoost, which predicts them fast wherever XGBoost runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit

from cotune.data.schema import Schema
from cotune.party.train.bins import LARGEST, Bins
from cotune.party.train.grow import Tree

#: The version of XGBoost's JSON that is written.
VERSION = [3, 1, 0]
#: What XGBoost calls the parent of a root.
NOBODY = 2**31 - 1


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
    import xgboost

    scale = schema.target_scale if schema.task == "regression" else 1.0
    trees = [tree for trees in rounds for tree in trees]
    described = [
        _tree(tree, number, bins, len(schema.columns), scale) for number, tree in enumerate(trees)
    ]
    model = {
        "learner": {
            "attributes": {},
            "feature_names": feature_names(schema),
            "feature_types": ["c" if c.kind == "categorical" else "q" for c in schema.columns],
            "gradient_booster": {
                "model": {
                    "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
                    "gbtree_model_param": {
                        "num_parallel_tree": "1",
                        "num_trees": str(len(trees)),
                    },
                    "iteration_indptr": [len(base) * i for i in range(len(rounds) + 1)],
                    "tree_info": [i % len(base) for i in range(len(trees))],
                    "trees": described,
                },
                "name": "gbtree",
            },
            "learner_model_param": {
                "base_score": json.dumps(_base_score(schema, base)),
                "boost_from_average": "1",
                "num_class": str(len(base) if len(base) > 1 else 0),
                "num_feature": str(len(schema.columns)),
                "num_target": "1",
            },
            "objective": _objective(schema),
        },
        "version": VERSION,
    }
    found = xgboost.Booster()
    found.load_model(bytearray(json.dumps(model).encode()))
    return found


def feature_names(schema: Schema) -> list[str]:
    """The columns' names, without the characters that XGBoost does not take in one."""
    return [column.name.translate(str.maketrans("[]<", "()_")) for column in schema.columns]


def _objective(schema: Schema) -> dict[str, Any]:
    if len(schema.classes) > 2:
        count = str(len(schema.classes))
        return {"name": "multi:softprob", "softmax_multiclass_param": {"num_class": count}}
    name = "binary:logistic" if schema.classes else "reg:squarederror"
    return {"name": name, "reg_loss_param": {"scale_pos_weight": "1"}}


def _base_score(schema: Schema, base: Sequence[float]) -> list[float]:
    """In the unit of the prediction, but for several classes: there, before the softmax."""
    if len(schema.classes) > 2:
        return list(base)
    return [float(expit(base[0]))] if schema.classes else [schema.target_mean]


def _tree(tree: Tree, number: int, bins: Bins, columns: int, scale: float) -> dict[str, Any]:
    """One tree by XGBoost's schema; the categories of a node are those that go to the right."""
    nodes = 1 + 2 * len(tree.splits)
    parents, left, right = [NOBODY] * nodes, [-1] * nodes, [-1] * nodes
    conditions, columns_of, kinds = [0.0] * nodes, [0] * nodes, [0] * nodes
    default_left, gains, covers = [0] * nodes, [0.0] * nodes, [0.0] * nodes
    sets: dict[int, bytes] = {}
    for i, split in enumerate(tree.splits):
        node, first = split.node, 1 + 2 * i
        left[node], right[node] = first, first + 1
        parents[first] = parents[first + 1] = node
        columns_of[node], default_left[node] = split.column, int(split.missing_left)
        gains[node], covers[node] = tree.gains[i] * scale**2, tree.covers[i]
        edges = bins.edges[split.column]
        if edges is None:
            kinds[node] = 1
            sets[node] = split.right
        else:
            conditions[node] = threshold(edges, split.bin)
    for node, value in tree.leaves:
        conditions[node] = float(np.float32(value * scale))
    sets = dict(sorted(sets.items()))  # XGBoost reads them along with the nodes
    lengths = [len(codes) for codes in sets.values()]
    return {
        "base_weights": [0.0 if left[i] >= 0 else conditions[i] for i in range(nodes)],
        "categories": [code for codes in sets.values() for code in codes],
        "categories_nodes": list(sets),
        "categories_segments": [sum(lengths[:i]) for i in range(len(lengths))],
        "categories_sizes": lengths,
        "default_left": default_left,
        "id": number,
        "left_children": left,
        "loss_changes": gains,
        "parents": parents,
        "right_children": right,
        "split_conditions": conditions,
        "split_indices": columns_of,
        "split_type": kinds,
        "sum_hessian": covers,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(columns),
            "num_nodes": str(nodes),
            "size_leaf_vector": "1",
        },
    }


def threshold(edges: np.ndarray, place: int) -> float:
    """What a number must be below to be in this bin or before it; none is for place -1."""
    return float(edges[place]) if place >= 0 else -LARGEST
