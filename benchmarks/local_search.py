"""cotune's evaluation of configurations beside what a user would write by hand.

The same configurations of the boosting learner, the same folds, the same parties:

- by hand: party after party, configuration after configuration, `cross_val_score` with the
  libraries' default threads;
- bare: the fits alone, single-threaded, shared out over one plain process per core: the least
  time that the fits can take;
- cotune: one `Evaluate` message to the federation.

The three take turns, some configurations at a time, so that a busy moment of the machine hits all
alike; the figures are ratios of their totals. Takes some minutes.

    python benchmarks/local_search.py --data eeg_eye_state.parquet
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_score

import cotune
from cotune.coordinator.agree import agree
from cotune.coordinator.federation import Federation
from cotune.coordinator.journal import Journal
from cotune.data.load import load
from cotune.data.split import split
from cotune.learners import learner
from cotune.party.task import Configuration
from cotune.party.tasks import Evaluate
from cotune.problem import Budget
from cotune.run.settings import Settings

Params = dict[str, Any]
#: Configurations between two turns.
AT_ONCE = 5


def by_hand(
    tables: dict[str, pd.DataFrame], configurations: list[Params], folds: int
) -> np.ndarray:
    """Losses as a data scientist would compute them, with a loop."""
    losses = []
    for table in tables.values():
        X, y = table.drop(columns="target"), table["target"]
        cv = StratifiedKFold(folds, shuffle=True, random_state=0)
        for params in configurations:
            model = HistGradientBoostingClassifier(early_stopping=False, random_state=0, **params)
            scores = cross_val_score(model, X, y, cv=cv, scoring="balanced_accuracy")
            losses.append(1.0 - scores.mean())
    return np.array(losses)


def bare_share(arguments: tuple[dict[str, pd.DataFrame], list[Params], int, int, int]) -> None:
    """Every `of`-th fit, without anything around it."""
    tables, configurations, folds, share, of = arguments
    number = 0
    for table in tables.values():
        X, y = table.drop(columns="target").to_numpy(dtype=float), table["target"].to_numpy()
        splits = list(StratifiedKFold(folds, shuffle=True, random_state=0).split(X, y))
        for params in configurations:
            for train, test in splits:
                number += 1
                if number % of == share:
                    model = HistGradientBoostingClassifier(
                        early_stopping=False, random_state=0, **params
                    )
                    model.fit(X[train], y[train]).predict(X[test])


class Cotune:
    """A federation that has agreed on its problem; only the evaluation is timed."""

    def __init__(self, tables: dict[str, pd.DataFrame], folds: int) -> None:
        base = cotune.simulate(tables)
        self.base = base
        self.settings = Settings(
            learners=("hgb",), folds=folds, metric="balanced_accuracy", compare_by="parties"
        )
        self.runs = 0

    def evaluate(self, configurations: list[Params]) -> Callable[[], np.ndarray]:
        """A run of its own, so that nothing is remembered from an earlier turn."""
        self.runs += 1
        federation: Federation = self.base.for_run(f"run-{self.runs}", Journal(), Budget())
        schema = agree(federation, folds=self.settings.folds, task=None)
        federation.problem = self.settings.problem(schema)
        federation.sum(Evaluate((Configuration("hgb", {"max_iter": 1}),)))  # workers are up
        asked = Evaluate(tuple(Configuration("hgb", params) for params in configurations))

        def run() -> np.ndarray:
            replies = federation.gather(asked)
            return np.concatenate([replies[party].losses for party in sorted(replies)])  # type: ignore[attr-defined]

        return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default=eeg(), help="a file or name with a column `target`")
    parser.add_argument("--configurations", type=int, default=20)
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--parties", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()

    frame = load(arguments.data).rename(columns={"Class": "target"})  # OpenML's name for it
    tables = split(frame, "target", arguments.parties, "iid", seed=0)
    configurations = (
        learner("hgb").space("classification", "paper").sobol(arguments.configurations, seed=0)
    )
    cores = len(os.sched_getaffinity(0))
    subject = Cotune(tables, arguments.folds)
    os.environ["OMP_NUM_THREADS"] = "1"  # for the bare processes, which start from now on
    context = multiprocessing.get_context("spawn")
    seconds = {"by hand": 0.0, "bare": 0.0, "cotune": 0.0}
    worst = 0.0
    with context.Pool(cores) as pool:
        pool.map(bare_share, [(tables, configurations[:1], 2, s, cores) for s in range(cores)])
        for start in range(0, len(configurations), AT_ONCE):
            some = configurations[start : start + AT_ONCE]
            run = subject.evaluate(some)
            shares = [(tables, some, arguments.folds, share, cores) for share in range(cores)]
            expected = _timed("by hand", seconds, lambda: by_hand(tables, some, arguments.folds))  # noqa: B023
            found = _timed("cotune", seconds, run)
            _timed("bare", seconds, lambda: pool.map(bare_share, shares, chunksize=1))  # noqa: B023
            worst = max(worst, float(np.abs(expected - found).max()))
            print(f"{start + len(some)} of {len(configurations)} configurations", file=sys.stderr)
    subject.base.close()

    result = {
        "ratio": seconds["by hand"] / seconds["cotune"],
        "overhead": seconds["cotune"] / seconds["bare"] - 1.0,
        "largest_difference": worst,
        "seconds": seconds,
        "cores": cores,
        "fits": arguments.parties * arguments.configurations * arguments.folds,
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{result['fits']} fits on {cores} cores")
    for name, value in seconds.items():
        print(f"  {name:8} {value:8.2f} s")
    print(f"by hand / cotune        {result['ratio']:.2f}   (goal: at least 2)")
    print(f"cotune over bare fits   {100 * result['overhead']:.1f} %  (goal: at most 10 %)")
    print(f"largest loss difference {worst:.1e}")


def eeg() -> str:
    """EEG eye state: the copy in the folder COTUNE_DATA if there is one, else from OpenML."""
    copy = Path(os.environ.get("COTUNE_DATA", ".")) / "eeg_eye_state.parquet"
    return str(copy) if copy.exists() else "openml:1471"


def _timed(name: str, seconds: dict[str, float], function: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    result = function()
    seconds[name] += time.perf_counter() - began
    return result


if __name__ == "__main__":
    main()
