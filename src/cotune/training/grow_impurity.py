"""The split of a node that leaves the least impurity, as a single tree looks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from cotune.growth.layout import Layout

Criterion = Literal["gini", "entropy", "squared_error"]


@dataclass(frozen=True)
class Chosen:
    """A split of a node by column and bin, and the sums on both sides."""

    column: int
    bin: int
    missing_left: bool
    left: np.ndarray
    right: np.ndarray


@dataclass(frozen=True)
class Search:
    """How splits are looked for: among how many columns, and whether thresholds are drawn."""

    criterion: Criterion
    columns: int
    min_rows: int
    random: bool
    seed: int

    def splits(self, sums: np.ndarray, layout: Layout, numbers: list[int]) -> list[Chosen | None]:
        """Of each node the best split of the columns drawn for it, None if it has none.

        The sums are channel (those of `quality`, rows last), node, slot. Columns are drawn until
        one can be used, as scikit-learn does it.
        """
        sums = layout.padded(sums)
        missing = sums[..., -1]
        right = np.zeros_like(sums)
        np.cumsum(sums[..., :-1], axis=-1, out=right[..., 1:])  # in [..., i] the first i bins
        sides = [right, right + missing[..., None]]  # missing values to the right, to the left
        totals = sides[1][:, :, 0, -1]
        places = np.arange(sums.shape[-1])
        legal = np.stack([places <= layout.sizes[:, None], places < layout.sizes[:, None]])
        legal[1, :, 0] = False
        quality = np.stack(
            [self._quality(side, totals, mask) for side, mask in zip(sides, legal, strict=True)]
        )
        found: list[Chosen | None] = []
        for node, number in enumerate(numbers):
            rng = np.random.default_rng([self.seed, number])
            own = quality[:, node]
            if self.random:
                own = self._drawn(own, sums[-1, node], layout, rng)
            usable: np.ndarray = own.max(axis=(0, 2)) > -np.inf
            order = rng.permutation(len(usable))
            first_usable = np.flatnonzero(usable[order])
            if not len(first_usable):
                found.append(None)
                continue
            seen = np.sort(order[: max(self.columns, first_usable[0] + 1)])
            best = np.argmax(own[:, seen])
            side, position, place = np.unravel_index(best, (2, len(seen), own.shape[2]))
            column = seen[position]
            on_left = sides[side][:, node, column, place].copy()
            on_right = totals[:, node] - on_left
            missing_left = bool(side)
            if missing[-1, node, column] == 0:
                missing_left = bool(on_left[-1] > on_right[-1])
            found.append(Chosen(int(column), int(place) - 1, missing_left, on_left, on_right))
        return found

    def _quality(self, left: np.ndarray, totals: np.ndarray, legal: np.ndarray) -> np.ndarray:
        right = totals[:, :, None, None] - left
        quality: np.ndarray = purity(left, self.criterion) + purity(right, self.criterion)
        rows = np.minimum(left[-1], right[-1])
        quality[~(legal & (rows >= self.min_rows))] = -np.inf
        return quality

    def _drawn(
        self, quality: np.ndarray, rows: np.ndarray, layout: Layout, rng: np.random.Generator
    ) -> np.ndarray:
        """The same with one place per column, drawn between its ends, and one side for missing."""
        where, sides = rng.random(len(quality[0])), rng.integers(0, 2, len(quality[0]))
        kept = np.full_like(quality, -np.inf)
        for column, values in enumerate(rows[:, :-1] > 0):
            filled = np.flatnonzero(values)
            edges = layout.bins.edges[layout.columns[column]]
            if len(filled) == 0 or edges is None:
                continue
            side = sides[column] if rows[column, -1] > 0 else 0
            place = layout.sizes[column]  # one bin: only missing values can be told from it
            if len(filled) > 1:
                low, high = float(edges[filled[0]]), float(edges[filled[-1] - 1])
                threshold = low + (high - low) * where[column]
                place = int(np.searchsorted(edges, threshold, side="right"))
                place = min(max(place, filled[0] + 1), filled[-1])
            side = side if place < layout.sizes[column] else 0
            kept[side, column, place] = quality[side, column, place]
        return kept


def purity(sums: np.ndarray, criterion: Criterion) -> np.ndarray:
    """The rows times minus their impurity, up to a term that no split changes.

    The channels are the rows of each class, or the sum of the target, and all rows.
    """
    rows = np.maximum(sums[-1], 1.0)
    if criterion == "entropy":
        shares = sums[:-1] / rows
        logs = np.log2(shares, where=shares > 0, out=np.zeros_like(shares))
        entropy: np.ndarray = (sums[:-1] * logs).sum(axis=0)
        return entropy
    squares: np.ndarray = np.square(sums[:-1]).sum(axis=0) / rows
    return squares
