"""scikit-learn's estimators, mended where `fit` would fail on what a small party may hold."""

from __future__ import annotations

from math import ceil
from typing import Any, Self

import numpy as np
from sklearn.base import is_classifier
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor

from cotune.learners.prebinned import PreBinned


class _AnyColumns:
    """Accepts numeric columns without a single value, on which scikit-learn 1.9 fails.

    Such a column is made constant, so that no tree splits on it, whatever comes later.
    """

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        empty = np.isnan(X).all(axis=0)
        super().fit(np.where(empty, 0.0, X) if empty.any() else X, y)  # type: ignore[misc]
        return self


class TolerantBoostingClassifier(
    _AnyColumns,
    PreBinned,
    HistGradientBoostingClassifier,  # type: ignore[misc]
):
    """`HistGradientBoostingClassifier`, fitted even if a column is all missing."""


class TolerantBoostingRegressor(
    _AnyColumns,
    PreBinned,
    HistGradientBoostingRegressor,  # type: ignore[misc]
):
    """`HistGradientBoostingRegressor`, fitted even if a column is all missing."""


class _AnySize:
    """Holds no rows out for early stopping where they are too few, and shrinks large batches."""

    early_stopping: bool
    validation_fraction: float
    batch_size: int | str

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        asked = {"early_stopping": self.early_stopping, "batch_size": self.batch_size}
        held_out = ceil(self.validation_fraction * len(y)) if self.early_stopping else 0
        if not _can_split(y, held_out, stratified=is_classifier(self)):
            self.early_stopping, held_out = False, 0
        if isinstance(self.batch_size, int):
            self.batch_size = min(self.batch_size, len(y) - held_out)
        try:
            super().fit(X, y)  # type: ignore[misc]
        finally:
            vars(self).update(asked)
        return self


def _can_split(y: np.ndarray, held_out: int, *, stratified: bool) -> bool:
    """Whether `held_out` rows, at least two, can be set aside, with every class on both sides."""
    if not stratified:
        return 2 <= held_out < len(y)
    counts: Any = np.unique(y, return_counts=True)[1]
    return bool(counts.min() >= 2 and max(2, len(counts)) <= held_out <= len(y) - len(counts))


class TolerantPerceptronClassifier(_AnySize, MLPClassifier):  # type: ignore[misc]
    """`MLPClassifier`, fitted to any number of rows."""


class TolerantPerceptronRegressor(_AnySize, MLPRegressor):  # type: ignore[misc]
    """`MLPRegressor`, fitted to any number of rows."""
