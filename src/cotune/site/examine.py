"""Whether a party's file can take part, said before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Literal

import msgspec
import pandas as pd

from cotune.data.arrays import is_array
from cotune.data.encode import as_text as spelled
from cotune.data.load import check_column
from cotune.data.schema import Kind, has_classes, is_number
from cotune.errors import DataError
from cotune.party.doubts import doubts
from cotune.party.inspect import describe
from cotune.party.key import SMALLEST_CELL
from cotune.party.tasks import Inspect

#: Columns and classes that are listed, at most.
MOST_LISTED = 30


class Examined(msgspec.Struct, frozen=True):
    """A column to learn from. `missing` is a share of the rows."""

    name: str
    kind: Kind | Literal["empty"]
    missing: float
    categories: int = 0


class Examination(msgspec.Struct, frozen=True):
    """What the party's own terminal is shown; it goes nowhere else.

    `classes` counts the rows of each; it is empty for a target that is a quantity. With any of the
    `problems` the party cannot take part, `warnings` are for its judgement.
    """

    rows: int
    target: str
    columns: tuple[Examined, ...]
    classes: dict[str, int]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def examine(
    frame: pd.DataFrame, target: str, drop: Sequence[str] = (), folds: int = 5
) -> Examination:
    """Look the rows over, as the first round of a run will, and further."""
    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    twice = [name for name, count in Counter(frame.columns).items() if count > 1]
    if twice:
        problem = f"there are several columns {twice[0]!r}: rename all but one"
        return Examination(len(frame), target, (), {}, (problem,), ())
    features = [name for name in frame.columns if name not in (target, *drop)]
    columns = tuple(_examined(frame[name]) for name in features)
    classes: dict[str, int] = {}
    if target in frame.columns and not is_array(frame[target]) and has_classes(frame[target]):
        classes = dict(sorted(Counter(spelled(frame[target]).dropna().tolist()).items()))
    warnings = [f"there is no column {name!r} to drop" for name in drop if name not in frame]
    found = doubts([frame], target, drop, folds, SMALLEST_CELL)
    warnings += [doubt.sentence for doubt in found]
    problems = tuple(dict.fromkeys(_problems(frame, target, tuple(drop), folds)))
    return Examination(len(frame), target, columns, classes, problems, tuple(warnings))


def _problems(frame: pd.DataFrame, target: str, drop: tuple[str, ...], folds: int) -> Iterator[str]:
    """All at once; a run would stop at the first."""
    try:
        check_column(frame, target)
        describe(frame, target, Inspect(folds, drop=drop))
    except DataError as error:
        yield str(error)
        for name in frame.columns if target in frame.columns else ():
            if name not in (target, *drop):
                yield from _problems_of_column(frame[[name, target]], target, folds)


def _problems_of_column(frame: pd.DataFrame, target: str, folds: int) -> Iterator[str]:
    try:
        describe(frame, target, Inspect(folds))
    except DataError as error:
        yield str(error)


def _examined(column: pd.Series) -> Examined:
    name, missing = str(column.name), float(column.isna().mean()) if len(column) else 0.0
    if is_array(column):
        return Examined(name, "array", missing)
    if column.isna().all():
        return Examined(name, "empty", missing)
    if is_number(column):
        return Examined(name, "numeric", missing)
    return Examined(name, "categorical", missing, spelled(column).nunique())


def as_text(found: Examination) -> str:
    """For the party's terminal, at most 80 columns wide but for long names."""
    kind = f"{_of(len(found.classes), 'class')}" if found.classes else "a quantity"
    lines = [
        f"{_of(found.rows, 'row')}, {_of(len(found.columns), 'column')} to learn from, "
        f"target {found.target!r} ({kind})"
    ]
    if found.columns:
        shown = found.columns[:MOST_LISTED]
        width = max(len("column"), *(len(column.name) for column in shown))
        lines += ["", f"{'column':<{width}}  {'kind':<11}  missing  categories"]
        for column in shown:
            categories = str(column.categories or "")
            line = f"{column.name:<{width}}  {column.kind:<11}  {column.missing:>7.1%}"
            lines.append(f"{line}  {categories:>10}".rstrip())
        lines += _more(len(found.columns))
    if found.classes:
        listed = list(found.classes.items())[:MOST_LISTED]
        width = max(len("class"), *(len(name) for name, _ in listed))
        lines += ["", f"{'class':<{width}}     rows"]
        lines += [f"{name:<{width}}  {rows:>7,}" for name, rows in listed]
        lines += _more(len(found.classes))
    for title, sentences in (("To mend first:", found.problems), ("To look at:", found.warnings)):
        if sentences:
            lines += ["", title]
            lines += [fill(s, 80, initial_indent="- ", subsequent_indent="  ") for s in sentences]
    if not found.problems:
        lines += ["", "These rows can take part."]
    return "\n".join(lines)


def _more(count: int) -> list[str]:
    return [f"... and {count - MOST_LISTED} more"] if count > MOST_LISTED else []


def _of(count: int, thing: str) -> str:
    plural = f"{thing}es" if thing.endswith("s") else f"{thing}s"
    return f"{count:,} {thing if count == 1 else plural}"
