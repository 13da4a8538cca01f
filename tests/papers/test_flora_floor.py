"""The oracle of flora_floor.py looks at other folds than those that score it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "papers"))

import common
import flora_floor
from flora_paper import CASES

CASE = ("SVM", "sonar")
LUCKY, GOOD = {"C": 1.0}, {"C": 2.0}


@pytest.fixture
def toy(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=120)
    frame = pd.DataFrame({"x": x, "y": rng.normal(size=120), "target": (x > 0).astype(int)})
    frame.to_parquet(tmp_path / "toy.parquet")
    return tmp_path


def test_the_boosting_is_drawn_without_iterations_and_the_default_comes_last():
    drawn = flora_floor.drawn("HGB", 8)
    assert len(drawn) == 9
    assert drawn[-1] == {
        "learning_rate": 0.1,
        "min_samples_leaf": 20,
        "l2_regularization": pytest.approx(1e-4),
    }
    assert all("max_iter" not in params for params in drawn)


def test_one_fit_scores_every_number_of_iterations_as_a_fit_of_its_own_would(toy):
    params = {"learning_rate": 0.3}
    key = {"learner": "HGB", "dataset": "toy", "params": params, "shuffle": flora_floor.SCORES}
    figures = flora_floor.scores(toy, key)
    for count in (10, 45):
        own = [
            common.score_fold(toy, "toy", "HGB", params | {"max_iter": count}, fold)
            for fold in range(common.FOLDS)
        ]
        assert figures[flora_floor.COUNTS.index(count)] == pytest.approx(np.mean(own))


def test_other_shuffles_are_other_folds(toy):
    *_, scoring = common.pooled(toy, "toy", True, flora_floor.SCORES)
    *_, other = common.pooled(toy, "toy", True, 1)
    assert any((a != b).any() for (_, a), (_, b) in zip(scoring, other, strict=True))


def test_the_oracle_chooses_by_its_own_folds_and_not_by_those_that_score(tmp_path):
    best, baseline = CASES["SVM"]["sonar"].best / 100, CASES["SVM"]["sonar"].baseline / 100
    done = common.Results(tmp_path / "done.jsonl")
    for params, own, scored in ((LUCKY, 0.8, best), (GOOD, 0.9, baseline)):
        for shuffle in (1, 2):
            done.put(flora_floor._key(CASE, params, shuffle), [own])
        done.put(flora_floor._key(CASE, params, flora_floor.SCORES), [scored])
    row = flora_floor._row(CASE, [LUCKY, GOOD], done, shuffles=2)
    assert row["oracle"] == pytest.approx(1.0, abs=1e-3)
    assert row["luckiest"] == pytest.approx(0.0, abs=1e-3)
    assert row["best"] == pytest.approx(0.5, abs=1e-3)
