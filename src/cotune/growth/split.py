"""The best split of a node, found in the sums over its bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cotune.compiled import compiled
from cotune.growth.layout import Layout
from cotune.growth.rules import Rules
from cotune.party.train.grow import Split

GRADIENT, HESSIAN = 0, 1


@dataclass(frozen=True)
class Found:
    """A split of a node that is not numbered yet, its gain, and the sums on both sides."""

    gain: float
    column: int
    bin: int
    missing_left: bool
    right_categories: bytes
    left: np.ndarray
    right: np.ndarray

    def split(self, node: int) -> Split:
        return Split(node, self.column, self.bin, self.missing_left, self.right_categories)


def leaf_value(sums: np.ndarray, rules: Rules) -> float:
    """The step that reduces the loss of a node's rows most, shortened by the learning rate."""
    curvature = float(sums[HESSIAN]) * rules.curvature + rules.l2
    if curvature <= 0.0:
        return 0.0
    step = float(_shrunk(sums[GRADIENT], rules.l1)) / curvature
    return float(np.float32(-rules.learning_rate * step))


def best_splits(
    histograms: np.ndarray, layout: Layout, rules: Rules, allowed: np.ndarray | None = None
) -> list[Found | None]:
    """Of each node the split of the largest gain, None if none is allowed.

    The histograms are channel (gradient, curvature and, if counted, rows), node, slot; `allowed`
    says for node and column whether it may be used. All sums are exact, so that ties are decided
    alike whatever the parties; the first of the best is taken.
    """
    ordered, order = _ordered(histograms, layout, rules)
    if allowed is None:
        allowed = np.ones((histograms.shape[1], len(layout.sizes)), dtype=bool)
    gains, columns, places, sides, lefts, rights = _scanned(
        ordered, layout.starts, layout.sizes, allowed, _penalties(layout, rules),
        rules.l2 / rules.curvature, rules.l1, max(rules.min_hessian, 1e-12) / rules.curvature,
        rules.min_rows if rules.counted else 0,
    )  # fmt: skip
    found: list[Found | None] = []
    for node, gain in enumerate((gains / rules.curvature).tolist()):
        if not gain > rules.min_gain:
            found.append(None)
            continue
        column, place, left, right = (
            int(columns[node]),
            int(places[node]),
            lefts[node],
            rights[node],
        )
        start, missing = layout.starts[column], layout.missing[column]
        missing_left = bool(sides[node])
        if not histograms[:, node, missing].any():
            missing_left = bool(left[-1] > right[-1])
        categories = b""
        if layout.categorical[column]:
            own = histograms[:, node, start:missing]
            categories = _right_categories(order[column][node], place + 1, own, missing_left)
        found.append(
            Found(gain, layout.columns[column], place, missing_left, categories, left, right)
        )
    return found


def _right_categories(
    order: np.ndarray, place: int, histogram: np.ndarray, missing_left: bool
) -> bytes:
    """All categories from a place in the order on. Those without rows go with missing values."""
    right = np.zeros(len(order), dtype=bool)
    right[order[place:]] = True
    present = (histogram != 0).any(axis=0)
    right = np.where(present, right[: len(present)], not missing_left)
    return np.flatnonzero(right).astype(np.uint8).tobytes()


def _ordered(
    histograms: np.ndarray, layout: Layout, rules: Rules
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """The same with categories by their mean gradient, and their order by column (node, place).

    In that order some beginning of the categories is the best set to send to one side.
    """
    positions = np.flatnonzero(layout.categorical)
    if not len(positions):
        return histograms, {}
    slots = layout.padded_slots[positions, :-1]
    values = histograms[..., slots]
    weight = values[HESSIAN] * rules.curvature + rules.smoothing
    ratio = np.divide(values[GRADIENT], weight, where=weight > 0, out=np.zeros_like(weight))
    ratio[~values.any(axis=0) | (slots < 0)] = np.inf  # no rows: after all others
    order = np.argsort(ratio, axis=-1, kind="stable")
    ordered = histograms.copy()
    sorted_values = np.take_along_axis(values, order[None], axis=-1)
    ordered[..., slots[slots >= 0]] = sorted_values[..., slots >= 0]
    return ordered, {int(c): order[:, i] for i, c in enumerate(positions)}


def _penalties(layout: Layout, rules: Rules) -> np.ndarray:
    """What is added to the curvature of a leaf, by the column that makes it."""
    more = np.where(layout.categorical, rules.category_l2, 0.0)
    penalties: np.ndarray = (rules.l2 + more) / rules.curvature
    return penalties


@compiled
def _scanned(
    histograms: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    allowed: np.ndarray,
    penalties: np.ndarray,
    penalty: float,
    l1: float,
    least: float,
    min_rows: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of each node the largest gain, the column, the last bin on the left and the side of missing.

    Then the sums on the left and on the right. Gains are in units of the factor of all curvatures,
    which saves to multiply by it. Where missing values go to the left, they may be alone there
    (bin -1).
    """
    channels, nodes, _ = histograms.shape
    gains = np.full(nodes, -np.inf)
    columns, places = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    sides = np.zeros(nodes, np.bool_)
    lefts, rights = np.zeros((nodes, channels)), np.zeros((nodes, channels))
    for node in range(nodes):
        gradients, curvatures = histograms[GRADIENT, node], histograms[HESSIAN, node]
        rows = histograms[-1, node]
        end = sizes[0] + 1
        gradient, curvature = gradients[:end].sum(), curvatures[:end].sum()
        count = rows[:end].sum()
        before = _squared(gradient, l1) / (curvature + penalty)
        for side in range(2):
            for column in range(len(starts)):
                if not allowed[node, column]:
                    continue
                total = curvature + penalties[column]
                g = h = n = 0.0
                for place in range(-side, sizes[column] - 1):
                    slot = starts[column] + (sizes[column] if place < 0 else place)
                    if gradients[slot] == 0.0 and curvatures[slot] == 0.0 and rows[slot] == 0.0:
                        if place < 0:
                            break  # nothing is missing: the same as on the other side
                        continue  # no rows: the same as the place before
                    g += gradients[slot]
                    h += curvatures[slot]
                    n += rows[slot]
                    if h < least or h > curvature - least:
                        continue
                    if n < min_rows or n > count - min_rows:
                        continue
                    gain = _squared(g, l1) / (h + penalties[column])
                    gain += _squared(gradient - g, l1) / (total - h)
                    gain -= before
                    if gain > gains[node]:
                        gains[node], columns[node], places[node] = gain, column, place
                        sides[node] = side == 1
                        lefts[node, GRADIENT], lefts[node, HESSIAN], lefts[node, -1] = g, h, n
        rights[node, GRADIENT] = gradient - lefts[node, GRADIENT]
        rights[node, HESSIAN] = curvature - lefts[node, HESSIAN]
        rights[node, -1] = count - lefts[node, -1]
    return gains, columns, places, sides, lefts, rights


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
