"""Bins that all parties share: edges near the quantiles of all rows, found by counting alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cotune.coordinator.federation import Federation
from cotune.data.encode import MOST_CODES
from cotune.data.schema import Column
from cotune.party.train.bins import LARGEST, MOST_BINS, Bins, single
from cotune.party.train.histogram import Crowd
from cotune.problem import Problem

#: Cells that a column is divided into in a round, roughly.
CELLS = 1024
#: Rounds in which crowded cells are divided, at most. Usual are two or three.
MOST_ROUNDS = 12


def shared_bins(federation: Federation, problem: Problem, *, codes_are_numbers: bool) -> Bins:
    """Count in a grid over every column, divide the crowded cells, and join cells to bins.

    A column with few values has one bin for each. Of the others, a bin holds about as many rows
    as the next. The counts are whole numbers: how the rows lie at the parties makes no difference.
    """
    columns = problem.schema.columns
    numeric = [i for i, column in enumerate(columns) if column.kind == "numeric"]
    grids = {i: _Grid.over(columns[i]) for i in numeric}
    for _ in range(MOST_ROUNDS):
        asked = {i: grid.next for i, grid in grids.items() if len(grid.next)}
        if not asked:
            break
        packed = tuple(boundaries.astype("<f4").tobytes() for boundaries in asked.values())
        counts = federation.sum(Crowd(tuple(asked), packed)).sum("counts")
        ends = np.cumsum([len(boundaries) + 1 for boundaries in asked.values()])
        for i, told in zip(asked, np.split(counts, ends[:-1]), strict=True):
            grids[i] = grids[i].counted(told)
    edges = [
        grids[i].edges() if i in grids else _between_codes(column) if codes_are_numbers else None
        for i, column in enumerate(columns)
    ]
    sizes = tuple(
        _codes(column) if found is None else len(found) + 1
        for column, found in zip(columns, edges, strict=True)
    )
    return Bins(sizes, tuple(None if e is None else e.astype("<f4").tobytes() for e in edges))


def _codes(column: Column) -> int:
    return min(max(len(column.categories), 1), MOST_CODES)


def _between_codes(column: Column) -> np.ndarray:
    return np.arange(_codes(column) - 1) + 0.5


@dataclass(frozen=True)
class _Grid:
    """Cells of a column between `boundaries`, the rows in each, and the boundaries to ask next.

    The first cell begins at the smallest and the last ends after the largest number there is.
    """

    boundaries: np.ndarray
    counts: np.ndarray
    next: np.ndarray

    @classmethod
    def over(cls, column: Column) -> _Grid:
        ends = np.clip([column.low, column.high], -LARGEST, LARGEST)
        linear = ends[0] + (ends[1] / CELLS - ends[0] / CELLS) * np.arange(CELLS + 1)
        nothing = np.empty(0, dtype=np.float32)
        return cls(nothing, np.zeros(1), np.unique(single(linear)))

    def counted(self, told: np.ndarray) -> _Grid:
        """The grid with the boundaries that were asked, and those to divide crowded cells by."""
        starts = np.concatenate([[-np.inf], self.boundaries])
        asked = np.concatenate([[-np.inf], self.next])
        boundaries = np.union1d(starts, asked)
        below = np.full(len(boundaries), np.nan)  # rows below a boundary
        below[np.searchsorted(boundaries, starts)] = np.cumsum(self.counts) - self.counts
        below[np.searchsorted(boundaries, asked)] = np.cumsum(told) - told
        counts = np.maximum(np.diff(below, append=told.sum()), 0.0)  # a party may have left
        inner = boundaries[1:].astype(np.float32)
        return _Grid(inner, counts, _dividing(inner, counts))

    def edges(self) -> np.ndarray:
        """Edges between the bins: in the middle of the gap between their values, if there is one.

        Where there are more cells than bins, a bin takes cells until it holds its share of the
        rows that are left.
        """
        filled = np.flatnonzero(self.counts)
        if len(filled) < 2:
            return np.empty(0, dtype=np.float32)
        ends = self.boundaries[filled[:-1]].astype(float)
        begins = self.boundaries[filled[1:] - 1].astype(float)
        gaps = np.clip(single(ends / 2 + begins / 2), single(ends), single(begins))
        kept = _shared_out(self.counts[filled], MOST_BINS)
        found: np.ndarray = gaps[kept]
        return found


def _dividing(boundaries: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """New boundaries inside the cells that are too crowded to be bins, or may hold two values.

    The shortest decimal number inside, too, gets a cell of its own: columns
    with few values mostly consist of such.
    """
    lows = np.concatenate([single(np.array([-LARGEST])), boundaries])
    highs = np.concatenate([boundaries, single(np.array([LARGEST]))])
    divisible = (counts >= 2) & (np.nextafter(lows, np.float32(np.inf)) < highs)
    if np.count_nonzero(counts) > MOST_BINS:
        divisible &= counts > counts.sum() / (2 * MOST_BINS)
    cells = np.flatnonzero(divisible)
    if not len(cells):
        return np.empty(0, dtype=np.float32)
    low, high = lows[cells], highs[cells]
    steps = np.arange(1, parts := max(2, CELLS // len(cells))) / parts
    short = single(_shortest(low.astype(float), high.astype(float)))
    after = np.nextafter(short, np.float32(np.inf))
    found = np.concatenate([_evenly(low, high, steps).ravel(), short, after])
    return np.setdiff1d(found, boundaries)


def _evenly(low: np.ndarray, high: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Numbers from low to high, in as many single-precision numbers of each other.

    That is even within a power of two and goes by ratios beyond, however small the low end is.
    Only from negative to positive numbers, it goes by differences.
    """
    ends = (np.abs(end).view(np.int32).astype(float)[:, None] for end in (low, high))
    begin, end = ends
    bits = np.rint(begin + (end - begin) * steps).astype(np.int32)
    one_sign = np.where(high > 0, 1, -1)[:, None] * bits.view(np.float32)
    first, last = low.astype(float)[:, None], high.astype(float)[:, None]
    across = single(first + (last - first) * steps)
    return np.where(((low < 0) & (high > 0))[:, None], across, one_sign).astype(np.float32)


def _shortest(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The number with the fewest decimals that is not below `low` and is below `high`.

    >>> _shortest(np.array([0.97, 3.1, -2.0]), np.array([1.3, 3.2, 5.0]))
    array([1. , 3.1, 0. ])
    """
    found = low.copy()
    for exponent in range(-30, 31):
        unit = 10.0**exponent
        with np.errstate(over="ignore"):
            multiple = np.ceil(low / unit) * unit + 0.0
        found = np.where((low <= multiple) & (multiple < high), multiple, found)
    return found


def _shared_out(counts: np.ndarray, bins: int) -> np.ndarray:
    """After which cells a bin ends, all but the last: `bins` at most, of about as many rows."""
    if len(counts) <= bins:
        return np.arange(len(counts) - 1)
    ends: list[int] = []
    left, held = float(counts.sum()), 0.0
    for cell, count in enumerate(counts[:-1]):
        held += count
        share = left / (bins - len(ends))
        if held + counts[cell + 1] / 2 > share:
            ends.append(cell)
            left, held = left - held, 0.0
            if len(ends) == bins - 1:
                break
    return np.array(ends, dtype=np.int64)
