"""How low the regret of FLoRA's small cases can go, for a choice that does not know the folds.

Regret is measured from the luckiest of 600 central figures on ten given folds. A choice that
looks at other folds meets that luck only by chance. Here an oracle chooses that no federation can
have: it has all rows in one place, looks at many configurations of the declared box and
cross-validates the better ones several times, shuffled otherwise than the folds that score.

    python papers/flora_floor.py            # the twelve small cases; stops and goes on
    python papers/flora_floor.py --quick    # the SVM on two data sets, a minute
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, WORK, Params, Results, Table, Workers, estimator, parser, pooled, save
from flora_own import SMALL
from flora_paper import CASES, LEARNERS
from flora_searches import NAMES
from flora_statistics import regret

from cotune.learners import learner as learner_of

#: Configurations looked at, the share that is looked at again, and how often those are, in all.
CUT = {"configurations": 96, "again": 1 / 3, "shuffles": 6}
QUICK = {"configurations": 24, "again": 1 / 3, "shuffles": 3}
#: Of the boosting, the numbers of iterations that one fit shows.
COUNTS = (10, 14, 20, 30, 45, 65, 90, 120, 160, 200)
#: The way of sharing rows out to folds that scores; others are the oracle's.
SCORES = 0
#: Over how many of the oracle's best the less chancy figure is the mean.
BEST = 5


def main() -> int:
    made = parser(__doc__ or "")
    made.add_argument("--quick", action="store_true", help="SVM on Sonar and Heart, fewer of all")
    arguments = made.parse_args()
    cut = QUICK if arguments.quick else CUT
    cases = [(m, d) for d in SMALL for m in ("SVM", "MLP", "HGB")]
    if arguments.quick:
        cases = [("SVM", "sonar"), ("SVM", "heart_statlog")]
    done = Results(WORK / "flora_floor.jsonl")
    with Workers(arguments.workers, arguments.minutes) as workers:

        def judge(keys: list[dict[str, Any]]) -> int:
            return workers.finish(
                "judge",
                keys,
                done,
                lambda key: [workers.submit(scores, arguments.data, key)],
                lambda futures: futures[0],
            )

        every = {case: drawn(case[0], int(cut["configurations"])) for case in cases}
        left = judge([_key(c, params, 1) for c in cases for params in every[c]])
        better = {} if left else {c: _better(c, every[c], done, cut["again"]) for c in cases}
        shuffles = [*range(2, 1 + int(cut["shuffles"])), SCORES]
        left += judge(
            [_key(c, params, s) for c, own in better.items() for params in own for s in shuffles]
        )
    if left:
        print(f"{left} are left: run the same command again")
        return 0
    rows = [_row(case, better[case], done, int(cut["shuffles"])) for case in cases]
    _show(rows, cut, arguments)
    return 0


def drawn(learner: str, count: int) -> list[Params]:
    """Configurations spread over the declared box, and the default; no iterations in them."""
    tuned = learner_of(NAMES[learner])
    space = tuned.space("classification", "paper")
    searched = [name for name, entry in space.to_json().items() if entry["type"] != "fixed"]
    looked_at = [*space.sobol(count, seed=0), space.clip(tuned.defaults("classification"))]
    return [{n: p[n] for n in searched if n != tuned.iterations} for p in looked_at]


def scores(folder: Path, key: dict[str, Any]) -> list[float]:
    """Mean balanced accuracy over ten folds; of the boosting one for each of COUNTS."""
    from sklearn.metrics import balanced_accuracy_score

    learner, params = key["learner"], key["params"]
    X, y, splits = pooled(folder, key["dataset"], learner != "HGB", key["shuffle"])
    folds = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no convergence, infinite weights: the score says it
        for train, test in splits:
            if learner == "HGB":
                model = estimator(learner, params | {"max_iter": max(COUNTS)})
                stages = list(model.fit(X[train], y[train]).staged_predict(X[test]))
                predicted = [stages[count - 1] for count in COUNTS]
            else:
                predicted = [estimator(learner, params).fit(X[train], y[train]).predict(X[test])]
            folds.append([balanced_accuracy_score(y[test], each) for each in predicted])
    return [float(mean) for mean in np.mean(folds, axis=0)]


def _key(case: tuple[str, str], params: Params, shuffle: int) -> dict[str, Any]:
    learner, dataset = case
    return {"learner": learner, "dataset": dataset, "params": params, "shuffle": shuffle}


def _better(
    case: tuple[str, str], looked_at: list[Params], done: Results, share: float
) -> list[Params]:
    """The configurations of the best figures on the first folds."""
    figures = [-max(done.get(_key(case, params, 1))) for params in looked_at]
    best = np.argsort(figures, kind="stable")[: round(share * len(looked_at))]
    return [looked_at[i] for i in best]


def _row(
    case: tuple[str, str], better: list[Params], done: Results, shuffles: int
) -> dict[str, Any]:
    """The oracle's choice: of each configuration the best count, of these the best."""
    paper = CASES[case[0]][case[1]]
    known: list[tuple[float, float]] = []  # the oracle's figure, the regret
    regrets: list[float] = []
    for params in better:
        seen = np.mean([done.get(_key(case, params, 1 + s)) for s in range(shuffles)], axis=0)
        scored = done.get(_key(case, params, SCORES))
        own = [regret(score, paper.best / 100, paper.baseline / 100) for score in scored]
        count = int(seen.argmax())
        known.append((float(seen[count]), own[count]))
        regrets += own
    known.sort(key=lambda one: -one[0])
    return {
        "learner": case[0],
        "dataset": case[1],
        "oracle": known[0][1],
        "best": float(np.mean([own for _, own in known[:BEST]])),
        "luckiest": min(regrets),
        "figure": known[0][0],
    }


