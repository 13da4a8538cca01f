"""How good the answers are where parties differ: the models, and the figures reported of them.

Eight tables, two of them regressions, of at most 2,000 rows each are dealt to five parties in four
ways, from alike to very different (`iid`, `dirichlet:0.5`, `0.2`, `0.1`), with five seeds. Of each
the federation's model is found by `defaults`, `dash`, `dash` with every configuration judged by a
training of the federation, `flora` and `flash`, each with three finalists; each party alone and
somebody who holds all rows search with Optuna by hand, with the same learners, spaces, trials and
folds. All models are evaluated on the rest of the table: that is the truth.

Results are kept by the digest of the code that they depend on, one file each, so that a run that
was stopped resumes; `--show` prints the tables of what there is.

    python benchmarks/answers.py --data FOLDER
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread per fit, one process per core

import argparse
import hashlib
import json
import multiprocessing
import sys
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.metrics import balanced_accuracy_score, root_mean_squared_error
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split
from threadpoolctl import threadpool_limits

import cotune
from cotune.coordinator.agree import agree
from cotune.data.encode import encode, encode_target
from cotune.data.schema import Schema
from cotune.data.split import split
from cotune.learners import learner

SOURCE = Path(cotune.__file__).parent
RESULTS = Path(__file__).parent / "results" / "answers.json"

ROWS, TRUTH, PARTIES, TRIALS, FOLDS, SEEDS = 2_000, 10_000, 5, 10, 3, 5
SPLITS = ("iid", "dirichlet:0.5", "dirichlet:0.2", "dirichlet:0.1")
LEARNERS = {
    "classification": ("hgb", "logistic_regression"),
    "regression": ("hgb", "random_forest"),
}


@dataclass(frozen=True)
class Source:
    """A table: its file, and the column that is predicted if it is another one than `target`."""

    file: str
    target: str = "target"
    leaves: tuple[str, ...] = ()
    rows: int = ROWS

    @property
    def regression(self) -> bool:
        return self.target != "target"


#: What is left out of the regressions are the classes that are made of their target.
TABLES = {
    "electricity": Source("electricity.parquet"),
    "connect_4": Source("connect_4.parquet"),
    "eeg": Source("eeg_eye_state.parquet"),
    "digits": Source("sklearn:digits", rows=1_000),
    "higgs": Source("higgs_subset.parquet"),
    "diabetic": Source("diabetic_data.parquet", leaves=("encounter_id", "patient_nbr")),
    "electricity demand": Source("electricity.parquet", "nswdemand", ("target",)),
    "higgs mass": Source("higgs_subset.parquet", "m_wwbb", ("target",)),
}
#: Of `flora` and `flash`.
FEWER = ("electricity", "connect_4", "digits", "electricity demand")
FEWER_SPLITS = ("iid", "dirichlet:0.2")

#: Columns that take a federation, and how cotune is asked for them.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "defaults": ("defaults", {}),
    "dash": ("dash", {"trials": TRIALS}),
    "dash, federated": ("dash", {"trials": TRIALS, "judge": "federated"}),
    "flora": ("flora", {"trials": TRIALS}),
    "flash": ("flash", {"trials": TRIALS}),
}
#: Columns without one. Of `pooled 80 %` a fifth of the rows is not there, as it is where the
#: federation sets them aside.
REFERENCES = ("pooled", "pooled 80 %", "alone")


@dataclass(frozen=True, order=True)
class Task:
    """One number of the tables; `split` is empty where the rows are not dealt."""

    seed: int
    column: str
    split: str
    table: str

    @property
    def name(self) -> str:
        return "-".join((self.column, self.table, self.split, str(self.seed))).replace(" ", "_")


def tasks(columns: Sequence[str], seeds: int) -> Iterator[Task]:
    """All tasks of some columns, a whole seed after the other."""
    for seed, column, deal, table in product(range(seeds), columns, SPLITS, TABLES):
        few = column in ("flora", "flash")
        if few and (table not in FEWER or deal not in FEWER_SPLITS):
            continue
        if column.startswith("pooled"):
            if deal == SPLITS[0]:
                yield Task(seed, column, "", table)
            continue
        yield Task(seed, column, deal, table)


# The rows


def rows_of(table: str, folder: Path, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Those that are dealt, and those of the truth; the seed draws both."""
    source = TABLES[table]
    frame = _frame(source, folder)
    frame = frame.sample(frac=1.0, random_state=seed).reset_index(drop=True)
    return frame[: source.rows].copy(), frame[source.rows : source.rows + TRUTH].copy()


