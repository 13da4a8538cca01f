"""PrivTuna's study: its network, skew and grid, what strategies make of it, and the sentences."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "papers"))

import privtuna_study as study
from common import Results

from cotune import learners, methods
from cotune.methods.combine import STRATEGIES

SETTING = {"skew": "label", "seed": 0, "network": "counted", "rows": 60, "rounds": 1}
SETTING |= {"resolution": 2}


@pytest.fixture
def two_parties(tmp_path, monkeypatch):
    """A folder with random images, of which two parties share 60."""
    random = np.random.default_rng(0)
    np.savez(
        tmp_path / "mnist.npz",
        X=random.integers(0, 256, size=(80, 28, 28), dtype=np.uint8),
        y=np.tile(np.arange(2), 40),
    )
    monkeypatch.setattr(study, "PARTIES", 2)
    monkeypatch.setattr(study, "WORK", tmp_path)
    for registry in (learners, methods):
        monkeypatch.setattr(registry, "_registered", {})
    return tmp_path


def judged(skew, **gaps):
    """A setting as it is shown: strategies that are not named lack 0.2."""
    names = (*STRATEGIES, "pf-dbscan", study.CENTRE, study.DEFAULT)
    rows = [{"strategy": name, "gap": gaps.get(name.replace("-", "_"), 0.2)} for name in names]
    return {"skew": skew, "seed": 0, "error": 0.01, "strategies": rows}


@pytest.mark.parametrize(("network", "weights"), [("counted", 54_274), ("described", 690_730)])
def test_network_a_has_the_weights_that_the_docstring_says(network, weights):
    import torch

    module = study.network_a((28, 28), 10, **study.NETWORKS[network])
    assert sum(part.numel() for part in module.parameters()) == weights
    assert module(torch.zeros(3, 28, 28)).shape == (3, 10)


def test_the_noise_of_a_party_has_the_variance_beta_i_by_n():
    grey = pd.DataFrame({"image": list(np.full((20, 28, 28), 128, np.uint8)), "label": 1})
    parts = study.noisy({"a": grey, "b": grey}, beta=0.02, seed=0)
    deviations = [np.stack(part["image"]).std() / 255 for part in parts.values()]
    assert deviations == pytest.approx([0.1, 0.02**0.5], rel=0.02)
    assert (np.stack(grey["image"]) == 128).all()


def test_noise_is_cut_off_at_black_and_white():
    black = pd.DataFrame({"image": list(np.zeros((5, 28, 28), np.uint8)), "label": 1})
    found = np.stack(study.noisy({"a": black}, beta=0.1, seed=0)["a"]["image"])
    assert found.dtype == np.uint8
    assert np.mean(found == 0) == pytest.approx(0.5, abs=0.05)


def test_the_grid_has_the_momenta_of_the_paper():
    points = study.grid({**SETTING, "resolution": 4})
    assert len(points) == 18
    assert sorted({m for name, (_, m) in points.items() if name.isdigit()}) == [0, 0.3, 0.6, 0.9]
    assert points[study.CENTRE] == pytest.approx((1.0, 0.45))


def test_points_that_differ_by_rounding_are_trained_once():
    assert study._at(SETTING, (0.9999999999, 0.3)) == study._at(SETTING, (1.0, 0.30000000001))


def test_where_all_parties_agree_all_strategies_do(tmp_path):
    store = Results(tmp_path / "store.jsonl")
    own = [[rate, momentum, 0.9] for rate in (0.25, 4.0) for momentum in (0.0, 0.9)]
    own[2][2] = 0.1
    store.put(SETTING, {"pairs": [own] * 4, "clusters": [[4.0, 0.0, 0.1]]})
    found = study._candidates(SETTING, store)
    assert found == dict.fromkeys((*STRATEGIES, "pf-dbscan"), (4.0, 0.0))


def test_local_grids_and_a_training_of_one_point(two_parties):
    found = study.searched(two_parties, SETTING)
    assert [len(own) for own in found["pairs"]] == [5, 5]
    assert found["clusters"]
    assert not list((two_parties / "runs").iterdir())
    result = study.trained(two_parties, study._at(SETTING, (1.0, 0.9)))
    assert 0.0 <= result["accuracy"] <= 1.0


@pytest.mark.parametrize(
    ("setting", "verdict"),
    [
        (judged("label", dbscan=0.0), ": seen, ahead of all others: dbscan"),
        (judged("label", dbscan=0.0, median=0.005), "no difference, dbscan as good as median"),
        (judged("label", mean=0.0), "not seen, ahead of dbscan and pf-dbscan: mean"),
        (judged("iid", mean=0.0, trimmed=0.005), "no difference, mean as good as trimmed"),
        (judged("iid", dbscan=0.0), "not seen, ahead of mean: dbscan"),
    ],
)
def test_a_claim_is_seen_only_beyond_the_standard_error(setting, verdict):
    sentence = study.seen([setting])[0]
    assert verdict in sentence
    assert "constant" not in sentence


def test_a_constant_that_is_as_good_is_named():
    setting = judged("label", dbscan=0.0)
    setting["strategies"][-2]["gap"] = 0.01
    sentence = study.seen([setting])[0]
    assert sentence.endswith(f"a constant is as good: {study.CENTRE}.")


def test_iid_rows_that_were_not_run_are_not_passed_over():
    assert "iid rows were not run" in study.seen([judged("label", dbscan=0.0)])[-1]
    assert len(study.seen([judged("iid", mean=0.0)])) == 1
