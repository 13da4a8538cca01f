"""A party's marginal distributions, as it may tell them to estimate the W1 of FLoRA's C.13."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from cotune.data.encode import encode_columns, encode_target
from cotune.data.schema import Schema
from cotune.party.tasks import QUANTILES, Distributions

#: Values that each quantile must stand for: quantiles of few rows are nearly the rows themselves.
ROWS_PER_QUANTILE = 10


def marginals(frame: pd.DataFrame, schema: Schema, quantiles: int = QUANTILES) -> Distributions:
    """The distribution of every column and of the target over the party's rows."""
    told: list[tuple[float, ...]] = []
    shares: list[tuple[float, ...]] = []
    codes = encode_columns(frame, schema.columns)
    for column, values in zip(schema.columns, codes.T, strict=True):
        if column.kind == "numeric":
            told.append(quantiles_of((values - column.mean) / column.scale, quantiles))
        else:
            missing = len(column.categories)
            shares.append(_shares(np.nan_to_num(values, nan=missing), missing + 1))
    y = encode_target(frame, schema)
    if schema.task == "classification":
        shares.append(_shares(y, len(schema.classes)))
    else:
        told.append(quantiles_of((y - schema.target_mean) / schema.target_scale, quantiles))
    return Distributions(tuple(told), tuple(shares))


def quantiles_of(values: np.ndarray, count: int) -> tuple[float, ...]:
    """Quantiles at the levels (k + 1/2) / count: none is the smallest or the largest value.

    Missing values are left out. There are fewer quantiles where there are not `ROWS_PER_QUANTILE`
    values for each. Of a column with fewer values than that nothing is told but the mean over all
    parties, 0, as which missing values count for learners too.

    >>> quantiles_of(np.arange(31.0), 2), quantiles_of(np.arange(31.0), 21)
    ((7.5, 22.5), (5.0, 15.0, 25.0))
    >>> quantiles_of(np.arange(9.0), 21)
    (0.0,)
    """
    present = values[~np.isnan(values)]
    count = min(count, len(present) // ROWS_PER_QUANTILE)
    if not count:
        return (0.0,)
    return tuple(np.quantile(present, (np.arange(count) + 0.5) / count).tolist())


def _shares(codes: np.ndarray, length: int) -> tuple[float, ...]:
    counts = np.bincount(codes.astype(np.int64), minlength=length)
    return tuple((counts / len(codes)).tolist())


def wasserstein(one: Distributions, other: Distributions) -> float:
    """The 1-Wasserstein distance (Definition C.3) between two parties, by their marginals.

    The ground metric is the sum over columns and target of the difference between standardised
    numbers, and of 0 or 1 between categories. Under it a column of numbers adds the integral of
    the difference between the quantile functions, where a quantile stands for its equal part of
    [0, 1]; a column of categories adds the total variation distance.

    The cost of a coupling of the joint distributions is the sum of what it costs in each column,
    which is no less than the best coupling of that column's marginals. So this is a lower bound of
    the joint W1, to the precision of the quantiles: columns that only depend on each other in
    another way do not count. The term of C.13 that is made of it is a lower estimate.
    """
    numbers = zip(one.quantiles, other.quantiles, strict=True)
    shares = zip(one.shares, other.shares, strict=True)
    return sum(_between_quantiles(*pair) for pair in numbers) + sum(
        float(np.abs(np.subtract(*pair)).sum()) / 2 for pair in shares
    )


def _between_quantiles(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """The integral over [0, 1] of the difference between two functions of equal steps."""
    pieces = math.lcm(len(one), len(other))
    steps = (np.repeat(told, pieces // len(told)) for told in (one, other))
    return float(np.abs(np.subtract(*steps)).mean())
