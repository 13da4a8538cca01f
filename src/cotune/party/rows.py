"""A party's rows, encoded by the schema and laid in files that its workers map into memory."""

from __future__ import annotations

import hashlib
import warnings
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
from sklearn.model_selection import KFold, StratifiedKFold

from cotune.data.encode import Features, as_text, encode, encode_target
from cotune.data.schema import has_classes
from cotune.party.key import Key, random_state
from cotune.problem import Problem

#: Of fewer cells no random parts are made: two ways to part the rows would often differ by few.
FEW_CELLS = 8


class Rows:
    """Where a party's encoded rows lie. A path is all that a worker is sent, never the rows."""

    def __init__(self, folder: Path, frame: pd.DataFrame, problem: Problem, key: Key) -> None:
        self.folder = folder
        self._frame = frame
        self._schema = problem.schema
        self._scaling = problem.scaling
        if not (folder / "y.npy").exists():
            y = encode_target(frame, problem.schema)  # may refuse: then there is no folder
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "problem.msgpack").write_bytes(msgspec.msgpack.encode((problem, key)))
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
        self.problem, self.key = msgspec.msgpack.decode(
            (folder / "problem.msgpack").read_bytes(), type=tuple[Problem, Key]
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
    chosen = fraction_of(rows.y, fraction, rows.problem, rows.key)
    purpose = ("folds", shuffle) if shuffle else ()
    return _folds(rows.y, chosen, rows.problem, rows.key, *purpose)


def _folds(
    y: np.ndarray, chosen: np.ndarray, problem: Problem, key: Key, *purpose: object
) -> list[tuple[np.ndarray, np.ndarray]]:
    folds, labels = problem.folds, y[chosen]
    classes = problem.task == "classification"
    # As with fractions, other strata must not move a few rows from one fold to another.
    strata = _named(labels) if classes else ""
    seed = key.seed(*purpose, within=("folds", folds, len(chosen), len(y), strata))
    stratified = classes and np.bincount(labels).max() >= folds
    kind = StratifiedKFold if stratified else KFold
    splitter = kind(folds, shuffle=True, random_state=random_state(seed))
    with warnings.catch_warnings():
        # A class of fewer rows than folds is no mistake here, and a warning would count its rows.
        warnings.filterwarnings("ignore", message="The least populated class")
        return [(chosen[train], chosen[test]) for train, test in splitter.split(chosen, labels)]


def parted(frame: pd.DataFrame, problem: Problem, key: Key) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows outside of the problem's fold, and those of the fold, as cross-validation has them.

    All and none where one of these would be fewer than the smallest cell, or the rows are few: what
    is left of a difference of totals is no row, or as many as that.
    """
    assert problem.fold is not None
    if len(frame) >= max(problem.folds, FEW_CELLS * key.cell):
        y = encode_target(frame, problem.schema)
        train, test = _folds(y, np.arange(len(y)), problem, key)[problem.fold]
        if min(len(train), len(test)) >= key.cell:
            return frame.iloc[train], frame.iloc[test]
    return frame, frame.iloc[:0]


def fraction_of(y: np.ndarray, fraction: float, problem: Problem, key: Key) -> np.ndarray:
    """Positions of a stratified fraction of the rows. A smaller fraction is part of a larger one.

    They are the beginning of one order of all rows.
    """
    if fraction >= 1.0:
        return np.arange(len(y))
    labels = y if problem.task == "classification" else None
    # The run says what is predicted: other strata must not shift a few rows of the same order.
    strata = "" if labels is None else _named(labels)
    order = _proportioned(len(y), labels, key.seed("fraction", within=(len(y), strata)))
    wanted = max(int(np.ceil(fraction * len(y))), min(len(y), 2 * problem.folds))
    return np.sort(order[: len(y) - key.left_out(len(y), len(y) - wanted)])


def _named(labels: np.ndarray) -> str:
    return hashlib.blake2b(labels.tobytes()).hexdigest()


def set_aside(
    frame: pd.DataFrame, target: str, share: float, key: Key
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows to learn from, and the share that is held out, with the classes in proportion."""
    if share <= 0.0:
        return frame, frame.iloc[:0]
    rows = len(frame)
    classes = target in frame.columns and has_classes(frame[target])
    labels = pd.factorize(as_text(frame[target]))[0] if classes else None
    order = _proportioned(rows, labels, key.seed("holdout", within=target))
    left = key.left_out(rows, held_back(rows, share))
    held, kept = np.split(order, [left])
    if labels is not None:  # of every class at least one row is learnt from
        firsts = held[np.unique(labels[held], return_index=True)[1]]
        lonely = firsts[~np.isin(labels[firsts], labels[kept])]
        held, kept = held[~np.isin(held, lonely)], np.append(kept, lonely)
    held, rest = np.split(held, [len(held) - len(held) % key.cell])
    return frame.iloc[np.sort(np.append(kept, rest))], frame.iloc[np.sort(held)]


def second_half(y: np.ndarray, classes: bool, smallest: int, key: Key, party: str) -> np.ndarray:
    """Which rows are in the second half: every other one of each class, by the party's own order.

    A class that has too few rows for two cells is in one of the halves as a whole, and so are all
    rows if they are few: halves by two targets would then not differ by enough of them.
    """
    labels = y if classes else np.zeros(len(y), dtype=int)
    seed = key.seed("halves", party, within=(len(y), _named(labels)))
    random = np.random.default_rng(seed)
    if len(y) < FEW_CELLS * key.cell:
        return np.full(len(y), bool(random.integers(2)))
    order = random.permutation(len(y))
    second = np.zeros(len(y), dtype=bool)
    for label in np.unique(labels):
        members = order[labels[order] == label]
        first_in_second = bool(random.integers(2))
        second[members] = first_in_second
        if len(members) >= 2 * smallest:
            second[members[1::2]] = not first_in_second
    return second


def validated(rows: int, share: float, key: Key) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the rows that a network is trained on, and of those that it is judged by."""
    order = np.random.default_rng(key.seed("validation", within=rows)).permutation(rows)
    held, train = np.split(order, [key.left_out(rows, held_back(rows, share))])
    return train, held if len(held) else train


def held_back(rows: int, share: float) -> int:
    """How many rows a share of them is: one at least, never all."""
    return min(max(1, round(share * rows)), rows - 1)


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
