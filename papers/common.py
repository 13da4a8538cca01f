"""What the scripts of this folder share: data, pooled scores, resumable work, tables.

Everything is as in FLoRA's recorded runs: the parties are the test folds of a stratified split,
a configuration's score is its mean balanced accuracy in a stratified 10-fold cross-validation of
the pooled rows, and 5489 is the seed of all of it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Params = dict[str, Any]

PAPERS = Path(__file__).resolve().parent
WORK = PAPERS / "work"
RESULTS = PAPERS / "results"
SEED = 5489
FOLDS = 10


# Arguments and files


def parser(description: str, minutes: float = 110) -> argparse.ArgumentParser:
    """The options that every script of this folder has."""
    made = argparse.ArgumentParser(description=description.partition("\n")[0])
    made.add_argument("--data", type=Path, default=_folder("data"), help="folder of the data sets")
    made.add_argument(
        "--recorded", type=Path, default=_folder("recorded"), help="folder of the recorded results"
    )
    made.add_argument(
        "--minutes", type=float, default=minutes, help="stop between two pieces of work after this"
    )
    made.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    return made


def _folder(name: str) -> Path:
    """What COTUNE_DATA or COTUNE_RECORDED says, else a folder of that name right here."""
    return Path(os.environ.get(f"COTUNE_{name.upper()}", name))


def need(folder: Path, files: Iterable[str], option: str) -> None:
    """End the script with a sentence that says which files are missing, if any are."""
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise SystemExit(
            f"{', '.join(missing)} not found in the folder {folder}: give the folder that has "
            f"them with {option} FOLDER"
        )


# Data


def load(folder: Path, name: str) -> pd.DataFrame:
    """A data set by its name: features, and the column `target` last."""
    need(folder, [f"{name}.parquet"], "--data")
    frame = pd.read_parquet(folder / f"{name}.parquet")
    if "target" not in frame:
        raise SystemExit(f"{name}.parquet has no column 'target'")
    return frame


def scaled(frame: pd.DataFrame) -> pd.DataFrame:
    """Every feature from 0 to 1 over the whole table, as the recorded SVM and MLP runs had them."""
    from sklearn.preprocessing import minmax_scale

    features = frame.drop(columns="target")
    table = pd.DataFrame(minmax_scale(features), index=frame.index, columns=features.columns)
    return table.assign(target=frame["target"])


def parties(frame: pd.DataFrame, count: int) -> list[pd.DataFrame]:
    """The rows of each party: the test folds of a stratified split."""
    return [frame.iloc[rows] for _, rows in _splits(frame["target"].to_numpy(), count)]


def _splits(y: np.ndarray, count: int, shuffle: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    from sklearn.model_selection import StratifiedKFold

    folds = StratifiedKFold(count, shuffle=True, random_state=SEED + shuffle)
    return list(folds.split(np.zeros((len(y), 1)), y))


# Pooled scores


def estimator(learner: str, params: Params) -> Any:
    """The estimator of the recorded runs for "HGB", "SVM" or "MLP", with their seed unless given.

    Early stopping of the boosting is scikit-learn's "auto": on above 10 000 rows. Six recorded
    central rows of eeg_eye_state are met with a mean deviation of 0.0016 so, and of 0.0041
    without early stopping; neither comes back exactly.
    """
    seeded = {"random_state": SEED} | params
    if learner == "HGB":
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(**seeded)
    if learner == "SVM":
        from sklearn.svm import SVC

        return SVC(kernel="rbf", class_weight="balanced", **params)
    if learner == "MLP":
        from sklearn.neural_network import MLPClassifier

        return MLPClassifier(
            solver="adam",
            activation="relu",
            early_stopping=True,
            validation_fraction=0.1,
            tol=1e-4,
            **seeded,
        )
    raise ValueError(f"learner must be HGB, SVM or MLP, not {learner!r}")


def score_fold(folder: Path, dataset: str, learner: str, params: Params, fold: int) -> float:
    """Balanced accuracy of a configuration in one fold of the pooled rows."""
    import warnings

    from sklearn.metrics import balanced_accuracy_score

    X, y, splits = pooled(folder, dataset, learner != "HGB")
    train, test = splits[fold]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no convergence, infinite weights: the score says it
        model = estimator(learner, params).fit(X[train], y[train])
        return float(balanced_accuracy_score(y[test], model.predict(X[test])))


@cache
def pooled(
    folder: Path, dataset: str, scale: bool, shuffle: int = 0
) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    """Features, targets and folds of all rows; `shuffle` 0 are the folds that score."""
    frame = load(folder, dataset)
    y = frame["target"].to_numpy()
    features = (scaled(frame) if scale else frame).drop(columns="target")
    return features.to_numpy(dtype=float), y, _splits(y, FOLDS, shuffle)


def score_key(learner: str, dataset: str, params: Params) -> dict[str, Any]:
    """Under which a pooled score is stored; another scikit-learn may score otherwise."""
    return {
        "learner": learner,
        "dataset": dataset,
        "params": params,
        "sklearn": version("scikit-learn"),
    }


def score_all(
    wanted: Sequence[tuple[str, str, Params]], store: Results, workers: Workers, folder: Path
) -> int:
    """Fill the store with the pooled scores of (learner, data set, params); how many are left."""

    def submit(key: dict[str, Any]) -> list[Future[float]]:
        return [
            workers.submit(score_fold, folder, key["dataset"], key["learner"], key["params"], fold)
            for fold in range(FOLDS)
        ]

    keys = [score_key(*each) for each in wanted]
    return workers.finish("score", keys, store, submit, lambda folds: float(np.mean(folds)))


# Resumable work


class Results:
    """Values by keys (plain dicts), one JSON line each, on disk as soon as they are there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[str, Any] = {}
        if path.exists():
            for line in self._whole_lines():
                entry = json.loads(line)
                self._values[_canonical(entry["key"])] = entry["value"]

    def _whole_lines(self) -> list[str]:
        """The stored lines; what a stopped script left of a last one is cut off."""
        text = self._path.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self._path.write_text(whole)
        return whole.splitlines()

    def __contains__(self, key: Mapping[str, Any]) -> bool:
        return _canonical(key) in self._values

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Mapping[str, Any]) -> Any:
        """The value, or None if it is not there yet."""
        return self._values.get(_canonical(key))

    def put(self, key: Mapping[str, Any], value: Any) -> None:
        self._values[_canonical(key)] = value
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"key": key, "value": value}) + "\n")


