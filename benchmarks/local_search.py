"""cotune's evaluation of configurations beside what a user would write by hand.

The same configurations of the boosting learner, the same folds, the same parties:

- by hand: party after party, configuration after configuration, `cross_val_score` with the
  libraries' default threads;
- bare: the fits alone, single-threaded, shared out over one plain process per core: the least
  time that the fits can take;
- cotune: one `Evaluate` message to the federation.

The figures are ratios of medians in one run; a repetition takes some minutes on two cores.

    python benchmarks/local_search.py --data eeg_eye_state.parquet
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_score

import cotune
from cotune.agree import agree
from cotune.data.load import load
from cotune.data.split import split
from cotune.federation.federation import Federation
from cotune.federation.journal import Journal
from cotune.learners import learner
from cotune.party.tasks import Configuration, Evaluate
from cotune.problem import Budget
from cotune.settings import Settings

Params = dict[str, Any]


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
        self.settings = Settings(learners=("hgb",), folds=folds, metric="balanced_accuracy")
        self.runs = 0

    def evaluate(self, configurations: list[Params]) -> Callable[[], np.ndarray]:
        """A run of its own, so that nothing is remembered from the last repetition."""
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
    parser.add_argument("--data", default="../shared/data/eeg_eye_state.parquet")
    parser.add_argument("--configurations", type=int, default=20)
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--parties", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()

    tables = split(load(arguments.data), "target", arguments.parties, "iid", seed=0)
    configurations = (
        learner("hgb").space("classification", "paper").sobol(arguments.configurations, seed=0)
    )
    cores = len(os.sched_getaffinity(0))
    subject = Cotune(tables, arguments.folds)
    os.environ["OMP_NUM_THREADS"] = "1"  # for the bare processes, which start from now on
    context = multiprocessing.get_context("spawn")
    shares = [(tables, configurations, arguments.folds, share, cores) for share in range(cores)]
    seconds: dict[str, list[float]] = {"by hand": [], "bare": [], "cotune": []}
    worst = 0.0
    with context.Pool(cores) as pool:
        pool.map(bare_share, [(tables, configurations[:1], 2, s, cores) for s in range(cores)])
        for repetition in range(arguments.repetitions):
            run = subject.evaluate(configurations)
            expected, seconds_by_hand = _timed(
                lambda: by_hand(tables, configurations, arguments.folds)
            )
            found, seconds_cotune = _timed(run)
            _, seconds_bare = _timed(lambda: pool.map(bare_share, shares, chunksize=1))
            seconds["by hand"].append(seconds_by_hand)
            seconds["cotune"].append(seconds_cotune)
            seconds["bare"].append(seconds_bare)
            worst = max(worst, float(np.abs(expected - found).max()))
            times = ", ".join(f"{name} {values[-1]:.1f} s" for name, values in seconds.items())
            print(f"{repetition + 1} of {arguments.repetitions}: {times}", file=sys.stderr)
    subject.base.close()

    median = {name: statistics.median(values) for name, values in seconds.items()}
    result = {
        "ratio": median["by hand"] / median["cotune"],
        "overhead": median["cotune"] / median["bare"] - 1.0,
        "largest_difference": worst,
        "seconds": seconds,
        "cores": cores,
        "fits": arguments.parties * arguments.configurations * arguments.folds,
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{result['fits']} fits on {cores} cores, medians of {arguments.repetitions}")
    for name, value in median.items():
        print(f"  {name:8} {value:8.2f} s")
    print(f"by hand / cotune        {result['ratio']:.2f}   (goal: at least 2)")
    print(f"cotune over bare fits   {100 * result['overhead']:.1f} %  (goal: at most 10 %)")
    print(f"largest loss difference {worst:.1e}")


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    result = function()
    return result, time.perf_counter() - began


if __name__ == "__main__":
    main()
