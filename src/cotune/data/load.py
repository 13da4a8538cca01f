"""Rows from a file, a data frame or a public collection, as one tidy data frame."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from http.client import HTTPException
from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype, is_integer_dtype

from cotune.data.arrays import array_columns, chunks, is_array, read_npz, tidy_arrays
from cotune.data.text import CHARACTERS, examples, read_texts
from cotune.errors import DataError, UsageError, choices

Source = pd.DataFrame | str | os.PathLike[str]

MISSING = ("", "?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "#N/A", "<NA>")
"""The text cells that mean "missing" in every source. `None` is not among them: in public tables it
is often a category ("no alley", "no fireplace")."""

SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
PACKINGS = ("", ".gz", ".bz2", ".xz", ".zip")
BUNDLED = ("iris", "wine", "breast_cancer", "digits", "diabetes")
SHOWN_COLUMNS = 8


def load(source: Source, by: str | None = None) -> pd.DataFrame:
    """Read `source` and bring its columns to plain numbers, booleans, text, categories or arrays.

    A source is a data frame, a file (CSV, tab-separated, Parquet or ARFF), `sklearn:NAME` (the
    target column is called `target`), or `openml:ID` or `openml:NAME@VERSION` (the target column
    comes last). Text in which every cell is a number becomes numeric; a category never does,
    because whoever wrote the file declared it one. The caller's own frame is left untouched.

    Arrays come from an `.npz` file (see `cotune.data.arrays.read_npz`; the target is `label`), or
    as the examples of `text:FILE`, a table with a column `text` or a plain `.txt` file (see
    `cotune.data.text.examples`; the target is `next`). What else these have (`party`, `speaker`)
    says whose the rows are and is nothing to learn from: only the column `by`, which they are to
    be split by, is kept.

    >>> load("sklearn:iris").shape
    (150, 5)
    """
    place = "the data frame" if isinstance(source, pd.DataFrame) else str(source)
    try:
        frame = _tidy(_read(source))
        if _scheme(source) == "text":
            frame = examples(frame)
        target = usual_target(source)
        return frame if target == "target" else _with_arrays_alone(frame, target, by)
    except DataError as error:
        raise DataError(f"{place}: {error}") from error.__cause__


def usual_target(source: Source) -> str:
    """How the column to predict is called unless the user says otherwise.

    >>> usual_target("digits.npz"), usual_target("text:plays.parquet"), usual_target("a.csv")
    ('label', 'next', 'target')
    """
    if isinstance(source, pd.DataFrame):
        return "target"
    if _scheme(source) == "text":
        return "next"
    return "label" if str(source).lower().endswith(".npz") else "target"


def check_column(frame: pd.DataFrame, column: str) -> None:
    """Refuse a column that is not there, and show those that are."""
    if column in frame.columns:
        return
    names = list(frame.columns)
    close = get_close_matches(column, names, n=1)
    hint = f" did you mean {close[0]!r}?" if close else ""
    hidden = len(names) - SHOWN_COLUMNS
    more = f" and {hidden} more" if hidden > 0 else ""
    raise DataError(
        f"no column {column!r}:{hint} Columns: {', '.join(names[:SHOWN_COLUMNS])}{more}"
    )


def check_target(frame: pd.DataFrame, target: str) -> None:
    """Refuse a target that is not there, has gaps, or has nothing to tell apart."""
    check_column(frame, target)
    if is_array(frame[target]):
        raise DataError(f"target {target!r} holds arrays: choose another column")
    gaps = int(frame[target].isna().sum())
    if gaps:
        raise DataError(
            f"target {target!r} is missing in {gaps} of {len(frame)} rows: fill or drop those rows"
        )
    if frame[target].nunique() < 2:
        raise DataError(
            f"target {target!r} has one class only; there is nothing to learn: "
            "choose another column or add rows"
        )


def name_of(source: Source) -> str:
    """A short name for runs on this source, safe in file names.

    >>> name_of("data/EEG Eye State.csv.gz"), name_of("sklearn:digits"), name_of("openml:1471")
    ('eeg_eye_state', 'digits', 'openml_1471')
    """
    if isinstance(source, pd.DataFrame):
        return "frame"
    text = str(source)
    if text.startswith("openml:"):
        name = text.removeprefix("openml:").partition("@")[0]
        return _slug(text if name.isdecimal() else name)
    if text.startswith("sklearn:"):
        return _slug(text.removeprefix("sklearn:"))
    return _slug(Path(text.removeprefix("text:")).name.partition(".")[0])


def fingerprint(frame: pd.DataFrame) -> str:
    """SHA-256 over column names, dtypes and values in their order; the index does not count.

    The same in every process and on every machine, so that a resumed run can tell whether it was
    given the rows it started with. It is a check against mistakes, not against forgers: each row
    enters as a 64-bit hash, but for its arrays.
    """
    columns = [[str(name), str(dtype)] for name, dtype in frame.dtypes.items()]
    arrays = array_columns(frame)
    plain = frame[[name for name in frame.columns if name not in arrays]] if arrays else frame
    rows = pd.util.hash_pandas_object(plain, index=False).to_numpy(dtype="<u8")
    digest = hashlib.sha256(json.dumps(columns).encode() + rows.tobytes())
    for name in arrays:
        first = frame[name].iloc[0]
        digest.update(f"{first.shape} {first.dtype.str}".encode())
        for part in chunks(frame[name]):
            digest.update(part.data)
    return digest.hexdigest()


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "data"


# Where rows come from


def _read(source: Source) -> pd.DataFrame:
    if isinstance(source, pd.DataFrame):
        return source
    scheme, name = _scheme(source), str(source).partition(":")[2]
    if scheme == "sklearn":
        return _read_bundled(name)
    if scheme == "openml":
        return _read_openml(name)
    if scheme == "text":
        return _read_file(Path(os.path.expanduser(name)), texts=True)
    return _read_file(Path(os.path.expanduser(source)))


def _scheme(source: Source) -> str:
    """What stands before the colon; nothing for files and frames."""
    scheme = "" if isinstance(source, pd.DataFrame) else str(source).partition(":")[0]
    return scheme if scheme in ("sklearn", "openml", "text") else ""


def _with_arrays_alone(frame: pd.DataFrame, target: str, by: str | None) -> pd.DataFrame:
    """The column of arrays, the target, and the column to split by."""
    if by is not None:
        check_column(frame, by)
    kept = (*array_columns(frame), target, by)
    return frame[[name for name in frame.columns if name in kept]]


def _read_bundled(name: str) -> pd.DataFrame:
    if name not in BUNDLED:
        raise DataError(choices(name, "scikit-learn dataset", BUNDLED))
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")(as_frame=True)
    frame: pd.DataFrame = bunch.frame
    if "target_names" in bunch:
        frame["target"] = np.asarray(bunch.target_names)[frame["target"]]
    return frame


def _read_openml(name: str) -> pd.DataFrame:
    wanted = _openml_arguments(name)
    from sklearn.datasets import fetch_openml

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it announces its retries; the error says it all
            bunch = fetch_openml(**wanted, as_frame=True)
    except (OSError, HTTPException) as error:
        raise DataError(
            f"the download from OpenML failed ({_reason(error)}): "
            "check the connection and try again, or give a file instead"
        ) from error
    except ValueError as error:
        raise DataError(
            f"OpenML cannot serve it ({_reason(error)}): check the name on openml.org"
        ) from error
    frame: pd.DataFrame = bunch.frame
    targets = list(bunch.target_names)
    return frame[[column for column in frame.columns if column not in targets] + targets]


def _openml_arguments(name: str) -> dict[str, str | int]:
    title, at, version = name.partition("@")
    if not title or (at and not version.isdecimal()):
        raise UsageError(f"openml:{name}: write openml:ID, openml:NAME or openml:NAME@VERSION")
    if not at:
        return {"data_id": int(title)} if title.isdecimal() else {"name": title}
    return {"name": title, "version": int(version)}


def _read_file(path: Path, texts: bool = False) -> pd.DataFrame:
    _check_file(path)
    reader = read_texts if texts and path.suffix.lower() == ".txt" else _reader(path)
    try:
        return reader(path)
    except DataError:
        raise
    except pd.errors.EmptyDataError as error:
        raise DataError("the file is empty: it needs a header line and rows below it") from error
    except UnicodeDecodeError as error:
        raise DataError("not UTF-8 text: save the file as UTF-8") from error
    except Exception as error:  # corrupt files fail in as many ways as there are readers
        raise DataError(
            f"cannot be read ({_reason(error)}): mend the file or save it again as CSV"
        ) from error


def _check_file(path: Path) -> None:
    if os.path.isdir(path):
        raise DataError("this is a folder: name one file in it")
    if not os.path.isfile(path):
        close = get_close_matches(path.name, _names_in(path.parent), n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "check the spelling of its path"
        raise DataError(f"there is no such file: {hint}")


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _reader(path: Path) -> Callable[[Path], pd.DataFrame]:
    name = path.name.lower()
    for extension, separator in SEPARATORS.items():
        if name.endswith(tuple(extension + packing for packing in PACKINGS)):
            return partial(_read_text, separator=separator)
    if name.endswith(".parquet"):
        return pd.read_parquet
    if name.endswith(".arff"):
        return _read_arff
    if name.endswith(".npz"):
        return read_npz
    known = ", ".join([*SEPARATORS, ".csv.gz", ".parquet", ".arff", ".npz"])
    raise DataError(f"unknown file type {path.suffix!r}: known are {known}")


def _read_text(path: Path, separator: str) -> pd.DataFrame:
    """A table of text. With semicolons, decimal commas are understood beside decimal points."""
    separator = _separator(path, separator)
    _check_names([name for name in _first_lines(path, separator, 2)[0] if name])
    return pd.read_csv(
        path,
        sep=separator,
        decimal="," if separator == ";" else ".",
        encoding="utf-8-sig",
        skipinitialspace=True,
        keep_default_na=False,
        na_values=list(MISSING),
        low_memory=False,
    )


def _separator(path: Path, usual: str) -> str:
    header = _first_lines(path, usual, 1)[0]
    if any("\0" in name for name in header):
        raise DataError("binary data, not text: check that the file is what its name says")
    if len(header) > 1:
        return usual
    return next((mark for mark in ";\t," if mark in header[0]), usual)


def _first_lines(path: Path, separator: str, count: int) -> list[list[str]]:
    """The header, and what follows it, before pandas renames repeated columns.

    This fails if a later line is longer than the first. Reading the whole file would not: a first
    row longer than the header quietly makes the first column an index and shifts the names.
    """
    lines = pd.read_csv(
        path,
        sep=separator,
        encoding="utf-8-sig",
        skipinitialspace=True,
        header=None,
        nrows=count,
        dtype=str,
        keep_default_na=False,
    )
    return [[str(cell) for cell in line] for line in lines.to_numpy()]


def _read_arff(path: Path) -> pd.DataFrame:
    from scipy.io import arff

    try:
        with path.open(encoding="utf-8-sig") as file:
            records, attributes = arff.loadarff(file)
    except NotImplementedError as error:
        raise DataError("ARFF with text attributes is not read: convert it to CSV") from error
    except StopIteration as error:
        raise DataError("no ARFF header and data: mend the file or save it as CSV") from error
    frame = pd.DataFrame(records)
    for name, kind in zip(attributes.names(), attributes.types(), strict=True):
        if kind == "nominal":
            frame[name] = frame[name].str.decode("utf-8").astype("category")
    return frame


def _reason(error: BaseException) -> str:
    """The last line of a library's message, which is where parsers put the cause."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].removeprefix("Error tokenizing data. C error: ").rstrip(".")


