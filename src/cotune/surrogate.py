"""Surrogates: what a configuration's loss would be, learnt from those that were judged."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from cotune.errors import UsageError, choices
from cotune.space import Space

SURROGATES = ("forest", "gp")
#: Warnings and threads are set for the whole process, in which several parties may be simulated.
_ALONE = threading.Lock()


class Surrogate:
    """A regressor from configurations, in the transformed unit cube, to losses.

    `forest` is FLoRA's choice: 100 trees, the deviation over them as uncertainty (appendix B).
    `gp` is a Gaussian process; it can also learn how losses move with the number of rows.

    >>> space = Space({"x": (0.0, 1.0)})
    >>> points = space.grid(9)
    >>> surrogate = Surrogate(space).fit(points, [abs(p["x"] - 0.5) for p in points])
    >>> mean, deviation = surrogate.predict(points)
    >>> int(mean.argmin())
    4
    """

    def __init__(self, space: Space, kind: str = "forest", seed: int = 0) -> None:
        if kind not in SURROGATES:
            raise UsageError(choices(kind, "surrogate", SURROGATES))
        self._space = space
        self._model: Any = _Forest(seed) if kind == "forest" else _Process(seed)

    def fit(
        self,
        configurations: Sequence[Mapping[str, Any]],
        losses: Sequence[float],
        sizes: Sequence[float] | None = None,
    ) -> Surrogate:
        """Learn from judged configurations.

        `sizes` are logarithms of the numbers of training rows, relative to those that `predict`
        takes as 0; a forest leaves out all but the largest.
        """
        x, y = self._encoded(configurations), np.asarray(losses, dtype=float)
        size = np.zeros(len(y)) if sizes is None else np.asarray(sizes, dtype=float)
        with _ALONE, warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")  # a kernel's bound was reached: as good as it gets
            self._model.fit(x, y, size)
        return self

    def predict(
        self, configurations: Sequence[Mapping[str, Any]], size: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of the predicted loss of each configuration, at a number of rows."""
        with _ALONE, threadpool_limits(1):
            mean, deviation = self._model.predict(self._encoded(configurations), size)
        return mean, deviation

    def _encoded(self, configurations: Sequence[Mapping[str, Any]]) -> np.ndarray:
        encoded = self._space.encode_many(configurations)
        if not encoded.shape[1]:  # all is fixed: one column, so that there is something to fit
            return np.zeros((len(configurations), 1))
        return encoded


class _Forest:
    def __init__(self, seed: int) -> None:
        from sklearn.ensemble import RandomForestRegressor

        self._forest = RandomForestRegressor(n_estimators=100, random_state=seed, n_jobs=1)

    def fit(self, x: np.ndarray, y: np.ndarray, size: np.ndarray) -> None:
        largest = size == size.max()
        self._forest.fit(x[largest], y[largest])

    def predict(self, x: np.ndarray, size: float) -> tuple[np.ndarray, np.ndarray]:
        each = np.stack([tree.predict(x) for tree in self._forest.estimators_])
        return each.mean(axis=0), each.std(axis=0)


class _Process:
    """A Gaussian process over configurations x and sizes s: value(x) + s slope(x) + noise.

    The value has a Matérn 5/2 kernel with a length scale per column. The slope is a constant plus
    a much smoother process: few configurations are judged at several sizes, and a slope that
    bends quickly would send the minimum anywhere once it is extrapolated. Losses above the upper
    third are cut to it: how bad the bad ones are is of no use near the minimum.
    """

    #: The share of the losses that is not cut.
    USEFUL = 0.7
    #: The slope's length scales, in those of the value.
    SMOOTHER = 4.0
    #: Variances of the slope's constant and of its process, in those of the losses; the
    #: likeliest are taken.
    CONSTANTS, BENDS = (0.03, 0.3, 1.0), (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
    #: Of more pairs than this the best are used: fitting takes time of the third power.
    MOST = 256

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def fit(self, x: np.ndarray, y: np.ndarray, size: np.ndarray) -> None:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        whole = np.flatnonzero(size == 0)
        whole = whole[np.argsort(y[whole], kind="stable")[: self.MOST]]
        kept = np.concatenate([np.sort(whole), np.flatnonzero(size != 0)])
        x, y, size = x[kept], self._cut(y[kept], size[kept]), size[kept]
        at_whole = size == 0
        self._centre, self._scale = y[at_whole].mean(), y[at_whole].std() or 1.0
        scales = np.full(x.shape[1], 0.4)
        value = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(scales, (0.1, 5.0), nu=2.5)
        process = GaussianProcessRegressor(
            value + WhiteKernel(0.1, (1e-3, 3.0)), random_state=self._seed
        )
        process.fit(x[at_whole], self._standard(y[at_whole]))
        self._value, noise = process.kernel_.k1, process.kernel_.k2.noise_level
        self._bent = Matern(self.SMOOTHER * self._value.k2.length_scale, nu=2.5)
        self._x, self._size, self._constant, self._bend = x, size, 0.0, 0.0
        self._solve(self._standard(y), noise)

    def predict(self, x: np.ndarray, size: float) -> tuple[np.ndarray, np.ndarray]:
        cross = self._covariance(x, np.full(len(x), size), self._x, self._size)
        own = self._value.diag(x) + size**2 * (self._constant + self._bend)
        explained = np.linalg.solve(self._root, cross.T)
        variance = np.maximum(own - np.sum(explained**2, axis=0), 0.0)
        return self._centre + self._scale * (cross @ self._weights), self._scale * np.sqrt(variance)

    def _cut(self, y: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Cut losses at the useful ones' end, which lies higher for smaller sizes."""
        whole = y[size == 0]
        cap = np.quantile(whole, self.USEFUL)
        shift = max(np.median(y[size != 0]) - np.median(whole), 0.0) if np.any(size) else 0.0
        cut: np.ndarray = np.minimum(y, cap + np.where(size == 0, 0.0, shift))
        return cut

    def _standard(self, y: np.ndarray) -> np.ndarray:
        standard: np.ndarray = (y - self._centre) / self._scale
        return standard

    def _solve(self, y: np.ndarray, noise: float) -> None:
        """Weights of the observations, with the likeliest variances of the slope."""
        value = self._value(self._x) + (noise + 1e-8) * np.eye(len(y))
        grid = [(0.0, 0.0)]
        if np.any(self._size):
            grid = [(c, b) for b in self.BENDS for c in self.CONSTANTS]
        product, bent = np.outer(self._size, self._size), self._bent(self._x)
        best = -np.inf
        for constant, bend in grid:
            root = np.linalg.cholesky(value + product * (constant + bend * bent))
            weights = np.linalg.solve(root.T, np.linalg.solve(root, y))
            likelihood = -0.5 * y @ weights - np.log(np.diag(root)).sum()
            if likelihood > best:
                best, self._root, self._weights = likelihood, root, weights
                self._constant, self._bend = constant, bend

    def _covariance(
        self, x: np.ndarray, size: np.ndarray, other: np.ndarray, other_size: np.ndarray
    ) -> np.ndarray:
        slope = self._constant + self._bend * self._bent(x, other)
        covariance: np.ndarray = self._value(x, other) + np.outer(size, other_size) * slope
        return covariance
