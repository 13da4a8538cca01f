"""Whether a party's file can take part, said before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Literal

import msgspec
import numpy as np
import pandas as pd

from cotune.data.arrays import is_array
from cotune.data.encode import as_text as spelled
from cotune.data.load import check_column
from cotune.data.schema import Kind, has_classes, is_number
from cotune.errors import DataError
from cotune.party.inspect import describe
from cotune.party.key import SMALLEST_CELL
from cotune.party.tasks import Inspect

#: Columns and classes that are listed, at most.
MOST_LISTED = 30
#: A share of missing cells that is worth a word.
MUCH_MISSING = 0.3
#: Numbers that are all different look like identifiers from this many rows on.
FEW_ROWS = 20


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
    if len(frame):
        for column in columns:
            warnings += _doubts(frame[column.name], column)
        warnings += _doubts_of_classes(classes, target, folds)
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


def _doubts(column: pd.Series, seen: Examined) -> Iterator[str]:
    if seen.kind == "array":
        return
    if seen.kind == "empty":
        yield f"column {seen.name!r} is empty here"
        return
    if seen.missing > MUCH_MISSING:
        yield f"column {seen.name!r} is missing in {seen.missing:.0%} of the rows"
    present = column.dropna()
    different = seen.categories or present.nunique()
    if different == 1 and len(column) > 1:
        yield f"column {seen.name!r} has one value only: there is nothing to learn from it here"
    elif seen.kind == "numeric" and _counts_up(present, different):
        yield (
            f"column {seen.name!r} has another whole number in each row: if it is an identifier, "
            f"drop it (--drop {seen.name})"
        )
    elif seen.kind == "categorical" and different > max(FEW_ROWS, len(present) / 2):
        yield (
            f"column {seen.name!r} has {different} different texts, and the others learn those of "
            f"{SMALLEST_CELL} rows or more: if they could say whose a row is, drop it "
            f"(--drop {seen.name})"
        )


def _counts_up(present: pd.Series, different: int) -> bool:
    if different < len(present) or len(present) < FEW_ROWS:
        return False
    numbers: np.ndarray = present.to_numpy(dtype=float)
    return bool((np.isfinite(numbers) & (numbers == np.floor(numbers))).all())


def _doubts_of_classes(classes: dict[str, int], target: str, folds: int) -> Iterator[str]:
    if len(classes) == 1:
        yield f"the target {target!r} has one class only here: this party can judge little"
    for name, rows in classes.items():
        if rows < folds:
            yield f"the class {name!r} has {_of(rows, 'row')}, fewer than the {folds} folds"


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
