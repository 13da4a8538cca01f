"""One table dealt to several parties, evenly or with the skews of federated practice."""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import pandas as pd
from numpy.random import Generator
from numpy.typing import NDArray

from cotune.data.arrays import array_columns, is_array
from cotune.data.load import check_column, check_target
from cotune.data.schema import has_classes
from cotune.errors import DataError, UsageError, choices

SPLITS = ("iid", "dirichlet:ALPHA", "quantity:BETA", "noise:BETA", "by:COLUMN")

"""An integer target with more distinct values than this is a quantity, not a class."""

QUANTILE_BINS = 10
DRAWS = 100
ENOUGH_ROWS = 10

Integers = NDArray[np.int64]


def split(
    frame: pd.DataFrame, target: str, parties: int | None, spec: str = "iid", seed: int = 0
) -> dict[str, pd.DataFrame]:
    """Deal every row of `frame` to exactly one party, the same way for the same seed.

    The skews are those of PrivTuna (section IV-B3), after Li et al., "Federated learning on
    non-IID data silos". There are N parties, i = 1..N.

    - `iid`: sizes differ by at most one row, and so do the parties' counts of each class.
    - `dirichlet:ALPHA`: label skew. Of each class, party i gets the share p_i, p ~ Dir_N(alpha).
      A continuous target is cut into ten quantile bins first.
    - `quantity:BETA`: quantity skew. Of all rows, party i gets the share q_i, q ~ Dir_N(beta).
    - `noise:BETA`: feature skew. Equal random parts, then Gaussian noise n_i ~ N(0, beta*i/N) on
      party i's numeric features. The second argument is a variance. Its unit is the column's
      standard deviation over all rows, as if the features were standardised, because the columns
      of a table have different units.
    - `by:COLUMN`: one party per value of the column, named after the value; the column is dropped.
      `parties` may be None here, and only here.

    The Dirichlet skews are drawn again until each party has at least 10 rows, or half of an equal
    share if that is less.

    >>> rows = pd.DataFrame({"x": range(10), "y": ["a", "b"] * 5})
    >>> {name: len(part) for name, part in split(rows, "y", 3).items()}
    {'party-1': 4, 'party-2': 3, 'party-3': 3}
    """
    check_target(frame, target)
    kind, argument = _parsed(spec)
    if kind == "by":
        return _by_column(frame, target, parties, argument)
    count = _checked_count(parties, len(frame))
    random = np.random.default_rng(seed)
    if kind == "iid":
        return _parts(frame, _deal_evenly(_strata(frame[target]), count, random), count)
    strength = _positive(spec, argument)
    if kind == "noise":
        if array_columns(frame):
            raise UsageError(f"{spec} is for columns of numbers, not of arrays: split another way")
        parts = _parts(frame, _deal_evenly(_one_label(frame), count, random), count)
        return _with_noise(parts, _scales(frame, target), strength, random)
    labels = _labels(frame[target]) if kind == "dirichlet" else _one_label(frame)
    return _parts(frame, _deal_skewed(labels, count, strength, random), count)


# What was asked for


def _parsed(spec: str) -> tuple[str, str]:
    spellings = {spelling.partition(":")[0]: spelling for spelling in SPLITS}
    kind, colon, argument = spec.partition(":")
    if kind not in spellings:
        raise UsageError(choices(spec, "split", SPLITS))
    if bool(colon) != (":" in spellings[kind]):
        raise UsageError(f"malformed split {spec!r}: write {spellings[kind]}")
    return kind, argument


def _positive(spec: str, argument: str) -> float:
    try:
        number = float(argument)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise UsageError(f"malformed split {spec!r}: {argument!r} must be a number above 0")
    return number


def _checked_count(parties: int | None, rows: int) -> int:
    if parties is None:
        raise UsageError("the number of parties is missing: only by:COLUMN can do without it")
    if parties < 1:
        raise UsageError(f"a split needs at least 1 party, not {parties}")
    if parties > rows:
        raise DataError(f"{parties} parties cannot share {rows} rows: use {rows} parties or fewer")
    return parties


# What the target's values count as


