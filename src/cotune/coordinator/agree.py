"""The first two rounds of every run: the parties agree on a schema."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar, cast

import msgspec
import numpy as np

from cotune.coordinator.federation import Federation, Sums
from cotune.data.arrays import shown
from cotune.data.schema import MOST_CLASSES, Column, Kind, Schema, TaskKind
from cotune.errors import DataError
from cotune.party.inspect import LARGEST_EXPONENT
from cotune.party.task import RESOLUTION
from cotune.party.tasks import Description, Inspect, Measure, Place, SeenColumn

#: The largest finite number.
FARTHEST = float(np.finfo(np.float64).max)


def agree(
    federation: Federation,
    *,
    folds: int,
    task: TaskKind | None,
    drop: tuple[str, ...] = (),
    classes: tuple[str, ...] = (),
) -> Schema:
    """One schema for all: names and kinds by majority, categories and classes by union.

    It is agreed over all rows, also those that are set aside afterwards. A party whose columns do
    not fit is named in the error, with the column and what to do. Columns come in the order of the
    first party; the others may have theirs in any order.
    """
    return agreed(federation, folds=folds, task=task, drop=drop, classes=classes).schema


class Agreed(msgspec.Struct, frozen=True):
    """The schema, the marks of the keys by which real parties choose rows, and how many parties
    have `few` rows: less than `cotune.party.tasks.ENOUGH_ROWS`.
    """

    schema: Schema
    keys: dict[str, str]
    few: int


def agreed(
    federation: Federation,
    *,
    folds: int,
    task: TaskKind | None,
    drop: tuple[str, ...] = (),
    classes: tuple[str, ...] = (),
) -> Agreed:
    """The schema, and what else the parties report of themselves before anything is asked."""
    replies = federation.gather(Inspect(folds, task, drop, classes))
    seen = {party: cast(Description, reply) for party, reply in replies.items()}
    _check_dropped(drop, seen.values())
    _check_targets(seen)
    _check_names(seen)
    first = next(iter(seen.values()))
    names = [column.name for column in first.columns]
    by_name = {
        party: {column.name: column for column in description.columns}
        for party, description in seen.items()
    }
    columns = {name: _columns(by_name, name) for name in names}
    union = _classes(seen.values(), task)
    draft = Schema(
        target=first.target,
        task="classification" if union else "regression",
        columns=tuple(_draft(name, columns[name]) for name in names),
        classes=union,
        number_classes=bool(union) and all(d.target_is_number for d in seen.values()),
    )
    _check_one_class(draft)
    places = tuple(_common(column.place for column in columns[name].values()) for name in names)
    target_place = _common(description.target_place for description in seen.values())
    sums = federation.sum(Measure(draft, places, target_place))
    schema = _measured(draft, places, target_place, sums)
    if classes:
        _check_listed(schema)
    keys = {party: one.key for party, one in seen.items() if one.key}
    return Agreed(schema, keys, few=int(sums.sum("few")[0]))


def _check_listed(schema: Schema) -> None:
    """Some party has each class of the list; a typing error must not make one more."""
    for name, rows in zip(schema.classes, schema.class_rows, strict=True):
        if not rows:
            raise DataError(f"no party has the class {name!r}: leave it out of the list of classes")


def _check_dropped(drop: tuple[str, ...], seen: Iterable[Description]) -> None:
    """Some party has each column that is to be dropped; a typing error must not let it stay."""
    found = {name for description in seen for name in description.dropped}
    for name in drop:
        if name not in found:
            raise DataError(f"no party has a column {name!r} that could be dropped")


def _check_targets(seen: Mapping[str, Description]) -> None:
    usual = _majority(description.target for description in seen.values())
    for party, description in seen.items():
        if description.target != usual:
            raise DataError(
                f"{party}: predicts {description.target!r} where the others predict {usual!r}"
            )
    numbers = _majority(description.target_is_number for description in seen.values())
    known = {
        name
        for description in seen.values()
        if description.target_is_number == numbers
        for name in description.classes or ()
    }
    for party, description in seen.items():
        if description.target_is_number != numbers and known.isdisjoint(description.classes or ()):
            holds, others = ("text", "numbers") if numbers else ("numbers", "text")
            raise DataError(
                f"{party}: the target {usual!r} holds {holds} where the others have {others}; "
                "make it the same everywhere"
            )


def _check_names(seen: Mapping[str, Description]) -> None:
    """Every party has the columns that most parties have."""
    usual = set(_majority(_names(description) for description in seen.values()))
    for party, description in seen.items():
        own = set(_names(description))
        for missing in sorted(usual - own):
            close = get_close_matches(missing, own - usual, n=1, cutoff=0.5)
            hint = f"is it the column {close[0]!r}? Rename it" if close else "add it"
            raise DataError(f"{party}: has no column {missing!r}, which the others have; {hint}")
        for extra in sorted(own - usual):
            raise DataError(
                f"{party}: has a column {extra!r}, which the others lack; drop it (--drop {extra})"
            )


def _names(description: Description) -> tuple[str, ...]:
    return tuple(sorted(column.name for column in description.columns))


def _columns(seen: Mapping[str, Mapping[str, SeenColumn]], name: str) -> dict[str, SeenColumn]:
    """How every party sees the column, once they agree on its kind and the shape of arrays."""
    columns = {party: by_name[name] for party, by_name in seen.items()}
    kinds = [column.kind for column in columns.values() if column.kind is not None]
    usual = _majority(kinds) if kinds else None
    for party, column in columns.items():
        if column.kind not in (usual, None):
            holds, others = _HOLDS[column.kind], _HOLDS[cast(Kind, usual)]
            raise DataError(
                f"{party}: column {name!r} holds {holds} where the others have {others}; "
                "make it the same everywhere, or drop it"
            )
    _check_arrays(columns, name)
    return columns


def _check_arrays(columns: Mapping[str, SeenColumn], name: str) -> None:
    usual = _majority((column.shape, column.codes) for column in columns.values())
    for party, column in columns.items():
        if (column.shape, column.codes) != usual:
            raise DataError(
                f"{party}: column {name!r} holds arrays of {shown(column.shape, column.codes)} "
                f"where the others have {shown(*usual)}; make it the same everywhere"
            )


T = TypeVar("T")
_HOLDS: dict[Kind | None, str] = {"numeric": "numbers", "categorical": "text", "array": "arrays"}


def _draft(name: str, columns: Mapping[str, SeenColumn]) -> Column:
    kind: Kind = next((column.kind for column in columns.values() if column.kind), "numeric")
    categories = _union(column.categories for column in columns.values())
    first = next(iter(columns.values()))
    return Column(name, kind, categories, shape=first.shape, codes=first.codes)


def _classes(seen: Iterable[Description], task: TaskKind | None) -> tuple[str, ...]:
    """The union of the classes; none for numbers of which some party, or all together, has many."""
    listed = list(seen)
    known = [d.classes for d in listed if d.classes is not None]
    union = _union(known) if len(known) == len(listed) else ()
    guessed = task is None and all(description.target_is_number for description in listed)
    return () if guessed and len(union) > MOST_CLASSES else union


def _check_one_class(schema: Schema) -> None:
    if len(schema.classes) == 1:
        raise DataError(
            f"the target {schema.target!r} has the same value in all rows of all parties: there "
            "is nothing to learn; is it the right column?"
        )


def _measured(draft: Schema, places: tuple[Place, ...], target_place: Place, sums: Sums) -> Schema:
    """The draft with means, scales and the order of the categories filled in."""
    moments = iter(sums.sum("numeric").reshape(-1, 3))
    counts = iter(sums.sum("categories"))
    columns = []
    for column, place in zip(draft.columns, places, strict=True):
        if column.has_amounts:
            mean, scale = _mean_and_scale(next(moments), place)
            half = math.ldexp(1.0, place.exponent) if place.exponent < 1024 else FARTHEST
            low, high = max(-FARTHEST, place.centre - half), min(FARTHEST, place.centre + half)
            columns.append(
                msgspec.structs.replace(column, mean=mean, scale=scale, low=low, high=high)
            )
        else:
            count = {name: next(counts) for name in column.categories}
            ordered = sorted(column.categories, key=lambda name: (-count[name], name))
            columns.append(msgspec.structs.replace(column, categories=tuple(ordered)))
    mean, scale = 0.0, 1.0
    if draft.task == "regression":
        mean, scale = _mean_and_scale(sums.sum("target"), target_place)
    class_rows: tuple[int, ...] = ()
    if draft.task == "classification":
        class_rows = tuple(int(count) for count in sums.sum("target"))
    return msgspec.structs.replace(
        draft,
        columns=tuple(columns),
        class_rows=class_rows,
        rows=sum(class_rows) if class_rows else int(sums.sum("target")[0]),
        target_mean=mean,
        target_scale=scale,
    )


def _common(places: Iterable[Place]) -> Place:
    """One place that holds all of the parties' places."""
    listed = list(places)
    exponent = max(place.exponent for place in listed)
    if exponent > LARGEST_EXPONENT:
        return Place(0.0, exponent + 1)
    low = min(place.centre - math.ldexp(1.0, place.exponent) for place in listed)
    high = max(place.centre + math.ldexp(1.0, place.exponent) for place in listed)
    return Place((low + high) / 2, math.ceil(math.log2((high - low) / 2)))


def _mean_and_scale(moments: np.ndarray, place: Place) -> tuple[float, float]:
    """Mean and standard deviation from count, sum and sum of squares; scale 1 if constant.

    The sums are rounded, so that a variance is known to some units of the resolution only.
    """
    count, total, squares = (float(value) for value in moments)
    if count == 0:
        return 0.0, 1.0
    mean = total / count
    variance = squares / count - mean**2
    varies = variance > 8 * RESOLUTION / count
    scale = math.ldexp(math.sqrt(variance), place.exponent) if varies else 1.0
    return place.centre + math.ldexp(mean, place.exponent), scale


def _union(lists: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """All names once, numbers in the order of their values, texts in the order of the alphabet.

    >>> _union([("10", "9"), ("2",)]), _union([("b",), ("a", "b")])
    (('2', '9', '10'), ('a', 'b'))
    """
    names = {name for names in lists for name in names}
    try:
        return tuple(sorted(names, key=float))
    except ValueError:
        return tuple(sorted(names))


def _majority(values: Iterable[T]) -> T:
    """The most frequent value; the first of those if there are several."""
    return Counter(values).most_common(1)[0][0]
