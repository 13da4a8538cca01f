"""Histograms of nodes, asked of the parties with as little said as possible."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import numpy as np

from cotune.federation.federation import Federation, Sums
from cotune.party.train.bins import Bins
from cotune.party.train.grow import Split, Start, Tree
from cotune.party.train.histogram import Grow

#: Numbers in one reply, at most; nodes beyond that are asked for in another message.
MOST_NUMBERS = 2**22
#: Bins that must be empty are left out of a reply once they are at least this share.
WORTH_A_MASK = 0.25

#: Which parties answered.
Answered = tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """How the histograms of a node lie in memory: channel, column, bin; missing values last."""

    bins: Bins
    columns: tuple[int, ...]

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.array([self.bins.sizes[column] for column in self.columns])

    @cached_property
    def categorical(self) -> np.ndarray:
        """Which of the columns hold categories."""
        return np.array([self.bins.packed[column] is None for column in self.columns])

    @property
    def width(self) -> int:
        return int(self.sizes.max())

    @property
    def told(self) -> int:
        """The numbers that a party tells of a node and channel."""
        return int(self.sizes.sum()) + len(self.sizes)

    @cached_property
    def places(self) -> np.ndarray:
        """Where each of them lies among a node's columns and bins."""
        bins = np.arange(self.width + 1)
        told = bins <= self.sizes[:, None]
        slots = np.where(bins == self.sizes[:, None], self.width, bins)
        return (slots + (self.width + 1) * np.arange(len(self.sizes))[:, None])[told]

    def spread(self, told: np.ndarray) -> np.ndarray:
        """From what was told (channel, node, number) to channel, node, column and bin."""
        channels, nodes, _ = told.shape
        shape = (channels, nodes, len(self.sizes), self.width + 1)
        if told.shape[2] == shape[2] * shape[3]:
            return told.reshape(shape)
        spread = np.zeros((channels, nodes, shape[2] * shape[3]))
        spread[:, :, self.places] = told
        return spread.reshape(shape)


class Finished(msgspec.Struct, frozen=True):
    """A round's trees, and how the parties are told of them: by the numbers of their own nodes."""

    trees: tuple[Tree, ...] = ()
    splits: tuple[Split, ...] = ()
    leaves: tuple[tuple[int, float], ...] = ()


class Told(msgspec.Struct, frozen=True):
    """What the parties have been told so far: enough to begin or to go on from there."""

    start: Start
    after: str = ""
    trees: tuple[tuple[Tree, ...], ...] = ()
    splits: tuple[Split, ...] = ()


@dataclass
class Asker:
    """Asks for histograms, and can tell a party that was not there all that it missed.

    `pairs` is how many pairs of gradients and curvatures are kept of each node; curvatures are
    asked for only if `hessians`, numbers of rows only if `counts`; `squares` has all sums of
    squares that were asked for, by node.
    """

    federation: Federation
    told: Told
    pairs: int
    hessians: bool
    counts: bool
    squares: dict[int, float] = field(default_factory=dict)

    def ask(
        self,
        layout: Layout,
        wanted: Sequence[int],
        *,
        splits: Sequence[Split] = (),
        finished: Finished | None = None,
        within: Sequence[np.ndarray] = (),
        squares: Sequence[int] = (),
    ) -> tuple[np.ndarray, list[Answered]]:
        """The histograms of the nodes wanted (channel, node, column, bin), and whose they are.

        Before, the parties take the splits, and the round that is finished. `within` has for each
        node the numbers of rows in a histogram that holds all of its rows: where these are 0, the
        node's own need not be told. `squares` are nodes whose sums of squares are wanted, too.
        """
        most = max(1, MOST_NUMBERS // (layout.told * self._channels))
        parts = [np.zeros((self._channels, 0, len(layout.columns), layout.width + 1))]
        answered: list[Answered] = []
        for begin in range(0, max(1, len(wanted)), most):
            nodes = tuple(wanted[begin : begin + most])
            if begin > 0:
                splits, finished, squares = (), None, ()
            mask = self._mask(layout, within[begin : begin + most])
            cells = len(nodes) * layout.told if mask is None else int(mask.sum())
            everything = len(layout.columns) == len(layout.bins.sizes)
            task = Grow(
                self.told.after,
                gradients=cells * self.pairs,
                hessians=cells * self.pairs if self.hessians else 0,
                counts=cells if self.counts else 0,
                splits=(finished.splits if finished else ()) + tuple(splits),
                leaves=finished.leaves if finished else (),
                wanted=nodes,
                columns=() if everything else layout.columns,
                mask=b"" if mask is None else np.packbits(mask).tobytes(),
                squares=tuple(squares),
            )
            sums = self._sum(task, finished)
            self.squares |= dict(zip(squares, sums.sum("squares") if squares else (), strict=True))
            if nodes:
                channels = [sums.sum(name).reshape(-1, cells) for name in self._asked]
                parts.append(_unmasked(np.concatenate(channels), mask, len(nodes), layout))
            answered += [self.federation.ledger.last.heard] * len(nodes)
        return parts[1] if len(parts) == 2 else np.concatenate(parts, axis=1), answered

    @property
    def _asked(self) -> list[str]:
        wanted = {"gradients": True, "hessians": self.hessians, "counts": self.counts}
        return [name for name, asked in wanted.items() if asked]

    @property
    def _channels(self) -> int:
        return self.pairs * (1 + self.hessians) + self.counts

    def _mask(self, layout: Layout, within: Sequence[np.ndarray]) -> np.ndarray | None:
        if not len(within):
            return None
        filled = np.stack([counts.reshape(-1)[layout.places] > 0 for counts in within]).ravel()
        return filled if filled.mean() <= 1 - WORTH_A_MASK else None

    def _sum(self, task: Grow, finished: Finished | None) -> Sums:
        told = self.told
        start = msgspec.structs.replace(told.start, trees=told.trees, splits=told.splits)
        if not told.after:
            name = hashlib.blake2b(msgspec.msgpack.encode(start), digest_size=12).hexdigest()
            task = msgspec.structs.replace(task, after=name)
        whole = msgspec.structs.replace(task, start=start)
        sums = self.federation.sum(task if told.after else whole, whole)
        if finished is None:
            self.told = Told(told.start, task.digest, told.trees, told.splits + task.splits)
        else:
            self.told = Told(told.start, task.digest, (*told.trees, finished.trees))
        return sums


def _unmasked(
    channels: np.ndarray, mask: np.ndarray | None, nodes: int, layout: Layout
) -> np.ndarray:
    if mask is not None:
        full = np.zeros((len(channels), len(mask)))
        full[:, mask] = channels
        channels = full
    return layout.spread(channels.reshape(len(channels), nodes, layout.told))
