"""A party's rows, encoded by the schema and laid in files that its workers map into memory."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
from sklearn.model_selection import KFold, StratifiedKFold

from cotune.data.encode import Features, as_text, encode, encode_target
from cotune.data.schema import has_classes
from cotune.problem import Problem, seed_of


class Rows:
    """Where a party's encoded rows lie. A path is all that a worker is sent, never the rows."""

    def __init__(self, folder: Path, frame: pd.DataFrame, problem: Problem) -> None:
        self.folder = folder
        self._frame = frame
        self._schema = problem.schema
        self._scaling = problem.scaling
        if not (folder / "y.npy").exists():
            y = encode_target(frame, problem.schema)  # may refuse: then there is no folder
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "problem.msgpack").write_bytes(msgspec.msgpack.encode(problem))
            _save(folder / "y.npy", y)

    def prepare(self, features: Features) -> None:
        """Write the form of the rows that a learner wants, unless it is there already."""
        path = self.folder / f"{features}.npy"
        if path.exists():
            return
        _save(path, encode(self._frame, self._schema, features, self._scaling))


def _save(path: Path, values: np.ndarray) -> None:
    """Whole or not at all: Ctrl-C may come at any moment."""
    begun = path.with_suffix(".begun.npy")
    np.save(begun, values)
    begun.replace(path)


class Opened:
    """The same rows inside a worker: mapped files, and the problem they were encoded for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problem = msgspec.msgpack.decode(
            (folder / "problem.msgpack").read_bytes(), type=Problem
        )
        self.y = np.asarray(np.load(folder / "y.npy", mmap_mode="r"))

    def features(self, form: Features) -> np.ndarray:
        return np.asarray(np.load(self.folder / f"{form}.npy", mmap_mode="r"))


@lru_cache(maxsize=16)
def open_rows(folder: Path) -> Opened:
    return Opened(folder)


@lru_cache(maxsize=32)
def fold_indices(
    folder: Path, fraction: float, shuffle: int = 0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and test positions of every fold, over the fraction's rows; the same each time."""
    rows = open_rows(folder)
    seed, folds = rows.problem.seed, rows.problem.folds
    if shuffle:
        seed = seed_of(seed, "folds", shuffle)
    chosen = fraction_of(rows.y, fraction, rows.problem)
    kind = StratifiedKFold if rows.problem.task == "classification" else KFold
    splitter = kind(folds, shuffle=True, random_state=seed)
    labels = rows.y[chosen]
    if rows.problem.task == "classification" and np.bincount(labels).max() < folds:
        splitter = KFold(folds, shuffle=True, random_state=seed)
    return [(chosen[train], chosen[test]) for train, test in splitter.split(chosen, labels)]


def fraction_of(y: np.ndarray, fraction: float, problem: Problem) -> np.ndarray:
    """Positions of a stratified fraction of the rows. A smaller fraction is part of a larger one.

    They are the beginning of one order of all rows.
    """
    if fraction >= 1.0:
        return np.arange(len(y))
    labels = y if problem.task == "classification" else None
    order = _proportioned(len(y), labels, seed_of(problem.seed, "fraction"))
    wanted = max(int(np.ceil(fraction * len(y))), min(len(y), 2 * problem.folds))
    return np.sort(order[:wanted])


def set_aside(
    frame: pd.DataFrame, target: str, share: float, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows to learn from, and the share that is held out, with the classes in proportion."""
    if share <= 0.0:
        return frame, frame.iloc[:0]
    classes = target in frame.columns and has_classes(frame[target])
    labels = pd.factorize(as_text(frame[target]))[0] if classes else None
    order = _proportioned(len(frame), labels, seed_of(seed, "holdout"))
    held, kept = np.split(order, [min(max(1, round(share * len(frame))), len(frame) - 1)])
    if labels is not None:  # of every class at least one row is learnt from
        firsts = held[np.unique(labels[held], return_index=True)[1]]
        lonely = firsts[~np.isin(labels[firsts], labels[kept])]
        held, kept = held[~np.isin(held, lonely)], np.append(kept, lonely)
    return frame.iloc[np.sort(kept)], frame.iloc[np.sort(held)]


def _proportioned(rows: int, labels: np.ndarray | None, seed: int) -> np.ndarray:
    """A random order of the rows of which every beginning has the classes in proportion."""
    order = np.random.default_rng(seed).permutation(rows)
    if labels is None:
        return order
    depth = np.empty(rows)
    for label in np.unique(labels):
        members = np.flatnonzero(labels[order] == label)
        depth[members] = (np.arange(len(members)) + 0.5) / len(members)
    return order[np.argsort(depth, kind="stable")]
