"""What a party says of its columns, and adds up over its rows, to agree on a schema."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pandas as pd

from cotune.data.arrays import chunks, is_array, seen_arrays
from cotune.data.encode import OTHER, as_text
from cotune.data.schema import Kind, Schema, has_classes, is_number
from cotune.errors import DataError, Malformed
from cotune.party.tasks import (
    ENOUGH_ROWS,
    MOST_CATEGORIES,
    Description,
    Inspect,
    Measure,
    Measures,
    Place,
    SeenColumn,
)

#: Numbers wider than two to this power are taken from 0: their centre could not be computed with.
LARGEST_EXPONENT = 1000


def with_other(frame: pd.DataFrame, target: str, smallest: int) -> pd.DataFrame:
    """The rows with categories of fewer rows than `smallest` made one, "other".

    Whatever the party does with its rows it does with these, so that such a category is the same
    everywhere. Columns that look like identifiers stay as they are, to be refused.
    """
    if smallest <= 1:
        return frame
    return frame.assign(
        **{
            name: _merged(frame[name], smallest)
            for name in frame.columns
            if name != target and not is_array(frame[name]) and not is_number(frame[name])
        }
    )


def _merged(column: pd.Series, smallest: int) -> pd.Series:
    texts = as_text(column)
    counts = texts.value_counts()
    rare = counts.index[counts < smallest]
    if rare.empty or _identifies(len(counts), int(counts.sum())):
        return column
    return texts.mask(texts.isin(rare), OTHER)


def _identifies(categories: int, present: int) -> bool:
    """Whether texts of which there are so many look like an identifier or free text."""
    return categories > MOST_CATEGORIES or categories > max(4, 0.9 * present)


def describe(frame: pd.DataFrame, target: str, task: Inspect, smallest: int = 1) -> Description:
    """The party's columns and classes; a `DataError` where it cannot take part.

    A party that names no class of fewer than `smallest` rows needs the list of them.
    """
    if target not in frame.columns:
        raise DataError(f"there is no column {target!r} to predict")
    if len(frame) < task.folds:
        raise DataError(
            f"{len(frame)} rows are fewer than the {task.folds} folds: use fewer folds, or leave "
            "this party out"
        )
    features = [str(name) for name in frame.columns if name not in (target, *task.drop)]
    if not features:
        raise DataError(f"there is no column beside the target {target!r}")
    if target in task.drop:
        raise DataError(f"{target!r} is what is predicted: it cannot be dropped")
    arrays = [name for name in features if is_array(frame[name])]
    if arrays and len(features) > 1:
        other = next(name for name in features if name != arrays[0])
        raise DataError(
            f"column {other!r} is beside the arrays of {arrays[0]!r}, which are learnt from alone: "
            f"drop it (--drop {other})"
        )
    if is_array(frame[target]):
        raise DataError(f"the target {target!r} holds arrays: they cannot be predicted")
    if frame[target].isna().any():
        raise DataError(f"the target {target!r} is missing in {frame[target].isna().sum()} rows")
    return Description(
        dropped=tuple(name for name in task.drop if name in frame.columns),
        columns=tuple(_see(frame[name]) for name in features),
        target=target,
        target_is_number=is_number(frame[target]),
        target_place=place(frame[target]) if is_number(frame[target]) else Place(),
        classes=_classes(frame[target], task, smallest),
    )


def _see(column: pd.Series) -> SeenColumn:
    name = str(column.name)
    if is_array(column):
        shape, codes = seen_arrays(column)
        return SeenColumn(name, "array", Place() if codes else place(column), (), shape, codes)
    if column.isna().all():
        return SeenColumn(name, None)
    if is_number(column):
        return SeenColumn(name, "numeric", place(column))
    categories = sorted(as_text(column).dropna().unique())
    if _identifies(len(categories), column.count()):
        raise DataError(
            f"column {name!r} has {len(categories)} different texts in {len(column)} rows, like "
            f"an identifier: drop it (--drop {name}) or make it a number"
        )
    return SeenColumn(name, "categorical", categories=tuple(categories))


def _classes(target: pd.Series, task: Inspect, smallest: int) -> tuple[str, ...] | None:
    if task.classes:
        if smallest > 1 and not has_classes(target):  # lists could be tried until all is known
            raise DataError(
                f"the target {target.name!r} is a quantity here, of which no list of classes is "
                "confirmed: predict it as one (--task regression), or make its classes text"
            )
        if not set(as_text(target)).issubset(task.classes):
            raise DataError(
                f"the target {target.name!r} has a class here that the list of classes lacks: "
                "complete it (--classes)"
            )
        return task.classes
    if task.task == "regression":
        if not is_number(target):
            raise DataError(f"the target {target.name!r} holds text: regression needs numbers")
        return None
    classes = tuple(sorted(as_text(target).unique()))
    if task.task is None and not has_classes(target):
        return None
    if len(classes) > MOST_CATEGORIES:
        raise DataError(
            f"the target {target.name!r} has {len(classes)} different values: too many classes "
            "to predict; a number can be predicted as a regression (--task regression)"
        )
    if as_text(target).value_counts().min() < smallest:
        numbers = ", or that it is a quantity (--task regression)" if is_number(target) else ""
        raise DataError(
            f"the target {target.name!r} has a class of fewer than {smallest} rows here, which "
            f"this party does not name: say which classes there are (--classes a,b,c){numbers}"
        )
    return classes


def measure(frame: pd.DataFrame, task: Measure) -> Measures:
    """Counts, sums and sums of squares of the draft schema's columns over the party's rows."""
    if len(task.places) != len(task.draft.columns):
        raise Malformed("there is not one place for each column")
    check_schema(frame, task.draft)
    numeric: list[float] = []
    categories: list[float] = []
    for column, common in zip(task.draft.columns, task.places, strict=True):
        if column.has_amounts:
            numeric += _moments(frame[column.name], common)
        elif column.kind == "categorical":
            categories += _counts(frame[column.name], column.categories)
    y = frame[task.draft.target]
    if task.draft.task == "classification":
        target = _counts(y, task.draft.classes)
    else:
        target = _moments(y, task.target_place)
    return Measures(numeric, categories, target, [float(len(frame) < ENOUGH_ROWS)])


def check_schema(frame: pd.DataFrame, schema: Schema) -> None:
    """Raise `Malformed` if the schema is about other columns than the party's."""
    kinds: list[tuple[str, Kind]] = [(column.name, column.kind) for column in schema.columns]
    if not kinds:
        raise Malformed("the schema has no column")
    for names in (schema.classes, *(column.categories for column in schema.columns)):
        if len(set(names)) != len(names):
            raise Malformed("the schema has a category or class twice")
    kinds.append((schema.target, "numeric" if schema.task == "regression" else "categorical"))
    for name, kind in kinds:
        if name not in frame.columns:
            raise Malformed("the schema has a column that the party does not have")
        own = frame[name]
        fits = is_number(own) or own.isna().all() if kind == "numeric" else True
        if not fits or is_array(own) != (kind == "array"):
            raise Malformed("a column of the schema is of another kind at the party")


