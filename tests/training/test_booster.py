from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax

from cotune.data.schema import Column, Schema
from cotune.model.predictors import OfBooster
from cotune.party.train.bins import Bins
from cotune.party.train.grow import Split, Tree
from cotune.training.booster import booster

COLUMNS = (
    Column("weight [kg] < 9", "numeric"),
    Column("city", "categorical", tuple("abcdefg")),
    Column("age", "numeric"),
)
EDGES = {0: np.array([-1.5, 0.1, 0.2, 7.0], "<f4"), 2: np.array([0.5], "<f4")}
BINS = Bins((5, 7, 2), (EDGES[0].tobytes(), None, EDGES[2].tobytes()))
VALUES = [-3e38, -1.5, 0.0, 0.1, 0.15, 0.2, float(np.float32(0.2)), 6.99999, 7.0, 3e38, np.nan]


def schema(classes=(), **target) -> Schema:
    task = "classification" if classes else "regression"
    return Schema("y", task, COLUMNS, tuple(classes), **target)


def rows() -> np.ndarray:
    """All of the values with all codes, of which the last is unknown to the schema."""
    codes = [*range(8), np.nan]
    grid = np.meshgrid(VALUES, codes, [0.0, 0.5, np.nan], indexing="ij")
    return np.stack([axis.ravel() for axis in grid], axis=1)


def walked(tree: Tree, row: np.ndarray) -> float:
    """The value of the leaf that a row comes to, step by step."""
    values = dict(tree.leaves)
    children = {split.node: (split, 1 + 2 * i) for i, split in enumerate(tree.splits)}
    node = 0
    while node not in values:
        split, left = children[node]
        value = row[split.column]
        if np.isnan(value):
            goes_left = split.missing_left
        elif split.column == 1:
            goes_left = int(value) not in split.right
        else:
            edges = EDGES[split.column]
            goes_left = split.bin >= 0 and np.float32(value) < edges[split.bin]
        node = left if goes_left else left + 1
    return values[node]


@st.composite
def trees(draw) -> Tree:
    leaves, splits = [0], []
    for i in range(draw(st.integers(0, 6))):
        node = leaves.pop(draw(st.integers(0, len(leaves) - 1)))
        column = draw(st.integers(0, 2))
        left = draw(st.booleans())
        if column == 1:
            right = draw(st.sets(st.integers(0, 6), min_size=1))
            splits.append(Split(node, column, 0, left, bytes(sorted(right))))
        else:
            low = -1 if left else 0
            place = draw(st.integers(low, BINS.sizes[column] - 2))
            splits.append(Split(node, column, place, left))
        leaves += [1 + 2 * i, 2 + 2 * i]
    values = tuple((node, float(np.float32(draw(st.floats(-2, 2))))) for node in leaves)
    sums = (1.0,) * len(splits)
    return Tree(tuple(splits), values, sums, sums)


@settings(max_examples=30, deadline=None)
@given(st.lists(trees(), min_size=1, max_size=3))
def test_two_classes_are_predicted_as_the_trees_are_walked(grown):
    model = booster(schema("no"), BINS, (0.3,), [(tree,) for tree in grown])
    expected = [expit(0.3 + sum(walked(tree, row) for tree in grown)) for row in rows()]
    found = OfBooster(model, 2).predict_proba(rows())
    np.testing.assert_allclose(found[:, 1], expected, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(trees(), trees(), trees()), min_size=1, max_size=2))
def test_several_classes_are_predicted_as_the_trees_are_walked(grown):
    base = (-0.5, 0.25, 0.0)
    model = booster(schema("abc"), BINS, base, grown)
    raw = [
        [b + sum(walked(t[k], row) for t in grown) for k, b in enumerate(base)] for row in rows()
    ]
    found = OfBooster(model, 3).predict_proba(rows())
    np.testing.assert_allclose(found, softmax(raw, axis=1), atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(trees(), min_size=1, max_size=3))
def test_numbers_are_predicted_in_their_own_unit(grown):
    model = booster(
        schema(target_mean=1e4, target_scale=300.0), BINS, (0.0,), [(tree,) for tree in grown]
    )
    expected = [1e4 + 300 * sum(walked(tree, row) for tree in grown) for row in rows()]
    np.testing.assert_allclose(OfBooster(model, 0).predict(rows()), expected, rtol=1e-6)


def test_the_model_knows_its_columns_and_what_they_brought():
    split = Split(0, 1, 0, False, bytes([2, 3]))
    model = booster(
        schema("no"), BINS, (0.0,), [(Tree((split,), ((1, 0.5), (2, -0.5)), (3.5,), (10.0,)),)]
    )
    assert model.feature_names == ["weight (kg) _ 9", "city", "age"]
    assert model.feature_types == ["q", "c", "q"]
    assert model.get_score(importance_type="gain") == pytest.approx({"city": 3.5})
    assert model.num_boosted_rounds() == 1
