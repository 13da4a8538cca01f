"""One configuration from those that the parties found good: PrivTuna's `Combine` strategies.

Mitic, Pyrgelis, Sav: How to Privately Tune Hyperparameters in Federated Learning? Insights from a
Benchmark Study, 2024, section IV-A and appendix A.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from cotune.errors import UsageError, choices
from cotune.party.tasks import Pair
from cotune.space import Params, Space
from cotune.space.domain import Category, Domain, Number

STRATEGIES = ("mean", "median", "trimmed", "best-mean", "best-median", "dbscan")

#: What stands for several numbers; they come in ascending order.
Middle = Callable[[np.ndarray], Any]

#: Equal distances on a grid differ by rounding: less than this.
SLACK = 1e-9


class Combined(msgspec.Struct, frozen=True):
    """A configuration and how many it was made of; `loss` is the mean of theirs, not its own."""

    params: Params
    loss: float
    members: int


def combine(strategy: str, space: Space, tried: Sequence[Sequence[Pair]]) -> list[Combined]:
    """What the strategy makes of each party's pairs: the best first, one for all but `dbscan`.

    - `mean`, `median`, `trimmed`: of each party's single best configuration. The paper's authors
      took these three over all points of the parties' grids, which makes them constants of the
      grid, whatever the losses.
    - `best-mean`, `best-median`: of the best 5 % of each party's pairs, one at least.
    - `dbscan`: the mean of each of the `clusters` among the parties' `good` pairs. If there is no
      cluster, it is `best-mean`.

    Parties count equally, and their order does not matter. Of a party's pairs of the same loss the
    first is the better. `merged` tells what becomes of categories and conditional parameters.

    >>> space = Space({"depth": (1, 9), "kernel": ["rbf", "linear"]})
    >>> one = [Pair({"depth": 3, "kernel": "rbf"}, 0.1), Pair({"depth": 9, "kernel": "rbf"}, 0.4)]
    >>> other = [Pair({"depth": 5, "kernel": "rbf"}, 0.3)]
    >>> combine("mean", space, [one, other])
    [Combined(params={'depth': 4, 'kernel': 'rbf'}, loss=0.2, members=2)]
    """
    if strategy not in STRATEGIES:
        raise UsageError(choices(strategy, "strategy", STRATEGIES))
    if not tried or not all(tried):
        raise UsageError("a party without pairs has nothing to combine: leave it out")
    if strategy == "dbscan":
        found = clusters(space, [pair for own in tried for pair in good(own)])
        made = [_combined(space, members, np.mean) for members in found]
        return made or combine("best-mean", space, tried)
    several = strategy.startswith("best-")
    members = [pair for own in tried for pair in best(own, len(own) // 20 if several else 1)]
    return [_combined(space, members, _MIDDLES[strategy.removeprefix("best-")])]


def _combined(space: Space, members: Sequence[Pair], middle: Middle) -> Combined:
    params = merged(space, [pair.params for pair in members], middle=middle)
    return Combined(params, fmean(pair.loss for pair in members), len(members))


# What is combined


def best(pairs: Sequence[Pair], count: int) -> list[Pair]:
    """So many pairs of the least loss, and one at least."""
    return sorted(pairs, key=lambda pair: pair.loss)[: max(1, count)]


def good(
    pairs: Sequence[Pair], *, share: float = 0.85, most: int = 10, worst: float | None = None
) -> list[Pair]:
    """A party's pairs whose score is at least this share of its best; the `most` best of them.

    The score is how far a loss is below `worst`, by default the largest loss of these pairs. The
    authors' score is the accuracy: that is a `worst` of 1 for losses that are rates of error.

    To a party of which all pairs pass, any configuration is as good as another: as the authors do,
    none of its pairs is kept. Here that is if there are more than `most`.
    """
    losses = [pair.loss for pair in pairs]
    reference = max(losses) if worst is None else worst
    least = share * (reference - min(losses))
    kept = [pair for pair in pairs if reference - pair.loss >= least]
    return [] if len(kept) == len(pairs) > most else best(kept, most)


def clusters(
    space: Space,
    pairs: Iterable[Pair],
    *,
    eps: float | None = None,
    min_points: int | None = None,
) -> list[list[Pair]]:
    """The density-based clusters of configurations, that of the least mean loss first.

    DBSCAN in the unit cube of the space's numbers. Configurations that differ in a category, or in
    which parameters are active, are never neighbours. Those in no cluster are left out.

    Parameters
    ----------
    eps
        How far apart neighbours may be. By default the `knee` of the distances of all
        configurations to their k-th nearest, k = MinPts + 1, of which the first is themselves.
        Distances of 0 are left out: where parties share a grid, most would be, and then eps.
    min_points
        MinPts: how many neighbours, itself included, a configuration needs to found or extend a
        cluster. By default two for each number of the space.
    """
    from sklearn.cluster import DBSCAN

    groups = _alike(space, pairs)
    numbers = Space({name: space[name] for name in space if isinstance(space[name], Number)})
    apart = [_distances(numbers, members) for members in groups]
    enough = max(2, 2 * len(numbers)) if min_points is None else min_points
    if eps is None:
        kth = [d for each in apart if len(each) > enough for d in np.sort(each)[:, enough]]
        eps = knee([d for d in kth if d > SLACK])
    model = DBSCAN(eps=eps + SLACK, min_samples=enough, metric="precomputed")
    found: dict[tuple[int, int], list[Pair]] = {}
    for i, members in enumerate(groups):
        for pair, label in zip(members, model.fit_predict(apart[i]), strict=True):
            if label >= 0:  # else it is noise
                found.setdefault((i, label), []).append(pair)
    return sorted(found.values(), key=lambda members: fmean(pair.loss for pair in members))


def knee(distances: Sequence[float]) -> float:
    """The one that, in ascending order, is farthest from the chord of first and last; 0 of none.

    >>> knee([0.1, 0.9, 0.1, 0.2, 0.8, 0.1])
    0.2
    """
    if not distances:
        return 0.0
    ascending = np.sort(distances)
    chord = np.linspace(ascending[0], ascending[-1], len(ascending))
    return float(ascending[np.argmax(np.abs(ascending - chord))])


def _alike(space: Space, pairs: Iterable[Pair]) -> list[list[Pair]]:
    """The pairs, apart by categories and active parameters, in an order that is not the parties'.

    DBSCAN gives a configuration between two clusters to the first, so the order matters.
    """
    listed = list(pairs)
    places = space.encode_many([pair.params for pair in listed]).tolist()
    ranked = sorted(range(len(listed)), key=lambda i: (listed[i].loss, places[i]))
    groups: dict[tuple[Any, ...], list[Pair]] = {}
    for pair in (listed[i] for i in ranked):
        kind = tuple(
            (name, pair.params[name] if isinstance(space[name], Category) else None)
            for name in space
            if name in pair.params
        )
        groups.setdefault(kind, []).append(pair)
    return list(groups.values())


def _distances(numbers: Space, members: Sequence[Pair]) -> np.ndarray:
    """Euclidean, in the unit cube; all 0 if there are no numbers."""
    from scipy.spatial.distance import cdist

    encoded = numbers.encode_many([pair.params for pair in members])
    return np.asarray(cdist(encoded, encoded))


# How it is combined


def merged(
    space: Space,
    configurations: Sequence[Mapping[str, Any]],
    rng: np.random.Generator | None = None,
    middle: Middle = np.mean,
) -> Params:
    """Numbers by their middle, categories by majority, each configuration with one vote.

    Ties are broken at random, or without `rng` in favour of the first choice of the space.

    The papers average the numbers as they are. Here this is done in the scale of the search, which
    for a log parameter makes the mean a geometric one, and the result is brought to the nearest
    step. Conditions are met in order: a parameter that the values chosen before it make active is
    combined over the configurations in which it is active. If there is none, it gets the centre of
    its range, or its first category.
    """
    chosen: Params = {}
    for name in space:
        if name in space.active(chosen):
            values = [params[name] for params in configurations if name in params]
            chosen[name] = _merged(space[name], values, rng, middle)
    return space.validate(chosen)


def _merged(
    domain: Domain, values: Sequence[Any], rng: np.random.Generator | None, middle: Middle
) -> Any:
    votes = Counter(values)
    if len(votes) < 2:  # nobody's, or exactly what all agree on, without rounding
        return values[0] if values else domain.default
    if isinstance(domain, Category):
        tied = [choice for choice in domain.choices if votes[choice] == max(votes.values())]
        return tied[rng.integers(len(tied))] if rng else tied[0]
    return domain.decode(np.array([middle(np.sort(domain.encode(values)[:, 0]))]))


def trimmed(ascending: np.ndarray) -> float:
    """The mean without a tenth of the values at either end, rounded down: none of fewer than ten.

    >>> trimmed(np.array([-50.0, 1, 2, 3, 4, 5, 6, 7, 8, 900]))
    4.5
    """
    cut = len(ascending) // 10
    return float(ascending[cut : len(ascending) - cut].mean())


_MIDDLES: dict[str, Middle] = {"mean": np.mean, "median": np.median, "trimmed": trimmed}
