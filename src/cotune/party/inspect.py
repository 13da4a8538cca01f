"""What a party says of its columns, and adds up over its rows, to agree on a schema."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from cotune.data.schema import Column, Schema
from cotune.errors import DataError
from cotune.party.tasks import Description, Inspect, Measure, Measures, SeenColumn

#: A text column with more values than this is an identifier or free text: telling its values
#: would tell the rows.
MOST_CATEGORIES = 1000
#: A numeric target with more values than this is a regression's unless the user says otherwise.
MOST_CLASSES = 20


def describe(frame: pd.DataFrame, target: str, task: Inspect) -> Description:
    """The party's columns and classes; a `DataError` where it cannot take part."""
    if target not in frame.columns:
        raise DataError(f"there is no column {target!r} to predict")
    if len(frame) < task.folds:
        raise DataError(
            f"{len(frame)} rows are fewer than the {task.folds} folds: use fewer folds, or leave "
            "this party out"
        )
    features = frame.drop(columns=[target, *task.drop], errors="ignore")
    if features.shape[1] == 0:
        raise DataError(f"there is no column beside the target {target!r}")
    if frame[target].isna().any():
        raise DataError(f"the target {target!r} is missing in {frame[target].isna().sum()} rows")
    return Description(
        dropped=tuple(name for name in task.drop if name in frame.columns),
        columns=tuple(_see(features[str(name)]) for name in features.columns),
        target=target,
        target_is_number=is_number(frame[target]),
        target_magnitude=magnitude(frame[target]) if is_number(frame[target]) else 0,
        classes=_classes(frame[target], task),
    )


def _see(column: pd.Series) -> SeenColumn:
    name = str(column.name)
    if column.isna().all():
        return SeenColumn(name, None)
    if is_number(column):
        return SeenColumn(name, "numeric", magnitude=magnitude(column))
    categories = sorted(as_text(column).dropna().unique())
    if len(categories) > MOST_CATEGORIES or len(categories) > max(20, 0.9 * column.count()):
        raise DataError(
            f"column {name!r} has {len(categories)} different texts in {len(column)} rows, like "
            f"an identifier: drop it (--drop {name}) or make it a number"
        )
    return SeenColumn(name, "categorical", categories=tuple(categories))


def _classes(target: pd.Series, task: Inspect) -> tuple[str, ...] | None:
    if task.task == "regression":
        if not is_number(target):
            raise DataError(f"the target {target.name!r} holds text: regression needs numbers")
        return None
    classes = tuple(sorted(as_text(target).unique()))
    if task.task is None and is_number(target):
        whole = bool(np.all(np.mod(target.to_numpy(dtype=float), 1) == 0))
        return classes if whole and len(classes) <= MOST_CLASSES else None
    if len(classes) > MOST_CATEGORIES:
        raise DataError(
            f"the target {target.name!r} has {len(classes)} different values: too many classes "
            "to predict; a number can be predicted as a regression (--task regression)"
        )
    return classes


def measure(frame: pd.DataFrame, task: Measure) -> Measures:
    """Counts, sums and sums of squares of the draft schema's columns over the party's rows."""
    numeric: list[float] = []
    categories: list[float] = []
    for column, exponent in zip(task.draft.columns, task.magnitudes, strict=True):
        if column.kind == "numeric":
            numeric += _moments(frame[column.name], exponent)
        else:
            categories += _counts(frame[column.name], column.categories)
    y = frame[task.draft.target]
    if task.draft.task == "classification":
        return Measures(numeric, categories, _counts(y, task.draft.classes))
    return Measures(numeric, categories, _moments(y, task.target_magnitude))


def _moments(values: pd.Series, exponent: int) -> list[float]:
    scaled = np.ldexp(values.to_numpy(dtype=float, na_value=np.nan), -exponent)
    scaled = scaled[~np.isnan(scaled)]
    return [float(len(scaled)), float(scaled.sum()), float(np.square(scaled).sum())]


def _counts(values: pd.Series, names: tuple[str, ...]) -> list[float]:
    found = as_text(values).value_counts()
    return [float(found.get(name, 0)) for name in names]


def is_number(values: pd.Series) -> bool:
    return is_numeric_dtype(values) and not is_bool_dtype(values)


def magnitude(values: pd.Series) -> int:
    """The smallest exponent whose power of two is no less than any absolute value.

    >>> magnitude(pd.Series([3.0, -5.0])), magnitude(pd.Series([0.0]))
    (3, 0)
    """
    largest = float(np.nanmax(np.abs(values.to_numpy(dtype=float, na_value=np.nan))))
    return math.ceil(math.log2(largest)) if largest > 0 else 0


def as_text(values: pd.Series) -> pd.Series:
    """Categories as text, one spelling each: 3 and 3.0 are both "3"; missing stays missing.

    >>> as_text(pd.Series([3.0, None, 2.5])).tolist()
    ['3', nan, '2.5']
    """
    return values.astype(object).map(_spell, na_action="ignore")


def _spell(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def encode_columns(frame: pd.DataFrame, columns: tuple[Column, ...]) -> np.ndarray:
    """Rows as the schema sees them: numbers as they are, categories as codes, missing as NaN.

    A category that no party had when the schema was agreed counts as missing.
    """
    encoded = np.empty((len(frame), len(columns)))
    for position, column in enumerate(columns):
        values = frame[column.name]
        if column.kind == "numeric":
            encoded[:, position] = values.to_numpy(dtype=float, na_value=np.nan)
        else:
            codes = _codes(values, column.categories)
            encoded[:, position] = np.where(codes < 0, np.nan, codes)
    return encoded


def encode_target(frame: pd.DataFrame, schema: Schema) -> np.ndarray:
    """Class codes 0..k-1 in the schema's order, or the numbers of a regression."""
    values = frame[schema.target]
    if schema.task == "regression":
        return values.to_numpy(dtype=float)
    codes = _codes(values, schema.classes)
    if (codes < 0).any():
        raise DataError(f"the target {schema.target!r} has a class that the schema does not know")
    return codes.astype(np.int64)


def _codes(values: pd.Series, names: tuple[str, ...]) -> np.ndarray:
    """Each value's position among the names; -1 where it is missing or not among them."""
    return pd.Index(names, dtype=object).get_indexer(pd.Index(as_text(values), dtype=object))
