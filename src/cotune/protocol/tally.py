"""Sums over judged rows that parties add up, and the federation's figures that follow from them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from cotune.data.schema import Schema
from cotune.party.task import RESOLUTION, Term
from cotune.problem import WORST_DEVIATIONS, Problem

#: The loss where the rows do not define the metric: chance is what any configuration would do.
UNDEFINED = 0.5
#: Amounts are sent as a multiple of this and a rest. Either's total is exact in floating point,
#: where that of the whole would not be: a fourth power has up to 40 bits before the point and needs
#: as many after it.
WHOLE, FINEST = 16.0, 2.0**-40
#: The largest amount of one row.
LARGEST = 2.0**40
#: Rows that a party may have which was not there when rows were counted, at least.
MOST_UNCOUNTED = 2.0**19
#: Cells of a histogram of scores, a power of two; the logit up to which they are about even, and up
#: to which they reach.
CELLS, EVEN, REACH = 512, 0.02, 30.0
#: The cells are the leaves of a binary tree, whose nodes are numbered level by level: of each node
#: its first and its last cell.
_LEVEL = np.array([node.bit_length() - 1 for node in range(1, 2 * CELLS)])
_FIRST = (np.arange(1, 2 * CELLS) - (1 << _LEVEL)) * (CELLS >> _LEVEL)
_LAST = _FIRST + (CELLS >> _LEVEL) - 1
NODES = len(_LEVEL)


class Tally(msgspec.Struct, frozen=True):
    """Sums over some rows. Of the counts those that are not 0 are kept, by their place."""

    counts: dict[int, int]
    amounts: tuple[float, ...] = ()


class Figure(msgspec.Struct, frozen=True):
    """A loss over all rows of some parties, its standard error, and how many rows these are.

    `left_out` are those of classes of which their party has too few rows to say how they fared.
    The rows need not define the metric: a ROC curve needs two classes, R2 two rows, any metric one.
    """

    loss: float
    error: float
    rows: int
    left_out: int
    defined: bool = True


class Statistic(ABC):
    """What is summed for a metric, and the figure that the totals give.

    The first count is that of the rows that were left out.
    """

    counts: int
    amounts: int = 0

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.schema: Schema = problem.schema
        self.classes = len(self.schema.classes)

    def tally(self, y: np.ndarray, predicted: np.ndarray, kept: np.ndarray | None = None) -> Tally:
        """The sums over rows of classes that are kept.

        `predicted` are codes of classes, a column of scores for each class, or numbers, as the
        metric wants.
        """
        y, predicted, left_out = _kept(y, predicted, kept)
        return self._with(left_out, *self._sums(y, predicted))

    def worst(self, y: np.ndarray, kept: np.ndarray | None = None) -> Tally:
        """The sums over rows for which there are no predictions: as if all were wrong."""
        y, _, left_out = _kept(y, y, kept)
        return self._with(left_out, *self._sums(y, self._wrong(y)))

    def disclosed(self, tally: Tally, smallest: int) -> Tally:
        """What of a party's tally may leave it, if a count must be 0 or at least `smallest`."""
        return tally

    def figure(self, counts: np.ndarray, amounts: np.ndarray) -> Figure:
        """What totals come to; of parties, folds or rows, however these were grouped."""
        loss, error, rows = self._figure(counts[1:], amounts)
        worst = self.problem.metric.worst(self.schema)
        loss, error = min(max(loss, 0.0), worst), min(error, worst)
        return Figure(loss, error, int(rows), int(counts[0]), self._defined(counts[1:]))

    def _defined(self, counts: np.ndarray) -> bool:
        """Whether the counted rows define the metric."""
        return bool(counts.any())

    def class_rows(self, counts: np.ndarray) -> tuple[int, ...]:
        """The rows of every class that totals are over; empty where they do not have these."""
        return ()

    def _with(self, left_out: int, counts: np.ndarray, amounts: Sequence[float]) -> Tally:
        whole = np.concatenate([[left_out], counts])
        places = np.flatnonzero(whole)
        found = dict(zip(places.tolist(), whole[places].tolist(), strict=True))
        return Tally(found, tuple(map(float, amounts)))

    @abstractmethod
    def _sums(self, y: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, Sequence[float]]:
        """Counts, but for the first, and amounts."""

    @abstractmethod
    def _wrong(self, y: np.ndarray) -> np.ndarray:
        """Predictions as wrong as can be."""

    @abstractmethod
    def _figure(self, counts: np.ndarray, amounts: np.ndarray) -> tuple[float, float, float]:
        """Loss, standard error and number of rows."""


