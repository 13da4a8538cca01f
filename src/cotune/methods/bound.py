"""How far FLoRA's choice may be from the best configuration, by FLoRA's own theory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import msgspec
import numpy as np

from cotune.errors import UsageError
from cotune.methods.surfaces import Evidence, Params
from cotune.party.tasks import Candidates
from cotune.problem import seed_of
from cotune.space import Space
from cotune.space.domain import Category, Fixed
from cotune.space.surrogate import Surrogate

Thetas = Sequence[Mapping[str, Any]]

#: Slopes are taken between configurations at least this far apart (equation C.4). Nearer ones
#: differ by the noise of cross-validation, or by a step of the forest: noise over next to nothing.
APART = 0.1
#: Parties whose rows lie no further apart than this (W1) hold the same rows: the rest is rounding.
SAME = 1e-9
#: Trials that stand for Theta-bar (a random part of more), draws near them, and how near.
MOST_TRIALS, DRAWS, NEAR = 3000, 300, 0.1


class PartyTerms(msgspec.Struct, frozen=True):
    """What one party contributes to equation C.13.

    - `lipschitz_loss`: the L~(D_i) of C.5, as the largest |L_s - L_t| / d(theta_s, theta_t) over
      its pairs at least `APART` apart; 0 where there are none.
    - `lipschitz_surface`: the L^_i of C.6, as the largest slope of its surrogate between one of its
      trials and a configuration of Theta-bar, as C.17 follows it, again at least `APART` apart.
    - `delta`: delta_i, the largest error of its surrogate at its own trials.
    - `nearest_trial`, `nearest_trial_worst`: min_t d(theta, theta_t) at the chosen configuration,
      and the largest over Theta-bar.
    - `alpha`: its weight in the surface at the chosen configuration (Definition C.2).
    - `wasserstein`: sum over j of w_j W1(D_j, D_i); None where no distances were given.
    """

    lipschitz_loss: float
    lipschitz_surface: float
    delta: float
    nearest_trial: float
    nearest_trial_worst: float
    alpha: float = 0.0
    wasserstein: float | None = None


class Bound(msgspec.Struct, frozen=True):
    """A right-hand side of C.13, where it is attained, and each party's part of it there."""

    total: float
    attained_at: dict[str, Any]
    parts: tuple[float, ...]


class OptimalityGap(msgspec.Struct, frozen=True):
    """The terms of C.13 and their totals.

    `homogeneous` leaves the Wasserstein term out, as if all parties had one distribution;
    `heterogeneous` has it, and is None as `beta` is, where that cannot be estimated.
    """

    parties: tuple[PartyTerms, ...]
    beta: float | None
    homogeneous: Bound
    heterogeneous: Bound | None


def gamma_p(evidence: Sequence[Evidence]) -> float | None:
    """FLoRA's measure of heterogeneity (section 3): (1 - min_i L*_i) / (1 - max_i L*_i).

    L*_i is the least loss that party i observed. None unless all losses lie in [0, 1] (a failed
    configuration has 1) and every L*_i is below 1. For rmse it means nothing, however small.

    >>> gamma_p([Evidence([{}, {}], [0.5, 0.1]), Evidence([{}], [0.4])])
    1.5
    """
    if not all(0.0 <= loss <= 1.0 for one in evidence for loss in one.losses):
        return None
    least = [min(one.losses, default=1.0) for one in evidence]
    if max(least, default=1.0) == 1.0:
        return None
    return float((1.0 - min(least)) / (1.0 - max(least)))


def optimality_gap(
    space: Space,
    evidence: Sequence[Evidence],
    chosen: Mapping[str, Any],
    *,
    surface: str = "aplm",
    surrogate: str = "forest",
    seed: int = 0,
    weights: Sequence[float] | None = None,
    distances: Sequence[Sequence[float]] | np.ndarray | None = None,
) -> OptimalityGap:
    """The right-hand side of FLoRA's Theorem C.6, equation C.13, term by term:

        2 max_theta sum_i alpha_i(theta) {beta sum_j w_j W1(D_j, D_i)
                                          + (L~(D_i) + L^_i) min_t d(theta, theta_t) + delta_i}

    A diagnostic, not a proof: the constants are estimated from what was observed, hence from
    below, and a forest has steps instead of slopes. The remark after Assumption C.5 needs them
    only around the chosen configuration, the best one and what the parties tried, so the maximum
    is over the trials, the chosen configuration and `DRAWS` draws from their neighbourhoods.

    `surface` is `aplm` (alpha_i by the evidence's weights) or `mplm` (alpha_i is 1 for the party
    whose surrogate is highest, the first of equals); the theorem says nothing of others, which is
    an error. `surrogate` and `seed` are those of the surface, to get the same f^(i). `weights` are
    the w_i, the parties' shares in the distribution that matters (the evidence's by default);
    `distances` the W1(D_i, D_j), where parties told their marginals (`cotune.party.marginals`).
    """
    p, own = len(evidence), [one.weight for one in evidence]
    w = own if weights is None else list(weights)
    W1 = np.zeros((p, p)) if distances is None else np.asarray(distances, dtype=float)
    _check(surface, evidence, w, W1)
    theta_bar = _theta_bar(space, evidence, dict(chosen), seed)
    models = [
        Surrogate(space, surrogate, seed).fit(e.configurations, e.losses, e.doubts)
        for e in evidence
    ]
    seen = [_see(space, e, f, theta_bar) for e, f in zip(evidence, models, strict=True)]
    terms, values, errors = zip(*seen, strict=True)
    alpha = np.tile(_shares(own), (len(theta_bar), 1)).T
    if surface == "mplm":
        alpha = (np.argmax(values, axis=0) == np.arange(p)[:, None]).astype(float)
    apart = (W1 @ _shares(w))[:, None]  # C.16; a party is at no distance from itself
    beta = None if distances is None else _beta(evidence, W1)
    told = [None] * p if distances is None else apart[:, 0].tolist()
    return OptimalityGap(
        parties=tuple(
            msgspec.structs.replace(one, alpha=float(alpha[i, 0]), wasserstein=told[i])
            for i, one in enumerate(terms)
        ),
        beta=beta,
        homogeneous=_bound(alpha * errors, theta_bar),
        heterogeneous=None if beta is None else _bound(alpha * (errors + beta * apart), theta_bar),
    )


