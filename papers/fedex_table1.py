"""FedEx: random search and successive halving, each alone and around FedEx (Tables 1 and 2).

Scaled to two cores: the budget is that of the authors' code for FEMNIST (450 rounds in all, at most
50 for one configuration, 27 configurations, cuts after 11, 22 and 35 rounds; 10 clients a round),
where the paper's text says 2,000 and 200; smaller networks and fewer rows. MNIST and a part of
CIFAR-10 (at 16 x 16 pixels) are split over 100 clients, evenly or with Dirichlet-skewed classes; in
Shakespeare a client is a role. What is shown is the error on the rows of every client that were set
aside, in per cent: the mean over seeds, and half the width of its 90 % Student-t interval, as in
Table 2.

    python papers/fedex_table1.py --seeds 3             # stops and goes on
    python papers/fedex_table1.py --ablations --seeds 4  # figures 2, 5, 6, and what we changed
    python papers/fedex_table1.py --quick               # some minutes, 45 rounds
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common import WORK, Results, Table, Workers, need, parser, save

#: Rounds in all, most of one configuration, eliminations.
WHOLE = (450, 50, 3)
QUICK = (45, 15, 2)
CLIENTS = 100
#: Rows that are used, and at most those of one role.
ROWS = 8_000
ROWS_OF_ROLE = 80
#: The shares of a client's rows that test and that judge arms; the paper's are a tenth each, of
#: clients that have more rows.
HOLDOUT, VALIDATION = 0.15, 0.12

#: Data, how it is split, and the network with its sizes.
SETTINGS: dict[str, dict[str, Any]] = {
    "MNIST, iid": {"data": "mnist.npz", "split": "iid"},
    "MNIST, Dirichlet": {"data": "mnist.npz", "split": "dirichlet:0.5"},
    "Shakespeare, roles": {"data": "shakespeare_speeches.parquet", "split": "by:role"},
    "CIFAR-10, iid": {"data": "cifar10_subset.npz", "split": "iid"},
    "CIFAR-10, Dirichlet": {"data": "cifar10_subset.npz", "split": "dirichlet:0.5"},
}
LEARNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "mnist.npz": ("torch_mlp", {"hidden": 64, "layers": 1}),
    "cifar10_subset.npz": ("cnn", {"channels": 8, "hidden": 64}),
    "shakespeare_speeches.parquet": ("char_lstm", {"hidden": 64, "layers": 1, "epochs": 1}),
}
#: The wrapper, whether FedEx is inside, and the objective.
WAYS = [
    (wrapper, arms, objective)
    for wrapper in ("sha", "rs")
    for objective in ("personalized", "global")
    for arms in (1, 27)
]

#: The columns of Table 1: the data, and how each device's rows are shared out to train and test.
COLUMNS = (
    "Shakespeare, iid",
    "Shakespeare, non-iid",
    "FEMNIST, iid",
    "FEMNIST, non-iid",
    "CIFAR-10, iid",
)
#: Table 1 of the paper, error in per cent: by wrapper, objective and arms.
PAPER: dict[tuple[str, str, int], dict[str, float]] = {
    way: dict(zip(COLUMNS, errors, strict=True))
    for way, errors in {
        ("rs", "global", 1): (60.32, 64.36, 22.81, 22.98, 30.46),
        ("rs", "global", 27): (53.94, 57.70, 20.96, 22.30, 34.83),
        ("rs", "personalized", 1): (61.10, 61.71, 17.45, 17.77, 34.89),
        ("rs", "personalized", 27): (54.90, 56.48, 16.31, 15.93, 39.13),
        ("sha", "global", 1): (47.38, 46.79, 18.64, 20.30, 21.62),
        ("sha", "global", 27): (44.52, 45.24, 19.22, 19.43, 20.82),
        ("sha", "personalized", 1): (46.77, 48.04, 14.79, 14.78, 24.81),
        ("sha", "personalized", 27): (46.08, 45.89, 14.97, 14.76, 21.77),
    }.items()
}
#: The paper's column that a setting stands beside: MNIST is no FEMNIST, only as easy. Roles stand
#: beside the i.i.d. column: a role's rows are set aside at random, not by their place in the play.
#: The paper has no CIFAR-10 with skewed classes.
BESIDE: dict[str, str | None] = {
    "MNIST, iid": "FEMNIST, iid",
    "MNIST, Dirichlet": "FEMNIST, non-iid",
    "Shakespeare, roles": "Shakespeare, iid",
    "CIFAR-10, iid": "CIFAR-10, iid",
    "CIFAR-10, Dirichlet": None,
}

#: One part changed at a time, on MNIST with skewed classes, personalized, in SHA.
ABLATED = "MNIST, Dirichlet"
ABLATIONS: dict[str, dict[str, Any]] = {
    "FedEx as published": {"first_baseline": False},
    "first round's own baseline": {},
    "... floor 0.02 / k": {"floor": 0.02},
    "... floor 0.1 / k": {"floor": 0.1},
    "... scores discounted by 0.5 (figure 2)": {"score_discount": 0.5},
    "... scores discounted by 0.9": {"score_discount": 0.9},
    "... scores of all rounds (figure 2)": {"score_discount": 1.0},
    "... epsilon 0.03 (figure 5)": {"epsilon": 0.03},
    "... epsilon 0.3 (figure 5)": {"epsilon": 0.3},
    "... epsilon 1 (figure 5)": {"epsilon": 1.0},
    "... adaptive steps (figure 6)": {"step_size": "adaptive"},
    "... constant steps (figure 6)": {"step_size": "constant"},
    "... product of simplices": {"product": True},
    "SHA alone": {"arms": 1},
    "SHA alone, scores discounted by 0.5 (figure 2)": {"arms": 1, "score_discount": 0.5},
    "SHA alone, scores of all rounds (figure 2)": {"arms": 1, "score_discount": 1.0},
}


def main() -> int:
    made = parser(__doc__ or "")
    made.add_argument("--quick", action="store_true", help="MNIST only, a tenth of the rounds")
    made.add_argument("--seeds", type=int, default=3, help="runs of each")
    made.add_argument("--ablations", action="store_true", help="the ablations instead of the table")
    made.add_argument("--only", default="", help="settings that begin so, say MNIST")
    made.add_argument("--wrapper", choices=("sha", "rs"), help="only this one")
    arguments = made.parse_args()
    need(arguments.data, LEARNERS, "--data")
    store = Results(WORK / "fedex_table1.jsonl")
    keys = _ablation_keys(arguments) if arguments.ablations else _table_keys(arguments)

    def submit(key: dict[str, Any]) -> list[Any]:
        print(f"running {key}", file=sys.stderr)
        return [workers.submit(tuned, arguments.data, key)]

    with Workers(arguments.workers, arguments.minutes) as workers:
        left = workers.finish("run", keys, store, submit, lambda found: found[0])
    rows = [{**key, **store.get(key)} for key in keys if key in store]
    name = "fedex_ablations" if arguments.ablations else "fedex_table1"
    shown = _show_ablations(rows) if arguments.ablations else _show_table(rows)
    save(name + ("_quick" if arguments.quick else ""), {"rows": rows, "shown": shown})
    print(f"\n{left} of {len(keys)} are left: run the same command again" if left else "")
    return 0


def _table_keys(arguments: Any) -> list[dict[str, Any]]:
    settings = [s for s in SETTINGS if s.startswith(arguments.only)]
    if arguments.quick:
        settings = ["MNIST, iid", "MNIST, Dirichlet"]
    return [
        {
            "setting": setting,
            "wrapper": wrapper,
            "objective": objective,
            "options": {"arms": arms},
            "seed": seed,
            "budget": QUICK if arguments.quick else WHOLE,
        }
        for seed in range(arguments.seeds)
        for setting in settings
        for wrapper, arms, objective in WAYS
        if arguments.wrapper in (None, wrapper)
    ]


def _ablation_keys(arguments: Any) -> list[dict[str, Any]]:
    return [
        {
            "setting": ABLATED,
            "wrapper": "sha",
            "objective": "personalized",
            "options": {"arms": 27} | options,
            "seed": seed,
            "budget": QUICK if arguments.quick else WHOLE,
        }
        for seed in range(arguments.seeds)
        for options in ABLATIONS.values()
    ]


def tuned(folder: Path, key: dict[str, Any]) -> dict[str, Any]:
    """The test errors of one run, in per cent; the process trains its clients itself."""
    import cotune

    setting = SETTINGS[key["setting"]]
    learner, fixed = LEARNERS[setting["data"]]
    frame = rows_of(folder, setting["data"])
    parties = None if setting["split"].startswith("by:") else CLIENTS
    rounds, most, eliminations = key["budget"]
    with (
        ThreadPoolExecutor(1) as executor,
        cotune.simulate(
            frame, target=_target(setting["data"]), parties=parties, split=setting["split"],
            seed=key["seed"], executor=executor,
        ) as federation,
    ):  # fmt: skip
        outcome = cotune.tune(
            federation,
            "fedex",
            learners=[learner],
            space="paper",
            fixed={learner: fixed},
            folds=2,
            holdout=HOLDOUT,
            validation=VALIDATION,
            seed=key["seed"],
            train=False,
            progress=False,
            wrapper=key["wrapper"],
            objective=key["objective"],
            rounds=rounds,
            max_rounds=most,
            eliminations=eliminations,
            curve=5,
            **key["options"],
        )
    report = outcome.report
    return {
        "error": 100 * report["test"][key["objective"]],
        "global": 100 * report["test"]["global"],
        "personalized": 100 * report["test"]["personalized"],
        "entropy": report["entropy"],
        "online": report["online"],
        "clients": len(outcome.parties),
    }


def rows_of(folder: Path, name: str) -> pd.DataFrame:
    """The rows that are used of a data set: the same in all runs."""
    from cotune.data.load import load
    from cotune.data.text import examples

    rng = np.random.default_rng(0)
    if name.endswith(".npz"):
        frame = load(str(folder / name))
        frame = frame.iloc[np.sort(rng.permutation(len(frame))[:ROWS])].reset_index(drop=True)
        if name.startswith("cifar"):
            frame["image"] = frame["image"].map(_halved)
        return frame
    speeches = pd.read_parquet(folder / name)
    speeches["role"] = speeches["play"] + " " + speeches["speaker"]
    frame = examples(speeches[["role", "text"]])
    sizes = frame["role"].value_counts()
    roles = np.sort(sizes.index[sizes >= ROWS_OF_ROLE].to_numpy(dtype=str))
    chosen = rng.permutation(roles)[:CLIENTS]
    kept = frame[frame["role"].isin(chosen)]
    return kept.groupby("role", sort=True).head(ROWS_OF_ROLE).reset_index(drop=True)


def _halved(image: np.ndarray) -> np.ndarray:
    """The means of two by two pixels."""
    height, width, colours = image.shape
    blocks = image.reshape(height // 2, 2, width // 2, 2, colours)
    halved: np.ndarray = blocks.mean(axis=(1, 3)).astype(np.uint8)
    return halved


def _target(name: str) -> str:
    return "label" if name.endswith(".npz") else "next"


def spread(errors: list[float]) -> float:
    """Half the width of the mean's 90 % Student-t interval."""
    from scipy.stats import t

    if len(errors) < 2:
        return float("nan")
    error = np.std(errors, ddof=1) / np.sqrt(len(errors))
    return float(t.ppf(0.95, len(errors) - 1) * error)


