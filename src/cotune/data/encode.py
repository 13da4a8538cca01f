"""Rows of a table as numbers, by the schema: the same at the parties and in a model's hands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from cotune.data.arrays import is_array, seen_arrays, shown, stacked, tidy_arrays
from cotune.data.load import MISSING
from cotune.data.schema import Column, Schema, is_number
from cotune.errors import DataError, UsageError

if TYPE_CHECKING:
    from cotune.problem import Scaling

Features = Literal["codes", "dense", "tensor"]

#: What a party calls the categories that it does not name, because few of its rows have them.
OTHER = "other"
#: Trees take this many categories of a column as categories; rarer ones share the last code.
MOST_CODES = 255
#: One-hot columns of a column's most frequent categories; rarer ones have zeros in all.
MOST_ONE_HOT = 32


def encode(
    frame: pd.DataFrame, schema: Schema, features: Features, scaling: Scaling = "standard"
) -> np.ndarray:
    """The rows in the form that a learner wants: see `cotune.Learner`."""
    if features == "tensor" and schema.array is not None:
        return tensor_form(frame[schema.array.name], schema.array, scaling)
    codes = encode_columns(frame, schema.columns)
    if features == "codes":
        return trees_form(codes, schema)
    dense = dense_form(codes, schema, scaling)
    return dense.astype(np.float32) if features == "tensor" else dense


def encode_columns(frame: pd.DataFrame, columns: tuple[Column, ...]) -> np.ndarray:
    """Rows as the schema sees them: numbers as they are, categories as codes, missing as NaN.

    A category that no party named when the schema was agreed counts as "other" if some party had
    such, and else as missing, and so do arrays.
    """
    encoded = np.empty((len(frame), len(columns)))
    for position, column in enumerate(columns):
        values = frame[column.name]
        if column.kind == "array":
            encoded[:, position] = np.nan
        elif column.kind == "numeric":
            encoded[:, position] = values.to_numpy(dtype=float, na_value=np.nan)
        else:
            codes = _codes(values, column.categories)
            if OTHER in column.categories:
                codes[(codes < 0) & values.notna().to_numpy()] = column.categories.index(OTHER)
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


def trees_form(codes: np.ndarray, schema: Schema) -> np.ndarray:
    """Codes with the rarest categories of very wide columns merged into one."""
    categorical = [column.kind == "categorical" for column in schema.columns]
    merged = codes.copy()
    merged[:, categorical] = np.minimum(merged[:, categorical], MOST_CODES - 1)
    return merged


def dense_form(codes: np.ndarray, schema: Schema, scaling: Scaling = "standard") -> np.ndarray:
    """Standardised numbers (missing: the mean, 0) and one-hot categories (missing: all zeros).

    Without scaling numbers stay as they are, for rows that came scaled.
    """
    blocks = []
    for position, column in enumerate(schema.columns):
        values = codes[:, position]
        if column.kind == "numeric":
            filled = np.where(np.isnan(values), column.mean, values)
            scaled = (filled - column.mean) / column.scale if scaling == "standard" else filled
            blocks.append(scaled[:, None])
        else:
            shown = np.arange(min(len(column.categories), MOST_ONE_HOT))
            blocks.append((values[:, None] == shown).astype(float))
    return np.hstack(blocks)


def tensor_form(values: pd.Series, column: Column, scaling: Scaling = "standard") -> np.ndarray:
    """Arrays stacked to one: codes as uint8, amounts as float32, standardised or as they are."""
    if values.empty:
        return np.empty((0, *column.shape), np.uint8 if column.codes else np.float32)
    if column.codes:
        return stacked(values).view(np.uint8)
    amounts = stacked(values).astype(np.float32, copy=False)
    if scaling == "standard":
        amounts -= np.float32(column.mean)
        amounts /= np.float32(column.scale)
    return amounts


def dense_width(schema: Schema) -> int:
    """How many columns the dense form has."""
    return int(dense_form(np.empty((0, len(schema.columns))), schema).shape[1])


def as_text(values: pd.Series) -> pd.Series:
    """Categories as text, one spelling each: 3 and 3.0 are both "3"; missing stays missing.

    >>> as_text(pd.Series([3.0, None, 2.5])).tolist()
    ['3', nan, '2.5']
    """
    if values.dtype == object:  # 1 and True would count as the same value
        return values.map(_spell, na_action="ignore")
    codes, different = pd.factorize(values)
    spelled = np.array([*map(_spell, different.tolist()), np.nan], dtype=object)
    return pd.Series(spelled[codes], values.index, dtype=object, name=values.name)


def _spell(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def columns_of(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """The schema's columns of a user's own table, in plain types; other columns are left out.

    A party's table was seen to when it was loaded; this one may come from anywhere.
    """
    if not isinstance(frame, pd.DataFrame):
        raise UsageError(f"rows are given as a pandas.DataFrame, not as {type(frame).__name__}")
    frame = frame.set_axis([str(name) for name in frame.columns], axis="columns")
    names = [column.name for column in schema.columns]
    missing = [repr(name) for name in names if name not in frame.columns]
    if missing:
        raise DataError(f"the table lacks columns of the model: {', '.join(missing)}")
    repeated = [repr(name) for name in names if isinstance(frame[name], pd.DataFrame)]
    if repeated:
        raise DataError(f"the table has several columns of the same name: {', '.join(repeated)}")
    return pd.DataFrame(
        {column.name: _plain(frame[column.name], column) for column in schema.columns},
        index=frame.index,
    )


def _plain(values: pd.Series, column: Column) -> pd.Series:
    if column.kind == "numeric":
        return _numbers(values)
    return _arrays(values, column) if column.kind == "array" else values


def _arrays(values: pd.Series, column: Column) -> pd.Series:
    """The cells as the parties have theirs: of the same shape and kind."""
    if values.empty:
        return values
    wanted = f"column {values.name!r} must hold arrays of {shown(column.shape, column.codes)}"
    if not is_array(values):
        raise DataError(f"{wanted}, not {type(values.iloc[0]).__name__}")
    values = tidy_arrays(values)
    shape, codes = seen_arrays(values)
    if (shape, codes) != (column.shape, column.codes):
        raise DataError(f"{wanted}, not of {shown(shape, codes)}")
    return values


def _numbers(column: pd.Series) -> pd.Series:
    """The column as floats; texts that stand for a missing value become gaps."""
    if is_number(column):
        numbers = pd.Series(column.to_numpy(dtype=float, na_value=np.nan), column.index)
    else:
        values = column.astype(object).mask(column.isin(MISSING))
        numbers = pd.to_numeric(values, errors="coerce").astype(float)
        wrong = values[numbers.isna() & values.notna()]
        if len(wrong):
            raise DataError(f"column {column.name!r} must hold numbers, not {wrong.iloc[0]!r}")
    if np.isinf(numbers).any():
        raise DataError(f"column {column.name!r} has an infinite value: mend or empty the cell")
    return numbers