def _show(rows: list[dict[str, Any]], cut: dict[str, Any], arguments: Any) -> None:
    ours = _flora()
    table = [
        [
            row["learner"],
            row["dataset"],
            f"{ours[name]:.2f}" if (name := (row["learner"], row["dataset"])) in ours else "",
            f"{row['oracle']:.2f}",
            f"{row['best']:.2f}",
            f"{row['luckiest']:.2f}",
        ]
        for learner in LEARNERS
        for row in rows
        if row["learner"] == learner
    ]
    columns = ["learner", "data set", "flora", "oracle", f"its best {BEST}", "luckiest"]
    note = (
        f"{cut['configurations']} configurations and the default, {round(100 * cut['again'])} % of "
        f"them cross-validated {cut['shuffles']} times;\nflora is the mean over the seeds of "
        f"flora_own.py, 'its best {BEST}' the mean over the oracle's best."
    )
    print(Table("Relative regret on the folds that score", columns, table, note).text())
    medians = {
        name: float(np.median([row[name] for row in rows])) for name in ("oracle", "best")
    } | {"flora": _median(ours, rows)}
    others = [value for case, value in ours.items() if case[1] not in SMALL]
    overall = {
        name: float(np.median([*(row[name] for row in rows), *others]))
        for name in ("oracle", "best")
    } | {"flora": float(np.median(list(ours.values()))) if ours else float("nan")}
    print(f"\nmedian of these cases: {_said(medians)}")
    if not arguments.quick:
        print(f"of all {len(rows) + len(others)}, the others as flora has them: {_said(overall)}")
    save(
        "flora_floor" + ("_quick" if arguments.quick else ""),
        {"cut": cut, "counts": list(COUNTS), "medians": medians, "overall": overall, "cases": rows},
    )


def _flora() -> dict[tuple[str, str], float]:
    """What `flora` has in each case: the mean over the seeds of flora_own.py's whole run."""
    path = RESULTS / "flora_own.json"
    told = json.loads(path.read_text())["cases"] if path.exists() else []
    regrets: dict[tuple[str, str], list[float]] = {}
    for row in told:
        if row["way"] == "flora":
            regrets.setdefault((row["learner"], row["dataset"]), []).append(row["regret"])
    return {case: float(np.mean(values)) for case, values in regrets.items()}


def _median(ours: dict[tuple[str, str], float], rows: list[dict[str, Any]]) -> float:
    here = [ours[c] for row in rows if (c := (row["learner"], row["dataset"])) in ours]
    return float(np.median(here)) if here else float("nan")


def _said(medians: dict[str, float]) -> str:
    return (
        f"flora {medians['flora']:.2f}, oracle {medians['oracle']:.2f}, "
        f"its best {BEST} {medians['best']:.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