class _Classes(Statistic):
    """Rows by class, and how they were predicted."""

    def _wrong(self, y: np.ndarray) -> np.ndarray:
        wrong: np.ndarray = (y + 1) % self.classes
        return wrong


class Hits(_Classes):
    """(Balanced) accuracy: rows of each class, and how many of them were predicted right.

    The errors are binomial, with one hit and one miss added to each class, so that a class of few
    rows, all hit, has one, too.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.counts = 1 + 2 * self.classes

    def _sums(self, y: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, Sequence[float]]:
        rows = np.bincount(y, minlength=self.classes)
        hits = np.bincount(y[y == predicted], minlength=self.classes)
        return np.concatenate([rows, hits]), ()

    def class_rows(self, counts: np.ndarray) -> tuple[int, ...]:
        return tuple(map(int, counts[1 : 1 + self.classes]))

    def _figure(self, counts: np.ndarray, amounts: np.ndarray) -> tuple[float, float, float]:
        rows, hits = counts.reshape(2, -1)
        hits = np.minimum(hits, rows)  # whatever a party claims
        total = float(rows.sum())
        if not total:
            return 1.0, 0.0, 0.0
        if self.problem.metric_name == "accuracy":
            rows, hits = rows.sum(keepdims=True), hits.sum(keepdims=True)
        rows, hits = rows[rows > 0], hits[rows > 0]
        likely = (hits + 1.0) / (rows + 2.0)
        variance = float((likely * (1.0 - likely) / rows).sum()) / len(rows) ** 2
        return 1.0 - float(np.mean(hits / rows)), math.sqrt(variance), total


class Confusion(_Classes):
    """F1 averaged over classes: how many rows of each class were predicted as each.

    The error is that of the linear part: the mean moves by `pull` with one row more in a cell.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.counts = 1 + self.classes**2

    def _sums(self, y: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, Sequence[float]]:
        return np.bincount(y * self.classes + predicted, minlength=self.classes**2), ()

    def class_rows(self, counts: np.ndarray) -> tuple[int, ...]:
        return tuple(map(int, counts[1:].reshape(self.classes, -1).sum(axis=1)))

    def _figure(self, counts: np.ndarray, amounts: np.ndarray) -> tuple[float, float, float]:
        matrix = counts.reshape(self.classes, self.classes).astype(float)
        both = matrix.sum(axis=0) + matrix.sum(axis=1)
        seen = both > 0
        if not seen.any():
            return 1.0, 0.0, 0.0
        matrix, both = matrix[np.ix_(seen, seen)], both[seen]
        f1 = 2.0 * np.diag(matrix) / both
        pull = -(f1 / both)[:, None] - (f1 / both)[None, :] + np.diag(2.0 / both)
        variance = float((matrix * pull**2).sum()) / len(f1) ** 2
        return 1.0 - float(f1.mean()), math.sqrt(variance), float(matrix.sum())


