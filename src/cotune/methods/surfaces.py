"""FLoRA's unified loss surfaces, and how they are minimised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from cotune.errors import UsageError, choices
from cotune.party.tasks import Candidates
from cotune.problem import seed_of
from cotune.space import Space
from cotune.space.surrogate import Surrogate

SURFACES = ("sgm", "sgm+u", "mplm", "aplm")

Params = dict[str, Any]
#: Losses of configurations: the surface's values.
Surface = Callable[[Sequence[Params]], np.ndarray]

#: Uniform candidates, those of each zoom, their centres, and how near they are drawn.
WIDE, NEAR, CENTRES = 4096, 1024, 16
ZOOMS = (0.05,)


@dataclass(frozen=True)
class Evidence:
    """E^(i) of equation 2.6: the configurations one party tried, their losses, its weight.

    `doubts` are the losses' variances, as multiples of one another; alike if there are none.
    """

    configurations: Sequence[Mapping[str, Any]]
    losses: Sequence[float]
    weight: float = 1.0
    doubts: Sequence[float] | None = None


def surface(
    name: str,
    space: Space,
    evidence: Sequence[Evidence],
    *,
    surrogate: str = "forest",
    alpha: float = 1.0,
    seed: int = 0,
    bounded: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> Surface:
    """The unified loss surface of FLoRA's Table 2.

    - `sgm`, a single global model: f fitted on all parties' pairs.
    - `sgm+u`: f + alpha u, where u is the surrogate's uncertainty.
    - `mplm`: the maximum of the parties' own f^(i).
    - `aplm`: the mean of the parties' own f^(i), by their weights (all equal: the paper's).

    `bounded` is applied to what each f^(i) of `aplm` predicts, as a party does to its own.
    """
    if name not in SURFACES:
        raise UsageError(choices(name, "surface", SURFACES))
    if name in ("sgm", "sgm+u"):
        return _single(space, evidence, surrogate, alpha if name == "sgm+u" else 0.0, seed)
    own = [_own(space, one, surrogate, seed) for one in evidence]
    if name == "mplm":
        return lambda theta: np.max([f(theta) for f in own], axis=0)
    weights = np.array([one.weight for one in evidence])
    return lambda theta: (
        np.sum([w * bounded(f(theta)) for w, f in zip(weights, own, strict=True)], axis=0)
        / np.sum(weights)
    )


def _own(space: Space, one: Evidence, surrogate: str, seed: int) -> Surface:
    """f^(i): fitted on one party's pairs alone."""
    f = Surrogate(space, surrogate, seed).fit(one.configurations, one.losses, one.doubts)
    return lambda theta: f.predict(theta)[0]


def _single(
    space: Space, evidence: Sequence[Evidence], surrogate: str, alpha: float, seed: int
) -> Surface:
    """f + alpha u, fitted on all parties' pairs."""
    f = Surrogate(space, surrogate, seed).fit(
        [params for one in evidence for params in one.configurations],
        [loss for one in evidence for loss in one.losses],
        [d for e in evidence for d in (np.ones(len(e.losses)) if e.doubts is None else e.doubts)],
    )

    def values(theta: Sequence[Params]) -> np.ndarray:
        mean, uncertainty = f.predict(theta)
        return mean + alpha * uncertainty

    return values


def minimise(
    surface: Surface, space: Space, seed: int = 0, first: Sequence[Params] = ()
) -> list[tuple[Params, float]]:
    """Line 7 of FLoRA's Algorithm 1: configurations and their values, the best first."""
    minimiser = Minimiser(space, seed, first)
    while candidates := minimiser.ask():
        minimiser.tell(surface(candidates.drawn(space)))
    return minimiser.ranked


class Minimiser:
    """Many candidates, then many near the best of them: ask, tell the values, and again.

    It asks for candidates by description, so that their values can come from elsewhere.
    """

    def __init__(self, space: Space, seed: int = 0, first: Sequence[Params] = ()) -> None:
        self._space = space
        self._seed = seed
        self._first = tuple(first)
        self._step = 0
        self.ranked: list[tuple[Params, float]] = []

    def ask(self) -> Candidates | None:
        if self._step > len(ZOOMS):
            return None
        if self._step == 0:
            described = Candidates(WIDE, seed_of(self._seed, "wide"))
        else:
            best = [params for params, _ in self.ranked[:CENTRES]]
            around = tuple(params for params in self._first if params not in best) + tuple(best)
            epsilon = ZOOMS[self._step - 1]
            described = Candidates(NEAR, seed_of(self._seed, epsilon), around, epsilon)
        self._drawn = described.drawn(self._space)
        digest = described.digest_of(self._space, self._drawn)
        return msgspec.structs.replace(described, digest=digest)

    def tell(self, values: np.ndarray, alike: bool = True) -> None:
        """Values of the candidates asked for last.

        If they are not `alike` the earlier ones (another party answered, say), only these count;
        the best of the earlier candidates are among them.
        """
        earlier = self.ranked if alike else []
        told = zip(self._drawn, map(float, values), strict=True)
        self.ranked = _distinct(sorted([*earlier, *told], key=lambda one: one[1]))
        self._step += 1


def diverse(
    ranked: Sequence[tuple[Params, float]], space: Space, count: int, apart: float
) -> list[Params]:
    """The best `count` configurations that lie at least `apart` from each other (equation C.4).

    Where there are not as many, the distance is halved until there are, or it is next to nothing.
    """
    chosen: list[Params] = []
    while len(chosen) < count and apart > 1e-3:
        for params, _ in ranked:
            if len(chosen) == count:
                break
            if all(space.distance(params, other) >= apart for other in chosen):
                chosen.append(params)
        apart /= 2
    return chosen


def _distinct(ranked: Sequence[tuple[Params, float]]) -> list[tuple[Params, float]]:
    """The first of every configuration."""
    found: dict[Any, tuple[Params, float]] = {}
    for params, value in ranked:
        found.setdefault(tuple(params.items()), (params, value))
    return list(found.values())
