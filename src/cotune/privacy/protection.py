"""Differential privacy of parties: clipped contributions, Gaussian noise, and the epsilon spent."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from cotune.errors import Malformed, UsageError
from cotune.party.task import Term

if TYPE_CHECKING:
    from cotune.party.keys import Keyed
    from cotune.problem import Budget

#: How far beyond its bounds noise carries a value at most, in standard deviations.
FARTHEST = 10.0
#: How many steps of its resolution a standard deviation of one party's noise has, at least: with
#: fewer than 1, rounding would swallow part of the noise.
STEPS = 16.0
#: Noise that is neither next to nothing (a single sum at 0.1 has an epsilon of 284 at a delta of
#: 1e-5) nor beyond all numbers; and clipping norms, in units of a term's largest magnitude.
LEAST_NOISE, MOST_NOISE = 0.1, 1e6
LEAST_CLIP, MOST_CLIP = 1e-6, 1e6


class Protection(msgspec.Struct, frozen=True):
    """How a party's part of a sum is clipped and noised before it is sealed.

    Every value is divided by its term's largest magnitude, so that all lie in [-1, 1]. The vector
    of them is shortened to the norm `clip`. Then each party adds its share of a Gaussian noise of
    standard deviation `noise` * `clip`: whatever one party says changes the noised total by less
    than that would hide. Among colluding parties their own shares of the noise are known.

    Attributes
    ----------
    noise
        Standard deviation of the total's noise, in units of the clipping norm.
    clip
        The norm; None is the largest that the terms' bounds allow.
    parties
        How many share in making the noise. Fewer than are asked, so that the total has enough of
        it even if others drop out.
    """

    noise: float
    clip: float | None = None
    parties: int = 1

    def check(self, keyed: Keyed) -> None:
        """Raise `Malformed` unless the total has the noise that is claimed, and that is some.

        The coordinator says how many parties share in the noise. Claimed to be more than a total
        has, they would all add next to nothing.
        """
        if not LEAST_NOISE <= self.noise <= MOST_NOISE:
            raise Malformed(
                f"the noise is {self.noise:g} clipping norms: a party adds {LEAST_NOISE:g} to "
                f"{MOST_NOISE:g}"
            )
        if self.clip is not None and not LEAST_CLIP <= self.clip <= MOST_CLIP:
            raise Malformed(
                f"the clipping norm is {self.clip:g}: a party takes {LEAST_CLIP:g} to {MOST_CLIP:g}"
            )
        least = min(len(set(keyed.among)), keyed.fewest)
        if not 1 <= self.parties <= least:
            raise Malformed(
                f"the noise is shared by {self.parties} parties, and the total may be of {least}: "
                "it would have less noise than is claimed"
            )
        if keyed.aim.scheme != "sum":
            raise Malformed("noise cannot be added where less than the total is disclosed")

    @property
    def share(self) -> float:
        """Standard deviation of one party's noise, in clipping norms."""
        return self.noise / math.sqrt(self.parties)

    def norm(self, terms: Mapping[str, Term]) -> float:
        if self.clip is not None:
            return self.clip
        squares = (t.length if t.norm is None else t.norm**2 for t in told(terms).values())
        return math.sqrt(sum(squares))

    def deviation(self, terms: Mapping[str, Term]) -> float:
        """Of one party's share of the noise, in units of a term's largest magnitude."""
        return self.share * self.norm(terms)

    def widened(self, terms: Mapping[str, Term]) -> dict[str, Term]:
        """The terms with bounds that noised values keep to, and a resolution as fine as the noise.

        Votes are whole numbers, and a party's share of the noise may be far below one half.
        """
        deviation = self.deviation(terms)
        widened = dict(terms)
        for name, term in terms.items():
            if name != "own" and deviation:  # 0 where all terms are spare: then nothing is told
                end = (1.0 + FARTHEST * deviation) * _largest(term)
                step = 2.0 ** math.floor(math.log2(deviation * _largest(term) / STEPS))
                resolution = min(term.resolution, step)
                widened[name] = msgspec.structs.replace(
                    term, low=-end, high=end, resolution=resolution
                )
        return widened

    def applied(
        self,
        terms: Mapping[str, Term],
        vectors: Mapping[str, np.ndarray],
        random: Callable[[int], bytes] = os.urandom,
    ) -> dict[str, np.ndarray]:
        """The party's vectors, clipped and noised, to their resolution; costs are left out.

        `random` gives so many random bytes. By default they are the operating system's, which
        nobody can know or make again.
        """
        kept, deviation = told(terms), self.deviation(terms)
        units = {name: vectors[name] / _largest(term) for name, term in kept.items()}
        length = math.sqrt(sum(float(values @ values) for values in units.values()))
        shrink = min(1.0, self.norm(terms) / length) if length else 1.0
        found = {name: np.zeros(term.length) for name, term in terms.items()}
        found["own"] = np.array([1.0, 0.0, 0.0])
        for name, term in self.widened(kept).items():
            noise = deviation * gaussians(term.length, random)
            noised = (units[name] * shrink + noise) * _largest(kept[name])
            found[name] = np.rint(noised / term.resolution) * term.resolution
        return found