def _check(surface: str, evidence: Sequence[Evidence], w: list[float], W1: np.ndarray) -> None:
    p = len(evidence)
    if surface not in ("aplm", "mplm"):
        raise UsageError(f"FLoRA bounds the surfaces aplm and mplm only, not {surface!r}")
    if not p or not all(len(one.losses) for one in evidence):
        raise UsageError("every party needs at least one configuration that it judged")
    if len(w) != p or min(w) < 0 or not sum(w) > 0 or W1.shape != (p, p):
        raise UsageError(f"{p} parties need {p} weights, not negative, and {p} x {p} distances")


def _shares(weights: Sequence[float]) -> np.ndarray:
    return np.asarray(weights, dtype=float) / sum(weights)


def _theta_bar(space: Space, evidence: Sequence[Evidence], chosen: Params, seed: int) -> Thetas:
    """The chosen configuration first, then trials in random order, then draws near them."""
    tried = [dict(params) for one in evidence for params in one.configurations]
    order = np.random.default_rng(seed_of(seed, "theta-bar")).permutation(len(tried))
    around = (chosen, *(tried[i] for i in order[:MOST_TRIALS]))
    return Candidates(len(around) + DRAWS, seed_of(seed, "near"), around, NEAR).drawn(space)


def _see(
    space: Space, one: Evidence, f: Surrogate, theta_bar: Thetas
) -> tuple[PartyTerms, np.ndarray, np.ndarray]:
    """A party's constants; over Theta-bar its f^(i), and the bound C.17 of what f^(i) is wrong."""
    trials, losses = one.configurations, np.asarray(one.losses, dtype=float)
    fitted, values = f.predict(trials)[0], f.predict(theta_bar)[0]
    to_trials = _distances(space, theta_bar, trials)
    nearest = to_trials.min(axis=1)
    L_loss = _slope(losses, losses, _distances(space, trials, trials))
    L_surface = _slope(values, fitted, to_trials)
    delta = float(np.abs(losses - fitted).max())
    terms = PartyTerms(L_loss, L_surface, delta, float(nearest[0]), float(nearest.max()))
    return terms, values, (L_loss + L_surface) * nearest + delta


def _slope(ones: np.ndarray, others: np.ndarray, distances: np.ndarray) -> float:
    far = distances > APART - 1e-9
    return float((np.abs(ones[:, None] - others)[far] / distances[far]).max(initial=0.0))


def _distances(space: Space, ones: Thetas, others: Thetas) -> np.ndarray:
    """`Space.distance` (C.4) between all of the one and all of the other."""
    squares, hops = np.zeros((2, len(ones), len(others)))
    for name, domain in ((name, space[name]) for name in space):
        active, also = (np.array([name in theta for theta in thetas]) for thetas in (ones, others))
        one, other = ([t[name] for t in thetas if name in t] for thetas in (ones, others))
        gap = (active[:, None] != also).astype(float)  # active in only one of them: 1
        if isinstance(domain, Category):
            a, b = (np.array([domain.choices.index(v) for v in values]) for values in (one, other))
            gap[np.ix_(active, also)] = a[:, None] != b
            hops += gap
        elif not isinstance(domain, Fixed):
            gap[np.ix_(active, also)] = domain.encode(one) - domain.encode(other).T
            squares += gap**2
    return np.asarray(np.sqrt(squares) + hops)


def _beta(evidence: Sequence[Evidence], W1: np.ndarray) -> float | None:
    """The beta of C.7: the largest |L^(i) - L^(j)| / W1(D_i, D_j) where both judged the same."""
    judged = [
        {frozenset(p.items()): loss for p, loss in zip(e.configurations, e.losses, strict=True)}
        for e in evidence
    ]
    ratios = [
        float(abs(judged[i][theta] - judged[j][theta]) / W1[i, j])
        for i, j in combinations(range(len(judged)), 2)
        for theta in judged[i].keys() & judged[j].keys()
        if W1[i, j] > SAME
    ]
    return max(ratios, default=None if (W1 > SAME).any() else 0.0)


def _bound(parts: np.ndarray, theta_bar: Thetas) -> Bound:
    worst = int(parts.sum(axis=0).argmax())
    here = 2.0 * parts[:, worst]
    return Bound(float(here.sum()), dict(theta_bar[worst]), tuple(here.tolist()))
