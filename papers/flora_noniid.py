"""FLoRA with parties that are not alike: Tables 5 and 14, on MNIST.

Four parties, as appendix D.8 describes them, 500 images each to learn from:

- imb1: two parties draw even digits with four times the probability of odd ones, two the reverse;
- imb2: three parties have two digits each, the fourth has the other four; none has another's.

Every party searches the declared box by cross-validation of its own images. A recommendation is
trained on all 2,000 images and scored on the 10,000 test images (2,500 for each party); regret is
relative to the default configuration and to the best test score of all recommendations and of the
five best of a search on the pooled images, so that none is below 0.

    python papers/flora_noniid.py              # as CUT says
    python papers/flora_noniid.py --quick      # the SVM on imb1, some minutes
    python papers/flora_noniid.py --complete   # the paper's 100 trials and 10 folds
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common import SEED, WORK, Params, Results, Table, estimator, need, parser, save
from flora_paper import SURFACES, TABLE_14
from flora_searches import NAMES, flora, heterogeneity, recommended, searched, searched_only

import cotune

IMAGES = 500
#: What is cut: trials and folds at the parties, trials of the pooled search, and images of 28 x 28
#: pixels to means over squares of that width.
CUT = {"trials": 20, "folds": 3, "central": 40, "few_shot": 8, "square": 1}
#: For the boosting more is cut: it grows ten trees a round, over every pixel.
CUT_HGB = {"trials": 10, "folds": 3, "central": 20, "few_shot": 5, "square": 4}
QUICK = {"trials": 8, "folds": 3, "central": 10, "few_shot": 4, "square": 4}
COMPLETE = {"trials": 100, "folds": 10, "central": 600, "few_shot": 20, "square": 1}


def main() -> int:
    made = parser(__doc__ or "")
    made.add_argument("--quick", action="store_true", help="the SVM on imb1, 8 trials")
    made.add_argument("--complete", action="store_true", help="nothing cut; many hours")
    arguments = made.parse_args()
    need(arguments.data, ["mnist.npz"], "--data")
    cut = QUICK if arguments.quick else COMPLETE if arguments.complete else CUT
    done = Results(WORK / "flora_noniid.jsonl")
    order = sorted(TABLE_14, key=lambda row: ("SVM", "MLP", "HGB").index(row.learner))
    cuts = {row.learner: CUT_HGB if row.learner == "HGB" and cut is CUT else cut for row in order}
    keys: list[dict[str, Any]] = [
        {"learner": row.learner, "split": row.dataset, **cuts[row.learner]} for row in order
    ]
    end = time.monotonic() + 60 * arguments.minutes
    for key in keys[:1] if arguments.quick else keys:
        if key not in done and time.monotonic() < end:
            print(f"searching {key}", file=sys.stderr)
            done.put(key, worked(arguments.data, key, arguments.workers))
    found = {(k["learner"], k["split"]): done.get(k) for k in keys if k in done}
    _show(found, cuts, arguments.quick)
    if len(found) < len(keys) and not arguments.quick:
        print(f"{len(keys) - len(found)} rows are left: run it again", file=sys.stderr)
    return 0


def shared_out(x: np.ndarray, y: np.ndarray, split: str, seed: int) -> list[np.ndarray]:
    """The positions of each party's images, by D.8; no image is used twice."""
    rng = np.random.default_rng(seed)
    if split == "MNIST-imb2":
        digits = rng.permutation(10)
        owned = [digits[:2], digits[2:4], digits[4:6], digits[6:]]
        return [rng.choice(np.flatnonzero(np.isin(y, own)), IMAGES, replace=False) for own in owned]
    left = np.ones(len(y), dtype=bool)
    parts = []
    for party in range(4):
        chance = np.where(y % 2 == party % 2, 4.0, 1.0) * left
        parts.append(rng.choice(len(y), IMAGES, replace=False, p=chance / chance.sum()))
        left[parts[-1]] = False
    return parts