def _frame(source: Source, folder: Path) -> pd.DataFrame:
    if source.file == "sklearn:digits":
        from sklearn.datasets import load_digits

        frame: pd.DataFrame = load_digits(as_frame=True).frame
        return frame.assign(target=frame["target"].map(lambda digit: f"digit {digit}"))
    frame = pd.read_parquet(folder / source.file).drop(columns=list(source.leaves))
    frame = frame.rename(columns={source.target: "target"})
    if not source.regression:
        frame["target"] = frame["target"].map(lambda label: f"class {label}")
    counts = frame.nunique()
    names = [name for name in frame.columns if counts[name] > 1 and name != "target"]
    text = [name for name in names if not pd.api.types.is_numeric_dtype(frame[name])]
    return frame[[name for name in names if name not in text or counts[name] <= 30] + ["target"]]


def truth_of(source: Source, y: Any, predicted: Any) -> float:
    """Balanced accuracy, or the RMSE of a regression."""
    if not source.regression:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of classes that the model predicts only
            return float(balanced_accuracy_score(y, predicted))
    return float(root_mean_squared_error(y, predicted))


# By hand: Optuna over rows in one place


def by_hand(source: Source, schema: Schema, train: pd.DataFrame, seed: int) -> Callable[..., Any]:
    """The best configuration of the learners' own searches, fitted on all the rows."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    task = schema.task
    y = encode_target(train, schema)
    best: tuple[float, str, dict[str, Any]] = (np.inf, "", {})
    for name in LEARNERS[task]:
        X = encode(train, schema, learner(name).features, "standard")
        space = learner(name).space(task, "default")
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        study.enqueue_trial(space.clip(learner(name).defaults(task)))
        for _ in range(TRIALS):
            trial = study.ask()
            params = space.suggest(trial)
            loss = _cross_validated(source, schema, name, params, X, y, seed)
            study.tell(trial, loss)
            best = min(best, (loss, name, params), key=lambda found: found[0])
    _, name, params = best
    X = encode(train, schema, learner(name).features, "standard")
    fitted, present = _fitted(schema, name, params, X, y, seed)

    def predict(frame: pd.DataFrame) -> np.ndarray:
        rows = encode(frame, schema, learner(name).features, "standard")
        return _predicted(schema, fitted, present, rows)

    return predict


def _cross_validated(
    source: Source,
    schema: Schema,
    name: str,
    params: dict[str, Any],
    X: np.ndarray,
    y: np.ndarray,
    seed: int,
) -> float:
    stratified = not source.regression and np.bincount(y).max() >= FOLDS
    kind = StratifiedKFold if stratified else KFold
    scores = []
    for train, test in kind(FOLDS, shuffle=True, random_state=seed).split(X, y):
        try:
            fitted, present = _fitted(schema, name, params, X[train], y[train], seed)
            predicted = _predicted(schema, fitted, present, X[test])
            scores.append(truth_of(source, y[test], predicted))
        except (ValueError, FloatingPointError):
            scores.append(float(np.std(y)) * 1e3 if source.regression else 0.0)
    mean = float(np.mean(scores))
    return mean if source.regression else 1.0 - mean


def _fitted(
    schema: Schema, name: str, params: dict[str, Any], X: np.ndarray, y: np.ndarray, seed: int
) -> tuple[Any, np.ndarray]:
    """One class needs no model: then there is none."""
    labels, present = y, np.array([])
    if schema.task == "classification":
        present, labels = np.unique(y, return_inverse=True)
        if len(present) == 1:
            return None, present
    estimator: Any = learner(name).estimator(params, task=schema.task, seed=seed, schema=schema)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(X, labels)
    return estimator, present


def _predicted(schema: Schema, fitted: Any, present: np.ndarray, X: np.ndarray) -> np.ndarray:
    if fitted is None:
        return np.full(len(X), present[0])
    predicted: np.ndarray = fitted.predict(X)
    return present[predicted.astype(int)] if schema.task == "classification" else predicted


def reference(task: Task, folder: Path) -> dict[str, Any]:
    """What somebody with all rows finds, or each party with its own."""
    source = TABLES[task.table]
    train, rest = rows_of(task.table, folder, task.seed)
    parts = {"all": train}
    if task.column == "alone":
        parts = split(train, "target", PARTIES, task.split, task.seed)
    elif task.column == "pooled 80 %":
        labels = None if source.regression else train["target"]
        parts = {"all": train_test_split(train, test_size=0.2, random_state=0, stratify=labels)[0]}
    with cotune.simulate({"all": train}, processes=1) as federation:
        kind: Any = "regression" if source.regression else "classification"
        schema = agree(federation, folds=FOLDS, task=kind)
    y = encode_target(rest, schema)
    found = {}
    for party, part in parts.items():
        predict = by_hand(source, schema, part, task.seed)
        found[party] = truth_of(source, y, predict(rest))
    rows = [len(part) for part in parts.values()]
    truth = float(np.average(list(found.values()), weights=rows))
    return {"truth": truth, "parties": found, "rows": rows}


# The federation


def federated(task: Task, folder: Path) -> dict[str, Any]:
    """A run of cotune as a user would make it, and what its model is worth."""
    source = TABLES[task.table]
    train, rest = rows_of(task.table, folder, task.seed)
    parts = split(train, "target", PARTIES, task.split, task.seed)
    method, options = METHODS[task.column]
    kind: Any = "regression" if source.regression else "classification"
    with cotune.simulate(parts, processes=1) as federation, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = cotune.tune(
            federation,
            method,
            learners=LEARNERS[kind],
            task=kind,
            folds=FOLDS,
            finalists=3,  # where a party has too few rows to set some aside: by folds
            seed=task.seed,
            progress=False,
            **options,
        )
    predicted = outcome.model.predict(rest.drop(columns="target"))
    headline = outcome.headline
    searched = outcome.searched or 0
    return {
        "truth": truth_of(source, rest["target"], predicted),
        "reported": headline.value,
        "interval": headline.interval,
        "of": headline.of,
        "rows": [len(part) for part in parts.values()],
        "searched": outcome.best_value,
        "learner": outcome.best_learner,
        "rounds": [searched, len(outcome.rounds) - searched],
        "bytes": [
            sum(r.bytes_up + r.bytes_down for r in rounds)
            for rounds in (outcome.rounds[:searched], outcome.rounds[searched:])
        ],
        "finalists": [
            {
                "learner": one.learner,
                "default": one.default,
                "searched": one.searched,
                "held_out": None if one.held_out is None else one.held_out.loss,
                "failed": one.failed,
            }
            for one in outcome.finalists
        ],
    }


# What is kept


def digest_of(column: str) -> str:
    """Of the code that a column depends on: references know the learners and the rows only."""
    parts = ["learners", "data", "space"] if column in REFERENCES else ["."]
    hashed = hashlib.sha256()
    for part in parts:
        path = SOURCE / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if file.parts[len(SOURCE.parts)] not in ("cli", "report", "testing"):
                hashed.update(file.read_bytes())
    return hashed.hexdigest()[:12]


def solve(task: Task, folder: Path, kept: Path) -> dict[str, Any]:
    """Do one task and keep what comes of it."""
    began = time.perf_counter()
    with threadpool_limits(1):
        found = (reference if task.column in REFERENCES else federated)(task, folder)
    found |= asdict(task) | {"seconds": round(time.perf_counter() - began, 1)}
    path = kept / f"{task.name}.json"
    draft = path.with_suffix(".begun")
    draft.write_text(json.dumps(found))
    draft.replace(path)
    return found


def known(kept: Path, columns: Iterable[str]) -> dict[Task, dict[str, Any]]:
    """All that was kept of today's code."""
    found = {}
    for column in columns:
        for path in (kept / digest_of(column)).glob("*.json"):
            entry = json.loads(path.read_text())
            task = Task(entry["seed"], entry["column"], entry["split"], entry["table"])
            if task.column == column:
                found[task] = entry
    return found


