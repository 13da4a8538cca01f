"""FLoRA with cotune's own searches: the default `flora` beside the paper's best surface.

The cases of Tables 7-9: three parties, the declared boxes, 10-fold cross-validation of balanced
accuracy. For every case one run of `cotune.tune(..., "flora")` as a user would start it (Gaussian
processes, one few-shot round, free pairs, at small parties folds of their own for all trials), and
one as published (`single_shot`, APLM; not among the stored results). What each settles on is scored
on the pooled rows; regret is relative to the paper's printed baseline and central best. The
installed version does not give these in all cases: flora_baselines.py has regrets by its own.

    python papers/flora_own.py            # all cases, as CUTS says; stops and goes on
    python papers/flora_own.py --quick    # three small cases, fewer trials, some minutes
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    SEED,
    WORK,
    Params,
    Results,
    Table,
    Workers,
    load,
    parser,
    parties,
    save,
    scaled,
    score_all,
    score_key,
)
from flora_paper import CASES, LEARNERS, SURFACES
from flora_searches import flora
from flora_statistics import regret

#: Trials, folds and few-shot candidates of the paper, or the default.
WHOLE = (100, 10, 20)
#: What is cut to fit two cores: fits of thousands of rows take seconds each.
CUTS = {
    ("HGB", "eeg_eye_state"): (40, 5, 12),
    ("HGB", "electricity"): (30, 3, 10),
    ("MLP", "eeg_eye_state"): (30, 3, 10),
    ("MLP", "electricity"): (20, 3, 8),
    ("SVM", "eeg_eye_state"): (20, 3, 6),
}
#: The cheap ones first.
SMALL = ("sonar", "heart_statlog", "oil_spill", "pc3")
ORDER = (*SMALL, "pollen", "eeg_eye_state", "electricity")
QUICK = [("SVM", "sonar"), ("SVM", "heart_statlog"), ("HGB", "sonar")]

#: The ways of tuning that are compared, by the options of `tune`.
WAYS: dict[str, dict[str, Any]] = {
    "flora": {},
    "single-shot": {"single_shot": True, "surface": "aplm"},
}
#: The same method with all rows in one place.
POOLED = "one party"
#: What the default consists of, one part left out at a time; on small cases only.
ABLATIONS: dict[str, dict[str, Any]] = {
    POOLED: {"reshuffle": True},
    "common folds": {"reshuffle": False},
    "no free pairs": {"free_pairs": False},
    "no savings": {"reshuffle": False, "pruning": False, "free_pairs": False},
    "forests": {"surrogate": "forest"},
    "two repeats": {"repeats": 2},
    "single-shot gp": {"single_shot": True, "surrogate": "gp"},
}


def main() -> int:
    arguments = _arguments()
    chosen = Results(WORK / "flora_own.jsonl")
    scores = Results(WORK / "scores.jsonl")
    keys: list[dict[str, Any]] = [
        {"learner": learner, "dataset": dataset, "seed": seed, "way": way, "cut": cut}
        for seed in range(arguments.seeds)
        for learner, dataset in _cases(arguments.quick)
        for way in _ways(learner, dataset)
        if way in arguments.ways
        for cut in [_cut(learner, dataset, arguments.quick)]
    ]
    end = time.monotonic() + 60 * arguments.minutes
    for key in keys:
        if key not in chosen and time.monotonic() < end:
            print(f"tuning {key}", file=sys.stderr)
            chosen.put(key, tuned(arguments.data, key, arguments.workers))
    done = [key for key in keys if key in chosen]
    wanted = [(k["learner"], k["dataset"], _trained(k, chosen.get(k))) for k in done]
    with Workers(arguments.workers, (end - time.monotonic()) / 60) as workers:
        score_all(wanted, scores, workers, arguments.data)
    rows = [row for key in done if (row := _row(key, chosen.get(key), scores)) is not None]
    _show(rows, arguments)
    left = len(keys) - len(rows)
    print(f"\n{left} of {len(keys)} are left: run the same command again" if left else "")
    return 0


def _arguments() -> Any:
    made = parser(__doc__ or "")
    made.add_argument("--quick", action="store_true", help="three small cases, 30 trials")
    made.add_argument("--seeds", type=int, default=1, help="searches per case")
    made.add_argument(
        "--ways",
        nargs="+",
        choices=[*WAYS, *ABLATIONS],
        default=[*WAYS],
        metavar="WAY",
        help=f"of {', '.join([*WAYS, *ABLATIONS])}; {', '.join(WAYS)} by default",
    )
    return made.parse_args()


def _cases(quick: bool) -> list[tuple[str, str]]:
    if quick:
        return QUICK
    return [(m, d) for d in ORDER for m in ("SVM", "MLP", "HGB") if d in CASES[m]]


def _cut(learner: str, dataset: str, quick: bool) -> tuple[int, int, int]:
    return (30, 5, 10) if quick else CUTS.get((learner, dataset), WHOLE)


def _ways(learner: str, dataset: str) -> list[str]:
    """What is affordable."""
    if dataset in ("eeg_eye_state", "electricity") and learner != "HGB":
        return ["flora"]
    return [*WAYS, *(ABLATIONS if dataset in SMALL else ())]


def tuned(folder: Path, key: dict[str, Any], processes: int) -> dict[str, Any]:
    """What one way of tuning settles on in one case, and what it cost."""
    learner, (trials, folds, few_shot) = key["learner"], key["cut"]
    frame = load(folder, key["dataset"])
    frame = frame if learner == "HGB" else scaled(frame)
    split = [frame] if key["way"] == POOLED else parties(frame, 3)
    tables = {f"party-{i}": table for i, table in enumerate(split)}
    options = (WAYS | ABLATIONS)[key["way"]]
    if not options.get("single_shot"):
        options = {"few_shot": few_shot, **options}
    seed = SEED + key["seed"]
    return flora(
        tables, learner, processes=processes, trials=trials, folds=folds, seed=seed, **options
    )


def _trained(key: dict[str, Any], found: dict[str, Any]) -> Params:
    """What is scored: a network begins with the seed of its search, as in the paper's runs."""
    params: Params = found["params"]
    own = key["learner"] == "MLP" and key["seed"]
    return params | {"random_state": SEED + key["seed"]} if own else params


