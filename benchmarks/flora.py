"""The local searches of a `flora` run beside what a user would write by hand.

The same boosting learner, the same box, the same number of trials at every party:

- by hand: party after party, Optuna's TPE over `cross_val_score`, with the libraries' default
  threads;
- cotune: the one `Search` message of `flora`: all parties at a time, single-threaded fits, one
  process per core, rows binned once, poor configurations spared their last folds, smaller numbers
  of iterations judged for free.

Both sides' pairs are then made into an APLM surface (on Gaussian processes, as by default), and
the configurations that minimise it are scored on the pooled rows, so that what the savings cost is
seen. Takes half an hour with the default 100 trials and 10 folds; the machine should have nothing
else to do.

    python benchmarks/flora.py --data eeg_eye_state.parquet
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, cast

import numpy as np
import optuna
import pandas as pd
from local_search import eeg
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_score

import cotune
from cotune.coordinator.agree import agree
from cotune.coordinator.journal import Journal
from cotune.data.load import load
from cotune.data.split import split
from cotune.learners import learner
from cotune.methods.surfaces import Evidence, minimise, surface
from cotune.party.task import Configuration
from cotune.party.tasks import Evaluate, Search, Searches
from cotune.problem import Budget
from cotune.run.settings import Settings

SPACE = learner("hgb").space("classification", "paper")


def by_hand(table: pd.DataFrame, trials: int, folds: int) -> Evidence:
    """One party's search as a data scientist would write it."""
    X, y = table.drop(columns="target"), table["target"]
    cv = StratifiedKFold(folds, shuffle=True, random_state=0)

    def objective(trial: optuna.Trial) -> float:
        model = HistGradientBoostingClassifier(
            early_stopping=False, random_state=0, **SPACE.suggest(trial)
        )
        return float(1.0 - cross_val_score(model, X, y, cv=cv, scoring="balanced_accuracy").mean())

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=trials)
    return Evidence([t.params for t in study.trials], [cast(float, t.value) for t in study.trials])


class Cotune:
    """A federation that has agreed on its problem; only its search is timed."""

    def __init__(self, tables: dict[str, pd.DataFrame], folds: int) -> None:
        self.base = cotune.simulate(tables)
        settings = Settings(learners=("hgb",), folds=folds, space="paper")
        self._federation = self.base.for_run("run", Journal(), Budget())
        schema = agree(self._federation, folds=folds, task=None)
        self._federation.problem = settings.problem(schema)
        self._federation.sum(Evaluate((Configuration("hgb", {"max_iter": 1}),)))  # workers are up

    def search(self, trials: int) -> tuple[list[Evidence], int]:
        """All parties' pairs, and how many fits they took."""
        task = Search(("hgb",), trials, free_pairs=True, pruning=True)
        replies = cast("dict[str, Searches]", self._federation.gather(task))
        evidence = [
            Evidence(
                [p.params for p in found.pairs],
                [p.loss for p in found.pairs],
                doubts=[p.doubt for p in found.pairs],
            )
            for reply in replies.values()
            for found in reply.found
        ]
        return evidence, sum(found.fits for reply in replies.values() for found in reply.found)


def main() -> None:
    arguments = _arguments()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    frame = load(arguments.data).rename(columns={"Class": "target"})  # OpenML's name for it
    tables = split(frame, "target", arguments.parties, "iid", seed=0)
    subject = Cotune(tables, arguments.folds)
    began = time.perf_counter()
    found, fits = subject.search(arguments.trials)
    ours = time.perf_counter() - began
    subject.base.close()
    print(f"cotune: {ours:.1f} s, {fits} fits", file=sys.stderr)
    hand, theirs = [], 0.0
    for name, table in tables.items():
        began = time.perf_counter()
        hand.append(by_hand(table, arguments.trials, arguments.folds))
        theirs += time.perf_counter() - began
        print(f"by hand, up to {name}: {theirs:.1f} s", file=sys.stderr)
    scores = {
        name: _pooled_score(frame, evidence, arguments.folds)
        for name, evidence in (("by hand", hand), ("cotune", found))
    }
    result: dict[str, Any] = {
        "ratio": theirs / ours,
        "seconds": {"by hand": theirs, "cotune": ours},
        "fits": {
            "by hand": arguments.parties * arguments.trials * arguments.folds,
            "cotune": fits,
        },
        "pooled_balanced_accuracy": scores,
        "cores": len(os.sched_getaffinity(0)),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for name in ("by hand", "cotune"):
        print(
            f"  {name:8} {result['seconds'][name]:8.1f} s  {result['fits'][name]:5d} fits  "
            f"pooled balanced accuracy of its APLM minimiser {scores[name]:.4f}"
        )
    print(f"by hand / cotune  {result['ratio']:.2f}   (goal: at least 4)")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default=eeg(), help="a file or name with a column `target`")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--parties", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def _pooled_score(frame: pd.DataFrame, evidence: list[Evidence], folds: int) -> float:
    """Balanced accuracy on all rows of what single-shot FLoRA makes of the pairs."""
    (params, _), *_ = minimise(surface("aplm", SPACE, evidence, surrogate="gp"), SPACE)
    X, y = frame.drop(columns="target"), frame["target"]
    cv = StratifiedKFold(folds, shuffle=True, random_state=0)
    arguments: dict[str, Any] = dict(params)
    model = HistGradientBoostingClassifier(early_stopping=False, random_state=0, **arguments)
    return float(np.mean(cross_val_score(model, X, y, cv=cv, scoring="balanced_accuracy")))


if __name__ == "__main__":
    main()