# The tables


def gain(table: str, one: float, other: float) -> float:
    """By how much one figure is better than another, as a part of the other."""
    return (other - one if TABLES[table].regression else one - other) / max(abs(other), 1e-12)


Found = dict[Task, dict[str, Any]]
Cell = tuple[str, str]


def paired(found: Found, column: str, against: str) -> dict[Cell, list[float]]:
    """By split and table, over the seeds that both have: the gains of a column."""
    cells = defaultdict(list)
    for task, entry in sorted(found.items()):
        deal = "" if against.startswith("pooled") else task.split
        other = found.get(Task(task.seed, against, deal, task.table))
        if task.column == column and other is not None:
            gained = gain(task.table, entry["truth"], other["truth"])
            cells[task.split, task.table].append(gained)
    return dict(cells)


def holm(values: Sequence[float]) -> np.ndarray:
    """P-values corrected for their number (Holm, 1979)."""
    order = np.argsort(values)
    raised = np.asarray(values)[order] * np.arange(len(values), 0, -1)
    corrected = np.zeros(len(values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(raised))
    return corrected


def below(cells: dict[Cell, list[float]]) -> list[tuple[Cell, float, float]]:
    """Cells of three seeds or more with their mean and the corrected chance of being below 0."""
    enough = {cell: gains for cell, gains in cells.items() if len(gains) > 2}
    chances = []
    for gains in enough.values():
        same = np.ptp(gains) == 0.0
        chances.append(float(np.mean(gains) >= 0.0) if same else _chance(gains))
    return [
        (c, float(np.mean(g)), float(p))
        for (c, g), p in zip(enough.items(), holm(chances), strict=True)
    ]


def _chance(gains: Sequence[float]) -> float:
    return float(stats.ttest_1samp(gains, 0.0, alternative="less").pvalue)


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval."""
    if len(values) < 2:
        return float(np.mean(values)), float("nan")
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(half)


def show(found: Found) -> dict[str, Any]:
    """Print the tables; they are returned as they are kept in the repository."""
    columns = [column for column in METHODS if any(task.column == column for task in found)]
    kept: dict[str, Any] = {"runs": {}, "gains": {}, "figures": {}, "cost": {}}
    for column in [*columns, *REFERENCES]:
        kept["runs"][column] = sum(task.column == column for task in found)
    print("runs:", ", ".join(f"{name} {count}" for name, count in kept["runs"].items()))
    for against in ("defaults", *REFERENCES):
        print(f"\nbetter than {against} by, % (mean over cells +- half of its 95 % interval)")
        for column in columns:
            if column == against:
                continue
            cells = paired(found, column, against)
            line = {}
            for deal in SPLITS:
                means = [float(np.mean(g)) for (s, _), g in cells.items() if s == deal]
                if means:
                    line[deal] = [round(100 * v, 2) for v in mean_and_half(means)]
            kept["gains"][f"{column} - {against}"] = line
            text = "  ".join(f"{deal} {m:+.2f} +- {h:.2f}" for deal, (m, h) in line.items())
            print(f"  {column:16} {text}")
    print("\ncells below defaults (paired over seeds, one-sided t-test, Holm's correction)")
    for column in columns:
        if column == "defaults":
            continue
        tested = below(paired(found, column, "defaults"))
        bad = [(cell, mean, p) for cell, mean, p in tested if p < 0.05]
        kept["gains"][f"{column} below defaults"] = [len(bad), len(tested)]
        shown = "; ".join(f"{s} {t} {100 * m:+.1f} %, p {p:.3f}" for (s, t), m, p in bad)
        print(f"  {column:16} {len(bad)} of {len(tested)} cells {shown}")
    _show_alone(found, columns, kept)
    _show_figures(found, columns, kept)
    _show_cost(found, columns, kept)
    return kept


def _show_alone(found: Found, columns: Sequence[str], kept: dict[str, Any]) -> None:
    print("\ncells above the parties alone, where pooled is by more than its 95 % interval")
    clear = []
    for deal, table in product(SPLITS, TABLES):
        gains = [
            gain(table, found[pooled]["truth"], entry["truth"])
            for task, entry in found.items()
            if (task.column, task.split, task.table) == ("alone", deal, table)
            and (pooled := Task(task.seed, "pooled", "", table)) in found
        ]
        mean, half = mean_and_half(gains) if gains else (0.0, 0.0)
        if mean > half:
            clear.append((deal, table))
    for column in columns:
        cells = {c: g for c, g in paired(found, column, "alone").items() if c in clear}
        above = [cell for cell, gains in cells.items() if np.mean(gains) > 0.0]
        missed = [" ".join(cell) for cell in cells if cell not in above]
        kept["gains"][f"{column} above alone"] = [len(above), len(cells)]
        print(f"  {column:16} {len(above)} of {len(cells)} {', '.join(missed)}")


def _show_figures(found: Found, columns: Sequence[str], kept: dict[str, Any]) -> None:
    print(
        "\nthe reported figure: reported - truth, and how often its 90 % interval holds the truth"
    )
    for column, deal in product(columns, ("all", *SPLITS)):
        entries = [
            (task, entry)
            for task, entry in found.items()
            if task.column == column and deal in ("all", task.split)
        ]
        classes = [e["reported"] - e["truth"] for t, e in entries if not TABLES[t.table].regression]
        numbers = [e["reported"] / e["truth"] - 1 for t, e in entries if TABLES[t.table].regression]
        known = [(e["interval"], e["truth"]) for _, e in entries if e["interval"]]
        held = [low <= truth <= high for (low, high), truth in known]
        if not classes or not held:
            continue
        (mean, half), coverage = mean_and_half(classes), float(np.mean(held))
        relative = mean_and_half(numbers) if numbers else (float("nan"), float("nan"))
        kept["figures"][f"{column}, {deal}"] = [
            round(v, 4) for v in (mean, half, *relative, coverage)
        ]
        print(
            f"  {column:16} {deal:14} {mean:+.4f} +- {half:.4f}, RMSE {100 * relative[0]:+.2f} "
            f"+- {100 * relative[1]:.2f} %, in the interval {100 * coverage:.0f} % of {len(held)}"
        )


def _show_cost(found: Found, columns: Sequence[str], kept: dict[str, Any]) -> None:
    print("\nmedians: rounds and megabytes of the search and of the finish, seconds on one core")
    for column in columns:
        entries = [entry for task, entry in found.items() if task.column == column]
        rounds = np.median([entry["rounds"] for entry in entries], axis=0)
        bytes_ = np.median([entry["bytes"] for entry in entries], axis=0) / 1e6
        seconds = float(np.median([entry["seconds"] for entry in entries]))
        kept["cost"][column] = [*rounds.tolist(), *bytes_.round(1).tolist(), seconds]
        print(
            f"  {column:16} {rounds[0]:.0f} + {rounds[1]:.0f} rounds, "
            f"{bytes_[0]:.1f} + {bytes_[1]:.1f} MB, {seconds:.0f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="the folder of the Parquet files")
    parser.add_argument(
        "--kept", type=Path, default=Path(".answers"), help="where results are kept"
    )
    parser.add_argument("--columns", nargs="*", default=[*METHODS, *REFERENCES])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--hours", type=float, default=4.0, help="no task is begun after these")
    parser.add_argument("--show", action="store_true", help="only print the tables of what is kept")
    parser.add_argument("--save", action="store_true", help=f"write them to {RESULTS.name}, too")
    arguments = parser.parse_args()
    for column in arguments.columns:
        if column not in METHODS and column not in REFERENCES:
            parser.error(f"no column {column!r}: {', '.join([*METHODS, *REFERENCES])}")
        (arguments.kept / digest_of(column)).mkdir(parents=True, exist_ok=True)
    if not arguments.show:
        if arguments.data is None:
            parser.error("give the folder of the Parquet files: --data FOLDER")
        run(arguments)
    kept = show(known(arguments.kept, arguments.columns))
    if arguments.save:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


def run(arguments: argparse.Namespace) -> None:
    """Solve what is not known yet, one task per process."""
    done = known(arguments.kept, arguments.columns)
    todo = [task for task in tasks(arguments.columns, arguments.seeds) if task not in done]
    until = time.monotonic() + 3600 * arguments.hours
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        arguments.processes, mp_context=context, max_tasks_per_child=20
    ) as pool:
        waiting: deque[tuple[Task, Future[dict[str, Any]]]] = deque()
        for number, task in enumerate(todo):
            if time.monotonic() > until:
                break
            kept = arguments.kept / digest_of(task.column)
            waiting.append((task, pool.submit(solve, task, arguments.data, kept)))
            if len(waiting) > arguments.processes:
                _report(*waiting.popleft(), f"{number} of {len(todo)}")
        while waiting:
            _report(*waiting.popleft(), "last ones")


def _report(task: Task, result: Future[dict[str, Any]], progress: str) -> None:
    try:
        found = result.result()
    except Exception as error:  # one task less; the next run tries it again
        print(f"{task.name} failed: {error!r}", file=sys.stderr)
        return
    print(f"{progress}: {task.name} {found['truth']:.4f} in {found['seconds']} s", file=sys.stderr)


if __name__ == "__main__":
    main()