def worked(folder: Path, key: dict[str, Any], processes: int) -> dict[str, Any]:
    """Regrets of the four surfaces and of the default `flora` for one learner and split."""
    train, test, parts = _images(folder, key["split"], key["square"])
    tables = {f"party-{i}": train.iloc[rows] for i, rows in enumerate(parts)}
    pooled = pd.concat(tables.values())
    learner = key["learner"]
    shared = {
        "trials": key["trials"],
        "folds": key["folds"],
        "seed": SEED,
        "processes": processes,
    }
    problem, evidence = searched(tables, learner, **shared)
    chosen = recommended(problem, evidence, SEED)
    ours = flora(tables, learner, few_shot=key["few_shot"], **shared)
    chosen["flora"] = ours.pop("params")
    chosen["baseline"] = searched_only(problem, _baseline(problem, learner))
    with cotune.simulate(tables, processes=processes) as federation:
        central = cotune.tune(
            federation,
            "central",
            learners=[NAMES[learner]],
            space="paper",
            scaling="none",
            metric="balanced_accuracy",
            compare_by="parties",
            progress=False,
            trials=key["central"],
            folds=key["folds"],
            seed=SEED,
            train=False,
            holdout=0,
        )
    best = sorted(central.trials, key=lambda trial: trial.loss)[:5]
    scores = {name: _score(learner, params, pooled, test) for name, params in chosen.items()}
    top = max(_score(learner, searched_only(problem, t.params), pooled, test) for t in best)
    return {
        "gamma_p": heterogeneity(evidence),
        "best": top,
        "baseline": scores.pop("baseline"),
        "scores": scores,
        "cost": ours,
    }


def _baseline(problem: Any, learner: str) -> Params:
    space = problem.space(NAMES[learner])
    clipped: Params = space.clip(problem.defaults(NAMES[learner]))
    return clipped


def _images(
    folder: Path, split: str, square: int
) -> tuple[pd.DataFrame, pd.DataFrame, list[np.ndarray]]:
    with np.load(folder / "mnist.npz") as stored:
        parts = shared_out(stored["x_train"], stored["y_train"], split, SEED)
        used = np.concatenate(parts)
        train = _frame(stored["x_train"][used], stored["y_train"][used], square)
        test = _frame(stored["x_test"], stored["y_test"], square)
    return train, test, list(np.arange(len(used)).reshape(len(parts), -1))


def _frame(x: np.ndarray, y: np.ndarray, square: int) -> pd.DataFrame:
    """Pixels from 0 to 1, averaged over squares; digits as text, because they are classes."""
    side = x.shape[1] // square
    means = x.reshape(len(x), side, square, side, square).mean(axis=(2, 4)) / 255
    frame = pd.DataFrame(means.reshape(len(x), -1)).add_prefix("pixel")
    return frame.assign(target=[f"digit {digit}" for digit in y])


def _score(learner: str, params: Params, train: pd.DataFrame, test: pd.DataFrame) -> float:
    import warnings

    from sklearn.metrics import balanced_accuracy_score

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = estimator(learner, params).fit(
            train.drop(columns="target").to_numpy(), train["target"]
        )
    predicted = model.predict(test.drop(columns="target").to_numpy())
    return float(balanced_accuracy_score(test["target"], predicted))


def _show(
    found: dict[tuple[str, str], dict[str, Any]], cuts: dict[str, dict[str, int]], quick: bool
) -> None:
    rows, written = [], []
    for paper in TABLE_14:
        value = found.get((paper.learner, paper.dataset))
        if value is None:
            continue
        best = max(value["best"], *value["scores"].values())
        regret = {
            name: (best - score) / (best - value["baseline"])
            if best > value["baseline"]
            else float("nan")
            for name, score in value["scores"].items()
        }
        cells = [
            f"{printed:.2f} | {regret[name.lower()]:.2f}"
            for name, printed in zip(SURFACES, paper.regret, strict=True)
        ]
        gamma = f"{paper.gamma_p:.2f} | {value['gamma_p']:.2f}"
        figures = [f"{100 * value['baseline']:.1f}", f"{100 * best:.1f}"]
        rows.append(
            [paper.learner, paper.dataset, gamma, *figures, *cells, f"{regret['flora']:.2f}"]
        )
        written.append(
            {
                "learner": paper.learner,
                "split": paper.dataset,
                **value,
                "best_of_all": best,
                "regret": regret,
                "paper": dict(zip(SURFACES, paper.regret, strict=True)),
            }
        )
    said = "; ".join(
        f"{learner} {cut['trials']} trials, {cut['folds']} folds, a pooled search of "
        f"{cut['central']} trials, pixels averaged over squares of {cut['square']}"
        for learner, cut in cuts.items()
    )
    note = (
        f"Here {said}. The best is the highest test score of the pooled search's five best and of "
        "all recommendations, so one that is the best has 0.00 by construction."
    )
    columns = ["learner", "split", "gamma_p", "default %", "best %", *SURFACES, "flora"]
    title = "Table 14, relative regret: paper | cotune"
    print(Table(title, columns, rows, note).text())
    save("flora_noniid" + ("_quick" if quick else ""), {"cut": cuts, "rows": written})


if __name__ == "__main__":
    sys.exit(main())
