from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestRegressor

from cotune.errors import UsageError
from cotune.methods import surfaces
from cotune.methods.surfaces import Evidence, Minimiser, diverse, minimise, surface
from cotune.space import Space, when
from tests.parts import Nearest
from tests.space.test_space import seeds, spaces

LINE = Space({"x": (0.0, 1.0)})
MIXED = Space(
    {
        "x": (0.0, 1.0),
        "rate": (1e-4, 1.0, "log"),
        "depth": (1, 60),
        "kernel": ["rbf", "poly", "linear"],
        "degree": when((1, 9), kernel="poly"),
        "gamma": when((1e-3, 10.0, "log"), kernel=["rbf", "poly"]),
    }
)
CANDIDATES = LINE.grid(21)


def told(optimum, height=1.0, weight=1.0, count=30, seed=0):
    """What a party observes whose loss is least at `optimum`."""
    rng = np.random.default_rng(seed)
    trials = [LINE.sample(rng) for _ in range(count)]
    return Evidence(trials, [height * abs(p["x"] - optimum) for p in trials], weight)


def forest(evidence, candidates=CANDIDATES, seed=0):
    """Every tree's prediction, of scikit-learn's forest on the pairs of these parties."""
    x = LINE.encode_many([p for one in evidence for p in one.configurations])
    y = [loss for one in evidence for loss in one.losses]
    fitted = RandomForestRegressor(100, random_state=seed).fit(x, y)
    return np.array([tree.predict(LINE.encode_many(candidates)) for tree in fitted.estimators_])


OPPOSITE = [told(0.1, seed=1), told(0.9, seed=2)]


def values(name, evidence=OPPOSITE, **options):
    return surface(name, LINE, evidence, **options)(CANDIDATES)


# Table 2


def test_a_single_global_model_is_one_forest_on_all_pairs():
    np.testing.assert_allclose(values("sgm"), forest(OPPOSITE).mean(axis=0))


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_uncertainty_adds_deviations_over_the_trees(alpha):
    trees = forest(OPPOSITE)
    expected = trees.mean(axis=0) + alpha * trees.std(axis=0)
    np.testing.assert_allclose(values("sgm+u", alpha=alpha), expected)


def test_the_local_surfaces_are_made_of_each_partys_own_forest():
    """The authors' code builds them of the global one, by a name that was used twice."""
    own = [forest([one]).mean(axis=0) for one in OPPOSITE]
    highest, mean, everyones = values("mplm"), values("aplm"), forest(OPPOSITE).mean(axis=0)
    np.testing.assert_allclose(highest, np.max(own, axis=0))
    np.testing.assert_allclose(mean, np.mean(own, axis=0))
    assert np.abs(highest - everyones).max() > 0.2
    assert np.abs(mean - everyones).max() > 0.1


def test_parties_of_opposite_optima_agree_on_the_middle_where_the_maximum_counts():
    highest = values("mplm")
    assert CANDIDATES[highest.argmin()]["x"] == pytest.approx(0.5, abs=0.1)
    assert min(highest[0], highest[-1]) > 0.7


def test_a_mean_surface_counts_the_parties_by_their_weights():
    own = [forest([one]).mean(axis=0) for one in OPPOSITE]
    heavy = [told(0.1, weight=90.0, seed=1), told(0.9, weight=10.0, seed=2)]
    mean = values("aplm", heavy)
    np.testing.assert_allclose(mean, 0.9 * own[0] + 0.1 * own[1])
    assert CANDIDATES[mean.argmin()]["x"] < 0.3


def test_a_mean_surface_takes_each_prediction_as_a_sum_over_the_parties_has_it():
    def coarse(predicted):
        return np.round(predicted, 1)

    own = [coarse(forest([one]).mean(axis=0)) for one in OPPOSITE]
    np.testing.assert_allclose(values("aplm", bounded=coarse), np.mean(own, axis=0))


def test_the_seed_is_that_of_every_forest():
    np.testing.assert_allclose(values("sgm", seed=5), forest(OPPOSITE, seed=5).mean(axis=0))
    own = [forest([one], seed=5).mean(axis=0) for one in OPPOSITE]
    np.testing.assert_allclose(values("aplm", seed=5), np.mean(own, axis=0))


def test_an_unknown_surface_is_refused():
    with pytest.raises(UsageError, match="unknown surface 'alpm': did you mean 'aplm'"):
        surface("alpm", LINE, OPPOSITE)


@st.composite
def evidences(draw):
    rng = np.random.default_rng(draw(seeds))
    parties = []
    for _ in range(draw(st.integers(1, 4))):
        trials = [MIXED.sample(rng) for _ in range(draw(st.integers(1, 8)))]
        parties.append(Evidence(trials, rng.random(len(trials)).tolist(), 1 + rng.random()))
    return parties


@settings(max_examples=30, deadline=None)
@given(evidences(), seeds)
def test_a_mean_lies_between_the_least_and_the_greatest_of_the_parties(evidence, seed):
    rng = np.random.default_rng(seed)
    candidates = [MIXED.sample(rng) for _ in range(10)]
    with mock.patch.object(surfaces, "Surrogate", Nearest):
        own = [surface("mplm", MIXED, [one])(candidates) for one in evidence]
        mean, greatest = (surface(name, MIXED, evidence)(candidates) for name in ("aplm", "mplm"))
    assert (mean <= greatest + 1e-12).all()
    assert (mean >= np.min(own, axis=0) - 1e-12).all()
    np.testing.assert_array_equal(greatest, np.max(own, axis=0))