def _show_table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    for setting in SETTINGS:
        beside = BESIDE[setting]
        for wrapper, arms, objective in WAYS:
            errors = list(_by_seed(rows, setting, wrapper, objective, arms).values())
            if errors:
                figures = {
                    "setting": setting,
                    "wrapper": wrapper,
                    "objective": objective,
                    "tuning": "+ FedEx" if arms > 1 else "alone",
                    "paper": beside and PAPER[wrapper, objective, arms][beside],
                    "beside": beside,
                    "error": float(np.mean(errors)),
                    "half_width": spread(errors),
                    "runs": len(errors),
                }
                shown.append(figures)
    table = Table(
        "Test error in per cent, with half the width of its 90 % interval",
        ("setting", "wrapper", "objective", "tuning", "paper", "cotune", "runs"),
        [
            (
                row["setting"], row["wrapper"], row["objective"], row["tuning"],
                f"{row['paper']:.2f} ({row['beside']})" if row["beside"] else "",
                _with(row["error"], row["half_width"]), str(row["runs"]),
            )
            for row in shown
        ],
        "The paper's text has 4,000 rounds for Shakespeare and CIFAR-10 and 2,000 for FEMNIST.",
    )  # fmt: skip
    print(table.text(), "\n\n" + _gains(rows).text())
    return shown


