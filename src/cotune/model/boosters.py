"""XGBoost's JSON of a model: written from checked parts only, wherever these come from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from cotune.data.encode import MOST_CODES
from cotune.data.schema import Schema
from cotune.errors import Malformed, UsageError
from cotune.model.sklearn_trees import LEAF, MOST_DEPTH, check_links, depth

#: The version of XGBoost's JSON that is written.
VERSION = (3, 1, 0)
#: What XGBoost calls the parent of a root.
NOBODY = 2**31 - 1
#: Numbers beyond the range of single precision are infinite to XGBoost.
LARGEST = float(np.finfo(np.float32).max)
#: The numbers that XGBoost's own integers hold, and that an honest model has.
Index = Annotated[int, msgspec.Meta(ge=-1, le=NOBODY)]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of other names are refused, and of two of one name the last is all that is left."""


class _TreeParam(_Strict, frozen=True):
    num_feature: str
    num_nodes: str
    num_deleted: str = "0"
    size_leaf_vector: str = "1"


class Tree(_Strict, frozen=True):
    """One tree by XGBoost's schema; the categories of a node are those that go to the right."""

    base_weights: list[float]
    categories: list[Index]
    categories_nodes: list[Index]
    categories_segments: list[Index]
    categories_sizes: list[Index]
    default_left: list[Index]
    id: int
    left_children: list[Index]
    loss_changes: list[float]
    parents: list[Index]
    right_children: list[Index]
    split_conditions: list[float]
    split_indices: list[Index]
    split_type: list[Index]
    sum_hessian: list[float]
    tree_param: _TreeParam


class _Counts(_Strict, frozen=True):
    num_trees: str
    num_parallel_tree: str = "1"


class _Categories(_Strict, frozen=True):
    """Of data frames; cotune's own codes are in the schema."""

    enc: list[Index] = []
    feature_segments: list[Index] = []
    sorted_idx: list[Index] = []


class _Trees(_Strict, frozen=True):
    gbtree_model_param: _Counts
    iteration_indptr: list[Index]
    tree_info: list[Index]
    trees: list[Tree]
    cats: _Categories = msgspec.field(default_factory=_Categories)


class _Booster(_Strict, frozen=True):
    model: _Trees
    name: Literal["gbtree"] = "gbtree"


class _ModelParam(_Strict, frozen=True):
    base_score: str
    num_class: str
    num_feature: str
    boost_from_average: str = "1"
    num_target: str = "1"


class _Learner(_Strict, frozen=True):
    gradient_booster: _Booster
    learner_model_param: _ModelParam
    objective: dict[str, str | dict[str, str]]
    feature_names: list[str]
    feature_types: list[str]
    attributes: dict[str, str] = {}


class _Model(_Strict, frozen=True):
    learner: _Learner
    version: tuple[int, int, int] = VERSION


def tree(
    number: int,
    columns: int,
    *,
    left: list[int],
    right: list[int],
    sets: dict[int, list[int]],
    **of_nodes: Any,
) -> Tree:
    """A tree from what every node has, and from the categories of those that divide by them."""
    parents = [NOBODY] * len(left)
    for node, children in enumerate(zip(left, right, strict=True)):
        for child in children:
            if child != LEAF:
                parents[child] = node
    sets = dict(sorted(sets.items()))  # XGBoost reads them along with the nodes
    sizes = [len(codes) for codes in sets.values()]
    return Tree(
        categories=[code for codes in sets.values() for code in codes],
        categories_nodes=list(sets),
        categories_segments=list(accumulate(sizes, initial=0))[: len(sizes)],
        categories_sizes=sizes,
        id=number,
        left_children=left,
        parents=parents,
        right_children=right,
        tree_param=_TreeParam(str(columns), str(len(left))),
        **of_nodes,
    )


def booster(schema: Schema, base_score: Sequence[float], trees: list[Tree]) -> Any:
    """The `xgboost.Booster` of these trees: one after the other for each of the base scores."""
    try:
        import xgboost
    except ImportError as error:
        raise UsageError(
            "the model needs a package that is not installed: pip install 'cotune[boost]'"
        ) from error
    found = xgboost.Booster()
    try:
        found.load_model(bytearray(msgspec.json.encode(_model(schema, base_score, trees))))
    except xgboost.core.XGBoostError as error:
        raise Malformed("XGBoost does not take it") from error
    return found


