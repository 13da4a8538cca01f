"""What a party tells of its search for one regression on all parties' pairs: sums over its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from cotune.errors import Malformed
from cotune.party.task import (
    RESOLUTION,
    Configuration,
    Reply,
    Task,
    Term,
    cost_terms,
    most_summed_bytes,
)
from cotune.party.tasks import Pair, Search
from cotune.problem import seed_of

if TYPE_CHECKING:
    from cotune.party.party import Party
    from cotune.problem import Problem
    from cotune.space import Space

#: Frequencies of features that look at one column, and of those that look at all. With a cosine and
#: a sine of each, the constant and the loss, the moments are 5,253 numbers.
ALONE, TOGETHER = 30, 20
WIDTH = 2 * (ALONE + TOGETHER) + 2
#: Length scales of the kernels that the features can stand for, as shares of the cube's diagonal.
SCALES = np.array([0.1, 0.2, 0.4, 0.8])
#: Losses are counted in so many bins, eight to each halving of the worst loss.
BINS = 128


class Features:
    """Random Fourier features of a learner's configurations, drawn alike by everyone.

    1, cos(w_j x) and sin(w_j x) for x in the unit cube: Rahimi and Recht, Random Features for
    Large-Scale Kernel Machines (2007). They stand for half a kernel of all columns and half a sum
    of kernels of one column each: with many columns, so few features would not find those that
    matter. The same features serve for every length scale, see `_drawn`.
    """

    def __init__(self, problem: Problem, learner: str) -> None:
        self._space: Space = problem.space(learner)
        columns, alone = max(1, len(self._space.columns)), np.arange(ALONE)
        # NumPy keeps the streams of a RandomState for all versions.
        random = np.random.RandomState(seed_of(problem.seed, "features", learner))
        single, own = _drawn(random, 1, alone + alone // columns)
        every, shared = _drawn(random, columns, np.arange(TOGETHER))
        spread = np.zeros((columns, ALONE))
        spread[alone % columns, alone] = single[0]
        self._frequencies = np.hstack([spread, every])
        shares = np.hstack([own, shared]) / 2.0
        #: A row for each of `SCALES`: prior variances of all coefficients but the constant's.
        self.variances = np.hstack([shares, shares])

    def of(self, configurations: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """One row for each configuration, all values within [-1, 1]."""
        encoded = self._space.encode_many(configurations)
        if not encoded.shape[1]:  # all is fixed
            encoded = np.zeros((len(configurations), 1))
        angles = encoded @ self._frequencies
        return np.hstack([np.ones((len(angles), 1)), np.cos(angles), np.sin(angles)])


def _drawn(
    random: np.random.RandomState, columns: int, turns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies, each for the scale whose turn it is; and for every scale how they share in it.

    The spectrum of a Matérn 5/2 kernel of length scale l over d columns is a t distribution:
    p_l(w) ~ l^d (1 + |w l|^2 / 5)^(-(5 + d) / 2). The frequencies come from a mixture of these, so
    variances in proportion to p_l(w_j) / sum_k p_k(w_j) make of them the kernel of any l.
    """
    lengths = np.sqrt(columns) * SCALES
    normal = random.normal(size=(columns, len(turns))) / lengths[turns % len(lengths)]
    frequencies = normal / np.sqrt(random.chisquare(5.0, size=len(turns)) / 5.0)
    squares = (frequencies**2).sum(axis=0) * lengths[:, None] ** 2
    logs = columns * np.log(lengths)[:, None] - (5 + columns) / 2 * np.log1p(squares / 5.0)
    shares = np.exp(logs - logs.max(axis=0))
    shares /= shares.sum(axis=0)
    return frequencies, shares / shares.sum(axis=1, keepdims=True)


def moments(features: Features, pairs: Sequence[Pair], ceiling: float) -> np.ndarray:
    """The upper triangle of Z^T W Z: rows of Z are features and loss, W is 1 / doubt.

    Losses are cut at the ceiling and divided by it.
    """
    phi = features.of([pair.params for pair in pairs])
    losses = np.minimum([pair.loss for pair in pairs], ceiling) / ceiling
    Z = np.column_stack([phi, losses])
    weights = 1.0 / np.array([pair.doubt for pair in pairs])
    whole = (Z * weights[:, None]).T @ Z
    return np.asarray(whole[np.triu_indices(len(whole))])


def edges(problem: Problem) -> np.ndarray:
    """The upper ends of the bins in which losses are counted."""
    worst = problem.metric.worst(problem.schema)
    return np.asarray(worst * 2.0 ** (np.arange(1 - BINS, 1) / 8.0))


class Tallied(Reply, frozen=True):
    """How many losses lie in each bin, learner after learner; costs per learner."""

    counts: list[int]
    fits: list[int]
    cpu_seconds: list[float]


class Tally(Task, frozen=True):
    """Search the learners' spaces alone, and count the losses by size."""

    discloses = (
        "how many configurations of its own search had losses of about each size, and how many "
        "fits and CPU seconds the search took"
    )
    reply = Tallied

    search: Search

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        learners = len(self.search.learners)
        return {
            "counts": Term(learners * BINS, 0.0, float(self.search.most_pairs), 1.0),
            **cost_terms(learners),
        }

    def perform(self, party: Party) -> Tallied:
        found, ends = party.searched(self.search), edges(party.problem)
        counts: list[int] = []
        for searched in found:
            bins = np.searchsorted(ends, [pair.loss for pair in searched.pairs])
            counts += np.bincount(np.minimum(bins, BINS - 1), minlength=BINS).tolist()
        return Tallied(
            counts,
            [searched.fits for searched in found],
            [searched.cpu_seconds for searched in found],
        )

    def most_fits(self, problem: Problem) -> int:
        return self.search.most_fits(problem)

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))


class Told(Reply, frozen=True):
    """`moments` of every learner, one after the other, and of how many pairs they are."""

    moments: list[float]
    pairs: list[int]


class Moments(Task, frozen=True):
    """Add up what a regression of losses on features needs, over the pairs of the party's search.

    A party that has not searched (`Tally`) refuses. Configurations that were `judged` by all
    parties since then count too, as far as the party remembers them.

    Parameters
    ----------
    ceilings
        For each learner the loss from which on all are as bad.
    """

    discloses = (
        "sums over the configurations of its own search and those that all parties judged: of "
        "about 100 waves over the search space, of the products of any two of them, and of each "
        "with the loss (one party's sums tell roughly where it searched and what it found there, "
        "and of as few configurations as waves nearly all)"
    )
    reply = Told

    search: Search
    ceilings: tuple[Annotated[float, msgspec.Meta(gt=0)], ...]
    judged: tuple[Configuration, ...] = ()

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        learners = len(self.search.learners)
        # A loss that several shuffles of the folds tell of weighs as many times.
        most = float(self.search.most_pairs + len(self.judged))
        return {
            "moments": Term(learners * WIDTH * (WIDTH + 1) // 2, -most, most, RESOLUTION),
            "pairs": Term(learners, 0.0, most, 1.0),
        }

    def perform(self, party: Party) -> Told:
        from cotune.party.predict import learnt_from

        if len(self.ceilings) != len(self.search.learners):
            raise Malformed("there is not one ceiling for each learner")
        _, learnt = learnt_from(party, self.search, self.judged)
        told = [
            moments(Features(party.problem, learner), pairs, ceiling)
            for learner, pairs, ceiling in zip(
                self.search.learners, learnt, self.ceilings, strict=True
            )
        ]
        return Told(np.concatenate(told).tolist(), [len(pairs) for pairs in learnt])

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))


TASKS: tuple[type[Task], ...] = (Tally, Moments)
