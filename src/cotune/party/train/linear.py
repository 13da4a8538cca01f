"""A party's part in training a linear model: loss, slope and curvature, summed over its rows."""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import numpy as np

from cotune.errors import DataError, Malformed
from cotune.party.task import RESOLUTION, Reply, Task, Term, most_summed_bytes
from cotune.party.train.losses import Loss, bent, outputs_of

if TYPE_CHECKING:
    from cotune.party.party import Party
    from cotune.problem import Problem

#: No sum may lie beyond: the private ways of adding need to know. Over standardised columns, a
#: sum of squares is the number of rows at most.
FARTHEST = 2.0**31
#: Rows that are looked at together: bounds the memory that a feature map takes.
CHUNK = 4096

#: Of which coefficients the curvature is told: none, those of the first output, or all.
Curvature = Literal["none", "block", "whole"]


class Fourier(msgspec.Struct, frozen=True):
    """A random feature map, drawn alike wherever it is used.

    ``cos(x W)`` and ``sin(x W)``, over the root of their number, with W normal of the variance
    ``2 gamma``: products of mapped rows have the mean ``exp(-gamma |x - x'|^2)``. Rahimi and Recht,
    Random Features for Large-Scale Kernel Machines (2007).
    """

    gamma: Annotated[float, msgspec.Meta(gt=0, le=1e100)]
    pairs: Annotated[int, msgspec.Meta(ge=1, le=2**12)]
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]

    def frequencies(self, columns: int) -> np.ndarray:
        """W, the same each time: not to be changed. NumPy keeps this stream for all versions."""
        return _frequencies(self, columns)

    def mapped(self, X: np.ndarray) -> np.ndarray:
        angles = X @ self.frequencies(X.shape[1])
        both = np.hstack([np.cos(angles), np.sin(angles)])
        both /= np.sqrt(self.pairs)
        return both


@lru_cache(maxsize=4)
def _frequencies(fourier: Fourier, columns: int) -> np.ndarray:
    drawn: np.ndarray = np.random.RandomState(fourier.seed).normal(size=(columns, fourier.pairs))
    drawn *= np.sqrt(2.0 * fourier.gamma)
    return drawn


class Slopes(Reply, frozen=True):
    """Sums over a party's rows; `mass` is that of the rows' weights."""

    loss: list[float]
    mass: list[float]
    gradient: list[float]
    curvature: list[float]


class Slope(Task, frozen=True):
    """Sum loss, gradient and curvature of a linear model over the party's rows.

    Parameters
    ----------
    coefficients
        Float64, little-endian: one row per output, the intercept last.
    curvature
        Of which coefficients the second derivatives are told: the upper triangle.
    balanced
        Whether every class has the same weight in all, by the rows of all parties; else all rows.
    epsilon
        Half the width of the tube of `squared_epsilon`, in deviations of the target.
    fourier
        A map that the rows go through first.
    """

    discloses = (
        "the loss of a linear model that all parties are sent, its slope and its curvature in the "
        "coefficients, summed over its rows, and the sum of their weights (from such sums at many "
        "models, the rows of a party that has fewer rows than columns could be reconstructed)"
    )
    reply = Slopes

    loss: Loss
    coefficients: bytes
    curvature: Curvature = "none"
    balanced: bool = False
    epsilon: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    fourier: Fourier | None = None

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        assert problem is not None
        outputs = outputs_of(self.loss, len(problem.schema.classes))
        length = len(self.coefficients) // 8
        side = {"none": 0, "block": length // outputs, "whole": length}[self.curvature]
        return {
            "loss": Term(1, 0.0, FARTHEST, RESOLUTION),
            "mass": Term(1, 0.0, FARTHEST, RESOLUTION),
            "gradient": Term(length, -FARTHEST, FARTHEST, RESOLUTION),
            "curvature": Term(side * (side + 1) // 2, -FARTHEST, FARTHEST, RESOLUTION),
        }

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))

    def perform(self, party: Party) -> Slopes:
        folder = party.folder("dense")
        sums, seconds = party.compute(slopes, folder, self)
        party.bill(0, seconds)
        terms = self.terms(party.problem)
        if not all(term.holds(sums[name], 1.0) for name, term in terms.items()):
            raise DataError(
                "sums over the party's rows go beyond 2**31 in training: is there a column with "
                "values far from the others', or is its scaling turned off? Mend or drop it"
            )
        return Slopes(**{name: values.tolist() for name, values in sums.items()})


def slopes(folder: Path, task: Slope) -> tuple[dict[str, np.ndarray], float]:
    """The reply's sums, and the CPU seconds they took. Runs on a worker."""
    from cotune.party.rows import open_rows

    began = time.thread_time()
    rows = open_rows(folder)
    schema, X = rows.problem.schema, rows.features("dense")
    outputs = outputs_of(task.loss, len(schema.classes))
    columns = X.shape[1] if task.fourier is None else 2 * task.fourier.pairs
    if len(task.coefficients) != 8 * outputs * (columns + 1):
        raise Malformed("the coefficients are not as many as the model has")
    coefficients = np.frombuffer(task.coefficients, "<f8").reshape(outputs, columns + 1)
    y, weights = rows.y, np.ones(len(X))
    if task.loss == "squared_epsilon":
        y = (y - schema.target_mean) / schema.target_scale
    elif task.balanced:
        weights = balanced_weights(schema.class_rows)[y]
    sums: dict[str, np.ndarray] = {}
    for start in range(0, len(X), CHUNK):
        part = slice(start, start + CHUNK)
        mapped = X[part] if task.fourier is None else task.fourier.mapped(X[part])
        extended = np.hstack([mapped, np.ones((len(mapped), 1))])
        for name, values in _summed(task, coefficients, extended, y[part], weights[part]).items():
            sums[name] = sums[name] + values if start else values
    return sums, time.thread_time() - began


def balanced_weights(class_rows: tuple[int, ...]) -> np.ndarray:
    """scikit-learn's: the rows over the number of classes, over the rows of the class."""
    counts = np.array(class_rows, float)
    weights: np.ndarray = counts.sum() / (len(counts) * np.maximum(counts, 1.0))
    return weights


def _summed(
    task: Slope, coefficients: np.ndarray, X: np.ndarray, y: np.ndarray, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """The reply's sums over some rows, which end in a column of ones."""
    here = bent(task.loss, X @ coefficients.T, y, task.epsilon)
    outputs, columns = coefficients.shape
    told = {"none": 0, "block": 1, "whole": outputs}[task.curvature]
    square = np.zeros((told, columns, told, columns))
    for a in range(told):
        for b in range(a, told):
            second = here.curvature(a, b)
            if second.any():
                square[a, :, b, :] = X.T @ (X * (weights * second)[:, None])
    side = told * columns
    return {
        "loss": np.array([weights @ here.loss]),
        "mass": np.array([weights.sum()]),
        "gradient": ((here.slope * weights[:, None]).T @ X).ravel(),
        "curvature": square.reshape(side, side)[np.triu_indices(side)],
    }


TASKS: tuple[type[Task], ...] = (Slope,)