class Scores(Statistic):
    """ROC AUC, one class against the rest: histograms of the scores of either.

    All parties have the same cells, even in the logit near the federation's share of the class and
    ever wider farther away. Scores in one cell count as ties. Where a party has too few rows in a
    cell it counts them at a node of the tree over the cells: whatever lies in that part of the
    scores may then be above or below them, and half of these pairs is part of the error. The rest
    is DeLong's (1988); the error of the mean over classes, whose scores are of the same rows, is
    taken for the mean of the errors, which is its most.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._judged = [1] if self.classes == 2 else list(range(self.classes))
        self.counts = 1 + 2 * NODES * len(self._judged)

    def disclosed(self, tally: Tally, smallest: int) -> Tally:
        """The same rows, each node with none of the class and of the rest or `smallest`."""
        if smallest <= 1:
            return tally
        counts = np.zeros(self.counts, dtype=int)
        counts[list(tally.counts)] = list(tally.counts.values())
        merged = [_merged(both, smallest) for both in counts[1:].reshape(-1, 2, NODES)]
        return self._with(int(counts[0]), np.concatenate(merged, axis=None), tally.amounts)

    def _sums(self, y: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, Sequence[float]]:
        counts = []
        for one in self._judged:
            nodes, own = CELLS - 1 + self._cells(predicted[:, one], one), y == one
            counts += [np.bincount(nodes[rows], minlength=NODES) for rows in (own, ~own)]
        return np.concatenate(counts), ()

    def _cells(self, scores: np.ndarray, one: int) -> np.ndarray:
        """The cell of every score of a class."""
        known = self.schema.class_rows or (1,) * self.classes
        usual = math.log((known[one] + 0.5) / (sum(known) - known[one] + 0.5))
        tiny = np.finfo(np.float64).tiny
        scores = np.asarray(scores, dtype=np.float64)
        logits = np.log(np.maximum(scores, tiny)) - np.log(np.maximum(1.0 - scores, tiny))
        place = np.arcsinh((logits - usual) / EVEN) / math.asinh(REACH / EVEN)
        found: np.ndarray = np.clip((place + 1.0) / 2.0 * CELLS, 0, CELLS - 1).astype(int)
        return found

    def _wrong(self, y: np.ndarray) -> np.ndarray:
        """The class itself scores lowest, all others highest."""
        return _without(y, self.classes)

    def _defined(self, counts: np.ndarray) -> bool:
        histograms = counts.reshape(len(self._judged), 2, NODES)
        return any(own.any() and other.any() for own, other in histograms)

    def _figure(self, counts: np.ndarray, amounts: np.ndarray) -> tuple[float, float, float]:
        histograms = counts.reshape(len(self._judged), 2, NODES)
        rows = float(histograms[0].sum())
        found = [_auc(own, other) for own, other in histograms if own.any() and other.any()]
        if not found:
            return UNDEFINED, 0.0, rows
        areas, errors = np.array(found).T
        return 1.0 - float(areas.mean()), float(errors.mean()), rows


def _auc(own: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """The area under the ROC curve, and its error, of the scores of a class and of the rest."""
    own, other = own.astype(float), other.astype(float)
    beaten, beating = _shares_below(other), 1.0 - _shares_below(own)
    area = float(own @ beaten) / float(own.sum())
    variance = sum(
        float(rows @ (shares - area) ** 2) / float(rows.sum()) / max(1.0, float(rows.sum()) - 1.0)
        for rows, shares in ((own, beaten), (other, beating))
    )
    level, pairs = slice(CELLS - 1, None), float(own.sum() * other.sum())
    ties = float(own @ _shares_alike(other)) / float(own.sum())
    known = float(own[level] @ other[level]) / pairs
    return area, math.sqrt(variance) + max(0.0, ties - known) / 2.0


def _shares_below(counts: np.ndarray) -> np.ndarray:
    """Of each node the share of the counted rows that are surely below it, and half of the ties."""
    below = _up_to(_LAST, counts)[_FIRST - 1] * (_FIRST > 0)
    above = counts.sum() - _up_to(_FIRST, counts)[_LAST]
    shares: np.ndarray = (below + (counts.sum() - below - above) / 2.0) / counts.sum()
    return shares


def _shares_alike(counts: np.ndarray) -> np.ndarray:
    """Of each node the share of the counted rows that may be above or below it."""
    below = _up_to(_LAST, counts)[_FIRST - 1] * (_FIRST > 0)
    shares: np.ndarray = (_up_to(_FIRST, counts)[_LAST] - below) / counts.sum()
    return shares


def _up_to(ends: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """By cell, how many of the counted rows have their end there or in an earlier one."""
    return np.cumsum(np.bincount(ends, counts, minlength=CELLS))


def _merged(both: np.ndarray, smallest: int) -> np.ndarray:
    """Counts of a class and of the rest, moved up the tree until none is above 0 and too small."""
    whole = both.copy()
    for node in range(NODES - 1, 0, -1):  # of every node all that is below it
        whole[:, (node - 1) // 2] += whole[:, node]
    found, open_nodes = np.zeros_like(both), [0]
    while open_nodes:
        node = open_nodes.pop()
        halves = [2 * node + 1, 2 * node + 2]
        below = whole[:, halves] if node < CELLS - 1 else np.ones((2, 1))
        if ((below > 0) & (below < smallest)).any() or node >= CELLS - 1:
            found[:, node] = whole[:, node]
        else:
            open_nodes += [half for half in halves if whole[:, half].any()]
    return found


class Means(Statistic):
    """Log loss and mean absolute error: rows, and the sums of their losses and squares."""

    counts, amounts = 2, 2

    def _sums(self, y: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, Sequence[float]]:
        if self.problem.metric_name == "log_loss":
            losses = row_log_losses(y, predicted)
        else:
            losses = np.abs(_errors(self.schema, y, predicted))
        return np.array([len(y)]), (losses.sum(), losses @ losses)

    def _wrong(self, y: np.ndarray) -> np.ndarray:
        if self.problem.metric_name == "log_loss":
            return _without(y, self.classes)
        return np.full(len(y), np.inf)

    def _figure(self, counts: np.ndarray, amounts: np.ndarray) -> tuple[float, float, float]:
        rows = float(counts[0])
        unit = self.schema.target_scale if self.problem.task == "regression" else 1.0
        if not rows:
            return self.problem.metric.worst(self.schema), 0.0, 0.0
        mean = float(amounts[0]) / rows
        return unit * mean, unit * _error_of_mean(mean, float(amounts[1]), rows), rows


class Squares(Statistic):
    """RMSE and R2: sums over rows of e^2, e^4, z, z^2, z^4 and e^2 z^2.

    e is the error and z the target less its mean over all parties, both in its deviations. R2 is
    1 - sum(e^2) / sum((z - mean z)^2) of the totals. The errors are those of the linear parts; that
    of R2 takes the mean of z for 0, which it is but for rows that were not measured.
    """

    counts = 2

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.amounts = 6 if problem.metric_name == "r2" else 2

    def _sums(self, y: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, Sequence[float]]:
        e2 = _errors(self.schema, y, predicted) ** 2
        sums = [e2.sum(), e2 @ e2]
        if self.problem.metric_name == "r2":
            z = (y - self.schema.target_mean) / self.schema.target_scale
            z = np.clip(z, -WORST_DEVIATIONS, WORST_DEVIATIONS)
            sums += [z.sum(), z @ z, (z**2) @ (z**2), e2 @ z**2]
        return np.array([len(y)]), sums

    def _wrong(self, y: np.ndarray) -> np.ndarray:
        return np.full(len(y), np.inf)

    def _defined(self, counts: np.ndarray) -> bool:
        return bool(counts[0] > (self.problem.metric_name == "r2"))

    def _figure(self, counts: np.ndarray, amounts: np.ndarray) -> tuple[float, float, float]:
        rows = float(counts[0])
        if not rows:
            return self.problem.metric.worst(self.schema), 0.0, 0.0
        if self.problem.metric_name == "r2":
            return *self._r2(rows, amounts), rows
        unit, mean = self.schema.target_scale, max(0.0, float(amounts[0])) / rows
        root = math.sqrt(mean)
        error = _error_of_mean(mean, float(amounts[1]), rows) / (2.0 * root) if root else 0.0
        return unit * root, unit * error, rows

    def _r2(self, rows: float, amounts: np.ndarray) -> tuple[float, float]:
        squares, fourths, z, z2, z4, both = (float(amount) for amount in amounts)
        varied = z2 - z * z / rows
        if varied <= RESOLUTION * rows:  # as scikit-learn has it: a constant is met, or not
            return (1.0 if squares > RESOLUTION * rows else 0.0), 0.0
        loss = squares / varied
        # of a row: (e^2 - loss z^2) / variance of z
        spread = max(0.0, fourths - 2.0 * loss * both + loss**2 * z4)
        return loss, math.sqrt(spread) / varied


_STATISTICS: dict[str, type[Statistic]] = {
    "balanced_accuracy": Hits,
    "accuracy": Hits,
    "f1": Confusion,
    "roc_auc": Scores,
    "log_loss": Means,
    "mae": Means,
    "rmse": Squares,
    "r2": Squares,
}


def statistic(problem: Problem) -> Statistic:
    """What is summed for the problem's metric."""
    return _STATISTICS[problem.metric_name](problem)


