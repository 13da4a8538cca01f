"""What the scripts on DASH and FLASH share: their setting, its cuts, and runs that can be resumed.

Both papers do the same. A data set is dealt to N clients, each client's rows are split 70/30 into
train and test, the search sees the train rows only, the winner is trained and scored on the test
rows. The papers train the winner by federated learning; here it is trained once on the pooled
train rows of all clients, as the papers' central columns are, for every column alike.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common import WORK, Results, Table, load, need, save
from common import parser as common_parser

from cotune.errors import FederationError, UsageError
from cotune.run.outcome import Outcome

#: Data sets by their names in cotune's tables; the first two are those that are checked.
DATASETS = {
    "eeg_eye_state": "EEG-Eye",
    "electricity": "Electricity",
    "connect_4": "Connect-4",
    "diabetic_data": "Diabetic Data",
    "higgs_subset": "Higgs (subset)",
}
REQUIRED = ("eeg_eye_state", "electricity")
LEARNERS = (
    "random_forest",
    "decision_tree",
    "extra_tree",
    "logistic_regression",
    "xgboost",
    "lightgbm",
    "mlp",
)
CHEAP = ("decision_tree", "extra_tree", "xgboost", "lightgbm")

#: Columns of the tables, and how cotune is asked for them. The three FLASH columns have the paper's
#: tolerance, but cotune's savings (`free_pairs`, `pruning`), which the paper has not.
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Default": ("defaults", {}),
    "FLoRA-LGBM": ("flora", {"single_shot": True, "surface": "aplm"}),
    "FLoRA-LGBM, few-shot": ("flora", {}),
    "central": ("central", {}),
    "DASH": ("dash", {}),
    "FLASH RM": ("flash", {"inner": "rm", "tolerance": 0.0}),
    "FLASH LKBM": ("flash", {"inner": "lkbm", "tolerance": 0.0}),
    "FLASH LBM": ("flash", {"inner": "lbm", "tolerance": 0.0}),
    "flash": ("flash", {}),  # cotune's default: LKBM, tolerant by its projections' errors
}
FLASH = ("FLASH RM", "FLASH LKBM", "FLASH LBM")
#: Of the check against the central search, in percent of its accuracy.
TOLERANCE = 0.5

IDENTIFIERS = ("encounter_id", "patient_nbr")


# The cuts


@dataclass(frozen=True)
class Form:
    """How much of the papers' setting is run."""

    datasets: tuple[str, ...]
    seeds: int
    rows: int | None
    folds: int
    trials: int
    flash_trials: int
    learners: tuple[str, ...]


PAPERS_OWN = Form(tuple(DATASETS), 25, None, 10, 50, 50, LEARNERS)
#: Of the tables of accuracies.
TABLES = {
    "quick": Form(("eeg_eye_state",), 1, 1500, 3, 3, 3, CHEAP),
    "reduced": Form(tuple(DATASETS), 2, 6000, 3, 15, 10, LEARNERS),
    "all_rows": Form(REQUIRED, 2, None, 3, 15, 10, LEARNERS),
    "complete": PAPERS_OWN,
}
#: Of the many runs that vary one thing: numbers of clients, tolerances, iterations, skews.
VARIATIONS = {
    "quick": Form(("eeg_eye_state",), 1, 900, 2, 2, 2, ("decision_tree", "lightgbm")),
    "reduced": Form(("eeg_eye_state",), 1, None, 3, 6, 6, CHEAP),
    "complete": PAPERS_OWN,
}

