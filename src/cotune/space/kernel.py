"""Noise of a Gaussian process that differs between the losses it learns from."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import WhiteKernel


class Noise(WhiteKernel):  # type: ignore[misc]
    """A variance for each row of the training data, all multiples of one that is fitted."""

    def __init__(
        self,
        noise_level: float,
        noise_level_bounds: tuple[float, float],
        multiples: np.ndarray,
    ) -> None:
        super().__init__(noise_level, noise_level_bounds)
        self.multiples = multiples

    def __call__(
        self, X: np.ndarray, Y: np.ndarray | None = None, eval_gradient: bool = False
    ) -> Any:
        if Y is not None:
            return super().__call__(X, Y)
        K = self.noise_level * np.diag(self.multiples)
        return (K, K[:, :, np.newaxis]) if eval_gradient else K
