"""How the sums over the bins of nodes lie in memory, and in a message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cotune.party.train.bins import Bins


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

    def spread(
        self, told: Sequence[np.ndarray], nodes: int, mask: np.ndarray | None = None
    ) -> np.ndarray:
        """From what was told (channels of node and number) to channel, node, column and bin.

        `told` are matrices with a row for each channel; the mask says which numbers they have.
        """
        columns, slots = len(self.sizes), self.width + 1
        places = (np.arange(nodes)[:, None] * (columns * slots) + self.places).ravel()
        if mask is not None:
            places = places[mask]
        spread = np.zeros((sum(map(len, told)), nodes * columns * slots))
        for place, channel in enumerate(channel for matrix in told for channel in matrix):
            spread[place, places] = channel
        return spread.reshape(len(spread), nodes, columns, slots)
