"""Differential privacy of parties: clipped contributions, Gaussian noise, and the epsilon spent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from cotune.errors import UsageError
from cotune.party.task import Term

if TYPE_CHECKING:
    from cotune.problem import Budget

#: How far beyond its bounds noise may carry a value, in standard deviations.
FARTHEST = 16.0


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

    noise: Annotated[float, msgspec.Meta(gt=0)]
    clip: Annotated[float, msgspec.Meta(gt=0)] | None = None
    parties: Annotated[int, msgspec.Meta(ge=1)] = 1

    def norm(self, terms: Mapping[str, Term]) -> float:
        if self.clip is not None:
            return self.clip
        squares = (t.length if t.norm is None else t.norm**2 for t in told(terms).values())
        return math.sqrt(sum(squares))

    def deviation(self, terms: Mapping[str, Term]) -> float:
        """Of one party's share of the noise, in units of a term's largest magnitude."""
        return self.noise * self.norm(terms) / math.sqrt(self.parties)

    def widened(self, terms: Mapping[str, Term]) -> dict[str, Term]:
        """The terms with bounds that noised values keep to; what is not told has none."""
        reach = 1.0 + FARTHEST * self.deviation(terms)
        ends = {name: reach * _largest(term) for name, term in terms.items() if name != "own"}
        return {
            name: msgspec.structs.replace(term, low=-ends[name], high=ends[name])
            if name in ends
            else term
            for name, term in terms.items()
        }

    def applied(
        self, terms: Mapping[str, Term], vectors: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The party's vectors, clipped and noised, to their resolution; costs are left out."""
        random = np.random.default_rng()  # seeded by the system: nobody may know it
        kept = told(terms)
        units = {name: vectors[name] / _largest(term) for name, term in kept.items()}
        length = math.sqrt(sum(float(values @ values) for values in units.values()))
        shrink = min(1.0, self.norm(terms) / length) if length else 1.0
        deviation = self.deviation(terms)
        found = {"own": np.array([1.0, 0.0, 0.0])}
        for name, term in terms.items():
            if name in kept:
                noise = random.normal(0.0, deviation, term.length)
                noise = np.clip(noise, -FARTHEST * deviation, FARTHEST * deviation)
                noised = (units[name] * shrink + noise) * _largest(term)
                found[name] = np.rint(noised / term.resolution) * term.resolution
            elif name != "own":
                found[name] = np.zeros(term.length)
        return found


def told(terms: Mapping[str, Term]) -> dict[str, Term]:
    """What is told under noise: all but costs and figures that a method can do without."""
    return {name: term for name, term in terms.items() if not term.spare and name != "own"}


def _largest(term: Term) -> float:
    return max(abs(term.low), abs(term.high))


def epsilon(noises: Sequence[float], delta: float) -> float:
    """The epsilon of all sums that were told under these noises, by Renyi accounting.

    Two federations are neighbours if they differ in what one party says: that can turn a clipped
    vector into its opposite, and move the total by twice the clipping norm.
    """
    from dp_accounting import GaussianDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    for noise in sorted(set(noises)):
        accountant.compose(GaussianDpEvent(noise / 2.0), noises.count(noise))
    return float(accountant.get_epsilon(delta))


#: Methods of which a noised run can come to something; others divide by noised counts.
METHODS = ("dash", "defaults", "vote", "flora", "fedex")


def check(
    noise: float | None, clip: float | None, delta: float, *, private: bool, equal: bool,
    method: str, budget: Budget,
) -> None:  # fmt: skip
    """Refuse, before any work is done, noise that would protect nobody."""
    if noise is None:
        if clip is not None:
            raise UsageError("clip is about noise: give noise, too")
        return
    if not noise > 0:
        raise UsageError(f"the noise is {noise}: give a number above 0, say 1.0")
    if clip is not None and not clip > 0:
        raise UsageError(f"the clipping norm is {clip}: give a number above 0")
    if not 0 < delta < 1:
        raise UsageError(f"delta is {delta}: give a small number above 0, say 1e-5")
    if not private:
        raise UsageError(
            "each party adds only its share of the noise, so sums must be private: add "
            "privacy='masked' or 'encrypted'"
        )
    if not equal:
        raise UsageError("under noise all parties count the same: add weights='equal'")
    if method not in METHODS:
        raise UsageError(f"noise is for the methods {', '.join(METHODS)}, not for {method}")
    if budget.fits is not None:
        raise UsageError("under noise no party tells its fits: limit trials or rounds instead")
    if find_spec("dp_accounting") is None:
        raise UsageError("noise needs the package dp-accounting: pip install 'cotune[privacy]'")
