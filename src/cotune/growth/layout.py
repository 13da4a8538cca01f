"""How the sums over the bins of nodes lie in memory, and in a message."""

from __future__ import annotations

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

    def spread(self, told: np.ndarray) -> np.ndarray:
        """From what was told (channel, node, number) to channel, node, column and bin."""
        channels, nodes, _ = told.shape
        shape = (channels, nodes, len(self.sizes), self.width + 1)
        if told.shape[2] == shape[2] * shape[3]:
            return told.reshape(shape)
        spread = np.zeros((channels, nodes, shape[2] * shape[3]))
        spread[:, :, self.places] = told
        return spread.reshape(shape)
