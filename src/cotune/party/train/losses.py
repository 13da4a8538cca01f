"""The losses of linear models: of every row, with slope and curvature in the row's scores.

A score is ``x w + b``, one for each output: one for two classes or a number, else one per class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

Loss = Literal["logistic", "squared_hinge", "squared_epsilon"]


class Bent(NamedTuple):
    """A loss at some scores: per row, its slope per row and output, its curvature.

    `curvature(a, b)` is the second derivative by the outputs a and b, per row.
    """

    loss: np.ndarray
    slope: np.ndarray
    curvature: Callable[[int, int], np.ndarray]


def bent(loss: Loss, scores: np.ndarray, y: np.ndarray, epsilon: float) -> Bent:
    """`y` are class codes, for `squared_epsilon` numbers."""
    if loss == "squared_epsilon":
        return _squared_epsilon(scores, y, epsilon)
    if loss == "squared_hinge":
        return _squared_hinge(scores, _signs(y, scores.shape[1]))
    return _binary(scores, _signs(y, 1)) if scores.shape[1] == 1 else _multinomial(scores, y)


def outputs_of(loss: Loss, classes: int) -> int:
    return 1 if loss == "squared_epsilon" or classes == 2 else classes


def _binary(scores: np.ndarray, signs: np.ndarray) -> Bent:
    """``log(1 + exp(-s z))``."""
    loss = np.logaddexp(0.0, -signs * scores)
    wrong = np.exp(-np.logaddexp(0.0, signs * scores))  # the probability of the other class
    return Bent(loss[:, 0], -signs * wrong, lambda a, b: (wrong * (1.0 - wrong))[:, 0])


def _multinomial(scores: np.ndarray, y: np.ndarray) -> Bent:
    """``log(sum_k exp(z_k)) - z_y``."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    sums = np.exp(shifted).sum(axis=1)
    share = np.exp(shifted) / sums[:, None]
    rows = np.arange(len(y))
    slope = share.copy()
    slope[rows, y] -= 1.0
    return Bent(
        np.log(sums) - shifted[rows, y],
        slope,
        lambda a, b: share[:, a] * (float(a == b) - share[:, b]),
    )


def _squared_hinge(scores: np.ndarray, signs: np.ndarray) -> Bent:
    """``max(0, 1 - s z)^2``, summed over the outputs: each class against the rest."""
    short = np.maximum(0.0, 1.0 - signs * scores)
    return Bent(
        (short**2).sum(axis=1),
        -2.0 * signs * short,
        lambda a, b: 2.0 * (short[:, a] > 0.0) * float(a == b),
    )


def _squared_epsilon(scores: np.ndarray, y: np.ndarray, epsilon: float) -> Bent:
    """``max(0, |z - y| - epsilon)^2``."""
    off = scores - y[:, None]
    beyond = np.maximum(0.0, np.abs(off) - epsilon)
    return Bent(
        (beyond**2)[:, 0],
        2.0 * np.sign(off) * beyond,
        lambda a, b: 2.0 * (beyond[:, 0] > 0.0),
    )


def _signs(y: np.ndarray, outputs: int) -> np.ndarray:
    """1 where a row has the output's class, else -1; two classes share an output, the second's."""
    of_output = np.arange(outputs) if outputs > 1 else np.array([1])
    return np.where(y[:, None] == of_output, 1.0, -1.0)
