"""FLoRA's single global model from sums over the parties: a regression on shared features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cotune.coordinator.federation import Federation
from cotune.methods.evaluate import evaluate
from cotune.methods.unified import Unified, inside
from cotune.party.moments import BINS, WIDTH, Features, Moments, Tally, edges
from cotune.party.task import Configuration
from cotune.party.tasks import Candidates, Search
from cotune.problem import Problem
from cotune.trial import Trial

#: The share of all losses that is not cut: how bad the others are is of no use near the minimum.
USEFUL = 0.7
#: Variances of the noise that are tried, as multiples of the surface's own.
NOISES = np.geomspace(1e-3, 3.0, 8)


class Regressed(Unified):
    """SGM, and SGM+U with `alpha` above 0: the parties add up moments of their pairs."""

    def __init__(
        self, federation: Federation, problem: Problem, search: Search, alpha: float
    ) -> None:
        super().__init__(federation, problem, search, "features")
        self._alpha = alpha
        self._judged: tuple[Configuration, ...] = ()
        self._regressions: list[Regression] = []  # none: to be learnt (anew)
        self._features = [Features(problem, learner) for learner in problem.learners]
        sums = federation.sum(Tally(search))  # lines 2-4
        fits, seconds = sums.sum("fits").astype(int), sums.sum("cpu_seconds")
        self.fits = dict(zip(problem.learners, fits.tolist(), strict=True))
        self.cpu_seconds = dict(zip(problem.learners, seconds.tolist(), strict=True))
        counts = sums.sum("counts").reshape(len(problem.learners), BINS).cumsum(axis=1)
        useful = [np.searchsorted(own, USEFUL * own[-1]) for own in counts]
        self._ceilings = tuple(edges(problem)[useful].tolist())

    def _learn(self) -> None:
        """Lines 5 and 6."""
        sums = self._federation.sum(Moments(self._search, self._ceilings, self._judged))
        self.parties, self.weight = sums.parties, sums.weight
        told = np.split(sums.sum("moments"), len(self._features))
        self._regressions = [
            Regression(moments, count, features.variances)
            for moments, count, features in zip(
                told, sums.sum("pairs").tolist(), self._features, strict=True
            )
        ]

    def _judge(self, shot: Sequence[Configuration]) -> Sequence[Trial]:
        self._judged += tuple(inside(self._problem, shot))
        self._regressions = []
        return evaluate(self._federation, shot)

    def __call__(self, asked: Sequence[Candidates]) -> list[np.ndarray]:
        if not self._regressions:
            self._learn()
        values = []
        for learner, candidates, features, regression, ceiling in zip(
            self._problem.learners,
            asked,
            self._features,
            self._regressions,
            self._ceilings,
            strict=True,
        ):
            phi = features.of(candidates.drawn(self._problem.space(learner)))
            mean, deviation = regression.predict(phi)
            values.append(ceiling * (mean + self._alpha * deviation))
        return values


class Regression:
    """Bayesian linear regression of losses on features, from their moments.

    y = m + phi^T beta + noise with beta ~ N(0, a S), noise ~ N(0, a lambda W^-1) and any m: means
    are taken off by the moments of the constant. S, by the kernel's length scale, and lambda are
    those of the largest marginal likelihood, over a given set; a follows from them. All of it is
    a function of the eigenvalues e_j of S^1/2 Phi^T W Phi S^1/2:

        -2 log p(y) = (n - 1) log r + sum_j log(1 + e_j / lambda),
        r = y^T W y - sum_j c_j^2 / (e_j + lambda) = (n - 1) a lambda,

    with c the eigenvectors' products with S^1/2 Phi^T W y.

    Parameters
    ----------
    moments
        As `cotune.party.moments.moments` has them, added up over any number of parties.
    pairs
        n, of how many losses.
    variances
        The diagonal of S, a row for each length scale.
    """

    def __init__(self, moments: np.ndarray, pairs: float, variances: np.ndarray) -> None:
        M = np.zeros((WIDTH, WIDTH))
        M[np.triu_indices(WIDTH)] = moments
        M += np.triu(M, 1).T
        self._mass, self._means = M[0, 0], M[0, 1:] / M[0, 0]
        M = M[1:, 1:] - np.outer(M[0, 1:], self._means)
        freedom = max(1.0, pairs - 1.0)
        best = -np.inf
        for roots in np.sqrt(variances):
            e, U = np.linalg.eigh(roots[:, None] * M[:-1, :-1] * roots)
            e = np.maximum(e, 0.0)  # below 0 by rounding
            c = U.T @ (roots * M[:-1, -1])
            for noise in NOISES:
                rest = max(M[-1, -1] - float(np.sum(c**2 / (e + noise))), 1e-12)
                likelihood = -freedom * np.log(rest) - np.log1p(e / noise).sum()
                if likelihood > best:
                    best, self._variance = likelihood, rest / freedom
                    self._axes = roots[:, None] * U
                    self._slopes, self._spread = c / (e + noise), 1.0 / (e + noise)

    def predict(self, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of the surface, without the noise, at rows of features."""
        z = (phi[:, 1:] - self._means[:-1]) @ self._axes
        mean = self._means[-1] + z @ self._slopes
        return mean, np.sqrt(self._variance * (z**2 @ self._spread + 1.0 / self._mass))
