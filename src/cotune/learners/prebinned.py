"""Rows that scikit-learn's histogram boosting bins once, for all configurations on a fold."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

import numpy as np

#: Bytes of binned rows that a worker keeps; the least recently used go first.
MOST_BYTES = 64 * 2**20


class PreBinned:
    """Mixed into a histogram boosting estimator, it remembers binned training rows.

    Binning depends on the rows, not on what is tuned, and takes as long as ten to twenty small
    trees; a search fits every fold again and again. The place to hook in is private to
    scikit-learn: where a version calls it otherwise, rows are binned each time as usual.
    """

    _bin_mapper: Any
    max_bins: int
    random_state: int | None
    categorical_features: Any

    def _bin_data(self, X: np.ndarray, *how: Any, **named: Any) -> Any:
        key = (
            hashlib.blake2b(np.ascontiguousarray(X).data).digest(),
            X.shape,
            self.max_bins,
            self.random_state,
            repr(self.categorical_features),
            repr((how, named)),
        )
        known = _binned.get(key)
        if known is None:
            rows = super()._bin_data(X, *how, **named)  # type: ignore[misc]
            known = _binned.put(key, self._bin_mapper, rows)
        self._bin_mapper, binned = known
        return binned


class _Binned:
    """Fitted mappers and binned rows by what they were made from."""

    def __init__(self) -> None:
        self._known: OrderedDict[Any, tuple[Any, np.ndarray]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Any) -> tuple[Any, np.ndarray] | None:
        if key in self._known:
            self._known.move_to_end(key)
        return self._known.get(key)

    def put(self, key: Any, mapper: Any, rows: np.ndarray) -> tuple[Any, np.ndarray]:
        self._known[key] = mapper, rows
        self._bytes += rows.nbytes
        while self._bytes > MOST_BYTES:
            _, (_, oldest) = self._known.popitem(last=False)
            self._bytes -= oldest.nbytes
        return mapper, rows


_binned = _Binned()