def _moments(values: pd.Series, common: Place) -> list[float]:
    if is_array(values):
        return _array_moments(values, common)
    scaled = np.ldexp(_present(values) - common.centre, -common.exponent)
    return [float(len(scaled)), float(scaled.sum()), float(np.square(scaled).sum())]


def _array_moments(values: pd.Series, common: Place) -> list[float]:
    total = squares = 0.0
    for part in chunks(values):
        scaled = part.reshape(len(part), -1).astype(float)
        scaled -= common.centre
        scaled *= math.ldexp(1.0, -common.exponent)
        total += float(scaled.sum()) / scaled.shape[1]
        squares += float(np.square(scaled, out=scaled).sum()) / scaled.shape[1]
    return [float(len(values)), total, squares]


def _counts(values: pd.Series, names: tuple[str, ...]) -> list[float]:
    found = Counter(as_text(values).tolist())
    return [float(found[name]) for name in names]


def place(values: pd.Series) -> Place:
    """Where the numbers lie, to the precision of their own range and no better.

    >>> place(pd.Series([1_000_003.0, 1_000_008.0, None]))
    Place(centre=1000008.0, exponent=3)
    """
    low, high = _ends(values)
    if math.isinf(low) or math.isinf(high):
        raise DataError(f"column {values.name!r} has an infinite value: mend or empty the cell")
    width = high - low or abs(low) or 1.0
    exponent = math.ceil(math.log2(width)) if math.isfinite(width) else 1025
    if exponent > LARGEST_EXPONENT:
        return Place(0.0, exponent)
    unit = math.ldexp(1.0, exponent)
    return Place(round((low / 2 + high / 2) / unit) * unit, exponent)


def _ends(values: pd.Series) -> tuple[float, float]:
    parts = list(chunks(values)) if is_array(values) else [_present(values)]
    return float(min(part.min() for part in parts)), float(max(part.max() for part in parts))


def _present(values: pd.Series) -> np.ndarray:
    numbers: np.ndarray = values.to_numpy(dtype=float, na_value=np.nan)
    present: np.ndarray = numbers[~np.isnan(numbers)]
    return present
