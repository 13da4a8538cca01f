"""The schema that all parties of a run agree on: columns, their kinds, categories and classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["numeric", "categorical", "array"]
TaskKind = Literal["classification", "regression"]

#: A numeric target with more values than this is a regression's unless the user says otherwise.
MOST_CLASSES = 20


class Column(msgspec.Struct, frozen=True):
    """One feature as the federation sees it.

    `mean` and `scale` (standard deviation over all parties' non-missing values, 1 for a constant
    column) belong to numeric columns, as do `low` and `high`, roughly the ends of their values;
    `categories`, the most frequent first, to categorical ones. The cells of an array column have
    the `shape`. If its numbers are codes of characters there are `codes` of them; otherwise (0)
    they are amounts, with one `mean` and one `scale` over all of them.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0
    low: float = 0.0
    high: float = 0.0
    shape: tuple[int, ...] = ()
    codes: int = 0

    @property
    def has_amounts(self) -> bool:
        """Whether it has a mean and a deviation."""
        return self.kind == "numeric" or (self.kind == "array" and not self.codes)


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

    @property
    def array(self) -> Column | None:
        """The column that holds arrays; there is no other column beside it."""
        return next((column for column in self.columns if column.kind == "array"), None)


def is_number(values: pd.Series) -> bool:
    """Whether a column holds numbers; True and False are categories."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return is_numeric_dtype(values) and not is_bool_dtype(values)


def has_classes(target: pd.Series) -> bool:
    """Whether a target names classes: it holds text, or few different whole numbers."""
    if not is_number(target):
        return True
    import numpy as np

    different = np.unique(target.to_numpy(dtype=float, na_value=np.nan))
    present = different[~np.isnan(different)]
    return len(present) <= MOST_CLASSES and bool((present % 1 == 0).all())
