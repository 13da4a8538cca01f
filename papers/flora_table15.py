"""FLoRA with a real federated training at the end: Table 15.

A part of each data set is held out for all; every party draws its rows from the rest and searches
the boosting's declared box by itself. The default configuration and what the four surfaces and
cotune's default `flora` recommend are each trained by the federation, and scored on the held-out
rows.

    python papers/flora_table15.py              # as CUT says; stops and goes on
    python papers/flora_table15.py --quick      # Oil spill only, 20 trials
    python papers/flora_table15.py --complete   # the paper's 500 trials
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from common import SEED, WORK, Params, Results, Table, load, parser, save
from flora_searches import flora, recommended, searched
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split

import cotune
from cotune.coordinator.agree import agree
from cotune.coordinator.journal import Journal
from cotune.learners import learner
from cotune.party.task import Configuration
from cotune.problem import Budget
from cotune.run.settings import Settings
from cotune.training import train

#: Parties, rows of each, the share held out, and the printed figures: Table 15.
SETS: dict[str, tuple[int, int, float, dict[str, float]]] = {
    "oil_spill": (
        3, 200, 0.4,
        {"default": 0.5895, "sgm": 0.7374, "sgm+u": 0.5909, "mplm": 0.7061, "aplm": 0.7332},
    ),
    "eeg_eye_state": (
        3, 3000, 0.2,
        {"default": 0.8864, "sgm": 0.9153, "sgm+u": 0.9211, "mplm": 0.9251, "aplm": 0.9245},
    ),
    "electricity": (
        6, 4000, 0.4,
        {"default": 0.8448, "sgm": 0.8562, "sgm+u": 0.8627, "mplm": 0.8621, "aplm": 0.8624},
    ),
}  # fmt: skip
#: Trials and folds at the parties by data set; the paper has 500 trials.
CUT = {"oil_spill": (100, 5), "eeg_eye_state": (40, 3), "electricity": (30, 3)}
WAYS = ("default", "sgm", "sgm+u", "mplm", "aplm", "flora")


def main() -> int:
    made = parser(__doc__ or "")
    made.add_argument("--quick", action="store_true", help="Oil spill only, 20 trials")
    made.add_argument("--complete", action="store_true", help="500 trials, 10 folds")
    made.add_argument("--seeds", type=int, default=1, help="draws of rows and searches")
    arguments = made.parse_args()
    store = Results(WORK / "flora_table15.jsonl")
    end = time.monotonic() + 60 * arguments.minutes
    keys: list[dict[str, Any]] = [
        {"dataset": name, "seed": seed, "cut": _cut(name, arguments)}
        for seed in range(arguments.seeds)
        for name in (["oil_spill"] if arguments.quick else SETS)
    ]
    for key in keys:
        if key not in store and time.monotonic() < end:
            print(f"searching and training {key}", file=sys.stderr)
            store.put(key, scores(load(arguments.data, key["dataset"]), key, arguments.workers))
    done = [{**key, "scores": store.get(key)} for key in keys if key in store]
    _show(done)
    save("flora_table15" + ("_quick" if arguments.quick else ""), {"cases": done})
    left = len(keys) - len(done)
    print(f"\n{left} of {len(keys)} are left: run the same command again" if left else "")
    return 0


def _cut(name: str, arguments: Any) -> tuple[int, int]:
    if arguments.complete:
        return (500, 10)
    return (20, 3) if arguments.quick else CUT[name]


def scores(frame: pd.DataFrame, key: Mapping[str, Any], processes: int) -> dict[str, Any]:
    """Balanced accuracy on the held-out rows of every way's model, and what training cost."""
    count, rows, share, _ = SETS[key["dataset"]]
    trials, folds = key["cut"]
    seed = SEED + key["seed"]
    rest, held_out = train_test_split(
        frame, test_size=share, random_state=seed, stratify=frame["target"]
    )
    rng = np.random.default_rng(seed)
    tables = {
        f"party-{i}": rest.iloc[rng.choice(len(rest), min(rows, len(rest)), replace=False)]
        for i in range(count)
    }
    problem, evidence = searched(
        tables, "HGB", trials=trials, folds=folds, seed=seed, processes=processes
    )
    chosen: dict[str, Params] = {"default": learner("hgb").defaults("classification")}
    chosen |= recommended(problem, evidence, seed)
    found = flora(tables, "HGB", processes=processes, trials=trials, folds=folds, seed=seed)
    chosen["flora"] = found["params"]
    return {way: _trained(tables, held_out, params, folds) for way, params in chosen.items()}


def _trained(
    tables: Mapping[str, pd.DataFrame], held_out: pd.DataFrame, params: Params, folds: int
) -> dict[str, Any]:
    with cotune.simulate(dict(tables)) as base:
        federation = base.for_run("run", Journal(), Budget())
        schema = agree(federation, folds=folds, task="classification")
        problem = federation.problem = Settings(learners=("hgb",), folds=folds).problem(schema)
        model = train(federation, problem, Configuration("hgb", dict(params)))
        ledger = federation.ledger
        cost = {"rounds": ledger.rounds, "bytes": ledger.bytes_up + ledger.bytes_down}
    predicted = model.predict(held_out)
    score = float(balanced_accuracy_score(held_out["target"].astype(str), predicted.astype(str)))
    return {"params": dict(params), "score": score, **cost}


def _show(done: list[dict[str, Any]]) -> None:
    rows = []
    for name, (count, per_party, _, paper) in SETS.items():
        here = [one for one in done if one["dataset"] == name]
        if here:
            cells = []
            for way in WAYS:
                ours = np.mean([one["scores"][way]["score"] for one in here])
                cells.append(f"{paper[way]:.4f} | {ours:.4f}" if way in paper else f"{ours:.4f}")
            trials, folds = here[0]["cut"]
            rows.append([name, f"{count} x {per_party}", f"{trials}/{folds}", *cells])
    columns = ["data set", "parties x rows", "T/folds", *WAYS]
    print(
        Table(
            "Table 15, balanced accuracy of the trained model: paper | cotune", columns, rows
        ).text()
    )


if __name__ == "__main__":
    sys.exit(main())
