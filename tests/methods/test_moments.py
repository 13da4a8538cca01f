from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from cotune.methods.moments import NOISES, USEFUL, Regressed, Regression
from cotune.methods.surfaces import minimise
from cotune.party.moments import Features, edges, moments
from cotune.party.task import Configuration
from cotune.party.tasks import Candidates, Pair, Search
from cotune.space import Space
from tests.parts import federation_of, iris, parts, problem_of

TREE = "decision_tree"
TABLES = parts(iris(90))
PROBLEM = problem_of(*TABLES.values())
SEARCH = Search((TREE,), trials=5)
CANDIDATES = Candidates(50, seed=1)
SPACE = Space({"x": (0.0, 1.0), "rate": (1e-4, 1.0, "log"), "kind": ["a", "b"]})
FEATURES = Features(SimpleNamespace(seed=0, space=lambda _: SPACE), "made-up")


def loss(params):
    """Least at x = 0.3, rate = 0.01 and kind b: 0.1 there."""
    x, rate = params["x"] - 0.3, SPACE["rate"].encode([params["rate"]])[0, 0] - 0.5
    return 0.1 + x**2 + 0.5 * rate**2 + 0.1 * (params["kind"] == "a")


def observed(count, seed=0, noise=0.01, doubts=(1.0,)):
    rng = np.random.default_rng(seed)
    tried = [SPACE.sample(rng) for _ in range(count)]
    return [
        Pair(params, loss(params) + noise * np.sqrt(doubt) * rng.normal(), doubt=doubt)
        for params, doubt in zip(tried, rng.choice(doubts, count), strict=True)
    ]


def fitted(*parties, ceiling=1.0):
    total = sum(moments(FEATURES, pairs, ceiling) for pairs in parties)
    return Regression(total, sum(map(len, parties)), FEATURES.variances)


# The regression


def test_it_is_the_gaussian_process_of_the_features_kernel_on_all_pairs():
    """Computed from the pairs themselves: generalised least squares, restricted likelihood."""
    parties = [observed(12, seed, doubts=(1.0, 4.0)) for seed in range(3)]
    pairs = [pair for own in parties for pair in own]
    y, doubts = np.array([p.loss for p in pairs]), np.array([p.doubt for p in pairs])
    phi = FEATURES.of([p.params for p in pairs])[:, 1:]
    new = FEATURES.of([p.params for p in observed(20, seed=9)])
    n, one, best = len(y), np.ones(len(y)), -np.inf
    for variances in FEATURES.variances:
        for noise in NOISES:
            K = np.linalg.inv((phi * variances) @ phi.T + noise * np.diag(doubts))
            m = one @ K @ y / (one @ K @ one)
            q = (y - m) @ K @ (y - m)
            determinants = np.linalg.slogdet(K)[1] - np.log(one @ K @ one)
            if (likelihood := determinants - (n - 1) * np.log(q)) > best:
                best, k = likelihood, (new[:, 1:] * variances) @ phi.T
                mean = m + k @ K @ (y - m)
                prior = (new[:, 1:] ** 2) @ variances
                lack = (1.0 - k @ K @ one) ** 2 / (one @ K @ one)
                variance = q / (n - 1) * (prior - np.sum(k @ K * k, axis=1) + lack)
    found = fitted(*parties).predict(new)
    np.testing.assert_allclose(found[0], mean, rtol=1e-6)
    np.testing.assert_allclose(found[1], np.sqrt(variance), rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_the_minimum_of_a_smooth_surface_is_found(seed):
    regression = fitted(*(observed(30, 3 * seed + i) for i in range(3)), ceiling=0.4)
    best, _ = minimise(lambda theta: regression.predict(FEATURES.of(theta))[0], SPACE, seed)[0]
    assert best["kind"] == "b"
    assert abs(best["x"] - 0.3) < 0.15
    assert loss(best) < 0.1 + 0.02


def test_where_nobody_looked_it_is_less_certain():
    near = [pair for pair in observed(150) if pair.params["x"] < 0.5]
    asked = [{"x": x, "rate": 0.01, "kind": "b"} for x in (0.25, 1.0)]
    seen, unseen = fitted(near).predict(FEATURES.of(asked))[1]
    assert unseen > 2 * seen > 0


@pytest.mark.parametrize("pairs", [observed(1), [Pair(p.params, 0.2) for p in observed(9)]])
def test_of_one_pair_or_of_losses_all_alike_it_is_flat(pairs):
    mean, deviation = fitted(pairs).predict(FEATURES.of([p.params for p in observed(5, 1)]))
    np.testing.assert_allclose(mean, pairs[0].loss, atol=1e-6)
    assert np.isfinite(deviation).all()


# Over a federation


def searched(federation):
    return [pair for r in federation.gather(SEARCH).values() for pair in r.found[0].pairs]


def test_the_parties_sums_give_the_regression_on_all_their_pairs():
    with federation_of(TABLES, problem=PROBLEM) as federation:
        values = Regressed(federation, PROBLEM, SEARCH, 0.0)([CANDIDATES])[0]
        pairs = searched(federation)
    features = Features(PROBLEM, TREE)
    enough = [end for end in edges(PROBLEM) if np.mean([p.loss <= end for p in pairs]) >= USEFUL]
    ceiling = min(enough)
    regression = Regression(moments(features, pairs, ceiling), len(pairs), features.variances)
    expected = regression.predict(features.of(CANDIDATES.drawn(PROBLEM.space(TREE))))[0]
    np.testing.assert_allclose(values, ceiling * expected, atol=1e-6)


def test_private_sums_give_the_same_values_to_the_last_bit():
    values = []
    for privacy in ("plain", "masked"):
        with federation_of(TABLES, problem=PROBLEM, privacy=privacy) as federation:
            values.append(Regressed(federation, PROBLEM, SEARCH, 1.0)([CANDIDATES])[0].tolist())
    assert values[0] == values[1]


def test_uncertainty_is_added_in_deviations():
    with federation_of(TABLES, problem=PROBLEM) as federation:
        none, one, two = (
            Regressed(federation, PROBLEM, SEARCH, alpha)([CANDIDATES])[0] for alpha in (0, 1, 2)
        )
    assert (one > none).all()
    np.testing.assert_allclose(two - one, one - none)


def test_it_learns_from_what_all_parties_judged_when_it_is_asked_next():
    shot = [Configuration(TREE, PROBLEM.space(TREE).clip({"max_depth": 1}))]
    with federation_of(TABLES, problem=PROBLEM) as federation:
        surface = Regressed(federation, PROBLEM, SEARCH, 0.0)
        before = surface([CANDIDATES])[0]
        (trial,) = surface.judge(shot, [1, 2])
        after = surface([CANDIDATES])[0]
        surface([CANDIDATES])
        tasks = [entry.task for entry in federation.ledger]
    assert tasks == ["tally", "moments", "evaluate", "moments"]
    assert trial.parties == surface.parties == 3
    assert not np.allclose(before, after)
