"""The pure parts of the FLoRA replay, on a made-up record."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "papers"))

import flora_recorded
import flora_replay as replay


@pytest.fixture
def recorded(tmp_path):
    """Three parties with 12 SVM pairs each: good at gamma 1, beyond the box on both sides."""
    gammas = np.geomspace(1e-6, 100, 12)
    rows = [
        {"learner": "SVM", "dataset": "sonar", "party": party, "trial": trial, "C": 1e4}
        | {"gamma": gamma, "tol": 1e-3, "loss": 0.1 + 0.02 * abs(np.log10(gamma)) + 0.01 * party}
        for party in range(3)
        for trial, gamma in enumerate(gammas)
    ]
    for name in replay.FILES:
        pd.DataFrame(rows if name == "pairs" else []).to_parquet(tmp_path / f"flora_{name}.parquet")
    return tmp_path


@pytest.mark.parametrize("surface", ["SGM", "SGM+U", "MPLM", "APLM"])
def test_the_recommendation_lies_in_the_declared_box_though_the_pairs_do_not(recorded, surface):
    params = replay.recommend(replay.Case("SVM", "sonar", surface, seed=0), recorded)
    space = replay.declared_space("SVM")
    assert space.validate(params) == params
    assert 0.05 < params["gamma"] < 10


def test_pairs_beyond_the_box_are_encoded_beyond_the_unit_cube():
    space = replay.declared_space("SVM")
    encoded = space.encode({"C": 1e4, "gamma": 1e-6, "tol": 1e-3})
    assert encoded[0] > 1
    assert encoded[1] < 0


def test_the_best_pairs_of_a_party_are_those_of_lowest_loss(recorded):
    tables = replay.Recorded(recorded)
    first = tables.evidence(replay.Case("SVM", "sonar", "SGM", 0, "first", 3))
    best = tables.evidence(replay.Case("SVM", "sonar", "SGM", 0, "best", 3))
    assert [len(own.losses) for own in first + best] == [3] * 6
    assert first[0].configurations[0]["gamma"] == pytest.approx(1e-6)
    assert max(best[0].losses) < min(first[0].losses)


def test_quartiles_are_near_up_to_the_tolerance_in_two_decimals():
    assert flora_recorded.near((0.30, 0.47, 0.68), (0.45, 0.47, 0.5249)) == [True, True, False]


def test_a_whole_number_stays_one():
    rows = pd.DataFrame(
        {"max_iter": pd.array([10], dtype="Int64"), "learning_rate": [0.1]}
        | {"min_samples_leaf": pd.array([5], dtype="Int64"), "l2_regularization": [0.5]}
    )
    params = replay.configurations(rows, "HGB")[0]
    assert params == {
        "max_iter": 10,
        "learning_rate": 0.1,
        "min_samples_leaf": 5,
        "l2_regularization": 0.5,
    }
    assert type(params["max_iter"]) is int


def test_the_quick_form_leaves_out_the_slow_case():
    assert any(case.is_slow for case in replay.main_cases([0], quick=False))
    assert not any(case.is_slow for case in replay.main_cases([0], quick=True))
    assert len(replay.main_cases([0], quick=False)) == 48
    assert len(replay.ablation_cases([0], quick=False)) == 192


def test_quartiles_with_searches_that_never_match_are_not_interpolated():
    assert (
        flora_recorded._quartile_text([1.0, 2.0, 3.0, float("inf"), float("inf")])
        == "[2.0, 3.0, never]"
    )


def test_the_slow_case_comes_last_and_seeds_one_by_one():
    cases = replay.ablation_cases([0], quick=False) + replay.main_cases([1, 0], quick=False)
    parts = replay.in_order(cases)
    assert sum(map(len, parts)) == len(cases)
    assert [(part[0].is_slow, part[0].pairs < 100, part[0].seed) for part in parts] == [
        (False, False, 0),
        (False, False, 1),
        (False, True, 0),
        (True, False, 0),
        (True, False, 1),
        (True, True, 0),
    ]


def test_spread_shows_the_median_and_the_range():
    assert flora_recorded.spread([0.1, 0.3, 0.2]) == "0.20 (0.10 to 0.30)"
    assert flora_recorded.spread([]) == "-"
