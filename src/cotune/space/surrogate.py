"""Surrogates: what a configuration's loss would be, learnt from those that were judged."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from cotune.errors import UsageError, choices
from cotune.space.space import Space

SURROGATES = ("forest", "gp")
#: Of a forest: FLoRA's number.
TREES = 100
#: Threads are limited for the whole process, in which several parties may be simulated.
_ALONE = threading.Lock()


class Surrogate:
    """A regressor from configurations, in the transformed unit cube, to losses.

    `forest` is FLoRA's choice: 100 trees, the deviation over them as uncertainty (appendix B).
    `gp` is a Gaussian process with a Matérn 5/2 kernel, a length scale per column, and noise.

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
        self._model: Any = _Forest(seed) if kind == "forest" else _Process()

    def fit(
        self,
        configurations: Sequence[Mapping[str, Any]],
        losses: Sequence[float],
        doubts: Sequence[float] | None = None,
    ) -> Surrogate:
        """Learn from losses; `doubts` are their variances, as multiples of one another."""
        y = np.asarray(losses, dtype=float)
        spread = np.ones(len(y)) if doubts is None else np.asarray(doubts, dtype=float)
        with _ALONE, threadpool_limits(1):
            self._model.fit(self._encoded(configurations), y, spread)
        return self

    def predict(self, configurations: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of the predicted loss of each configuration."""
        with _ALONE, threadpool_limits(1):
            mean, deviation = self._model.predict(self._encoded(configurations))
        return mean, deviation

    def _encoded(self, configurations: Sequence[Mapping[str, Any]]) -> np.ndarray:
        encoded = self._space.encode_many(configurations)
        if not encoded.shape[1]:  # all is fixed: one column, so that there is something to fit
            return np.zeros((len(configurations), 1))
        return encoded


class _Forest:
    def __init__(self, seed: int) -> None:
        from sklearn.ensemble import RandomForestRegressor

        self._forest = RandomForestRegressor(TREES, random_state=seed, n_jobs=1)

    def fit(self, x: np.ndarray, y: np.ndarray, doubts: np.ndarray) -> None:
        self._forest.fit(x, y, None if (doubts == doubts[0]).all() else 1.0 / doubts)

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        each = np.stack([tree.predict(x) for tree in self._forest.estimators_])
        return each.mean(axis=0), each.std(axis=0)


class _Process:
    """A Gaussian process that looks at the better losses.

    Those above the upper third are cut to it: how bad the bad ones are is of no use near the
    minimum, and would stretch the length scales.
    """

    #: The share of the losses that is not cut.
    USEFUL = 0.7
    #: Of more pairs than this some are used, good and bad: fitting takes time of the third power.
    MOST = 256

    def fit(self, x: np.ndarray, y: np.ndarray, doubts: np.ndarray) -> None:
        from scipy.optimize import minimize
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern

        from cotune.space.kernel import Noise

        x, y, doubts = self._thinned(x, y, doubts)
        y = np.minimum(y, np.quantile(y, self.USEFUL))
        scales = np.full(x.shape[1], 0.4)
        value = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(scales, (0.1, 5.0), nu=2.5)
        kernel = value + Noise(0.1, (1e-3, 3.0), doubts)
        first = GaussianProcessRegressor(kernel, optimizer=None, normalize_y=True).fit(x, y)

        def unlikelihood(theta: np.ndarray) -> tuple[float, np.ndarray]:
            likelihood, gradient = first.log_marginal_likelihood(theta, True, clone_kernel=False)
            return -likelihood, -gradient

        # The regressor's own optimiser does the same, but warns whenever a bound is reached.
        likeliest = minimize(unlikelihood, kernel.theta, jac=True, bounds=kernel.bounds)
        self._process = GaussianProcessRegressor(
            kernel.clone_with_theta(likeliest.x), optimizer=None, normalize_y=True
        ).fit(x, y)

    def _thinned(self, *columns: np.ndarray) -> list[np.ndarray]:
        """At most `MOST` rows, evenly spread over the ranks of the second column, the losses.

        With the best alone the process would not know where losses are bad, and expect the mean
        of good ones there.
        """
        _, losses, *_ = columns
        ranks = np.linspace(0, len(losses) - 1, min(len(losses), self.MOST)).round().astype(int)
        kept = np.sort(np.argsort(losses, kind="stable")[ranks])
        return [column[kept] for column in columns]

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, deviation = self._process.predict(x, return_std=True)
        return mean, deviation
