"""The summaries of regrets do what the paper's text says."""

from __future__ import annotations

import doctest
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "papers"))

import flora_statistics as statistics


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(statistics).failed == 0


def test_the_baseline_has_regret_one_and_the_best_zero():
    assert statistics.regret(0.8, best=0.9, baseline=0.8) == 1.0
    assert statistics.regret(0.9, best=0.9, baseline=0.8) == 0.0
    assert statistics.regret(0.7, best=0.9, baseline=0.8) == 2.0


def test_a_regret_of_one_is_a_tie_and_not_ranked():
    found = statistics.summary([0.5, 1.0, 2.0])
    assert found.wins_ties_losses == (1, 1, 1)
    assert found.wilcoxon[0] == 1.0


def test_ties_alone_give_no_test():
    statistic, p = statistics.wilcoxon([1.0, 1.0])
    assert statistic == 0.0
    assert math.isnan(p)


def test_a_random_order_needs_as_many_trainings_as_the_mean_over_all_orders():
    from itertools import permutations

    scores = [0.1, 0.2, 0.3, 0.4]
    every = [statistics.trainings_to_match(order, 0.3) for order in permutations(scores)]
    assert statistics.expected_trainings(scores, 0.3) == pytest.approx(sum(every) / len(every))
    assert statistics.expected_trainings(scores, 0.5) == math.inf
