"""Every method, way of training and privacy mode comes to what it came to before code was moved.

What it came to is in `unchanged.json`; after a change that is meant to change it:

    python -m tests.test_unchanged
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import cotune
from tests.parts import diabetes, parts, wine
from tests.privacy.agents import ready as needs_agent

KEPT = Path(__file__).with_name("unchanged.json")
PAIR = ["decision_tree", "logistic_regression"]
SEARCH: dict[str, Any] = {"learners": PAIR, "trials": 4, "folds": 2, "train": False}
NETWORKS: dict[str, Any] = {
    "rounds": 6,
    "clients_per_round": 3,
    "wrapper": "rs",
    "arms": 3,
    "folds": 2,
    "fixed": {"torch_mlp": {"hidden": 8}},
}
NOISE: dict[str, Any] = {"privacy": "masked", "weights": "equal", "noise": 0.5}
MODES = ("plain", "masked", "encrypted")

#: A run by its name: the method, and what it is asked with.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"dash {mode}": ("dash", SEARCH | {"privacy": mode}) for mode in MODES},
    "dash by parties": ("dash", SEARCH | {"compare_by": "parties"}),
    "dash federated": ("dash", SEARCH | {"judge": "federated"}),
    "dash federated masked": ("dash", SEARCH | {"judge": "federated", "privacy": "masked"}),
    "dash noised": ("dash", SEARCH | NOISE | {"learners": ["logistic_regression"]}),
    "dash, finalists": ("dash", {"learners": PAIR, "trials": 3, "folds": 2, "holdout": 0.3}),
    "dash, finalists by folds": (
        "dash",
        {"learners": PAIR, "trials": 3, "folds": 2, "finalists": 3, "privacy": "masked"},
    ),
    "defaults": ("defaults", {"learners": PAIR, "folds": 2, "train": False}),
    "flora": ("flora", SEARCH),
    **{
        f"flora {surface}": ("flora", SEARCH | {"surface": surface, "single_shot": True})
        for surface in ("sgm", "sgm+u", "mplm", "aplm")
    },
    **{
        f"flora {surface} {mode}": (
            "flora",
            SEARCH | {"surface": surface, "single_shot": True, "privacy": mode},
        )
        for surface in ("sgm", "sgm+u", "mplm", "aplm")
        for mode in MODES[1:]
    },
    "flora masked": ("flora", SEARCH | {"privacy": "masked"}),
    **{f"flash {inner}": ("flash", SEARCH | {"inner": inner}) for inner in ("lbm", "lkbm", "rm")},
    "flash lbm masked": ("flash", SEARCH | {"inner": "lbm", "privacy": "masked"}),
    **{
        f"privtuna {way}": ("privtuna", SEARCH | {"combine": way, "trials": 8})
        for way in ("mean", "best-mean", "pf-dbscan", "median", "trimmed", "best-median", "dbscan")
    },
    **{
        f"privtuna {way} {mode}": (
            "privtuna",
            SEARCH | {"combine": way, "trials": 8, "privacy": mode},
        )
        for way in ("mean", "best-mean", "pf-dbscan")
        for mode in MODES[1:]
    },
    "privtuna faithful": (
        "privtuna",
        SEARCH | {"combine": "pf-dbscan", "edition": "faithful", "privacy": "encrypted"},
    ),
    "vote": ("vote", SEARCH),
    "vote noised": ("vote", SEARCH | NOISE),
    "central": ("central", SEARCH),
    "multishot": ("multishot", SEARCH | {"until": 0.0}),
    "fedex": ("fedex", NETWORKS),
    "fedex masked": ("fedex", NETWORKS | {"privacy": "masked"}),
    **{
        f"fedex {wrapper}": ("fedex", NETWORKS | {"wrapper": wrapper, "rounds": 12})
        for wrapper in ("sha", "hyperband", "asha", "grid")
    },
}
LEARNERS = (
    "hgb",
    "svm",
    "mlp",
    "random_forest",
    "decision_tree",
    "extra_tree",
    "extra_trees",
    "logistic_regression",
    "xgboost",
    "lightgbm",
    "torch_mlp",
)
QUICK = {"hgb": {"max_iter": 10}, "xgboost": {"n_estimators": 10}, "lightgbm": {"n_estimators": 10}}


def _training(learner: str, **options: Any) -> tuple[str, dict[str, Any]]:
    fixed = {learner: QUICK[learner]} if learner in QUICK else {}
    return "defaults", {"learners": [learner], "folds": 2, "fixed": fixed, **options}


RUNS |= {f"train {name}": _training(name) for name in LEARNERS}
RUNS |= {
    f"train {name} masked": _training(name, privacy="masked")
    for name in LEARNERS
    if name not in ("random_forest", "extra_trees")
}
RUNS |= {
    f"train {name} regression": _training(name, task="regression")
    for name in LEARNERS
    if name != "logistic_regression"
}
RUNS["train hgb merged"] = _training("hgb", merge_every=5)
RUNS["train logistic_regression encrypted"] = _training("logistic_regression", privacy="encrypted")


def run(name: str) -> dict[str, Any]:
    """What the run comes to."""
    method, options = RUNS[name]
    frame = diabetes() if options.get("task") == "regression" else wine()
    with cotune.simulate(parts(frame), processes=1) as federation, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = cotune.tune(federation, method, progress=False, **options)
    trained = options.get("train", True)
    return {
        "learner": outcome.best_learner,
        "params": outcome.best_params,
        "loss": outcome.best_loss,
        "headline": outcome.headline.value,
        "error": outcome.headline.error,
        "trials": len(outcome.trials),
        "losses": float(np.sum([trial.loss for trial in outcome.trials])),
        "rounds": outcome.ledger.rounds,
        "fits": outcome.ledger.fits,
        "predictions": _predictions(outcome, frame) if trained else None,
    }


def _predictions(outcome: Any, frame: pd.DataFrame) -> list[float]:
    rows = frame.drop(columns="target")
    if outcome.problem.task == "regression":
        return list(map(float, outcome.model.predict(rows)[::20]))
    return [float(value) for value in outcome.model.predict_proba(rows).to_numpy()[::20].ravel()]


def _drawn(name: str) -> bool:
    """Whether real randomness is in what comes of it."""
    return "noised" in name or "faithful" in name


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=needs_agent if options.get("privacy") == "encrypted" else ())
        for name, (_, options) in RUNS.items()
    ],
)
def test_a_run_comes_to_what_it_came_to_before(name):
    kept, found = json.loads(KEPT.read_text())[name], run(name)
    near = {"rel": 1e-6, "abs": 1e-9}
    exact = (
        ("trials", "rounds", "fits") if _drawn(name) else ("learner", "trials", "rounds", "fits")
    )
    assert {key: found[key] for key in exact} == {key: kept[key] for key in exact}
    if _drawn(name):
        return
    assert found["params"] == pytest.approx(kept["params"], **near)
    for key in ("loss", "headline", "error", "losses", "predictions"):
        assert found[key] == pytest.approx(kept[key], **near), key


if __name__ == "__main__":
    found = {}
    for name in RUNS:
        print(name, flush=True)
        found[name] = run(name)
    KEPT.write_text(json.dumps(found, indent=1) + "\n")