def _gains(rows: list[dict[str, Any]]) -> Table:
    lines = []
    for setting in SETTINGS:
        beside = BESIDE[setting]
        for wrapper, arms, objective in WAYS:
            alone = _by_seed(rows, setting, wrapper, objective, 1)
            inside = _by_seed(rows, setting, wrapper, objective, arms)
            gaps = [inside[seed] - alone[seed] for seed in sorted(alone.keys() & inside.keys())]
            if arms == 1 or not gaps:
                continue
            paper = ""
            if beside is not None:
                printed = [PAPER[wrapper, objective, a][beside] for a in (1, 27)]
                paper = f"{printed[1] - printed[0]:+.2f} ({beside})"
            mean = _with(float(np.mean(gaps)), spread(gaps), "+")
            lines.append((setting, wrapper, objective, paper, mean, str(len(gaps))))
    return Table(
        "FedEx less the wrapper alone, in points, seed by seed (negative: FedEx is better)",
        ("setting", "wrapper", "objective", "paper", "cotune", "runs"),
        lines,
    )


def _with(mean: float, half_width: float, sign: str = "") -> str:
    return f"{mean:{sign}.2f} +- {half_width:.2f}"


def _by_seed(
    rows: list[dict[str, Any]], setting: str, wrapper: str, objective: str, arms: int
) -> dict[int, float]:
    wanted = (setting, wrapper, objective, arms)
    return {
        row["seed"]: row["error"]
        for row in rows
        if (row["setting"], row["wrapper"], row["objective"], row["options"]["arms"]) == wanted
    }


def _show_ablations(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    for name, options in ABLATIONS.items():
        found = [row for row in rows if row["options"] == {"arms": 27} | options]
        if found:
            errors = [row["personalized"] for row in found]
            shown.append(
                {
                    "variant": name,
                    "error": float(np.mean(errors)),
                    "half_width": spread(errors),
                    "global": float(np.mean([row["global"] for row in found])),
                    "entropy": float(np.mean([row["entropy"] for row in found])),
                    "runs": len(found),
                }
            )
    table = Table(
        f"{ABLATED}: test error in per cent",
        ("variant", "personalized", "global", "entropy of theta", "runs"),
        [
            (
                row["variant"], _with(row["error"], row["half_width"]), f"{row['global']:.2f}",
                f"{row['entropy']:.2f}", str(row["runs"]),
            )
            for row in shown
        ],
    )  # fmt: skip
    print(table.text())
    return shown


if __name__ == "__main__":
    raise SystemExit(main())