# What columns become


def _tidy(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.set_axis([str(name) for name in frame.columns], axis="columns")
    frame = frame.reset_index(drop=True)
    _check_names(list(frame.columns))
    if frame.columns.empty:
        raise DataError("there are no columns: give a table with a target and features")
    if frame.empty:
        raise DataError("there are no rows: give a table with rows below its header")
    return pd.DataFrame({name: _tidy_column(frame[name]) for name in frame.columns})


def _check_names(names: Sequence[str]) -> None:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise DataError(f"repeated column names ({', '.join(repeated)}): rename or drop them")


def _tidy_column(column: pd.Series) -> pd.Series:
    if column.dtype == object and any(isinstance(cell, np.ndarray) for cell in column):
        return tidy_arrays(column)
    if column.dtype == CHARACTERS:
        return column
    if column.dtype == object or isinstance(column.dtype, pd.StringDtype | pd.ArrowDtype):
        column = column.mask(column.map(_means_missing).astype(bool))
    match infer_dtype(column, skipna=True):
        case "categorical":
            marks = [category for category in column.cat.categories if _means_missing(category)]
            return column.cat.remove_categories(marks)
        case "boolean":
            return _booleans(column)
        case "string":
            return _numbers_or_text(column)
        case "integer" | "floating" | "mixed-integer-float" | "decimal" | "empty":
            return _numbers(column)
        case "date" | "datetime" | "datetime64" | "time" | "timedelta" | "timedelta64" | "period":
            raise DataError(
                f"column {column.name!r} holds dates or times: convert it to a number or drop it"
            )
        case other:
            raise DataError(
                f"column {column.name!r} is neither all numbers nor all text ({other}): "
                "convert it or drop it"
            )


def _means_missing(cell: object) -> bool:
    return isinstance(cell, str) and cell in MISSING


def _booleans(column: pd.Series) -> pd.Series:
    gaps = column.isna()
    return column.astype(object).mask(gaps, None) if gaps.any() else column.astype(bool)


def _numbers_or_text(column: pd.Series) -> pd.Series:
    numbers = pd.to_numeric(column, errors="coerce")
    return _numbers(numbers) if numbers.isna().equals(column.isna()) else column


def _numbers(column: pd.Series) -> pd.Series:
    """NumPy numbers, without an infinity; whole numbers with gaps become floats."""
    column = column.infer_objects()
    if not isinstance(column.dtype, np.dtype) or column.dtype == object:
        whole = is_integer_dtype(column.dtype) and not column.isna().any()
        column = column.astype(np.int64 if whole else np.float64)
    if np.isinf(column.to_numpy()).any():
        raise DataError(
            f"column {column.name!r} has infinite values: replace them with numbers or leave gaps"
        )
    return column