# Line 7: the minimum


def valley(params):
    """Least, 0, at the polynomial of degree 4, x = 0.37, rate = 0.01, depth = 17, gamma = 0.1."""
    worse = {"poly": 0.0, "rbf": 0.3, "linear": 0.6}[params["kernel"]]
    wide = (
        params["x"] - 0.37,
        (np.log10(params["rate"]) + 2) / 4,
        (params["depth"] - 17) / 59,
        (params.get("degree", 4) - 4) / 8,
        (np.log10(params.get("gamma", 0.1)) + 1) / 4,
    )
    return worse + float(np.linalg.norm(wide))


def of_valley(candidates):
    return np.array([valley(params) for params in candidates])


@pytest.mark.parametrize("seed", range(3))
def test_zooming_in_finds_more_than_the_wide_draws_alone(seed):
    wide = Minimiser(MIXED, seed).ask().drawn(MIXED)
    best, value = minimise(of_valley, MIXED, seed)[0]
    assert len(wide) == 4096
    assert value == valley(best) < 0.9 * of_valley(wide).min()
    assert best["kernel"] == "poly"


def test_all_of_a_small_space_is_ranked():
    space = Space({"kernel": ["rbf", "poly"], "degree": when((1, 3), kernel="poly")})
    order = [{"kernel": "poly", "degree": 2}, {"kernel": "rbf"}]
    order += [{"kernel": "poly", "degree": 3}, {"kernel": "poly", "degree": 1}]
    ranked = minimise(lambda thetas: np.array([order.index(t) for t in thetas]), space)
    assert ranked == [(params, float(place)) for place, params in enumerate(order)]


def test_a_space_without_choice_has_one_minimiser():
    space = Space({"solver": "adam"})
    assert minimise(lambda t: np.full(len(t), 0.5), space) == [({"solver": "adam"}, 0.5)]


def test_what_is_given_first_is_among_the_candidates():
    needle = {"x": 0.123456789}
    ranked = minimise(lambda ts: np.array([float(t != needle) for t in ts]), LINE, first=[needle])
    assert ranked[0] == (needle, 0.0)


def test_the_best_of_the_wide_draws_is_never_lost():
    found = []

    def noisy(candidates):
        found.append(of_valley(candidates))
        return found[-1]

    with mock.patch.multiple(surfaces, WIDE=64, NEAR=32):
        ranked = minimise(noisy, MIXED)
    assert ranked[0][1] <= min(seen.min() for seen in found)
    assert [value for _, value in ranked] == sorted(value for _, value in ranked)


def test_values_that_are_not_alike_the_earlier_ones_count_alone():
    """Other parties answered: the wide draws' values are no match for those near them."""
    for alike in (True, False):
        minimiser = Minimiser(LINE)
        wide = minimiser.ask().drawn(LINE)
        minimiser.tell(np.linspace(0.0, 0.1, len(wide)))
        near = minimiser.ask().drawn(LINE)
        minimiser.tell(np.linspace(0.5, 0.6, len(near)), alike)
        assert minimiser.ranked[0] == ((wide[0], 0.0) if alike else (near[0], 0.5))
        assert minimiser.ask() is None


def test_the_same_seed_asks_for_the_same_candidates_and_another_for_others():
    drawn = [Minimiser(MIXED, seed).ask().drawn(MIXED) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@settings(max_examples=25, deadline=None)
@given(spaces(), seeds)
def test_every_minimiser_is_a_configuration_of_the_space(space, seed):
    rng = np.random.default_rng(seed)
    with mock.patch.multiple(surfaces, WIDE=48, NEAR=32):
        ranked = minimise(lambda thetas: rng.random(len(thetas)), space, seed)
    for params, _ in ranked:
        assert space.validate(params) == params
    distinct = {repr(params) for params, _ in ranked}
    assert len(distinct) == len(ranked)


# Candidates that lie apart


def ranked_of(space, count, seed=0):
    rng = np.random.default_rng(seed)
    values = np.sort(rng.random(count))
    return [(space.sample(rng), float(value)) for value in values]


def nearest(chosen, space):
    return min(
        space.distance(one, other) for i, one in enumerate(chosen) for other in chosen[i + 1 :]
    )


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(2, 8))
def test_diverse_candidates_keep_the_distance_and_begin_with_the_best(seed, count):
    ranked = ranked_of(MIXED, 100, seed)
    chosen = diverse(ranked, MIXED, count, 0.2)
    assert len(chosen) == count
    assert chosen[0] == ranked[0][0]
    assert nearest(chosen, MIXED) >= 0.2


def test_where_there_are_too_few_the_distance_gives_way():
    ranked = [({"x": x}, x) for x in np.linspace(0.0, 0.3, 31)]
    chosen = diverse(ranked, LINE, 6, 0.2)
    assert len(chosen) == 6
    assert chosen[:2] == [{"x": 0.0}, {"x": pytest.approx(0.2)}]
    assert 0.2 / 8 <= nearest(chosen, LINE) < 0.2


def test_the_same_configuration_is_never_chosen_twice():
    ranked = [({"x": 0.5}, 0.1), ({"x": 0.5}, 0.1), ({"x": 0.75}, 0.2)]
    assert diverse(ranked, LINE, 5, 0.12) == [{"x": 0.5}, {"x": 0.75}]