def read(payload: bytes, schema: Schema) -> Any:
    """The `xgboost.Booster` in a file's bytes; `Malformed` if it is not one for this schema.

    XGBoost follows the numbers in a model without looking: others would read and write foreign
    memory. So the bytes are never given to it. Each index in them is checked, and a model is
    written from what was found; all that is the same in every model must be so in this one.
    """
    try:
        model = msgspec.json.decode(payload, type=_Model)
        found = model.learner.gradient_booster.model.trees
        base_score = msgspec.json.decode(
            model.learner.learner_model_param.base_score, type=list[float]
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed("it is not a model of XGBoost's trees") from error
    _check_base_score(base_score, schema)
    trees = [_checked(one, number, schema) for number, one in enumerate(found)]
    if len(trees) % outputs(schema) or _without_names(model) != _without_names(
        _model(schema, base_score, trees)
    ):
        raise Malformed("it is not a model of XGBoost's trees for this schema")
    return booster(schema, base_score, trees)


def feature_names(schema: Schema) -> list[str]:
    """The columns' names, without the characters that XGBoost does not take in one."""
    return [column.name.translate(str.maketrans("[]<", "()_")) for column in schema.columns]


def outputs(schema: Schema) -> int:
    """How many trees each round has: one for each class, if there are more than two."""
    return len(schema.classes) if len(schema.classes) > 2 else 1


def _model(schema: Schema, base_score: Sequence[float], trees: list[Tree]) -> _Model:
    each = outputs(schema)
    return _Model(
        _Learner(
            _Booster(
                _Trees(
                    gbtree_model_param=_Counts(str(len(trees))),
                    iteration_indptr=[each * i for i in range(len(trees) // each + 1)],
                    tree_info=[i % each for i in range(len(trees))],
                    trees=trees,
                )
            ),
            _ModelParam(
                base_score=json.dumps(list(base_score)),
                num_class=str(each if each > 1 else 0),
                num_feature=str(len(schema.columns)),
            ),
            _objective(schema),
            feature_names(schema),
            ["c" if column.kind == "categorical" else "q" for column in schema.columns],
        )
    )


def _objective(schema: Schema) -> dict[str, str | dict[str, str]]:
    if len(schema.classes) > 2:
        count = str(len(schema.classes))
        return {"name": "multi:softprob", "softmax_multiclass_param": {"num_class": count}}
    name = "binary:logistic" if schema.classes else "reg:squarederror"
    return {"name": name, "reg_loss_param": {"scale_pos_weight": "1"}}


def _without_names(model: _Model) -> _Model:
    """What must be the same in two models of the same trees, however their columns are called."""
    replace = msgspec.structs.replace
    learner = model.learner
    param = replace(learner.learner_model_param, base_score="")
    learner = replace(
        learner, learner_model_param=param, feature_names=[], feature_types=[], attributes={}
    )
    return replace(model, learner=learner, version=VERSION)


def _check_base_score(base_score: list[float], schema: Schema) -> None:
    if len(base_score) != outputs(schema):
        raise Malformed("it has not one base score for each tree of a round")
    if not _is_single(base_score):
        raise Malformed("it has a base score that is not a finite number")


def _is_single(values: Any) -> bool:
    """Whether all are finite in single precision; NaN compares false."""
    return bool((np.abs(np.array(values, dtype=float)) <= LARGEST).all())


def _checked(given: Tree, number: int, schema: Schema) -> Tree:
    """The tree as `tree` would have made it, from what is checked of the given one."""
    columns = len(schema.columns)
    of_nodes = {
        name: getattr(given, name)
        for name in ("base_weights", "default_left", "loss_changes", "split_conditions",
                     "split_indices", "split_type", "sum_hessian")
    }  # fmt: skip
    nodes = len(given.left_children)
    if any(len(one) != nodes for one in (given.right_children, *of_nodes.values())):
        raise Malformed("a tree's nodes are not described alike")
    left, right = np.array(given.left_children), np.array(given.right_children)
    feature, kinds = np.array(given.split_indices), np.array(given.split_type)
    check_links(left, right, feature, columns)
    if depth(left, right, MOST_DEPTH) > MOST_DEPTH:
        raise Malformed(f"a tree is more than {MOST_DEPTH} splits deep")
    if ((feature < 0) | (feature >= columns)).any():
        raise Malformed("a tree has a leaf of a column that the schema does not have")
    for name in ("base_weights", "loss_changes", "split_conditions", "sum_hessian"):
        if not _is_single(of_nodes[name]):
            raise Malformed("a tree has a number that is not finite")
    if not (set(given.default_left) | set(given.split_type)) <= {0, 1}:
        raise Malformed("a tree does not say how its nodes divide")
    sets = _sets(given, schema)
    if list(sets) != np.flatnonzero(kinds).tolist() or (left[list(sets)] == LEAF).any():
        raise Malformed("a tree has not a set of categories for each node that divides by one")
    return tree(
        number, columns, left=given.left_children, right=given.right_children, sets=sets, **of_nodes
    )


def _sets(given: Tree, schema: Schema) -> dict[int, list[int]]:
    """The categories of each node that divides by them."""
    sets, end = {}, 0
    if len(given.categories_nodes) != len(given.categories_sizes):
        raise Malformed("a tree's sets of categories are not described alike")
    for node, size in zip(given.categories_nodes, given.categories_sizes, strict=True):
        if not 0 <= node < len(given.split_indices):
            raise Malformed("a tree has categories of a node that it does not have")
        column = schema.columns[given.split_indices[node]]
        known = min(max(len(column.categories), 1), MOST_CODES)
        codes = given.categories[end : end + size] if size > 0 else []
        if column.kind != "categorical" or len(codes) != size:
            raise Malformed("a tree's sets of categories are not those of its columns")
        if size < 1 or not all(0 <= code < known for code in codes):
            raise Malformed("a tree has a category that its column does not have")
        sets[node] = codes
        end += size
    return sets
