"""Which of a party's rows are in which node of the trees, and sums over the rows of a node."""

from __future__ import annotations

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


class Nodes:
    """The nodes of one or several trees, numbered as in `Split`.

    Every tree has the rows in an order of its own, in which those of a node lie side by side: to
    divide a node is to sort its stretch, once. So a node keeps its rows when it is divided, as the
    split may not come to be part of the tree.

    Parameters
    ----------
    codes, bins
        The bin of every row in every column, one column after the other in memory.
    rows
        That are in the roots.
    roots
        How many trees there are.
    """

    def __init__(self, codes: np.ndarray, bins: Bins, rows: np.ndarray, roots: int) -> None:
        self._codes = codes
        self._bins = bins
        self._rows = np.tile(rows, roots)
        begins = len(rows) * np.arange(roots)
        self._places = np.stack([begins, begins + len(rows), np.arange(roots)], axis=1)
        self._divided: set[int] = set()

    def rows(self, node: int) -> np.ndarray:
        _check([node], [len(self._places)], "node")
        rows: np.ndarray = self._rows[self._places[node, BEGIN] : self._places[node, END]]
        return rows

    def divide(self, splits: Sequence[Split]) -> None:
        """Each split makes two nodes more."""
        if not splits:
            return
        known = len(self._places)
        nodes = [split.node for split in splits]
        columns = [split.column for split in splits]
        _check(nodes, range(known, known + 2 * len(splits), 2), "node")
        _check(columns, [len(self._bins.sizes)] * len(splits), "column")
        divided = self._divided.union(nodes)
        if len(divided) < len(self._divided) + len(nodes):
            raise Malformed("a node is to be divided twice")
        places = np.empty((known + 2 * len(splits), 3), dtype=np.int64)
        places[:known] = self._places
        goes_left = self._goes_left(splits, columns)
        _divide(self._codes, self._rows, places, np.array(nodes), np.array(columns), goes_left)
        self._places, self._divided = places, divided

    def sums(
        self,
        wanted: Sequence[int],
        columns: Sequence[int],
        gradients: np.ndarray,
        hessians: np.ndarray,
    ) -> np.ndarray:
        """Sums over each column's bins in each node wanted: node, slot, channel (`CHANNELS`).

        A slot is a bin of a column; the missing values come after its other bins. What is summed is
        given for every tree and row.
        """
        _check(wanted, [len(self._places)] * len(wanted), "node")
        _check(columns, [len(self._bins.sizes)] * len(columns), "column")
        sizes = [self._bins.sizes[column] + 1 for column in columns]
        return _add_up(
            self._codes, self._rows, self._places, np.array(wanted), gradients, hessians,
            np.array(columns), np.array(sizes),
        )  # fmt: skip

    def add_leaves(self, leaves: Sequence[tuple[int, float]], raw: np.ndarray) -> None:
        """Add the values of nodes to what is predicted for their rows, by tree and row."""
        nodes, values = [node for node, _ in leaves], [value for _, value in leaves]
        _check(nodes, [len(self._places)] * len(nodes), "node")
        _add_leaves(self._rows, self._places, np.array(nodes), np.array(values), raw)

    def _goes_left(self, splits: Sequence[Split], columns: Sequence[int]) -> np.ndarray:
        """For each split, whether the rows of a bin go to the left."""
        last = np.array([split.bin for split in splits])
        goes_left: np.ndarray = np.arange(MOST_BINS + 1) <= last[:, None]
        for left, split in zip(goes_left, splits, strict=True):
            if split.right:
                left[:] = True
                left[np.frombuffer(split.right, dtype=np.uint8)] = False
        missing = [self._bins.sizes[column] for column in columns]
        goes_left[range(len(splits)), missing] = [split.missing_left for split in splits]
        return goes_left


def _check(numbers: Sequence[int], known: Sequence[int], kind: str) -> None:
    """Compiled loops do not look where they write: each number must be one of those known."""
    if not all(0 <= number < most for number, most in zip(numbers, known, strict=True)):
        raise Malformed(f"a {kind} is named that the party does not know")


@compiled
def _divide(
    codes: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
    nodes: np.ndarray,
    columns: np.ndarray,
    goes_left: np.ndarray,
) -> None:
    """Sort the stretches of nodes, in their order, and fill in the last places: the children's."""
    on_right = np.empty_like(rows)
    first = len(places) - 2 * len(nodes)
    for i in range(len(nodes)):
        begin, end, root = places[nodes[i]]
        column = codes[:, columns[i]]
        middle, rights = begin, 0
        for at in range(begin, end):
            row = rows[at]
            if goes_left[i, column[row]]:
                rows[middle] = row
                middle += 1
            else:
                on_right[rights] = row
                rights += 1
        rows[middle:end] = on_right[:rights]
        left = first + 2 * i
        places[left, BEGIN], places[left, END], places[left, ROOT] = begin, middle, root
        places[left + 1, BEGIN], places[left + 1, END], places[left + 1, ROOT] = middle, end, root


@compiled
def _add_up(
    codes: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
    wanted: np.ndarray,
    gradients: np.ndarray,
    hessians: np.ndarray,
    columns: np.ndarray,
    sizes: np.ndarray,
) -> np.ndarray:
    sums = np.zeros((len(wanted), sizes.sum(), 3))
    for i in range(len(wanted)):
        begin, end, root = places[wanted[i]]
        own_rows = rows[begin:end]
        values = np.empty((end - begin, 2))
        for at in range(end - begin):
            values[at, 0] = gradients[root, own_rows[at]]
            values[at, 1] = hessians[root, own_rows[at]]
        start = 0
        for position in range(len(columns)):
            column, own = codes[:, columns[position]], sums[i, start:]
            start += sizes[position]
            for at in range(end - begin):
                slot = np.uint64(column[own_rows[at]])
                own[slot, 0] += values[at, 0]
                own[slot, 1] += values[at, 1]
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
