"""Histograms of nodes, asked of the parties with as little said as possible."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from cotune.coordinator.federation import Federation, Sums
from cotune.growth.grow import Answered, Finished
from cotune.growth.layout import Layout
from cotune.party.train.grow import Split, Start, Tree
from cotune.party.train.histogram import Grow

#: Numbers in one reply, at most; nodes beyond that are asked for in another message.
MOST_NUMBERS = 2**22
#: Bins that must be empty are left out of a reply once they are at least this share.
WORTH_A_MASK = 0.25


class Told(msgspec.Struct, frozen=True):
    """What the parties have been told so far: enough to begin or to go on from there."""

    start: Start
    after: str = ""
    trees: tuple[tuple[Tree, ...], ...] = ()
    splits: tuple[Split, ...] = ()


@dataclass
class Asker:
    """Asks for histograms, and can tell a party that was not there all that it missed.

    `pairs` is how many pairs of gradients and curvatures are kept of each node; `names` are the
    sums to ask for (gradients, hessians, counts); `squares` has all sums of squares that were
    asked for, by node. `losses` are of boosted trees, not under noise: the mean loss before each
    round of these parties, `judges`; with others it begins again.
    """

    federation: Federation
    told: Told
    pairs: int
    names: Sequence[str]
    squares: dict[int, float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    judges: Answered = ()

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
        """The histograms of the nodes wanted (node, channel, slot), and whose they are.

        Before, the parties take the splits, and the round that is finished. `within` has for each
        node the numbers of rows in a histogram that holds all of its rows: where these are 0, the
        node's own need not be told. `squares` are nodes whose sums of squares are wanted, too.
        """
        channels = sum(self._kept(name) for name in self.names)
        most = max(1, MOST_NUMBERS // (layout.slots * channels))
        parts = [np.zeros((0, channels, layout.slots))]
        loss = self._has_loss and (finished is not None or not self.told.after)
        answered: list[Answered] = []
        for begin in range(0, max(1, len(wanted)), most):
            nodes = tuple(wanted[begin : begin + most])
            if begin > 0:
                splits, finished, squares, loss = (), None, (), False
            mask = _mask(within[begin : begin + most])
            cells = len(nodes) * layout.slots if mask is None else int(mask.sum())
            everything = len(layout.columns) == len(layout.bins.sizes)
            sizes: dict[str, Any] = {name: cells * self._kept(name) for name in self.names}
            task = Grow(
                self.told.after,
                **sizes,
                splits=(finished.splits if finished else ()) + tuple(splits),
                leaves=finished.leaves if finished else (),
                wanted=nodes,
                columns=() if everything else layout.columns,
                mask=b"" if mask is None else np.packbits(mask).tobytes(),
                squares=tuple(squares),
                loss=loss,
            )
            sums = self._sum(task, finished)
            if loss:
                self._note_loss(*sums.sum("loss"))
            self.squares |= dict(zip(squares, sums.sum("squares") if squares else (), strict=True))
            if nodes:
                told = [sums.sum(name) for name in self.names]
                parts.append(layout.unmasked(told, len(nodes), mask))
            answered += [self.federation.ledger.last.heard] * len(nodes)
        return parts[1] if len(parts) == 2 else np.concatenate(parts), answered

    @property
    def _has_loss(self) -> bool:
        return self.told.start.target == "boost" and self.federation.protection is None

    def _note_loss(self, total: float, rows: float) -> None:
        heard = self.federation.ledger.last.heard
        if heard != self.judges:
            self.judges, self.losses = heard, []
        self.losses.append(float(total / rows))

    def _kept(self, name: str) -> int:
        """How many sums of that name are kept of a bin; rows are counted once."""
        return 1 if name == "counts" else self.pairs

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


def _mask(within: Sequence[np.ndarray]) -> np.ndarray | None:
    """Which numbers are worth telling, if that leaves out enough of them."""
    if not len(within):
        return None
    filled = np.concatenate(within) > 0
    return filled if np.count_nonzero(filled) <= (1 - WORTH_A_MASK) * len(filled) else None
