"""A party's rows while trees grow: which node each is in, and the sums over the rows of a node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from scipy.special import expit
from sklearn.ensemble._hist_gradient_boosting.common import HISTOGRAM_DTYPE
from sklearn.ensemble._hist_gradient_boosting.histogram import HistogramBuilder

from cotune.party.party import Refuse
from cotune.party.train.grow import SQUARES_STEP, STEPS, Split, Start, Tree
from cotune.problem import seed_of

if TYPE_CHECKING:
    from cotune.party.party import Party

#: What the builders call the sums.
CHANNELS = {"gradients": "sum_gradients", "hessians": "sum_hessians", "counts": "count"}


T = TypeVar("T")


class Following(Protocol):
    """A task that builds on the one of the digest `after`; `start` tells all up to there."""

    @property
    def name(self) -> str: ...
    @property
    def after(self) -> str: ...
    @property
    def start(self) -> Start | None: ...
    @property
    def digest(self) -> str: ...


def followed(party: Party, task: Following, answer: Callable[[Growing], T], fits: int = 0) -> T:
    """The answer to such a task, and its cost: the same, and at once, if it is asked again.

    A party that was not there for the tasks before, and is not told them, refuses.
    """
    digest = task.digest
    known, told, growing, seconds = party.training.get(task.name, ("", None, None, 0.0))
    if known != digest or told is None:
        began = time.thread_time()
        if task.start is not None:
            party.training = {}
            growing = Growing(party, task.start)
        elif known != task.after or growing is None:
            raise Refuse("no_state", "the party was not there when the trees grew up to here")
        party.training.pop(task.name, None)  # should it fail on the way
        told = answer(growing)
        seconds = time.thread_time() - began
        party.training[task.name] = (digest, told, growing, seconds)
    party.bill(fits, seconds)
    found: T = told
    return found


class Growing:
    """Takes splits and leaves as they are told, and adds up over the rows of a node."""

    def __init__(self, party: Party, start: Start) -> None:
        X, y = party.arrays("codes")
        schema = party.problem.schema
        if schema.task == "regression":
            y = (y - schema.target_mean) / schema.target_scale
        self._start = start
        self._schema = schema
        self._y = y
        self._seed = seed_of(party.problem.seed, "rows", party.name)
        # One row more than there are, in no node: the builders take a node with as many rows as
        # they have for the root, in the order of the table, and at a party it need not be.
        self._codes = start.bins.of(np.vstack([X, np.full(X.shape[1], np.nan)]))
        self._raw = np.repeat(np.array(start.base)[:, None], len(y), axis=1)
        self._everyone = np.arange(len(y), dtype=np.uint32)
        self._placed: dict[tuple[int, ...], np.ndarray] = {}
        self.add(start.trees, len(start.trees))
        self.divide(start.splits)

    def add(self, rounds: Sequence[Sequence[Tree]], number: int) -> None:
        """Add the trees of finished rounds to what is predicted, and begin the round `number`."""
        for trees in rounds:
            for raw, tree in zip(self._raw, trees, strict=True):
                nodes = [self._everyone]
                self._part(nodes, tree.splits)
                for node, value in tree.leaves:
                    raw[nodes[node]] += value
        self._round = number
        self._plant()

    def fork(self) -> Growing:
        """A copy that grows trees of its own; this one stays where it is, before a round."""
        other = copy(self)
        other._raw = self._raw.copy()
        other._plant()
        return other

    def divide(self, splits: Sequence[Split]) -> None:
        """Part the rows of nodes; a node keeps its own, as the split may not be in the tree."""
        self._part(self._nodes, splits)
        self._splits += splits
        for split in splits:
            self._owner += [self._owner[split.node]] * 2

    def finish(self, leaves: Sequence[tuple[int, float]]) -> None:
        """Add the values of the leaves to what is predicted, and begin the next round."""
        groups = [self._nodes]
        if len(self._nodes[0]) < len(self._everyone):
            undrawn = np.setdiff1d(self._everyone, self._nodes[0], assume_unique=True)
            groups.append([undrawn] * len(self._raw))
            self._part(groups[1], self._splits)
        for node, value in leaves:
            raw = self._raw[self._owner[node]]
            for nodes in groups:
                raw[nodes[node]] += value
        self._round += 1
        self._plant()

    def histograms(
        self, nodes: Sequence[int], columns: Sequence[int], mask: bytes, names: Sequence[str]
    ) -> list[np.ndarray]:
        """Sums over each column's bins in each node, of what is named: see `CHANNELS`.

        Of a node every column is told, of a column every bin with the missing values last; the
        mask leaves some of these out. Where several sums are kept of a node (two classes each),
        all nodes of the first come before those of the second; counts are told once.
        """
        allowed = np.array(columns, dtype=np.uint32)
        sizes = self._start.bins.sizes
        kept = len(self._builders) if self._start.target == "class" else 1
        stride = len(sizes) * (max(sizes) + 1)
        cells = np.empty((kept, len(nodes), stride), dtype=HISTOGRAM_DTYPE)
        for i, node in enumerate(nodes):
            first = 0 if self._start.target == "class" else self._owner[node]
            for j, builder in enumerate(self._builders[first : first + kept]):
                built = builder.compute_histograms_brute(self._nodes[node], allowed)
                cells[j, i] = np.frombuffer(built, dtype=HISTOGRAM_DTYPE)
        told = (np.arange(len(nodes))[:, None] * stride + self._places(tuple(columns))).ravel()
        if mask:
            told = told[np.unpackbits(np.frombuffer(mask, np.uint8), count=len(told)).view(bool)]
        cells = cells.reshape(kept, len(nodes) * stride)
        return [
            (cells[:1] if name == "counts" else cells)[CHANNELS[name]].take(told, axis=1).ravel()
            for name in names
        ]

    def _places(self, columns: tuple[int, ...]) -> np.ndarray:
        """Where the bins of the columns lie among those of all; kept until other columns come."""
        if columns not in self._placed:
            sizes = self._start.bins.sizes
            stride = max(sizes) + 1
            places = np.concatenate([np.arange(sizes[c] + 1) + c * stride for c in columns])
            self._placed = {columns: places}
        return self._placed[columns]

    def squares(self, nodes: Sequence[int]) -> list[float]:
        """The sum of the squares of a regression's target over the rows of each node."""
        if not nodes:
            return []
        step, most = STEPS["regression"]
        values = np.rint(np.clip(self._y, -most, most) / step) * step
        squares = np.rint(np.square(values) / SQUARES_STEP) * SQUARES_STEP
        return [float(squares[self._nodes[node]].sum()) for node in nodes]

    def _part(self, nodes: list[np.ndarray], splits: Sequence[Split]) -> None:
        for split in splits:
            rows = nodes[split.node]
            codes = self._codes[:, split.column].take(rows, mode="clip")  # the fastest: no checks
            left = self._goes_left(split, codes)
            nodes += [rows.compress(left), rows.compress(~left)]

    def _goes_left(self, split: Split, codes: np.ndarray) -> np.ndarray:
        size = self._start.bins.sizes[split.column]
        if split.right:
            left = np.ones(size + 1, dtype=bool)
            left[np.frombuffer(split.right, dtype=np.uint8)] = False
            left[size] = split.missing_left
            goes: np.ndarray = left[codes]
            return goes
        found: np.ndarray = codes <= split.bin
        if split.missing_left:
            found |= codes == size
        return found

    def _plant(self) -> None:
        """The roots of the next trees, and what is added up in them."""
        rows, start = self._everyone, self._start
        if start.share < 1.0:
            seed = seed_of(self._seed, self._round // start.every)
            rows = rows[np.random.default_rng(seed).random(len(rows)) < start.share]
        self._nodes = [rows] * len(self._raw)
        self._owner = list(range(len(self._raw)))
        self._splits: list[Split] = []
        self._builders = [self._builder(*pair) for pair in self._pairs()]

    def _pairs(self) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """What is summed: pairs of values of every row. The second is 1 where it is None."""
        y, raw = self._y, self._raw
        if self._start.target == "class":
            for label in range(1, len(self._schema.classes), 2):
                yield y == label, y == label + 1
        elif self._start.target == "value":
            yield y, None
        elif self._schema.task == "regression":
            yield raw[0] - y, None
        elif len(raw) == 1:
            likely = expit(raw[0])
            yield likely - y, likely * (1.0 - likely)
        else:
            grown = np.exp(raw - raw.max(axis=0))
            for label, likely in enumerate(grown / grown.sum(axis=0)):
                yield likely - (y == label), likely * (1.0 - likely)

    def _builder(self, gradients: np.ndarray, curvatures: np.ndarray | None) -> HistogramBuilder:
        step, most = STEPS[self._schema.task]

        def rounded(values: np.ndarray) -> np.ndarray:
            steps = np.rint(np.clip(values, -most, most) / step) * step
            return np.append(steps, 0.0).astype(np.float32)

        bins = max(self._start.bins.sizes) + 1
        constant = curvatures is None
        second = np.ones(1, dtype=np.float32) if curvatures is None else rounded(curvatures)
        return HistogramBuilder(self._codes, bins, rounded(gradients), second, constant, 1)
