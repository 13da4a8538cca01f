from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.errors import Malformed
from cotune.party.train.bins import Bins
from cotune.party.train.grow import Split
from cotune.party.train.grow_nodes import Columns, Nodes

ROWS = 40
#: A number of five bins, and four categories.
BINS = Bins((5, 4), (np.arange(4, dtype="<f4").tobytes(), None))
CODES = np.asfortranarray(
    np.random.default_rng(0).integers(0, [6, 5], (ROWS, 2)).astype(np.uint8)
)  # with missing values
VALUES = np.random.default_rng(1).integers(-8, 9, (2, 2, ROWS)).astype(np.float32)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes(CODES.T, BINS, np.arange(ROWS, dtype=np.uint32), 2)


@st.composite
def splits(draw, roots: int = 2) -> list[Split]:
    made: list[Split] = []
    whole = list(range(roots))
    for i in range(draw(st.integers(0, 6))):
        node, missing_left = draw(st.sampled_from(whole)), draw(st.booleans())
        whole.remove(node)
        whole += [roots + 2 * i, roots + 2 * i + 1]
        if draw(st.booleans()):
            made.append(Split(node, 0, draw(st.integers(-1, 3)), missing_left))
        else:
            right = bytes(draw(st.sets(st.integers(0, 3), min_size=1)))
            made.append(Split(node, 1, 0, missing_left, right))
    return made


def goes_left(split: Split, row: int) -> bool:
    code = CODES[row, split.column]
    if code == BINS.sizes[split.column]:
        return split.missing_left
    return code not in split.right if split.right else code <= split.bin


def by_hand(made: list[Split], roots: int = 2) -> list[set[int]]:
    rows = [set(range(ROWS)) for _ in range(roots)]
    for split in made:
        left = {row for row in rows[split.node] if goes_left(split, row)}
        rows += [left, rows[split.node] - left]
    return rows


@settings(deadline=None)  # the first call compiles
@given(splits())
def test_splits_part_the_rows_of_their_nodes_and_leave_the_nodes_theirs(made):
    nodes = Nodes(CODES.T, BINS, np.arange(ROWS, dtype=np.uint32), 2)
    nodes.divide(made)
    for number, expected in enumerate(by_hand(made)):
        rows = nodes.rows(number)
        assert len(rows) == len(expected)
        assert set(rows.tolist()) == expected


@settings(deadline=None)  # the first call compiles
@given(splits())
def test_sums_are_those_over_the_rows_of_a_node_and_its_tree(made):
    nodes = Nodes(CODES.T, BINS, np.arange(ROWS, dtype=np.uint32), 2)
    nodes.divide(made)
    rows = by_hand(made)
    sums = nodes.sums(range(len(rows)), Columns([1, 0], BINS), VALUES[0], VALUES[1])
    tree = [0, 1]
    for split in made:
        tree += [tree[split.node]] * 2
    for number, own in enumerate(rows):
        expected = np.zeros((5 + 6, 3))
        for row in own:
            for slot in (CODES[row, 1], 5 + CODES[row, 0]):
                expected[slot] += [*VALUES[:, tree[number], row], 1.0]
        assert np.array_equal(sums[number], expected)


def test_leaves_are_added_to_the_rows_of_their_tree(nodes):
    nodes.divide([Split(1, 0, 2, True)])
    raw = np.zeros((2, ROWS))
    nodes.add_leaves([(0, 1.0), (2, 10.0), (3, 100.0)], raw)
    left = (CODES[:, 0] <= 2) | (CODES[:, 0] == 5)
    assert (raw[0] == 1.0).all()
    assert np.array_equal(raw[1], np.where(left, 10.0, 100.0))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda nodes: nodes.divide([Split(2, 0, 1, False)]),
        lambda nodes: nodes.divide([Split(-1, 0, 1, False)]),
        lambda nodes: nodes.divide([Split(0, 2, 1, False)]),
        lambda nodes: nodes.divide([Split(0, 0, 1, False), Split(4, 0, 1, False)]),
        lambda nodes: nodes.divide([Split(0, 0, 1, False), Split(0, 0, 2, False)]),
        lambda nodes: nodes.sums([2], Columns([0], BINS), *VALUES),
        lambda nodes: nodes.sums([0], Columns([-1], BINS), *VALUES),
        lambda nodes: nodes.add_leaves([(2, 1.0)], np.zeros((2, ROWS))),
        lambda nodes: nodes.rows(2),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_written(nodes, wrong):
    with pytest.raises(Malformed, match=r"does not know|divided twice"):
        wrong(nodes)
    assert np.array_equal(nodes.rows(0), np.arange(ROWS))