def told(terms: Mapping[str, Term]) -> dict[str, Term]:
    """What is told under noise: all but costs and figures that a method can do without."""
    return {name: term for name, term in terms.items() if not term.spare and name != "own"}


def _largest(term: Term) -> float:
    return max(abs(term.low), abs(term.high))


def gaussians(length: int, random: Callable[[int], bytes]) -> np.ndarray:
    """Standard normal numbers from 64 random bits each, by the inverse of the distribution.

    One bit is the sign, the others are the tail's probability in (0, 1/2): so the tails are as
    fine as the middle, and nothing lies beyond 9.2.
    """
    from scipy.special import ndtri

    bits = np.frombuffer(random(8 * length), dtype="<u8")
    magnitudes: np.ndarray = ndtri(((bits >> 1) + 0.5) * 2.0**-64)
    return np.where(bits & 1, magnitudes, -magnitudes)


def epsilon(noises: Sequence[float], delta: float) -> float:
    """The epsilon of all sums that were disclosed under these noises: exact, not a bound.

    Two federations are neighbours if they differ in what one party says: that can turn a clipped
    vector into its opposite, and move the total by twice the clipping norm. Sums with Gaussian
    noise compose to one of sensitivity / deviation mu = sqrt(sum((2 / noise)^2)), for which
    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle and Wang,
    ICML 2018, theorem 8); delta falls with epsilon, which is found by halving an interval.
    """
    mu = math.hypot(*(2.0 / noise for noise in noises))
    if mu == 0.0 or _delta(0.0, mu) <= delta:
        return 0.0
    low, high = 0.0, mu**2 / 2.0 + mu * math.sqrt(-2.0 * math.log(delta))  # a bound
    while low < (middle := (low + high) / 2.0) < high:
        low, high = (middle, high) if _delta(middle, mu) > delta else (low, middle)
    return high


def _delta(epsilon: float, mu: float) -> float:
    """In logarithms: e^epsilon alone can be beyond all numbers."""
    from scipy.special import log_ndtr

    near = float(log_ndtr(mu / 2.0 - epsilon / mu))
    far = epsilon + float(log_ndtr(-mu / 2.0 - epsilon / mu))
    return -math.exp(near) * math.expm1(far - near)


#: Methods of which a noised run can come to something; others divide by noised counts.
METHODS = ("dash", "defaults", "vote", "flora")


def check(
    noise: float | None, clip: float | None, delta: float, *, private: bool, equal: bool,
    method: str, budget: Budget,
) -> None:  # fmt: skip
    """Refuse, before any work is done, noise that would protect nobody."""
    if noise is None:
        if clip is not None:
            raise UsageError("clip is about noise: give noise, too")
        return
    if method == "fedex":  # a loss is clipped together with weights, whose bounds are far wider
        raise UsageError(
            "fedex cannot learn under noise, which is far larger than any loss in its sums: tune "
            "the network by method='vote' or 'dash', or leave noise out"
        )
    if method not in METHODS:
        raise UsageError(f"noise is for the methods {', '.join(METHODS)}, not for {method}")
    if not LEAST_NOISE <= noise <= MOST_NOISE:
        raise UsageError(
            f"the noise is {noise}: give a number from {LEAST_NOISE:g} to {MOST_NOISE:g}, say 1.0"
        )
    if clip is not None and not LEAST_CLIP <= clip <= MOST_CLIP:
        raise UsageError(
            f"the clipping norm is {clip}: give a number from {LEAST_CLIP:g} to {MOST_CLIP:g}"
        )
    if not 0 < delta < 1:
        raise UsageError(f"delta is {delta}: give a small number above 0, say 1e-5")
    if not private:
        raise UsageError(
            "each party adds only its share of the noise, so sums must be private: add "
            "privacy='masked' or 'encrypted'"
        )
    if not equal:
        raise UsageError("under noise all parties count the same: add weights='equal'")
    if budget.fits is not None:
        raise UsageError("under noise no party tells its fits: limit trials or rounds instead")
