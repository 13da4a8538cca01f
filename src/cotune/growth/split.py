"""The best split of a node, found in the sums over its bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cotune.compiled import compiled
from cotune.growth.layout import Layout
from cotune.growth.rules import Rules
from cotune.party.train.grow import Split

#: The first two channels of a histogram; the last one counts rows, if they are counted.
GRADIENT, HESSIAN = 0, 1

#: Of a group of rows: gradient, curvature, and the last channel again.
Sums = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Found:
    """A split of a node that is not numbered yet, its gain, and the sums on both sides."""

    gain: float
    column: int
    bin: int
    missing_left: bool
    right_categories: bytes
    left: Sums
    right: Sums

    def split(self, node: int) -> Split:
        return Split(node, self.column, self.bin, self.missing_left, self.right_categories)


def leaf_value(sums: Sums, rules: Rules) -> float:
    """The step that reduces the loss of a node's rows most, shortened by the learning rate."""
    curvature = sums[HESSIAN] * rules.curvature + rules.l2
    if curvature <= 0.0:
        return 0.0
    step = _shrunk(sums[GRADIENT], float(rules.l1)) / curvature
    return float(np.float32(-rules.learning_rate * step))


class Finder:
    """Looks for the splits of nodes whose histograms have that layout, by the rules."""

    def __init__(self, layout: Layout, rules: Rules) -> None:
        self._layout = layout
        self._rules = rules
        more = np.where(layout.categorical, rules.category_l2, 0.0)
        self._penalties = (rules.l2 + more) / rules.curvature
        self._least = max(rules.min_hessian, 1e-12) / rules.curvature
        self._all = np.ones(len(layout.columns), dtype=bool)

    def best(self, histogram: np.ndarray, allowed: np.ndarray | None = None) -> Found | None:
        """The split of the largest gain, None if none is allowed.

        The histogram is channel (gradient, curvature and, if counted, rows) and slot; `allowed`
        says which columns may be used. All sums are exact, so that ties are decided alike whatever
        the parties; the first of the best is taken.
        """
        layout, rules = self._layout, self._rules
        gain, column, place, missing_left, left, right = _best(
            histogram, layout.starts, layout.sizes, layout.categorical,
            self._all if allowed is None else allowed, self._penalties,
            rules.l2 / rules.curvature, float(rules.l1), self._least,
            rules.min_rows if rules.counted else 0, rules.curvature, float(rules.smoothing),
        )  # fmt: skip
        gain /= rules.curvature
        if not gain > rules.min_gain:
            return None
        right_categories = b""
        if layout.categorical[column]:
            own = histogram[:, layout.starts[column] : layout.missing[column]]
            right_categories = self._right_categories(own, place, missing_left)
        return Found(
            gain, layout.columns[column], place, missing_left, right_categories, left, right
        )

    def _right_categories(self, histogram: np.ndarray, place: int, missing_left: bool) -> bytes:
        """All categories after a place in the order. Those without rows go with missing values."""
        order = _by_mean(histogram, self._rules.curvature, float(self._rules.smoothing))
        right = np.zeros(len(order), dtype=bool)
        right[order[place + 1 :]] = True
        right = np.where((histogram != 0).any(axis=0), right, not missing_left)
        return np.flatnonzero(right).astype(np.uint8).tobytes()


@compiled
def _best(
    histogram: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    categorical: np.ndarray,
    allowed: np.ndarray,
    penalties: np.ndarray,
    penalty: float,
    l1: float,
    least: float,
    min_rows: int,
    factor: float,
    smoothing: float,
) -> tuple[float, int, int, bool, Sums, Sums]:
    """The largest gain, the column, the last bin on the left, the side of missing values, the sums.

    Gains are in units of the factor of all curvatures, which saves to multiply by it. Where
    missing values go to the left, they may be alone there (bin -1). Categories are taken by their
    mean gradient: some beginning of them is the best set to send to one side.
    """
    gradients, curvatures, rows = histogram[GRADIENT], histogram[HESSIAN], histogram[-1]
    end = sizes[0] + 1
    gradient, curvature, count = gradients[:end].sum(), curvatures[:end].sum(), rows[:end].sum()
    before = _squared(gradient, l1) / (curvature + penalty)
    best, best_column, best_place, missing_left = -np.inf, 0, 0, False
    left = right = (0.0, 0.0, 0.0)
    for side in range(2):
        for column in range(len(starts)):
            if not allowed[column]:
                continue
            start, size = starts[column], sizes[column]
            none_missing = not histogram[:, start + size].any()
            if side == 1 and none_missing:
                continue  # the same as on the other side
            order = np.arange(size)
            if categorical[column]:
                order = _by_mean(histogram[:, start : start + size], factor, smoothing)
            g = h = n = 0.0
            for place in range(-side, size - 1):
                slot = start + (order[place] if place >= 0 else size)
                if gradients[slot] == 0.0 and curvatures[slot] == 0.0 and rows[slot] == 0.0:
                    continue  # no rows: the same as at the place before
                g += gradients[slot]
                h += curvatures[slot]
                n += rows[slot]
                if h < least or h > curvature - least or n < min_rows or n > count - min_rows:
                    continue
                gain = _squared(g, l1) / (h + penalties[column])
                gain += _squared(gradient - g, l1) / ((curvature + penalties[column]) - h)
                gain -= before
                if gain > best:
                    best, best_column, best_place = gain, column, place
                    left, right = (g, h, n), (gradient - g, curvature - h, count - n)
                    missing_left = n > count - n if none_missing else side == 1
    return best, best_column, best_place, missing_left, left, right


@compiled
def _by_mean(histogram: np.ndarray, factor: float, smoothing: float) -> np.ndarray:
    """Categories in the order of their mean gradient, those without rows last."""
    means = np.full(histogram.shape[1], np.inf)
    for category in range(histogram.shape[1]):
        if histogram[:, category].any():
            weight = histogram[HESSIAN, category] * factor + smoothing
            means[category] = histogram[GRADIENT, category] / weight if weight > 0 else 0.0
    return np.argsort(means, kind="mergesort")


@compiled
def _squared(gradient: float, l1: float) -> float:
    return _shrunk(gradient, l1) ** 2


@compiled
def _shrunk(gradient: float, l1: float) -> float:
    """The gradient nearer to 0 by `l1`."""
    if gradient > l1:
        return gradient - l1
    return min(0.0, gradient + l1)


def drawn(share: float, count: int, seeds: Sequence[int]) -> np.ndarray:
    """A share of `count` things, one at least, in ascending order; the same for the same seeds."""
    size = max(1, round(share * count))
    return np.sort(np.random.default_rng(list(seeds)).choice(count, size, replace=False))
