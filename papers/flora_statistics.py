"""How FLoRA's paper sums up regrets: quartiles, wins, a signed-rank test, trainings to match."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Summary(NamedTuple):
    """Regrets of one surface over several cases, as in Tables 3 and 10."""

    quartiles: tuple[float, float, float]
    wins_ties_losses: tuple[int, int, int]
    wilcoxon: tuple[float, float]


def regret(score: float, best: float, baseline: float) -> float:
    """The relative regret of section 3: 0 is the best central score, 1 the baseline.

    >>> regret(0.85, best=0.9, baseline=0.8)
    0.5
    """
    return round((best - score) / (best - baseline), 10)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """
    >>> quartiles([0.0, 1.0, 2.0, 4.0])
    (0.75, 1.5, 2.5)
    """
    first, second, third = np.percentile(values, [25, 50, 75]).tolist()
    return first, second, third


def summary(regrets: Sequence[float]) -> Summary:
    """Against the baseline, whose regret is 1 by definition."""
    wins = sum(value < 1 for value in regrets)
    losses = sum(value > 1 for value in regrets)
    counts = (wins, len(regrets) - wins - losses, losses)
    return Summary(quartiles(regrets), counts, wilcoxon(regrets))


def wilcoxon(regrets: Sequence[float]) -> tuple[float, float]:
    """The one-sided signed-rank test of Table 3: statistic and p-value.

    Against the baseline's 1, ties left out, with the normal approximation that the paper's own
    p-values come back with.

    >>> statistic, p = wilcoxon([0.66, 0.43, 0.17, 1.33, 0.69, 0.47, 0.14])
    >>> statistic, round(p, 5)
    (26.0, 0.02126)
    """
    from scipy import stats

    # Rounded so that 1 - 0.99 and 1 - 1.01 are of one rank.
    gains = np.round(1 - np.asarray(regrets), 9)
    if not gains.any():
        return 0.0, math.nan
    test = stats.wilcoxon(gains, alternative="greater", method="approx")
    return float(test.statistic), float(test.pvalue)


def trainings_to_match(scores: Sequence[float], target: float) -> float:
    """How many trainings, in this order, until a score is at least the target; maybe infinity.

    >>> trainings_to_match([0.5, 0.7, 0.6, 0.8], 0.65), trainings_to_match([0.5], 0.65)
    (2, inf)
    """
    return next((n for n, score in enumerate(scores, 1) if score >= target), math.inf)


def expected_trainings(scores: Sequence[float], target: float) -> float:
    """The same for a random order, in expectation: (n + 1) / (good + 1); infinity if none is good.

    >>> expected_trainings([0.5, 0.7, 0.6, 0.8], 0.65)
    1.6666666666666667
    """
    good = sum(score >= target for score in scores)
    return (len(scores) + 1) / (good + 1) if good else math.inf
