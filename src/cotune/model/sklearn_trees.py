"""scikit-learn's trees as plain arrays: packed for a message, checked, and made trees again."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from cotune.errors import Malformed

#: One node as it travels. Both children of a leaf are -1.
NODE = np.dtype(
    [
        ("left_child", "<i4"),
        ("right_child", "<i4"),
        ("feature", "<i4"),
        ("threshold", "<f8"),
        ("impurity", "<f8"),
        ("n_node_samples", "<i4"),
        ("weighted_n_node_samples", "<f8"),
        ("missing_go_to_left", "u1"),
    ]
)
LEAF = -1
#: XGBoost measures a tree's depth by recursion, which takes from the stack.
MOST_DEPTH = 2**14
#: What scikit-learn writes where a leaf has no feature and no threshold.
UNDEFINED = -2


class PackedTree(msgspec.Struct, frozen=True):
    """`count` nodes of the type `NODE`, and their values: float64, little-endian, node by node.

    A node has one value for each class that the tree knows, the share of its rows; or one number.
    """

    count: int
    nodes: bytes
    values: bytes


def pack(tree: Any) -> PackedTree:
    """The `tree_` of a fitted scikit-learn tree with one output."""
    nodes = np.empty(tree.node_count, dtype=NODE)
    columns = {"left_child": "children_left", "right_child": "children_right"}
    for name in NODE.names or ():
        nodes[name] = getattr(tree, columns.get(name, name))
    return PackedTree(tree.node_count, nodes.tobytes(), tree.value.astype("<f8").tobytes())


def unpack(packed: PackedTree, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The nodes, and their values as a matrix with `width` columns; `Malformed` if too few."""
    if packed.count < 1 or len(packed.nodes) != packed.count * NODE.itemsize:
        raise Malformed("a tree has not as many nodes as it says")
    if len(packed.values) != packed.count * width * 8:
        raise Malformed("a tree has not as many values as it has nodes and classes")
    values = np.frombuffer(packed.values, dtype="<f8").reshape(packed.count, width)
    return np.frombuffer(packed.nodes, dtype=NODE), values


def check_links(left: np.ndarray, right: np.ndarray, feature: np.ndarray, columns: int) -> None:
    """Raise `Malformed` unless a walk from the root ends at a leaf and reads existing columns.

    scikit-learn follows these numbers without looking: others would read foreign memory.
    """
    if not len(left):
        raise Malformed("a tree has no nodes")
    inner = np.flatnonzero(left != LEAF)
    if not np.array_equal(inner, np.flatnonzero(right != LEAF)):
        raise Malformed("a node of a tree has one child")
    children = np.concatenate([left[inner], right[inner]])
    if not np.array_equal(np.sort(children), np.arange(1, len(left))):
        raise Malformed("the children in a tree are not all of its nodes but the root, each once")
    if (children <= np.concatenate([inner, inner])).any():
        raise Malformed("a child in a tree comes before its parent")
    if not ((feature[inner] >= 0) & (feature[inner] < columns)).all():
        raise Malformed("a tree splits a column that the schema does not have")


def check_packed(packed: PackedTree, columns: int, classes: int) -> None:
    """Raise `Malformed` unless it is a tree over that many columns, for that many classes.

    No classes: a regression. A threshold may be infinite: scikit-learn splits missing values from
    all others so.
    """
    nodes, values = unpack(packed, classes or 1)
    check_links(nodes["left_child"], nodes["right_child"], nodes["feature"], columns)
    inner = nodes["left_child"] != LEAF
    if not (nodes["threshold"][inner] > -np.inf).all():  # NaN compares false
        raise Malformed("a tree has a threshold that is not a number")
    if not all(np.isfinite(nodes[name]).all() for name in ("impurity", "weighted_n_node_samples")):
        raise Malformed("a tree has an impurity or a weight that is not finite")
    if not (nodes["weighted_n_node_samples"] > 0).all() or not (nodes["n_node_samples"] > 0).all():
        raise Malformed("a tree has a node without rows")
    if (nodes["missing_go_to_left"] > 1).any():
        raise Malformed("a tree does not say where missing values go")
    if not np.isfinite(values).all():
        raise Malformed("a tree has a value that is not finite")
    if classes and ((values < 0).any() or (np.abs(values.sum(axis=1) - 1.0) > 1e-6).any()):
        raise Malformed("the class shares in a tree are not numbers from 0 to 1 that sum to 1")


def build(nodes: np.ndarray, values: np.ndarray, columns: int) -> Any:
    """scikit-learn's own tree of checked nodes and their values."""
    from sklearn.tree._tree import NODE_DTYPE, Tree

    state = np.zeros(len(nodes), dtype=NODE_DTYPE)
    for name in NODE.names or ():
        state[name] = nodes[name]
    leaves = nodes["left_child"] == LEAF
    state["feature"][leaves] = state["threshold"][leaves] = UNDEFINED
    tree = Tree(columns, np.array([values.shape[1]], dtype=np.intp), 1)
    tree.__setstate__(
        {
            "max_depth": depth(nodes["left_child"], nodes["right_child"]),
            "node_count": len(nodes),
            "nodes": state,
            "values": np.ascontiguousarray(values, dtype=np.float64)[:, None, :],
        }
    )
    return tree


def depth(left: np.ndarray, right: np.ndarray, most: int | None = None) -> int:
    """How many splits lie between the root and the farthest leaf of a tree with checked links.

    Beyond `most` they are not counted further.
    """
    reached, level = -1, np.array([0])
    while len(level) and (most is None or reached <= most):
        reached += 1
        children = np.concatenate([left[level], right[level]])
        level = children[children != LEAF]
    return reached
