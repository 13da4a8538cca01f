"""The schema that all parties of a run agree on: columns, their kinds, categories and classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["numeric", "categorical"]
TaskKind = Literal["classification", "regression"]

#: A numeric target with more values than this is a regression's unless the user says otherwise.
MOST_CLASSES = 20


class Column(msgspec.Struct, frozen=True):
    """One feature as the federation sees it.

    `mean` and `scale` (standard deviation over all parties' non-missing values, 1 for a constant
    column) belong to numeric columns, as do `low` and `high`, roughly the ends of their values;
    `categories`, the most frequent first, to categorical ones.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0
    low: float = 0.0
    high: float = 0.0


class Schema(msgspec.Struct, frozen=True):
    """What every party's rows are encoded by.

    `classes` are the union over the parties, sorted; empty for regression. `number_classes` says
    that they were numbers in the parties' tables, `class_rows` how many rows of all parties have
    each, and `rows` how many they are in all. `target_mean` and `target_scale` are a regression's
    mean and standard deviation over all parties' rows.
    """

    target: str
    task: TaskKind
    columns: tuple[Column, ...]
    classes: tuple[str, ...] = ()
    target_mean: float = 0.0
    target_scale: float = 1.0
    number_classes: bool = False
    class_rows: tuple[int, ...] = ()
    rows: int = 0


def is_number(values: pd.Series) -> bool:
    """Whether a column holds numbers; True and False are categories."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return is_numeric_dtype(values) and not is_bool_dtype(values)


def has_classes(target: pd.Series) -> bool:
    """Whether a target names classes: it holds text, or few different whole numbers."""
    if not is_number(target):
        return True
    return target.nunique() <= MOST_CLASSES and bool((target.dropna() % 1 == 0).all())
