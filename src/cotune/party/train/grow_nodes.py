"""Which of a party's rows are in which node of the trees, and sums over the rows of a node."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from cotune.compiled import compiled
from cotune.errors import Malformed
from cotune.party.train.bins import MOST_BINS, Bins
from cotune.party.train.grow import Split

#: The sums of a slot.
CHANNELS = ("gradients", "hessians", "counts")
#: What is kept of a node: its stretch, and which tree it is in.
BEGIN, END, ROOT = 0, 1, 2
NO_NODE = "a node is named that the party does not know"
NO_COLUMN = "a column is named that the party does not know"


class Columns:
    """Columns to sum over, and how many slots each has: its bins, and one for missing values."""

    def __init__(self, chosen: Sequence[int], bins: Bins) -> None:
        _check(chosen, len(bins.sizes), NO_COLUMN)
        self.numbers = np.array(chosen, np.int64)
        self.slots = np.array([bins.sizes[column] + 1 for column in chosen], np.int64)


class Nodes:
    """The nodes of one or several trees, numbered as in `Split`.

    Every tree has the rows in an order of its own, in which those of a node lie side by side: to
    divide a node is to sort its stretch, once. So a node keeps its rows when it is divided, as the
    split may not come to be part of the tree.

    Parameters
    ----------
    codes, bins
        The bin of every column and row.
    rows
        That are in the roots.
    roots
        How many trees there are.
    """

    def __init__(self, codes: np.ndarray, bins: Bins, rows: np.ndarray, roots: int) -> None:
        self._codes = codes
        self._bins = bins
        self._roots = roots
        self._rows = np.tile(rows, roots)
        begins = len(rows) * np.arange(roots)
        self._places = np.stack([begins, begins + len(rows), np.arange(roots)], axis=1)
        self._divided: set[int] = set()

    def rows(self, node: int) -> np.ndarray:
        _check([node], len(self._places), NO_NODE)
        rows: np.ndarray = self._rows[self._places[node, BEGIN] : self._places[node, END]]
        return rows

    def divide(self, splits: Sequence[Split]) -> None:
        """Each split makes two nodes more."""
        if not splits:
            return
        known = len(self._places)
        nodes = [split.node for split in splits]
        if not all(0 <= node < known + 2 * i for i, node in enumerate(nodes)):
            raise Malformed(NO_NODE)
        _check([split.column for split in splits], len(self._bins.sizes), NO_COLUMN)
        divided = self._divided.union(nodes)
        if len(divided) < len(self._divided) + len(nodes):
            raise Malformed("a node is to be divided twice")
        places = np.empty((known + 2 * len(splits), 3), dtype=np.int64)
        places[:known] = self._places
        _divide(self._codes, self._rows, places, *self._packed(splits))
        self._places, self._divided = places, divided

    def sums(
        self,
        wanted: Sequence[int],
        columns: Columns,
        gradients: np.ndarray,
        hessians: np.ndarray,
        *,
        counted: bool = True,
    ) -> np.ndarray:
        """Sums over each column's bins in each node wanted: node, slot, channel (`CHANNELS`).

        A slot is a bin of a column; the missing values come after its other bins. What is summed is
        given for every tree and row.
        """
        _check(wanted, len(self._places), NO_NODE)
        if not gradients.shape == hessians.shape == (self._roots, self._codes.shape[1]):
            raise ValueError("there must be a gradient and a curvature of every tree and row")
        return _add_up(
            self._codes, self._rows, self._places, np.array(wanted, np.int64), gradients, hessians,
            columns.numbers, columns.slots, len(CHANNELS) if counted else len(CHANNELS) - 1,
        )  # fmt: skip

    def add_leaves(self, leaves: Sequence[tuple[int, float]], raw: np.ndarray) -> None:
        """Add the values of nodes to what is predicted for their rows, by tree and row."""
        nodes, values = [node for node, _ in leaves], [value for _, value in leaves]
        _check(nodes, len(self._places), NO_NODE)
        _add_leaves(
            self._rows, self._places, np.array(nodes, np.int64), np.array(values, float), raw
        )

    def _packed(self, splits: Sequence[Split]) -> tuple[np.ndarray, np.ndarray]:
        """The splits as numbers: see `_divide`."""
        to_right = [split.right for split in splits if split.right]
        categories = np.zeros((len(to_right), MOST_BINS + 1), dtype=bool)
        for on_right, right in zip(categories, to_right, strict=True):
            on_right[np.frombuffer(right, dtype=np.uint8)] = True
        by_categories = itertools.count()
        numbers = [
            (
                split.node,
                split.column,
                split.bin,
                self._bins.sizes[split.column],
                split.missing_left,
                next(by_categories) if split.right else -1,
            )
            for split in splits
        ]
        return np.array(numbers, dtype=np.int64), categories


def _check(numbers: Sequence[int], known: int, otherwise: str) -> None:
    """Compiled loops do not look where they write: each number must be one of so many."""
    if numbers and not 0 <= min(numbers) <= max(numbers) < known:
        raise Malformed(otherwise)


@compiled
def _divide(
    codes: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
    splits: np.ndarray,
    categories: np.ndarray,
) -> None:
    """Sort the stretches of nodes, in their order, and fill in the last places: the children's.

    Of a split: its node, the column, the last bin on the left, the bin of missing values, whether
    these go to the left, and which row of `categories` says of each whether it goes to the right.
    """
    on_right = np.empty_like(rows)
    first = len(places) - 2 * len(splits)
    for i in range(len(splits)):
        node, column, last, missing, missing_left, which = splits[i]
        begin, end, root = places[node]
        own = codes[column]
        middle, rights = begin, 0
        for at in range(begin, end):
            row = rows[at]
            code = own[row]
            if code == missing:
                left = missing_left == 1
            elif which >= 0:
                left = not categories[which, code]
            else:
                left = code <= last
            rows[middle] = on_right[rights] = row  # one of them counts: faster than a branch
            middle += left
            rights += not left
        rows[middle:end] = on_right[:rights]
        child = first + 2 * i
        places[child, BEGIN], places[child, END], places[child, ROOT] = begin, middle, root
        child += 1
        places[child, BEGIN], places[child, END], places[child, ROOT] = middle, end, root


@compiled
def _add_up(
    codes: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
    wanted: np.ndarray,
    gradients: np.ndarray,
    hessians: np.ndarray,
    columns: np.ndarray,
    slots: np.ndarray,
    channels: int,
) -> np.ndarray:
    sums = np.zeros((len(wanted), slots.sum(), channels))
    for i in range(len(wanted)):
        begin, end, root = places[wanted[i]]
        own_rows = rows[begin:end]
        values = np.empty((end - begin, 2))
        for at in range(end - begin):
            values[at, 0] = gradients[root, own_rows[at]]
            values[at, 1] = hessians[root, own_rows[at]]
        start = 0
        for position in range(len(columns)):
            column, own = codes[columns[position]], sums[i, start:]
            start += slots[position]
            for at in range(end - begin):
                slot = np.uint64(column[own_rows[at]])
                own[slot, 0] += values[at, 0]
                own[slot, 1] += values[at, 1]
                if channels > 2:
                    own[slot, 2] += 1.0
    return sums


@compiled
def _add_leaves(
    rows: np.ndarray, places: np.ndarray, nodes: np.ndarray, values: np.ndarray, raw: np.ndarray
) -> None:
    for i in range(len(nodes)):
        begin, end, root = places[nodes[i]]
        for at in range(begin, end):
            raw[root, rows[at]] += values[i]
