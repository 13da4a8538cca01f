"""Columns whose cells are arrays, such as images: how they lie in a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pandas as pd

from cotune.data.text import CODES
from cotune.errors import DataError

#: How the arrays of examples and of labels are called; rows of later names come after the first's.
NAMES = (
    (("X", "y"),),
    (("images", "labels"),),
    (("x_train", "y_train"), ("x_test", "y_test")),
)
#: Rows that are looked at together, so that few are copied at a time.
CHUNK = 1000


def is_array(column: pd.Series) -> bool:
    """Whether a column of a loaded table holds arrays: all cells do if the first one does."""
    return column.dtype == object and len(column) > 0 and isinstance(column.array[0], np.ndarray)


def array_columns(frame: pd.DataFrame) -> list[str]:
    """The names of a loaded table's columns that hold arrays."""
    return [str(name) for name, column in frame.items() if is_array(column)]


def cells(values: np.ndarray) -> np.ndarray:
    """The rows of an array as cells of a column: views, not copies."""
    return np.fromiter(values, dtype=object, count=len(values))


def stacked(column: pd.Series) -> np.ndarray:
    """The cells of a column as one array again.

    >>> stacked(pd.Series(cells(np.zeros((5, 2, 3))))).shape
    (5, 2, 3)
    """
    rows = column.tolist()
    return np.concatenate(rows).reshape(len(rows), *rows[0].shape)


def chunks(column: pd.Series) -> Iterator[np.ndarray]:
    """The cells of a column, some at a time."""
    for begin in range(0, len(column), CHUNK):
        yield stacked(column.iloc[begin : begin + CHUNK])


def seen_arrays(column: pd.Series) -> tuple[tuple[int, ...], int]:
    """The shape of a column's arrays, and how many codes there are; 0 for amounts."""
    first: np.ndarray = column.array[0]
    return first.shape, CODES if first.dtype == np.int8 else 0


def shown(shape: tuple[int, ...], codes: int = 0) -> str:
    """What the cells hold, in words.

    >>> shown((28, 28)), shown((80,), 97)
    ('28 x 28 numbers', '80 characters')
    """
    return f"{' x '.join(map(str, shape))} {'characters' if codes else 'numbers'}"


def tidy_arrays(column: pd.Series) -> pd.Series:
    """The column with cells of one shape and one type, views into one array.

    Amounts become uint8 where they are whole numbers from 0 to 255, float32 otherwise. Arrays of
    int8 are codes of characters, as `cotune.data.text` makes them, and stay as they are.
    """
    name = column.name
    if not all(isinstance(cell, np.ndarray) for cell in column):
        raise DataError(f"column {name!r} must hold an array in every row: drop the other rows")
    shapes = sorted({cell.shape for cell in column})
    if len(shapes) > 1:
        raise DataError(
            f"column {name!r} has arrays of {shown(shapes[0])} and of {shown(shapes[1])}: "
            "bring all to one shape"
        )
    if 0 in shapes[0] or not shapes[0]:
        raise DataError(f"column {name!r} has arrays without numbers: drop it")
    values = _plain(stacked(column), str(name))
    return pd.Series(cells(values), column.index, dtype=object, name=name)


def _plain(values: np.ndarray, name: str) -> np.ndarray:
    if values.dtype.kind not in "biuf":
        raise DataError(f"column {name!r} has arrays of {values.dtype}: make them numbers")
    if values.dtype == np.int8:
        if values.min() < 0 or values.max() >= CODES:
            raise DataError(
                f"column {name!r} has arrays of int8, which stand for characters (0 to "
                f"{CODES - 1}), beyond these: give other numbers as float32"
            )
        return values
    if values.dtype.kind != "f" and values.min() >= 0 and values.max() <= 255:
        return values.astype(np.uint8, copy=False)
    with np.errstate(over="ignore"):
        amounts: np.ndarray = values.astype(np.float32, copy=False)
    if not all(np.isfinite(part).all() for part in amounts):
        raise DataError(f"column {name!r} has missing or infinite numbers in its arrays: mend them")
    return amounts


def read_npz(path: Path) -> pd.DataFrame:
    """The examples of a NumPy archive in a column `image` (flat ones: `array`), and their `label`.

    The archive has the arrays `X` and `y`, or `images` and `labels`, or `x_train`, `y_train`,
    `x_test` and `y_test`, of which all rows are taken. An array `party` becomes a column.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            stored = {name: archive[name] for name in archive.files}
    except (ValueError, BadZipFile, AttributeError, TypeError, MemoryError) as error:
        raise DataError(
            "no NumPy archive of plain arrays (numpy.savez): Python objects are not read"
        ) from error
    pairs = [pair for pair in _pairs(stored) if pair[0] in stored or pair[1] in stored]
    for x, y in pairs:
        _check_pair(stored, x, y)
    X = np.concatenate([stored[x] for x, _ in pairs]) if len(pairs) > 1 else stored[pairs[0][0]]
    labels = np.concatenate([stored[y].reshape(-1) for _, y in pairs])
    if X.dtype == np.int8:  # amounts here
        X = X.astype(np.int16)
    columns = {"image" if X.ndim > 2 else "array": cells(X), "label": labels}
    if "party" in stored:
        if stored["party"].shape != labels.shape:
            raise DataError(f"'party' has the shape {stored['party'].shape}, not {labels.shape}")
        columns["party"] = stored["party"]
    return pd.DataFrame(columns)


def _pairs(stored: Mapping[str, np.ndarray]) -> tuple[tuple[str, str], ...]:
    for pairs in NAMES:
        if set(pairs[0]) <= stored.keys():
            return pairs
    known = ", or ".join(" and ".join(pairs[0]) for pairs in NAMES)
    raise DataError(f"it has the arrays {', '.join(sorted(stored))}: name them {known}")


def _check_pair(stored: Mapping[str, np.ndarray], x: str, y: str) -> None:
    for name, other in ((x, y), (y, x)):
        if name not in stored:
            raise DataError(f"it has no array {name!r} beside {other!r}: add it")
    examples, labels = stored[x], stored[y]
    if examples.ndim < 2:
        raise DataError(f"{x!r} must have an array for each row, not the shape {examples.shape}")
    if labels.ndim < 1 or labels.size != len(labels):
        raise DataError(f"{y!r} must have one label for each row, not the shape {labels.shape}")
    if len(examples) != len(labels):
        raise DataError(f"{x!r} has {len(examples)} rows and {y!r} {len(labels)}: mend the file")