def added(tallies: Sequence[Tally]) -> Tally:
    """The sums over all rows of several tallies.

    >>> added([Tally({0: 1, 2: 3}, (0.5,)), Tally({2: 1}, (0.25,))])
    Tally(counts={0: 1, 2: 4}, amounts=(0.75,))
    """
    counts: dict[int, int] = {}
    for tally in tallies:
        for place, count in tally.counts.items():
            counts[place] = counts.get(place, 0) + count
    columns = zip(*(tally.amounts for tally in tallies), strict=True)
    return Tally(counts, tuple(math.fsum(column) for column in columns))


def terms(problem: Problem, count: int) -> dict[str, Term]:
    """The terms of `count` tallies in a sum over the parties."""
    summed = statistic(problem)
    most = max(16.0 * problem.schema.rows, MOST_UNCOUNTED)
    found = {"counts": Term(count * summed.counts, 0.0, most, 1.0, exact=True)}
    if summed.amounts:
        length, largest = count * summed.amounts, most * LARGEST
        found["wholes"] = Term(length, -largest, largest, WHOLE, exact=True)
        found["rests"] = Term(length, -WHOLE / 2.0, WHOLE / 2.0, FINEST)
    return found


def vectors(problem: Problem, tallies: Sequence[Tally]) -> dict[str, Any]:
    """One party's tallies as the terms of a sum."""
    summed = statistic(problem)
    counts = np.zeros((len(tallies), summed.counts), dtype=int)
    for row, tally in zip(counts, tallies, strict=True):
        row[list(tally.counts)] = list(tally.counts.values())
    found = {"counts": counts.ravel().tolist()}
    if summed.amounts:
        amounts = np.array([tally.amounts for tally in tallies]).ravel()
        wholes = WHOLE * np.rint(amounts / WHOLE)
        found |= {"wholes": wholes.tolist(), "rests": (amounts - wholes).tolist()}
    return found


