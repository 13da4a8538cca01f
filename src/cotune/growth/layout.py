"""How the sums over the bins of nodes lie in memory, and in a message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cotune.compiled import compiled
from cotune.party.train.bins import Bins


@dataclass(frozen=True)
class Layout:
    """How a node's histogram lies in memory: one column's bins after the other's.

    Each column has a slot for every bin, and then one for its missing values. A party tells of a
    node and channel just these numbers, in this order.
    """

    bins: Bins
    columns: tuple[int, ...]

    @cached_property
    def sizes(self) -> np.ndarray:
        """The bins of each column, without that of the missing values."""
        return np.array([self.bins.sizes[column] for column in self.columns])

    @cached_property
    def categorical(self) -> np.ndarray:
        """Which of the columns hold categories."""
        return np.array([self.bins.packed[column] is None for column in self.columns])

    @cached_property
    def slots(self) -> int:
        """The numbers that a party tells of a node and channel."""
        return int(self.sizes.sum()) + len(self.sizes)

    @cached_property
    def starts(self) -> np.ndarray:
        """The first slot of each column."""
        return np.concatenate([[0], np.cumsum(self.sizes + 1)[:-1]])

    @cached_property
    def missing(self) -> np.ndarray:
        """The slot of each column's missing values."""
        missing: np.ndarray = self.starts + self.sizes
        return missing

    @cached_property
    def padded_slots(self) -> np.ndarray:
        """The slots as a matrix: columns, bins, missing values last. Where there is none, -1."""
        bins = np.arange(int(self.sizes.max()) + 1)
        slots = np.where(bins < self.sizes[:, None], self.starts[:, None] + bins, -1)
        slots[:, -1] = self.missing
        return slots

    def totals(self, histograms: np.ndarray) -> np.ndarray:
        """The sums over all rows of the nodes: those over any column's bins."""
        totals: np.ndarray = histograms[..., : self.sizes[0] + 1].sum(axis=-1)
        return totals

    def unmasked(
        self, told: Sequence[np.ndarray], nodes: int, mask: np.ndarray | None = None
    ) -> np.ndarray:
        """From what was told, for each name one channel after the other, to node, channel, slot.

        The mask says which of the numbers of all nodes were told; the others are 0.
        """
        numbers = nodes * self.slots
        if mask is None:
            mask = np.ones(numbers, dtype=bool)
        flat = np.concatenate(told)
        cells = int(np.count_nonzero(mask))
        channels = flat.reshape(len(flat) // cells if cells else len(told), cells)
        return _unmasked(channels, mask.reshape(nodes, self.slots))

    def padded(self, histograms: np.ndarray) -> np.ndarray:
        """The same with a place for every column and bin, missing values last."""
        padded: np.ndarray = np.where(
            self.padded_slots >= 0, histograms[..., self.padded_slots], 0.0
        )
        return padded


@compiled
def _unmasked(channels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    nodes, slots = mask.shape
    histograms = np.zeros((nodes, len(channels), slots))
    at = 0
    for node in range(nodes):
        for slot in range(slots):
            if mask[node, slot]:
                for channel in range(len(channels)):
                    histograms[node, channel, slot] = channels[channel, at]
                at += 1
    return histograms