#: What each cut is for; the figures are those of the form that is run.
CUTS = {
    "data sets": "Higgs is a subset (36 % of the rows); Eye Movements, Magic Telescope and Default "
    "of Credit are not run (OpenML 1044, 1120 and 42477).",
    "seeds": "Each deals the rows anew and seeds the search, as in the papers; spreads are over "
    "them.",
    "train rows": "A stratified part of all clients' train rows: search and winner see only these, "
    "so that the experiment is the papers' on a smaller data set; test rows are never cut. The "
    "column `all rows` has the same winner trained on all train rows.",
    "folds": "Fewer folds fit on fewer rows and make the losses noisier.",
    "HPO iterations": "Per learner; in FLoRA also per client, in FLASH per client and round. The "
    "first is the default configuration, the next nine are random: only then does TPE go by what "
    "it saw. Searches of one seed draw the same random ones, in DASH and in the central search.",
    "learners": "Spaces as printed in DASH's appendix, random_forest with its 50 to 300 trees; "
    "where not all seven are run, it is left out first: its fits take most of the time.",
}


def cuts_table(form: Form) -> Table:
    """What the papers have, what is run here, and a sentence on each cut."""
    own = PAPERS_OWN

    def names(datasets: Iterable[str]) -> str:
        return ", ".join(DATASETS[name] for name in datasets)

    iterations = str(form.trials)
    if form.flash_trials != form.trials:
        iterations += f", in FLASH {form.flash_trials}"
    cells = {
        "data sets": ("7 (DASH), 8 (FLASH)", names(form.datasets)),
        "seeds": (str(own.seeds), str(form.seeds)),
        "train rows": ("all", "all" if form.rows is None else f"{form.rows:,}"),
        "folds": (str(own.folds), str(form.folds)),
        "HPO iterations": (str(own.trials), iterations),
        "learners": ("7", ", ".join(form.learners) if form.learners != LEARNERS else "7"),
    }
    rows = [[what, *pair] for what, pair in cells.items()]
    note = "\n".join(f"- {what}: {sentence}" for what, sentence in CUTS.items())
    return Table("What is run", ["", "papers", "here"], rows, note)


# A piece of work: one run of one method, and the score of its winner


@dataclass(frozen=True)
class Piece:
    """A run of one column's method on one deal of a data set."""

    dataset: str
    seed: int
    method: str
    rows: int | None
    folds: int
    trials: int
    learners: tuple[str, ...]
    clients: int = 3
    split: str = "iid"
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, form: Form, dataset: str, seed: int, method: str, **changes: Any) -> Piece:
        """The form's piece; FLoRA has LightGBM as its only learner, as in DASH's Table 1.

        The defaults are not searched, so that they are the same piece for any number of trials.
        """
        learners = ("lightgbm",) if method.startswith("FLoRA") else form.learners
        trials = form.flash_trials if METHODS[method][0] == "flash" else form.trials
        piece = cls(dataset, seed, method, form.rows, form.folds, trials, learners)
        piece = replace(piece, **changes)
        return replace(piece, trials=0) if method == "Default" else piece

    @property
    def key(self) -> dict[str, Any]:
        key: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return key

    @property
    def folder(self) -> str:
        """A readable name for the run's folder, and enough of a digest to tell pieces apart."""
        digest = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:10]
        method = self.method.lower().replace(",", "").replace(" ", "-")
        return f"{self.dataset}-{self.seed}-{method}-{digest}"


@dataclass(frozen=True)
class Client:
    """One client's rows: those that the search sees are a part of its train rows."""

    searched: pd.DataFrame
    train: pd.DataFrame
    test: pd.DataFrame


def table_of(folder: Path, dataset: str) -> pd.DataFrame:
    """A data set; in Diabetic Data without the identifiers, and `?` is missing."""
    frame = load(folder, dataset)
    if dataset == "diabetic_data":
        frame = frame.drop(columns=list(IDENTIFIERS)).replace("?", None)
    return frame


def deal(
    frame: pd.DataFrame, clients: int, split: str, seed: int, rows: int | None
) -> dict[str, Client]:
    """Rows to clients, each client's 70/30, and of the train rows as many as are searched."""
    from cotune.data.split import split as split_rows

    parts = split_rows(frame, "target", clients, split, seed)
    halves = {name: _stratified(part, 0.7, seed) for name, part in parts.items()}
    total = sum(len(train) for train, _ in halves.values())
    share = 1.0 if rows is None else min(1.0, rows / total)
    return {
        name: Client(train if share == 1.0 else _stratified(train, share, seed)[0], train, test)
        for name, (train, test) in halves.items()
    }


