"""FLoRA with a growing number of parties: Tables 4 and 11. (Tables 12, 13: flora_recorded.py.)

The boosting on EEG eye state, Electricity and Pollen, split over ever more parties. Every party
searches the declared box by itself; the four surfaces and cotune's default `flora` recommend; the
recommendation is scored by 10-fold cross-validation of the pooled rows.

    python papers/flora_parties.py              # as CUT says
    python papers/flora_parties.py --quick      # Pollen with 3 parties, some minutes
    python papers/flora_parties.py --complete   # the paper's 100 trials and 10 folds
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from common import (
    SEED,
    WORK,
    Results,
    Table,
    Workers,
    load,
    parser,
    parties,
    save,
    score_all,
    score_key,
)
from flora_paper import SURFACES, TABLE_7, TABLE_11
from flora_searches import flora, heterogeneity, recommended, searched
from flora_statistics import regret

#: Trials and folds at the parties, and the most parties, where nothing else is asked for.
CUT = {"trials": 20, "folds": 3, "parties": 100, "few_shot": 10}
QUICK = {"trials": 10, "folds": 3, "parties": 3, "few_shot": 5}
COMPLETE = {"trials": 100, "folds": 10, "parties": 100, "few_shot": 20}


def main() -> int:
    made = parser(__doc__ or "")
    made.add_argument("--quick", action="store_true", help="Pollen, 3 parties, 10 trials")
    made.add_argument("--complete", action="store_true", help="nothing cut; many hours")
    made.add_argument("--most-parties", type=int, default=100, help="leave out rows with more")
    arguments = made.parse_args()
    cut = QUICK if arguments.quick else COMPLETE if arguments.complete else CUT
    done = Results(WORK / "flora_parties.jsonl")
    scores = Results(WORK / "scores.jsonl")
    keys = [
        {"dataset": row.dataset, "p": row.p, **cut}
        for row in sorted(TABLE_11, key=lambda row: (row.p, row.dataset != "pollen"))
        if row.p <= min(cut["parties"], arguments.most_parties)
        and (row.dataset == "pollen" or not arguments.quick)
    ]
    end = time.monotonic() + 60 * arguments.minutes
    for key in keys:
        if key not in done and time.monotonic() < end:
            print(f"searching {key}", file=sys.stderr)
            done.put(key, worked(arguments.data, key, arguments.workers))
    found = {_name(key): done.get(key) for key in keys if key in done}
    wanted = [
        ("HGB", dataset, params)
        for (dataset, _), value in found.items()
        for params in value["params"].values()
    ]
    with Workers(arguments.workers, (end - time.monotonic()) / 60) as workers:
        score_all(wanted, scores, workers, arguments.data)
    _show(found, scores, cut, arguments)
    return 0


def _name(key: dict[str, Any]) -> tuple[str, int]:
    return key["dataset"], key["p"]


def worked(folder: Path, key: dict[str, Any], processes: int) -> dict[str, Any]:
    """What the surfaces and the default `flora` recommend with p parties."""
    tables = {
        f"party-{i:03}": table
        for i, table in enumerate(parties(load(folder, key["dataset"]), key["p"]))
    }
    shared = {"trials": key["trials"], "folds": key["folds"], "seed": SEED, "processes": processes}
    problem, evidence = searched(tables, "HGB", **shared)
    ours = flora(tables, "HGB", few_shot=key["few_shot"], **shared)
    return {
        "gamma_p": heterogeneity(evidence),
        "params": recommended(problem, evidence, SEED) | {"flora": ours.pop("params")},
        "cost": ours,
    }


def _show(
    found: dict[tuple[str, int], dict[str, Any]],
    scores: Results,
    cut: dict[str, int],
    arguments: Any,
) -> None:
    rows, written = [], []
    for paper in TABLE_11:
        value = found.get((paper.dataset, paper.p))
        if value is None:
            continue
        case = TABLE_7[paper.dataset]
        regrets = {}
        for name, params in value["params"].items():
            score = scores.get(score_key("HGB", paper.dataset, params))
            if score is not None:
                regrets[name] = regret(score, case.best / 100, case.baseline / 100)
        cells = [
            f"{printed:.2f} | {regrets[name.lower()]:.2f}" if name.lower() in regrets else ""
            for name, printed in zip(SURFACES, paper.regret, strict=True)
        ]
        gamma = f"{paper.gamma_p:.2f} | {value['gamma_p']:.2f}"
        ours = f"{regrets['flora']:.2f}" if "flora" in regrets else ""
        rows.append([paper.dataset, str(paper.p), gamma, *cells, ours])
        written.append(
            {
                "dataset": paper.dataset,
                "p": paper.p,
                "gamma_p": value["gamma_p"],
                "regret": regrets,
                "paper": dict(zip(SURFACES, paper.regret, strict=True)),
                "cost": value["cost"],
            }
        )
    note = f"Here {cut['trials']} trials, {cut['folds']} folds, at most {cut['parties']} parties."
    title = "Table 11, relative regret of the boosting: paper | cotune"
    columns = ["data set", "p", "gamma_p", *SURFACES, "flora"]
    print(Table(title, columns, rows, note).text())
    left = sum(row.p <= cut["parties"] for row in TABLE_11) - len(rows)
    if left and not arguments.quick:
        print(f"{left} rows are left: run the same command again", file=sys.stderr)
    save("flora_parties" + ("_quick" if arguments.quick else ""), {"cut": cut, "rows": written})


if __name__ == "__main__":
    sys.exit(main())
