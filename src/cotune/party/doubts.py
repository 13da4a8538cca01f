"""What a person should see in rows before they take part; it is shown where the rows lie only."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np
import pandas as pd

from cotune.data.arrays import is_array
from cotune.data.encode import as_text
from cotune.data.schema import has_classes, is_number
from cotune.errors import DataWarning

#: A share of missing cells that is worth a word.
MUCH_MISSING = 0.3
#: Numbers that are all different look like identifiers from this many rows on.
FEW_ROWS = 20
#: Columns that are named with the first of their kind, at most.
MOST_NAMED = 4
#: Columns of a simulation's parties that are laid together, so that memory is not doubled.
AT_ONCE = 100
#: Of a column's texts, to see whether they are dates.
MOST_READ = 1000
#: 2031-05-01, 2031-05-01T10:30, 1.5.2031 and 5/1/31.
_DATE = re.compile(r"\s*(\d{4}-\d\d?-\d\d?([T ]\d\d?:\d\d.*)?|\d\d?([./-])\d\d?\3(\d\d|\d{4}))\s*")


class Doubt(msgspec.Struct, frozen=True):
    """A sentence about a column, or about a class of the target."""

    kind: Literal["empty", "missing", "constant", "identifier", "dates", "texts", "target", "class"]
    name: str
    sentence: str


def doubts(
    tables: Sequence[pd.DataFrame],
    target: str,
    drop: Iterable[str] = (),
    folds: int = 5,
    smallest: int = 1,
) -> tuple[Doubt, ...]:
    """What is doubtful about the rows of all tables together; several are a simulation's.

    Columns that the parties do not share are left to the errors that follow. Categories and classes
    of fewer than `smallest` rows are not disclosed.
    """
    tables = [table for table in tables if len(table)]
    if not tables:
        return ()
    once = [{name for name, n in Counter(table.columns).items() if n == 1} for table in tables]
    shared = [name for name in tables[0].columns if all(name in names for names in once)]
    wanted = [name for name in shared if str(name) not in (target, *drop)]
    found: list[Doubt] = []
    for first in range(0, len(wanted), AT_ONCE):
        names = wanted[first : first + AT_ONCE]
        together = pd.concat([table[names] for table in tables], ignore_index=True)
        for name in names:
            found += _of_column(together[name], tables, smallest)
    for name in shared:
        if str(name) == target:
            found += _of_classes([table[name] for table in tables], target, folds, smallest)
    return tuple(found)


def announce(found: Iterable[Doubt]) -> None:
    """Warn of each kind of doubt once: in full of its first column, by name of the others."""
    kinds: dict[str, list[Doubt]] = {}
    for doubt in found:
        kinds.setdefault(doubt.kind, []).append(doubt)
    for first, *others in kinds.values():
        named = ", ".join(repr(doubt.name) for doubt in others[:MOST_NAMED])
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        also = f"; the same holds for {named}{more}" if named else ""
        warnings.warn(first.sentence + also, DataWarning, stacklevel=2)


def _of_column(column: pd.Series, tables: Sequence[pd.DataFrame], smallest: int) -> Iterator[Doubt]:
    if is_array(column):
        return
    name, present = str(column.name), column.dropna()
    if len(tables) > 1:
        here, fix = "", f"drop it (--drop {name})"
    else:  # a party sees its own rows only, and the column may be of use elsewhere
        here, fix = " here", f"if that is so at every party, drop it (--drop {name})"
    if not len(present):
        yield Doubt("empty", name, f"column {name!r} is empty{here}: {fix}")
        return
    if len(present) < (1 - MUCH_MISSING) * len(column):
        share = f"{1 - len(present) / len(column):.0%}"
        yield Doubt("missing", name, f"column {name!r} is missing in {share} of the rows")
    texts = [] if is_number(present) else _different(present)
    if len(texts) == 1 or (not texts and present.min() == present.max()):
        if len(column) > 1:
            says = f"has one value only{here}, from which nothing can be learnt: {fix}"
            yield Doubt("constant", name, f"column {name!r} {says}")
    elif texts:
        yield from _of_texts(texts, len(present), name, smallest)
    elif _count_up(present, (table[column.name].dropna() for table in tables)):
        says = "has another whole number in each row: if it is an identifier, drop it"
        yield Doubt("identifier", name, f"column {name!r} {says} (--drop {name})")


def _of_texts(different: Sequence[str], rows: int, name: str, smallest: int) -> Iterator[Doubt]:
    if all(map(_DATE.fullmatch, different[:MOST_READ])):
        each = f"of {smallest} rows or more " if smallest > 1 else ""
        says = (
            f"holds dates, each of which {each}is taken as a category of its own and disclosed: "
            "make it a number (say, days since a fixed date), or drop it"
        )
        yield Doubt("dates", name, f"column {name!r} {says} (--drop {name})")
    elif len(different) > max(FEW_ROWS, rows / 2):
        which = f"those of {smallest} rows or more" if smallest > 1 else "which"
        says = (
            f"has {len(different)} different texts, {which} are disclosed as categories: if one "
            "could identify a person, drop the column"
        )
        yield Doubt("texts", name, f"column {name!r} {says} (--drop {name})")


def _count_up(present: pd.Series, parts: Iterable[pd.Series]) -> bool:
    """Whether no row has the number of another, in all rows or (numbered by file) at each party."""
    numbers = present.to_numpy(dtype=float)
    if not (np.isfinite(numbers) & (numbers == np.floor(numbers))).all():
        return False
    return _all_differ(present) or all(_all_differ(part.dropna()) for part in parts)


def _all_differ(present: pd.Series) -> bool:
    return len(present) >= FEW_ROWS and present.nunique() == len(present)


def _different(present: pd.Series) -> list[str]:
    """The texts of a column, each once."""
    if present.dtype == object:
        return as_text(present).unique().tolist()
    return as_text(pd.Series(present.unique())).tolist()


def _of_classes(
    parts: Sequence[pd.Series], target: str, folds: int, smallest: int
) -> Iterator[Doubt]:
    values = pd.concat(parts, ignore_index=True)
    if any(map(is_array, parts)) or not has_classes(values):
        return
    rows = Counter(as_text(values.dropna()).tolist())
    if len(rows) == 1 and len(parts) == 1:  # with several it is an error that follows
        sentence = f"the target {target!r} has one class only here: this party can judge little"
        yield Doubt("target", target, sentence)
    for name, count in sorted(rows.items()):
        number = f"{count} row{'s' if count > 1 else ''}"
        if len(parts) == 1 and count < smallest:
            quantity = " or asks for --task regression" if is_number(parts[0]) else ""
            sentence = (
                f"the class {name!r} has {number}, fewer than {smallest}, and is not disclosed: "
                f"a run can begin only if the lead lists the classes (--classes){quantity}"
            )
            yield Doubt("class", name, sentence)
        elif count < folds:
            sentence = f"the class {name!r} has {number}, fewer than the {folds} folds"
            yield Doubt("class", name, sentence)
