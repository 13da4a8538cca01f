"""A party's rows while trees grow: which node each is in, and the sums over the rows of a node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from cotune.compiled import compiled
from cotune.errors import Malformed
from cotune.party.party import Refuse
from cotune.party.train.grow import (
    LARGEST_LOSS,
    LOSS_STEP,
    SQUARES_STEP,
    STEPS,
    Split,
    Start,
    Tree,
    trees_per_round,
)
from cotune.party.train.grow_nodes import CHANNELS, Columns, Nodes

if TYPE_CHECKING:
    from cotune.party.party import Party


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
        if len(start.base) != (trees_per_round(schema) if start.target == "boost" else 1):
            raise Malformed("there is not one beginning for each tree of a round")
        if len(start.bins.sizes) != len(schema.columns):
            raise Malformed("there are not bins for each column of the schema")
        y = y.astype(float)
        if schema.task == "regression":
            y = (y - schema.target_mean) / schema.target_scale
        self._start = start
        self._schema = schema
        self._y = y
        self._key = party.key.part("rows", party.name)
        self._codes = start.bins.of(X).T
        self._raw = np.repeat(np.array(start.base)[:, None], len(y), axis=1)
        self._everyone = np.arange(len(y), dtype=np.uint32)
        self._used: tuple[tuple[int, ...], Columns] = (), Columns((), start.bins)
        self.add(start.trees, len(start.trees))
        self.divide(start.splits)

    def add(self, rounds: Sequence[Sequence[Tree]], number: int) -> None:
        """Add the trees of finished rounds to what is predicted, and begin the round `number`."""
        for trees in rounds:
            if len(trees) != len(self._raw):
                raise Malformed("a round has not one tree for each class")
            for raw, tree in zip(self._raw, trees, strict=True):
                nodes = self._rooted(self._everyone, 1)
                nodes.divide(tree.splits)
                nodes.add_leaves(tree.leaves, raw[None])
        self._round = number
        self._plant()

    def fork(self) -> Growing:
        """A copy that grows trees of its own; this one stays where it is, before a round."""
        other = copy(self)
        other._raw = self._raw.copy()
        other._plant()
        return other

    def divide(self, splits: Sequence[Split]) -> None:
        """Part the rows of nodes."""
        self._nodes.divide(splits)
        self._splits += splits

    def finish(self, leaves: Sequence[tuple[int, float]]) -> None:
        """Add the values of the leaves to what is predicted, and begin the next round."""
        self._nodes.add_leaves(leaves, self._raw)
        if len(self._drawn) < len(self._everyone):
            undrawn = np.setdiff1d(self._everyone, self._drawn, assume_unique=True)
            others = self._rooted(undrawn, len(self._raw))
            others.divide(self._splits)
            others.add_leaves(leaves, self._raw)
        self._round += 1
        self._plant()

    def histograms(
        self,
        nodes: Sequence[int],
        columns: tuple[int, ...],
        mask: bytes,
        names: Sequence[str],
        most: int | None = None,
    ) -> list[np.ndarray]:
        """Sums over each column's bins in each node, of what is named: see `CHANNELS`.

        Of a node every column is told, of a column every bin with the missing values last; the
        mask leaves some of these out. Where several sums are kept of a node (two classes each),
        all nodes of the first come before those of the second; counts are told once. Without a mask
        there may be at most so many bins.
        """
        if columns != self._used[0]:
            self._used = columns, Columns(columns, self._start.bins)
        counted, used = "counts" in names, self._used[1]
        cells = len(nodes) * int(used.slots.sum())
        if mask and 8 * len(mask) < cells:
            raise Malformed("the mask is too short for the nodes and columns")
        if not mask and most is not None and cells > most:
            raise Malformed("the nodes and columns wanted have more bins than sums are asked for")
        sums = [self._nodes.sums(nodes, used, *pair, counted=counted) for pair in self._summed]
        asked = np.ones(cells, dtype=np.uint8)
        if mask:
            asked = np.unpackbits(np.frombuffer(mask, np.uint8), count=cells)
        told = [told_by_channel(some.reshape(-1, some.shape[-1]), asked) for some in sums]
        return [
            told[0][channel]
            if len(told) == 1 or name == "counts"
            else np.concatenate([some[channel] for some in told])
            for channel, name in enumerate(CHANNELS)
            if name in names
        ]

    def squares(self, nodes: Sequence[int]) -> list[float]:
        """The sum of the squares of a regression's target over the rows of each node."""
        if not nodes:
            return []
        step, most = STEPS["regression"]
        values = np.rint(np.clip(self._y, -most, most) / step) * step
        squares = np.rint(np.square(values) / SQUARES_STEP) * SQUARES_STEP
        return [float(squares[self._nodes.rows(node)].sum()) for node in nodes]

    def loss(self) -> list[float]:
        """The loss of the finished rounds over all rows, and their number.

        Log loss, or for numbers squared errors in squared deviations of the target.
        """
        if self._start.target != "boost":
            raise Malformed("a loss is asked for, but the trees are not boosted")
        raw, own = self._raw, self._y.astype(int)
        if self._schema.task == "regression":
            losses = (raw[0] - self._y) ** 2
        elif len(raw) == 1:
            losses = np.logaddexp(0.0, np.where(own == 1, -raw[0], raw[0]))
        else:
            shifted = raw - raw.max(axis=0)
            losses = np.log(np.exp(shifted).sum(axis=0)) - shifted[own, self._everyone]
        losses = np.rint(np.clip(losses, 0.0, LARGEST_LOSS) / LOSS_STEP) * LOSS_STEP
        return [float(losses.sum()), float(len(losses))]

    def _rooted(self, rows: np.ndarray, roots: int) -> Nodes:
        return Nodes(self._codes, self._start.bins, rows, roots)

    def _plant(self) -> None:
        """The roots of the next trees, and what is added up in them."""
        rows, start = self._everyone, self._start
        if start.share < 1.0:
            rows = rows[self._key.drawn(len(rows), start.share, self._round // start.every)]
        self._drawn = rows
        self._nodes = self._rooted(rows, len(self._raw))
        self._splits: list[Split] = []
        step, most = STEPS[self._schema.task]
        self._summed = [
            (within_steps(gradients, step, most), within_steps(hessians, step, most))
            for gradients, hessians in self._pairs()
        ]

    def _pairs(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """What is summed: pairs of values of every row, for each tree."""
        y, raw = self._y[None], self._raw
        if self._start.target == "class":
            for label in range(1, len(self._schema.classes), 2):
                yield (y == label).astype(float), (y == label + 1).astype(float)
        elif self._start.target == "value":
            yield y, np.ones_like(y)
        elif self._schema.task == "regression":
            yield raw - y, np.ones_like(raw)
        elif len(raw) == 1:
            yield two_classes(raw, y)
        else:
            grown = np.exp(raw - raw.max(axis=0))
            likely = grown / grown.sum(axis=0)
            yield likely - (y == np.arange(len(raw))[:, None]), likely * (1.0 - likely)


@compiled
def told_by_channel(sums: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The sums that are asked for, channel by channel."""
    cells, channels = sums.shape
    told = np.empty((channels, cells))
    count = 0
    for cell in range(cells):
        for channel in range(channels):
            told[channel, count] = sums[cell, channel]  # the next overwrites what is not asked for
        count += asked[cell]
    return told[:, :count]


@compiled
def two_classes(raw: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and curvature of the loss of two classes."""
    gradients, hessians = np.empty_like(raw), np.empty_like(raw)
    for row in range(raw.shape[1]):
        likely = 1.0 / (1.0 + np.exp(-raw[0, row]))
        gradients[0, row] = likely - y[0, row]
        hessians[0, row] = likely * (1.0 - likely)
    return gradients, hessians


@compiled
def within_steps(values: np.ndarray, step: float, most: float) -> np.ndarray:
    rounded = np.empty(values.shape, np.float32)
    for tree in range(len(values)):
        for row in range(values.shape[1]):
            value = min(max(values[tree, row], -most), most)
            rounded[tree, row] = np.rint(value / step) * step
    return rounded
