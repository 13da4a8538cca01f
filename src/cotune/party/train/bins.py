"""Bins of a column's values: where the edges between them lie, and which bin a row is in."""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np

#: Of one column, at most; with the bin of the missing values a bin's number fits into a byte.
MOST_BINS = 255
#: Numbers beyond the range of single precision count as its ends.
LARGEST = float(np.finfo(np.float32).max)


class Bins(msgspec.Struct, frozen=True, dict=True):
    """How many bins every column has, and the edges between them (None: a bin for each category).

    Bin `b` holds the numbers below edge `b` that are not below the edge before it. They are
    compared in single precision (the edges are packed float32), as XGBoost and scikit-learn's
    trees do it: so a row is where it was in training when the model predicts it. Missing values
    have a bin of their own, after the others.
    """

    sizes: tuple[int, ...]
    packed: tuple[bytes | None, ...]

    def __post_init__(self) -> None:
        for size, packed in zip(self.sizes, self.packed, strict=True):
            if not 1 <= size <= MOST_BINS or (packed is not None and len(packed) != 4 * size - 4):
                raise ValueError("the bins are not between 1 and 255 with edges between them")

    @cached_property
    def edges(self) -> tuple[np.ndarray | None, ...]:
        return tuple(None if p is None else np.frombuffer(p, dtype="<f4") for p in self.packed)

    def of(self, X: np.ndarray) -> np.ndarray:
        """The bin of every row in every column, one column after the other in memory."""
        binned = np.empty(X.shape, dtype=np.uint8, order="F")
        for position, (size, edges) in enumerate(zip(self.sizes, self.edges, strict=True)):
            values = X[:, position]
            missing = np.isnan(values)
            if edges is None:
                found = np.where(missing, 0, values).astype(np.int64)
            else:
                found = np.searchsorted(edges, single(values), side="right")
            binned[:, position] = np.where(missing, size, np.clip(found, 0, size - 1))
        return binned


def single(values: np.ndarray) -> np.ndarray:
    """The numbers in single precision, none of them infinite."""
    numbers: np.ndarray = np.clip(values, -LARGEST, LARGEST).astype(np.float32)
    return numbers


def counts_between(values: np.ndarray, boundaries: np.ndarray) -> np.ndarray:
    """How many of the sorted values lie below, between and from the last of the boundaries on."""
    below = np.searchsorted(values, boundaries, side="left")
    return np.diff(below, prepend=0, append=len(values))