def _labels(column: pd.Series) -> Integers:
    if has_classes(column):
        return pd.factorize(column)[0]
    bins = pd.qcut(column, QUANTILE_BINS, labels=False, duplicates="drop")
    return bins.to_numpy(dtype=np.int64)


def _strata(column: pd.Series) -> Integers:
    return _labels(column) if has_classes(column) else _one_label(column)


def _one_label(rows: pd.DataFrame | pd.Series) -> Integers:
    return np.zeros(len(rows), dtype=np.int64)


# Which party owns which row


def _deal_evenly(labels: Integers, count: int, random: Generator) -> Integers:
    """Deal the rows in turn like cards, a class after the other.

    One turn through the parties runs on from class to class, so both a class's counts and the
    sizes differ by at most one.
    """
    shuffled = random.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owners = np.empty_like(labels)
    owners[by_label] = np.arange(len(labels)) % count
    return owners


def _deal_skewed(labels: Integers, count: int, alpha: float, random: Generator) -> Integers:
    least = max(1, min(ENOUGH_ROWS, len(labels) // (2 * count)))
    for _ in range(DRAWS):
        owners = _draw_skewed(labels, count, alpha, random)
        if np.bincount(owners, minlength=count).min() >= least:
            return owners
    raise DataError(
        f"a Dirichlet skew of {alpha:g} left one of {count} parties with fewer than {least} rows "
        f"in each of {DRAWS} draws: use a larger value or fewer parties"
    )


def _draw_skewed(labels: Integers, count: int, alpha: float, random: Generator) -> Integers:
    owners = np.empty_like(labels)
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        shares = random.dirichlet(np.full(count, alpha))
        ends = np.round(np.cumsum(shares)[:-1] * len(rows))
        owners[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    return owners


# What each party gets


def _parts(frame: pd.DataFrame, owners: Integers, count: int) -> dict[str, pd.DataFrame]:
    width = len(str(count))
    ends = np.cumsum(np.bincount(owners, minlength=count))[:-1]
    rows = np.split(np.argsort(owners, kind="stable"), ends)
    return {
        f"party-{number:0{width}}": frame.iloc[own].reset_index(drop=True)
        for number, own in enumerate(rows, start=1)
    }


def _scales(frame: pd.DataFrame, target: str) -> pd.Series:
    return frame.drop(columns=target).select_dtypes("number").std(ddof=0)


def _with_noise(
    parts: dict[str, pd.DataFrame], scales: pd.Series, beta: float, random: Generator
) -> dict[str, pd.DataFrame]:
    columns = list(scales.index)
    for i, part in enumerate(parts.values(), start=1):
        deviation = math.sqrt(beta * i / len(parts))
        noise = random.normal(scale=deviation, size=(len(part), len(columns)))
        part[columns] = part[columns] + noise * scales.to_numpy()
    return parts


def _by_column(
    frame: pd.DataFrame, target: str, parties: int | None, column: str
) -> dict[str, pd.DataFrame]:
    check_column(frame, column)
    if column == target:
        raise UsageError(f"by:{column} would drop the target: split by another column")
    if is_array(frame[column]):
        raise DataError(f"column {column!r} holds arrays: split by another column")
    gaps = int(frame[column].isna().sum())
    if gaps:
        raise DataError(f"column {column!r} is missing in {gaps} rows: fill or drop those rows")
    groups = list(frame.groupby(column, observed=True))
    if parties not in (None, len(groups)):
        raise UsageError(
            f"by:{column} makes {len(groups)} parties, not {parties}: leave their number out"
        )
    names = _names_after([value for value, _ in groups], column)
    parts = [part.drop(columns=column).reset_index(drop=True) for _, part in groups]
    return dict(zip(names, parts, strict=True))


def _names_after(values: list[object], column: str) -> list[str]:
    names = [re.sub(r"[^\w.]+", "-", str(value).lower()).strip("-.") for value in values]
    times = Counter(names)
    unclear = [value for value, name in zip(values, names, strict=True) if times[name] > 1]
    if unclear or "" in names:
        raise DataError(
            f"values of {column!r} do not give each party a name of its own "
            f"({', '.join(map(repr, unclear)) or 'one has no letter or digit'}): rename them"
        )
    return names
