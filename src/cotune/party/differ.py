"""How far a party's rows differ from the federation's: totals for all, more for its operator."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np

from cotune.data.encode import encode_columns, encode_target
from cotune.errors import Malformed
from cotune.party.task import OPERATOR, Reply, Task, Term, most_summed_bytes

if TYPE_CHECKING:
    import pandas as pd

    from cotune.data.schema import Schema
    from cotune.party.party import Party
    from cotune.problem import Problem

operator = logging.getLogger(OPERATOR)

#: A row's thousandth, as a power of two: totals of these are exact in floating point.
STEP = 2.0**-10
MOST_ROWS = 2.0**31
#: No mean is taken to be farther off, in deviations: its square times rows must stay bounded.
FARTHEST = 2.0**10
#: Deviations by which a column's mean lies far off, and how many such columns are named.
FAR, MOST_NAMED = 0.5, 5


class Differences(Reply, frozen=True):
    """A party's part: see `Differ`; `parties` is empty for a regression."""

    parties: list[int]
    rows: list[int]
    target: list[float]
    columns: list[float]
    present: list[int]
    categories: list[int]


class Differ(Task, frozen=True):
    """Add up how far the parties' rows differ, over all rows.

    `parties` has whether a party has one class, and whether it lacks one. `target` is its number of
    rows times the total variation distance between its class shares and the federation's; of
    numbers times the squared distance of its mean, in deviations: their total is the share of the
    variance that lies between parties. `columns` has the same of each numeric column over the rows
    in which it is `present`; of a categorical one these rows times the sum of the squared shares of
    its categories, from which and from the `categories`' rows follows the same for its indicators.
    """

    discloses = (
        "whether it has one class, and whether it lacks one; how many rows it has and in how many "
        "of them each column has a value, or each of its categories; and, times these, how far its "
        "class shares and its mean of each numeric column lie from the federation's, and how "
        "evenly the categories of each column are spread"
    )
    reply = Differences

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        assert problem is not None
        columns = len(problem.schema.columns)
        return {
            "parties": Term(2 if problem.schema.classes else 0, 0.0, 1.0, 1.0),
            "rows": Term(1, 0.0, MOST_ROWS, 1.0),
            "target": Term(1, 0.0, MOST_ROWS, STEP),
            "columns": Term(columns, 0.0, MOST_ROWS, STEP),
            "present": Term(columns, 0.0, MOST_ROWS, 1.0),
            "categories": Term(
                sum(len(column.categories) for column in problem.schema.columns),
                0.0,
                MOST_ROWS,
                1.0,
            ),
        }

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))

    def perform(self, party: Party) -> Differences:
        frame, schema = party.all_rows, party.problem.schema
        own = Own(frame, schema)
        sentence = own.sentence()
        if sentence:
            operator.info("%s: %s", party.name, sentence)
        apart = [min(count * far, MOST_ROWS) for count, far in own.columns]
        return Differences(
            parties=[own.classes == 1, own.classes < len(schema.classes)] if schema.classes else [],
            rows=[len(frame)],
            target=[min(len(frame) * own.target, MOST_ROWS)],
            columns=apart,
            present=[count for count, _ in own.columns],
            categories=own.categories,
        )


class Own:
    """One party's rows beside the federation's schema.

    `target` is how far its shares of the classes are from the federation's, or its mean squared;
    `columns` has of each column in how many rows it has a value, and the same distance or, of
    categories, the sum of their squared shares.
    """

    def __init__(self, frame: pd.DataFrame, schema: Schema) -> None:
        self._schema = schema
        y = encode_target(frame, schema)
        self.classes = 0
        if schema.classes:
            rows = np.bincount(y, minlength=len(schema.classes))
            self.classes = int((rows > 0).sum())
            self._lacks = [n for n, count in zip(schema.classes, rows, strict=True) if not count]
            self.target = _distance(rows, np.array(schema.class_rows, dtype=float))
        else:
            self._lacks = []
            self.target = _off(y, schema.target_mean, schema.target_scale) ** 2
        codes = encode_columns(frame, schema.columns)
        self.columns: list[tuple[int, float]] = []
        self.categories: list[int] = []
        self._far: dict[str, float] = {}
        for column, values in zip(schema.columns, codes.T, strict=True):
            values = values[~np.isnan(values)]
            apart = 0.0
            if column.kind == "numeric" and len(values):
                off = self._far[column.name] = _off(values, column.mean, column.scale)
                apart = off**2
            elif column.kind == "categorical":
                rows = np.bincount(values.astype(int), minlength=len(column.categories))
                self.categories += rows.tolist()
                apart = float(np.square(rows / max(1, len(values))).sum())
            self.columns.append((len(values), apart))

    def sentence(self) -> str:
        """For its operator: classes it lacks, how far its shares are off, and which columns."""
        said = []
        if self._lacks:
            said.append("your rows lack the classes " + ", ".join(map(repr, self._lacks)))
        if self._schema.classes:
            said.append(
                f"your class shares differ from the federation's by {100.0 * self.target:.0f} %"
            )
        else:
            said.append(
                f"your mean of the target is {math.sqrt(self.target):.2g} deviations from the "
                "federation's"
            )
        far = sorted(self._far.items(), key=lambda item: -abs(item[1]))
        named = [f"{name} ({off:+.1f})" for name, off in far[:MOST_NAMED] if abs(off) >= FAR]
        if named:
            said.append("columns whose mean is far off, in deviations: " + ", ".join(named))
        return "; ".join(said)


def _distance(rows: np.ndarray, all_rows: np.ndarray) -> float:
    """Total variation between shares: half the sum of what they differ by."""
    if len(all_rows) not in (0, len(rows)):
        raise Malformed("the schema has not the rows of each class")
    if not rows.sum() or not all_rows.sum():
        return 0.0
    return float(np.abs(rows / rows.sum() - all_rows / all_rows.sum()).sum() / 2.0)


def _off(values: np.ndarray, mean: float, scale: float) -> float:
    """How far their mean is off, in deviations, within bounds; 0 if that is no number."""
    with np.errstate(all="ignore"):
        off = (values.mean() - mean) / np.float64(scale)
    return float(np.clip(np.nan_to_num(off), -FARTHEST, FARTHEST))


TASKS: tuple[type[Task], ...] = (Differ,)
