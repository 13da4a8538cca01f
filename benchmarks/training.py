"""The federation's training of boosted trees beside one fit on the pooled rows.

One hundred trees on Electricity (45,312 rows), three parties on this machine, every message encoded
and checked as on a network: those of `hgb` (31 leaves, the best first) beside scikit-learn's fit
of all rows in one place, those of `xgboost` (depth 6) beside XGBoost's, on one thread. They take
turns; the median of each counts. Then `hgb` in few messages (`merge_every`), and what that costs.

    python benchmarks/training.py --data electricity.parquet
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

import cotune
from cotune.coordinator.agree import agree
from cotune.coordinator.journal import Journal
from cotune.data.load import load
from cotune.data.split import split
from cotune.learners import learner
from cotune.party.task import Configuration
from cotune.problem import Budget, Problem
from cotune.run.settings import Settings
from cotune.training import train

TREES = 100
#: The learners, the libraries that they are of, and what these call the number of trees.
LEARNERS = {"hgb": ("scikit-learn", "max_iter"), "xgboost": ("XGBoost", "n_estimators")}
#: Trees between two messages of the few-message form.
MERGES = (1, 10, 100)


def federated(
    tables: dict[str, pd.DataFrame], test: pd.DataFrame, name: str, merge_every: int | None = None
) -> dict[str, Any]:
    """Seconds from the first message of the training to the model; agreeing is not counted."""
    with tempfile.TemporaryDirectory() as folder, cotune.simulate(tables, processes=1) as base:
        federation = base.for_run("run", Journal(Path(folder) / "journal.sqlite"), Budget())
        schema = agree(federation, folds=2, task="classification")
        problem = federation.problem = Settings(learners=(name,), folds=2).problem(schema)
        began = time.perf_counter()
        chosen = Configuration(name, {LEARNERS[name][1]: TREES})
        model = train(federation, problem, chosen, merge_every=merge_every)
        seconds = time.perf_counter() - began
        return {
            "seconds": seconds,
            "accuracy": _accuracy(test, model.predict(test)),
            **{name: model.about[name] for name in ("rounds", "bytes_up", "bytes_down")},
        }


def pooled(name: str, problem: Problem, train_rows: Any, test: pd.DataFrame) -> dict[str, Any]:
    """The library's own fit on all rows, on one thread."""
    from cotune.data.encode import encode_columns, encode_target, trees_form

    schema = problem.schema

    def encoded(frame: pd.DataFrame) -> np.ndarray:
        return trees_form(encode_columns(frame, schema.columns), schema)

    X, y = encoded(train_rows), encode_target(train_rows, schema)
    estimator = learner(name).estimator(
        {LEARNERS[name][1]: TREES}, task="classification", seed=0, schema=schema
    )
    with threadpool_limits(1):
        began = time.perf_counter()
        estimator.fit(X, y)
        seconds = time.perf_counter() - began
    predicted = np.array(schema.classes)[estimator.predict(encoded(test)).astype(int)]
    return {"seconds": seconds, "accuracy": _accuracy(test, predicted)}


def _accuracy(test: pd.DataFrame, predicted: Any) -> float:
    truth = test["target"].astype(str)
    return float(balanced_accuracy_score(truth, pd.Series(predicted).astype(str)))


def main() -> None:
    arguments = _arguments()
    frame = load(arguments.data).rename(columns={"class": "target"})  # OpenML's name for it
    rows, test = train_test_split(frame, test_size=0.2, random_state=0, stratify=frame["target"])
    tables = split(rows.reset_index(drop=True), "target", 3, "iid", seed=0)
    with cotune.simulate(tables, processes=1) as base:
        federation = base.for_run("run", Journal(), Budget())
        problem = Settings(learners=("hgb", "xgboost"), folds=2).problem(
            agree(federation, folds=2, task="classification")
        )
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(arguments.repeats):
        for name, (library, _) in LEARNERS.items():
            runs.setdefault(library, []).append(pooled(name, problem, rows, test))
            runs.setdefault(f"cotune {name}", []).append(federated(tables, test, name))
    for every in MERGES:
        runs[f"cotune hgb, merged every {every}"] = [federated(tables, test, "hgb", every)]
    found = {
        name: some[0] | {"seconds": statistics.median(run["seconds"] for run in some)}
        for name, some in runs.items()
    }
    ratios = {
        name: found[f"cotune {name}"]["seconds"] / found[library]["seconds"]
        for name, (library, _) in LEARNERS.items()
    }
    if arguments.json:
        cores = len(os.sched_getaffinity(0))
        print(json.dumps({"ratios": ratios, "runs": found, "cores": cores}))
        return
    for name, run in found.items():
        cost = (
            f"{run['rounds']:5d} rounds {run['bytes_up'] / 1e6:7.1f} MB" if "rounds" in run else ""
        )
        print(f"  {name:28} {run['seconds']:7.2f} s   held out {run['accuracy']:.4f}   {cost}")
    for name, ratio in ratios.items():
        print(f"cotune {name} / {LEARNERS[name][0]}  {ratio:.2f}   (goal: at most 4)")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, help="a file or name with a column `target`")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


if __name__ == "__main__":
    main()