def figures(problem: Problem, totals: Mapping[str, np.ndarray]) -> list[Figure]:
    """The federation's figures, from the totals of `vectors` over its parties."""
    summed = statistic(problem)
    counts = totals["counts"].reshape(-1, summed.counts)
    amounts = np.zeros((len(counts), 0))
    if summed.amounts:
        amounts = (totals["wholes"] + totals["rests"]).reshape(len(counts), -1)
    return [summed.figure(*both) for both in zip(counts, amounts, strict=True)]


def rows(problem: Problem, totals: Mapping[str, np.ndarray]) -> int:
    """How many rows the totals are over: the most of any tally."""
    return max((one.rows + one.left_out for one in figures(problem, totals)), default=0)


def row_log_losses(y: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """-ln of the probability of each row's own class, as far as float64 knows it."""
    smallest = np.finfo(np.float64).eps
    chosen = scores[np.arange(len(y)), y] / scores.sum(axis=1)
    losses: np.ndarray = -np.log(np.clip(chosen, smallest, 1.0))
    return losses


def class_weights(schema: Schema) -> np.ndarray:
    """By class, what a row counts in balanced accuracy over all parties: 1 / rows of its class."""
    known = np.array(schema.class_rows or (1,) * len(schema.classes), dtype=float)
    weights: np.ndarray = 1.0 / np.maximum(known, 1.0)
    return weights


def _without(y: np.ndarray, classes: int) -> np.ndarray:
    """Scores of 0 for each row's own class and of 1 for all others."""
    scores = np.ones((len(y), classes))
    scores[np.arange(len(y)), y] = 0.0
    return scores


def _errors(schema: Schema, y: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """In deviations of the target; beyond `WORST_DEVIATIONS` all are as bad."""
    found: np.ndarray = np.clip(
        (predicted - y) / schema.target_scale, -WORST_DEVIATIONS, WORST_DEVIATIONS
    )
    return found


def _error_of_mean(mean: float, squares: float, rows: float) -> float:
    return math.sqrt(max(0.0, squares / rows - mean**2) / max(1.0, rows - 1.0))


def _kept(
    y: np.ndarray, predicted: np.ndarray, kept: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, int]:
    """The rows of classes that are kept, and how many others there are."""
    if kept is None or kept.all():
        return y, predicted, 0
    rows = kept[y]
    return y[rows], predicted[rows], int(len(rows) - rows.sum())
