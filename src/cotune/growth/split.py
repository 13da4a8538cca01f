"""The best split of a node, found in the sums over its bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
    step = float(_shrunk(sums[GRADIENT], rules)) / curvature
    return float(np.float32(-rules.learning_rate * step))


def best_splits(
    histograms: np.ndarray, layout: Layout, rules: Rules, allowed: np.ndarray | None = None
) -> list[Found | None]:
    """Of each node the split of the largest gain, None if none is allowed.

    The histograms are channel (gradient, curvature and, if counted, rows), node, column, bin;
    `allowed` says for node and column whether it may be used. All sums are exact, so that ties
    are decided alike whatever the parties; the first of the best is taken.
    """
    values, order = _ordered(histograms, layout, rules)
    missing = histograms[..., -1]
    left = np.empty_like(histograms)  # in [..., i] the sums over the first i bins
    left[..., 0] = 0.0
    np.cumsum(values, axis=-1, out=left[..., 1:])
    totals = left[:, :, 0, -1] + missing[:, :, 0]
    places = np.arange(layout.width + 1)
    sides = [left]
    legal = [(places > 0) & (places < layout.sizes[:, None])]
    if np.any(missing):  # to the left, they may also be alone there
        sides.append(left + missing[..., None])
        legal.append(places < layout.sizes[:, None])
    if allowed is not None:
        legal = [mask & allowed[:, :, None] for mask in legal]
    gains = [_gains(s, totals, layout, rules, mask) for s, mask in zip(sides, legal, strict=True)]
    flat = np.concatenate([gain.reshape(len(gain), -1) for gain in gains], axis=1)
    best = flat.argmax(axis=1)
    nodes = np.arange(len(best))
    side, column, place = np.unravel_index(best, (len(sides), *left.shape[2:]))
    on_left = np.stack([s[:, nodes, column, place] for s in sides])[side, :, nodes]
    with_missing = (missing[:, nodes, column] != 0).any(axis=0)
    found: list[Found | None] = []
    for node, gain in enumerate(flat[nodes, best].tolist()):
        if not gain / rules.curvature > rules.min_gain:
            found.append(None)
            continue
        on_right = totals[:, node] - on_left[node]
        missing_left = bool(side[node])
        if not with_missing[node]:
            missing_left = bool(on_left[node, -1] > on_right[-1])
        c, i = int(column[node]), int(place[node])
        right = b""
        if order is not None and layout.categorical[c]:
            own = histograms[:, node, c, : layout.sizes[c]]
            right = _right_categories(order[node, c], i, own, missing_left)
        found.append(
            Found(
                gain / rules.curvature,
                layout.columns[c],
                i - 1,
                missing_left,
                right,
                on_left[node],
                on_right,
            )
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
) -> tuple[np.ndarray, np.ndarray | None]:
    """The bins without that of the missing values, categories by their mean gradient.

    In that order some beginning of the categories is the best set to send to one side.
    """
    values = histograms[..., :-1]
    if not layout.categorical.any():
        return values, None
    weight = values[HESSIAN] * rules.curvature + rules.smoothing
    ratio = np.divide(values[GRADIENT], weight, where=weight > 0, out=np.zeros_like(weight))
    ratio[~values.any(axis=0)] = np.inf  # no rows: after all others
    ratio[:, ~layout.categorical] = np.arange(layout.width)
    order = np.argsort(ratio, axis=-1, kind="stable")
    return np.take_along_axis(values, order[None], axis=-1), order


def _gains(
    left: np.ndarray, totals: np.ndarray, layout: Layout, rules: Rules, legal: np.ndarray
) -> np.ndarray:
    """How far each split reduces the loss (node, column, place); minus infinity if not allowed.

    In units of the factor of all curvatures, which saves to multiply by it.
    """
    least = max(rules.min_hessian, 1e-12) / rules.curvature
    total = totals[:, :, None, None]
    possible = (left[HESSIAN] >= least) & (left[HESSIAN] <= total[HESSIAN] - least) & legal
    if rules.counted and rules.min_rows > 1:
        possible &= left[-1] >= rules.min_rows
        possible &= left[-1] <= total[-1] - rules.min_rows
    l2 = np.where(layout.categorical, rules.l2 + rules.category_l2, rules.l2)[:, None]
    l2 = l2 / rules.curvature
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = _squared(left[GRADIENT], rules)
        gain /= left[HESSIAN] + l2
        right = _squared(total[GRADIENT] - left[GRADIENT], rules)
        right /= (total[HESSIAN] + l2) - left[HESSIAN]
        gain += right
        gain -= _squared(total[GRADIENT], rules) / (total[HESSIAN] + rules.l2 / rules.curvature)
    gain[~possible] = -np.inf
    return gain


def _squared(gradients: np.ndarray, rules: Rules) -> np.ndarray:
    shrunk = _shrunk(gradients, rules)
    squared: np.ndarray = shrunk * shrunk
    return squared


def _shrunk(gradients: np.ndarray, rules: Rules) -> np.ndarray:
    if rules.l1 == 0.0:
        return gradients
    shrunk: np.ndarray = np.sign(gradients) * np.maximum(np.abs(gradients) - rules.l1, 0.0)
    return shrunk


def drawn(share: float, count: int, seeds: Sequence[int]) -> np.ndarray:
    """A share of `count` things, one at least, in ascending order; the same for the same seeds."""
    size = max(1, round(share * count))
    return np.sort(np.random.default_rng(list(seeds)).choice(count, size, replace=False))
