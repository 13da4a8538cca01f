"""The schema that all parties of a run agree on: columns, their kinds, categories and classes."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["numeric", "categorical"]
TaskKind = Literal["classification", "regression"]


class Column(msgspec.Struct, frozen=True):
    """One feature as the federation sees it.

    `mean` and `scale` (standard deviation over all parties' non-missing values, 1 for a constant
    column) belong to numeric columns; `categories`, the most frequent first, to categorical ones.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0


class Schema(msgspec.Struct, frozen=True):
    """What every party's rows are encoded by.

    `classes` are the union over the parties, sorted; empty for regression. `target_mean` and
    `target_scale` are a regression's mean and standard deviation over all parties' rows.
    """

    target: str
    task: TaskKind
    columns: tuple[Column, ...]
    classes: tuple[str, ...] = ()
    target_mean: float = 0.0
    target_scale: float = 1.0