def _stratified(frame: pd.DataFrame, share: float, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A share of the rows and the rest, with the classes in proportion where they can be."""
    from sklearn.model_selection import train_test_split

    labels = frame["target"]
    rare = labels.value_counts().min() < 2
    first, rest = train_test_split(
        frame, train_size=share, random_state=seed, stratify=None if rare else labels
    )
    return first.reset_index(drop=True), rest.reset_index(drop=True)


def run_piece(piece: Piece, data: Path, processes: int) -> dict[str, Any]:
    """Search (or go on with a search that was stopped), train the winner, score it."""
    import cotune

    clients = deal(
        table_of(data, piece.dataset), piece.clients, piece.split, piece.seed, piece.rows
    )
    searched = {name: client.searched for name, client in clients.items()}
    if piece.method == "Default":  # CASH-D is central: one party has all rows
        searched = {"all": pd.concat(list(searched.values()), ignore_index=True)}
    method, options = METHODS[piece.method]
    folder = WORK / "runs" / piece.folder
    resumed = (folder / "run.json").exists()
    began = time.process_time()
    with cotune.simulate(searched, processes=processes, state=folder / "parties") as federation:
        if resumed:
            outcome = cotune.resume(folder, federation, progress=False)
        else:
            outcome = cotune.tune(
                federation,
                method,
                learners=piece.learners,
                trials=piece.trials or None,
                metric="accuracy",
                compare_by="parties",
                folds=piece.folds,
                space="paper",
                seed=piece.seed,
                run=folder,
                progress=False,
                **{**options, **piece.options},
                train=False,
                holdout=0,
            )
    here = time.process_time() - began
    figures = figures_of(outcome) | {"here_seconds": None if resumed else here}
    return figures | score(outcome, list(clients.values()))


def figures_of(outcome: Outcome) -> dict[str, Any]:
    """What the tables need to know of a run. `here_seconds` is CPU time outside of the fits."""
    return {
        "learner": outcome.best_learner,
        "params": outcome.best_params,
        "validation_accuracy": 1.0 - outcome.best_loss,
        "fits": outcome.ledger.fits,
        "rounds": outcome.ledger.rounds,
        "cpu_seconds": outcome.ledger.cpu_seconds,
        "algorithms": outcome.report.get("algorithms"),
        "curves": curves_of(outcome) if outcome.method == "flash" else None,
        "ended": outcome.ended,
    }


def curves_of(outcome: Outcome) -> dict[str, list[tuple[float, float]]]:
    """The best loss of each learner on each fraction of the rows that it was trained on."""
    curves: dict[str, dict[float, float]] = {}
    for trial in outcome.trials:
        curve = curves.setdefault(trial.learner, {})
        curve[trial.fraction] = min(trial.loss, curve.get(trial.fraction, float("inf")))
    return {learner: sorted(curve.items()) for learner, curve in curves.items()}


def score(outcome: Outcome, clients: Sequence[Client]) -> dict[str, float]:
    """Train the winner once on the clients' searched rows; accuracy on all their test rows.

    The figures that end in `_all` are those of the winner trained on all train rows.
    """
    hits = hits_of(outcome, [client.searched for client in clients], clients)
    cut = any(client.searched is not client.train for client in clients)
    hits_all = hits_of(outcome, [client.train for client in clients], clients) if cut else hits
    return {
        "accuracy": float(np.mean(np.concatenate(hits))),
        "client_accuracy": float(np.mean([np.mean(each) for each in hits])),
        "accuracy_all": float(np.mean(np.concatenate(hits_all))),
    }


def hits_of(
    outcome: Outcome, tables: Sequence[pd.DataFrame], clients: Sequence[Client]
) -> list[np.ndarray]:
    """For each client which of its test rows the winner, trained on the tables, has right."""
    import warnings

    from threadpoolctl import threadpool_limits

    from cotune.data.encode import encode
    from cotune.learners import learner as learner_named

    problem, schema = outcome.problem, outcome.problem.schema
    learner = learner_named(outcome.best_learner)

    def features(frame: pd.DataFrame) -> np.ndarray:
        return encode(frame, schema, learner.features, problem.scaling)

    train = pd.concat(list(tables), ignore_index=True)
    present, labels = np.unique(train["target"].to_numpy(), return_inverse=True)
    estimator = learner.estimator(
        outcome.best_params, task="classification", seed=problem.seed, schema=schema
    )
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # no convergence: the score says it
        estimator.fit(features(train), labels)
        return [
            present[estimator.predict(features(client.test)).astype(int)]
            == client.test["target"].to_numpy()
            for client in clients
        ]


# The work


class TimeUp(KeyboardInterrupt):
    """The minutes are over. Like Ctrl-C it stops a run where it is; its folder keeps the rounds."""


@contextmanager
def limited(minutes: float) -> Iterator[None]:
    """Raises `TimeUp` in the block once the minutes are over."""

    def stop(*_: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Store:
    """The finished pieces. Scripts may run side by side: a piece of one is there for the other."""

    def __init__(self, path: Path = WORK / "cash.jsonl") -> None:
        self._path = path
        self.results = Results(path)

    def refresh(self) -> None:
        self.results = Results(self._path)

    def __contains__(self, piece: Piece) -> bool:
        return piece.key in self.results

    def get(self, piece: Piece) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.results.get(piece.key)
        return found

    def finish(self, pieces: Iterable[Piece], arguments: argparse.Namespace) -> int:
        """Run what is not there yet, in order, until the minutes are over; how many are left."""
        todo = list({piece.folder: piece for piece in pieces}.values())
        try:
            with limited(arguments.minutes):
                while left := self._left(todo):
                    for piece in left:
                        self._run(piece, arguments)
                    if self._left(left) == left:
                        time.sleep(10)  # under way in another script, or to be begun anew
        except TimeUp:
            print("time is up: the same command goes on from here", file=sys.stderr)
        return len(self._left(todo))

    def _left(self, pieces: Sequence[Piece]) -> list[Piece]:
        self.refresh()
        return [piece for piece in pieces if piece not in self]

    def _run(self, piece: Piece, arguments: argparse.Namespace) -> None:
        self.refresh()
        if piece in self:
            return
        began = time.monotonic()
        try:
            value = run_piece(piece, arguments.data, arguments.workers)
        except UsageError as error:
            if "worked on by another process" not in str(error):
                raise
            return
        except FederationError as error:
            if "another version of cotune" not in str(error):
                raise
            print(f"{piece.folder} was begun by another version: anew", file=sys.stderr)
            shutil.rmtree(WORK / "runs" / piece.folder)
            return
        self.results.put(piece.key, value)
        print(
            f"{piece.dataset} seed {piece.seed} N={piece.clients} {piece.split} {piece.method} "
            f"{dict(piece.options) or ''} {piece.trials}: {100 * value['accuracy']:.2f} % "
            f"{value['learner']}, {value['cpu_seconds']:.0f} CPU s of fits, "
            f"{time.monotonic() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )


# Figures


def relative_improvement(performance: float, baseline: float) -> float:
    """RI of both papers, in percent.

    >>> relative_improvement(0.909, 0.9)
    1.0
    """
    return round((performance - baseline) / baseline * 100, 10)


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation; the latter is not a number for a single value."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
    return (float(np.mean(values)) if len(values) else float("nan")), spread


def paired(
    store: Store, pieces: Sequence[Piece], baselines: Sequence[Piece], figure: str = "accuracy"
) -> list[float]:
    """RI of each piece over its baseline (of the same deal), where both are there."""
    pairs = [(store.get(a), store.get(b)) for a, b in zip(pieces, baselines, strict=True)]
    return [relative_improvement(a[figure], b[figure]) for a, b in pairs if a and b]


def values_of(store: Store, pieces: Iterable[Piece], figure: str = "accuracy") -> list[Any]:
    """A figure of the pieces that are there."""
    return [found[figure] for piece in pieces if (found := store.get(piece))]


def verdict(improvement: float, tolerance: float = TOLERANCE) -> str:
    """Whether a method is within the tolerance of the central search; better is fine.

    >>> verdict(-0.4), verdict(-0.6), verdict(float("nan"))
    ('ok', 'differs', '')
    """
    if np.isnan(improvement):
        return ""
    return "ok" if improvement >= -tolerance else "differs"


def number(value: float | None, digits: int = 2, signed: bool = False) -> str:
    """A cell; empty for what is not there."""
    if value is None or np.isnan(value):
        return ""
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def most_frequent(names: Sequence[str]) -> str:
    """Each name with how often it came, the most frequent first.

    >>> most_frequent(["xgboost", "mlp", "xgboost"])
    'xgboost 2, mlp 1'
    """
    counts = pd.Series(list(names), dtype=object).value_counts()
    return ", ".join(f"{name} {count}" for name, count in counts.items())


# What comes in and out


#: What asks for a form other than the reduced one, and what that means.
FLAGS = {
    "quick": "a few minutes: does it run at all",
    "all_rows": "EEG and Electricity only, with all train rows: hours",
    "complete": "the papers' own sizes: days, in pieces of --minutes",
}


def parser(description: str, forms: Mapping[str, Form]) -> argparse.ArgumentParser:
    """The options of the four scripts."""
    made = common_parser(description)
    group = made.add_mutually_exclusive_group()
    for name in forms:
        if name in FLAGS:
            flag = "--" + name.replace("_", "-")
            group.add_argument(flag, action="store_true", help=FLAGS[name])
    made.add_argument("--seeds", type=int, help="instead of the form's own number")
    made.add_argument("--show", action="store_true", help="run nothing: show what is there")
    made.add_argument("--check", action="store_true", help="fail if a checked figure differs")
    return made


def form_of(arguments: argparse.Namespace, forms: Mapping[str, Form]) -> tuple[str, Form]:
    """The name of the form that was asked for, and the form."""
    name = next((name for name in forms if getattr(arguments, name, False)), "reduced")
    form = forms[name]
    need(arguments.data, [f"{dataset}.parquet" for dataset in form.datasets], "--data")
    return name, replace(form, seeds=arguments.seeds) if arguments.seeds else form


#: Of every table of accuracies.
HEADER = ["data set", "column", "paper", "cotune", "+-", "all rows", "clients", "learners chosen"]
#: Said under every table of accuracies.
TRAINING = (
    "Accuracies in percent. The papers train the winner by federated learning; here it is trained "
    "once on the pooled train rows of all clients and scored on all clients' test rows. `all "
    "rows`: trained on all train rows, also where the search was given a part of them. `clients` "
    "is the mean of the clients' own accuracies, `+-` the standard deviation over the seeds."
)


def publish(
    script: str,
    name: str,
    tables: Sequence[Table],
    remarks: Sequence[str],
    result: Mapping[str, Any],
    left: int,
) -> None:
    """Print the tables, write the draft of the page and (unless quick) the results.

    Each form has files of its own: begun, it must not replace a finished reduced one.
    """
    rest = [f"{left} runs are still to be done: the figures are preliminary."] if left else []
    paragraphs = [*rest, *remarks]
    print("\n\n\n".join([*(table.text() for table in tables), *paragraphs]))
    WORK.mkdir(exist_ok=True)
    page = [f"# {script} ({name})", *(table.markdown() for table in tables), *paragraphs]
    suffix = "" if name == "reduced" else f"_{name}"
    (WORK / f"{script}{suffix}.md").write_text("\n\n".join(page) + "\n")
    if name != "quick":
        save(f"{script}{suffix}", {"form": name, "left": left, **result})