def _row(key: dict[str, Any], found: dict[str, Any], scores: Results) -> dict[str, Any] | None:
    score = scores.get(score_key(key["learner"], key["dataset"], _trained(key, found)))
    if score is None:
        return None
    paper = CASES[key["learner"]][key["dataset"]]
    return {
        **key,
        **found,
        "score": score,
        "regret": regret(score, paper.best / 100, paper.baseline / 100),
        "paper": dict(zip(SURFACES, paper.regret, strict=True)),
    }


def _show(rows: list[dict[str, Any]], arguments: Any) -> None:
    ways = list(dict.fromkeys(row["way"] for row in rows))
    _per_case(rows, ways)
    overall = _aggregate(rows, ways)
    _by_seed(rows, ways)
    save(
        "flora_own" + ("_quick" if arguments.quick else ""),
        {
            "cuts": {f"{m} {d}": list(cut) for (m, d), cut in CUTS.items()},
            "whole": list(WHOLE),
            "seeds": arguments.seeds,
            "overall": overall,
            "cases": rows,
        },
    )


def _per_case(rows: list[dict[str, Any]], ways: list[str]) -> None:
    table = []
    for learner in LEARNERS:
        for dataset in CASES[learner]:
            here = [r for r in rows if (r["learner"], r["dataset"]) == (learner, dataset)]
            if not here:
                continue
            regrets = [[r["regret"] for r in here if r["way"] == way] for way in ways]
            best = min(CASES[learner][dataset].regret)
            aplm = CASES[learner][dataset].regret[3]
            trials, folds, few = here[0]["cut"]
            table.append(
                [learner, dataset, f"{trials}/{folds}/{few}", f"{aplm:.2f}", f"{best:.2f}"]
                + [f"{np.mean(values):.2f}" if values else "" for values in regrets]
            )
    columns = ["learner", "data set", "T/folds/K", "paper APLM", "paper best", *ways]
    print(
        Table(
            "Relative regret by case, by the paper's printed baseline: mean over the seeds",
            columns,
            table,
        ).text()
    )


def _aggregate(rows: list[dict[str, Any]], ways: list[str]) -> dict[str, Any]:
    """Quartiles over the cases that every column has, as Table 3."""
    overall: dict[str, Any] = {}
    table = []
    for way in ways:
        mine = [row for row in rows if row["way"] == way]
        if not mine:
            continue
        names = list(dict.fromkeys((row["learner"], row["dataset"]) for row in mine))
        per_case = {
            name: float(
                np.mean([r["regret"] for r in mine if (r["learner"], r["dataset"]) == name])
            )
            for name in names
        }
        paper = {
            surface: float(np.median([CASES[m][d].regret[i] for m, d in names]))
            for i, surface in enumerate(SURFACES)
        }
        quartiles = np.percentile(list(per_case.values()), [25, 50, 75]).tolist()
        worse = sum(value > 1 for value in per_case.values())
        cost = {
            name: float(np.median([row[name] for row in mine]))
            for name in ("rounds", "bytes", "fits")
        }
        overall[way] = {
            "cases": len(names),
            "quartiles": quartiles,
            "worse": worse,
            "paper_medians": paper,
            **cost,
        }
        table.append(
            [
                way,
                str(len(names)),
                "[" + ", ".join(f"{q:.2f}" for q in quartiles) + "]",
                str(worse),
                f"{min(paper.values()):.2f}",
                f"{cost['rounds']:.0f}",
                f"{cost['bytes'] / 1000:.0f}",
                f"{cost['fits']:.0f}",
            ]
        )
    columns = [
        "cotune",
        "cases",
        "quartiles",
        "> printed default",
        "paper's best median",
        "rounds",
        "kB",
        "fits",
    ]
    print(
        "\n" + Table("Overall, over the same cases, by the printed baseline", columns, table).text()
    )
    return overall


def _by_seed(rows: list[dict[str, Any]], ways: list[str]) -> None:
    """How far the median is chance: that of each seed, over the cases that all seeds have."""
    table = []
    for way in ways:
        regrets: dict[tuple[str, str], dict[int, float]] = {}
        for row in rows:
            if row["way"] == way:
                own = regrets.setdefault((row["learner"], row["dataset"]), {})
                own[row["seed"]] = row["regret"]
        seeds = sorted({seed for own in regrets.values() for seed in own})
        whole = [own for own in regrets.values() if len(own) == len(seeds)]
        if len(seeds) > 1 and whole:
            medians = [f"{np.median([own[seed] for own in whole]):.2f}" for seed in seeds]
            table.append([way, str(len(whole)), ", ".join(medians)])
    if table:
        columns = ["cotune", "cases", "median of each seed"]
        print("\n" + Table("By seed, over the cases that all of them have", columns, table).text())


if __name__ == "__main__":
    sys.exit(main())