def _canonical(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


class Workers:
    """Single-threaded processes at work until the minutes are over."""

    def __init__(self, count: int, minutes: float) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"  # for the processes, which start from now on
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        self._count = count
        self._end = time.monotonic() + 60 * minutes
        self._pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    @property
    def time_is_up(self) -> bool:
        return time.monotonic() > self._end

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self._pool.submit(function, *arguments)

    def finish(
        self,
        title: str,
        keys: Sequence[dict[str, Any]],
        store: Results,
        submit: Callable[[dict[str, Any]], list[Future[Any]]],
        combine: Callable[[list[Any]], Any],
    ) -> int:
        """Fill the store for all keys, in their order; how many are left when time is up.

        A piece of work is what `submit` starts for a key. As many are under way as keep the
        processes busy, and none is begun after the time; those begun are waited for.
        """
        todo = [json.loads(text) for text in dict.fromkeys(map(_canonical, keys))]
        todo = [key for key in todo if key not in store]
        under_way: list[tuple[dict[str, Any], list[Future[Any]]]] = []
        done = begun = 0
        while under_way or (begun < len(todo) and not self.time_is_up):
            if begun < len(todo) and not self.time_is_up and not self._busy(under_way):
                under_way.append((todo[begun], submit(todo[begun])))
                begun += 1
                continue
            key, futures = under_way.pop(0)
            value = combine([future.result() for future in futures])
            store.put(key, value)
            done += 1
            print(f"{title} {done}/{len(todo)}  {_brief(key)}  {_brief(value)}", file=sys.stderr)
        return len(todo) - done

    def _busy(self, under_way: list[tuple[dict[str, Any], list[Future[Any]]]]) -> bool:
        waiting = sum(not future.done() for _, futures in under_way for future in futures)
        return waiting >= 2 * self._count


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(_brief(each) for name, each in value.items() if name not in _UNSAID)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


#: Parts of keys that are the same on every line of progress.
_UNSAID = ("sklearn", "code")


# What comes out


@dataclass(frozen=True)
class Table:
    """Rows that line up in a terminal and in Markdown; numbers come as texts."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def text(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]

        def line(cells: Sequence[str]) -> str:
            padded = [
                cell.ljust(width) if self._is_text(position) else cell.rjust(width)
                for position, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            return "  ".join(padded).rstrip()

        rule = "  ".join("-" * width for width in widths)
        lines = [self.title, "", line(self.columns), rule, *map(line, self.rows)]
        return "\n".join([*lines, *(["", self.note] if self.note else [])])

    def markdown(self) -> str:
        rules = ["---" if self._is_text(i) else "---:" for i in range(len(self.columns))]
        lines = ["| " + " | ".join(row) + " |" for row in (self.columns, rules, *self.rows)]
        note = ["", self.note] if self.note else []
        return "\n".join([f"**{self.title}**", "", *lines, *note])

    def _is_text(self, position: int) -> bool:
        """Whether the column starts with a letter somewhere: then it is set to the left."""
        return any(row[position][:1].isalpha() for row in self.rows)


def versions() -> dict[str, str]:
    """What the numbers depend on."""
    packages = ("cotune", "scikit-learn", "optuna", "numpy")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def save(script: str, result: Mapping[str, Any]) -> Path:
    """Write results/<script>.json: no times in it, six digits, so that reruns compare cleanly."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{script}.json"
    path.write_text(json.dumps(_rounded({"versions": versions(), **result}), indent=1) + "\n")
    return path


def _rounded(value: Any) -> Any:
    """Numbers to six digits; what is no number, and infinity, is null."""
    if isinstance(value, Mapping):
        return {str(name): _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_rounded(each) for each in value]
    if isinstance(value, float | np.floating):
        return round(float(value), 6) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
