from __future__ import annotations

from unittest import mock

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cotune.errors import UsageError
from cotune.methods import bound
from cotune.methods.bound import OptimalityGap, gamma_p, optimality_gap
from cotune.methods.surfaces import Evidence
from cotune.space import Space, when
from tests.parts import Nearest

LINE = Space({"x": (0.0, 1.0)})
MIXED = Space(
    {
        "x": (0.0, 1.0),
        "rate": (1e-3, 1.0, "log"),
        "kernel": ["rbf", "poly", True],
        "degree": when((1, 9), kernel="poly"),
        "norm": when(["l1", "l2"], kernel=["rbf", "poly"]),
        "solver": "adam",
    }
)


def interpolated(*arguments, draws=0, **options):
    with mock.patch.multiple(bound, Surrogate=Nearest, DRAWS=draws):
        return optimality_gap(*arguments, **options)


def on_line(pairs, weight=1.0):
    return Evidence([{"x": x} for x in pairs], list(pairs.values()), weight)


def by_hand(one=1.0, other=1.0):
    return [on_line({0.0: 0.0, 1.0: 0.5}, one), on_line({0.0: 0.2, 0.5: 0.4}, other)]


@st.composite
def evidences(draw, space=MIXED):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    default = space.clip({})
    told = []
    for _ in range(draw(st.integers(1, 3))):
        configurations = [default, *(space.sample(rng) for _ in range(draw(st.integers(0, 6))))]
        told.append(Evidence(configurations, rng.random(len(configurations)), 1 + rng.random()))
    return told


def test_gamma_is_the_ratio_of_what_the_worst_and_the_best_party_are_short_of_1():
    assert gamma_p([on_line({0.0: 0.7, 1.0: 0.2}), on_line({0.0: 0.6})]) == pytest.approx(2.0)
    assert gamma_p([on_line({0.0: 0.3})]) == 1.0
    assert gamma_p([on_line({0.0: 0.2, 1.0: 1.0}), on_line({0.0: 0.2})]) == 1.0  # one failed


@pytest.mark.parametrize("losses", [[1.0], [0.5, 1.2], [-0.1], [np.nan], [np.inf, 0.1], []])
def test_gamma_is_undefined_unless_losses_lie_between_0_and_1(losses):
    told = Evidence([{"x": 0.0}] * len(losses), losses)
    assert gamma_p([on_line({0.0: 0.3}), told]) is None


def test_gamma_of_no_party_is_undefined():
    assert gamma_p([]) is None


@given(st.lists(st.lists(st.floats(0, 0.999), min_size=1), min_size=1, max_size=5))
def test_gamma_is_at_least_1(losses):
    assert gamma_p([Evidence([{}] * len(told), told) for told in losses]) >= 1.0


def test_the_terms_of_two_parties_are_those_computed_by_hand():
    one, other = interpolated(LINE, by_hand(), {"x": 0.5}).parties
    assert msgspec.to_builtins(one) == pytest.approx(
        {
            "lipschitz_loss": 0.5,
            "lipschitz_surface": 1.0,  # half way it is still at 0.0
            "delta": 0.0,
            "nearest_trial": 0.5,
            "nearest_trial_worst": 0.5,
            "alpha": 0.5,
            "wasserstein": None,
        }
    )
    assert (other.lipschitz_loss, other.lipschitz_surface) == pytest.approx((0.4, 0.4))
    assert (other.nearest_trial, other.nearest_trial_worst) == pytest.approx((0.0, 0.5))


def test_the_total_is_that_computed_by_hand():
    gap = interpolated(LINE, by_hand(), {"x": 0.5})
    assert gap.homogeneous.total == pytest.approx(2 * 0.5 * (0.5 + 1.0) * 0.5)
    assert gap.homogeneous.parts == pytest.approx((0.75, 0.0))
    assert gap.homogeneous.attained_at == {"x": 0.5}
    assert gap.beta is None
    assert gap.heterogeneous is None


def test_parties_count_by_their_weights_and_heterogeneity_by_its_own():
    gap = interpolated(LINE, by_hand(1, 3), {"x": 0.5}, distances=[[0, 2], [2, 0]])
    assert [one.alpha for one in gap.parties] == [0.25, 0.75]
    assert gap.homogeneous.total == pytest.approx(2 * 0.75 * 0.8 * 0.5)
    assert gap.homogeneous.attained_at == {"x": 1.0}
    assert gap.beta == pytest.approx(0.2 / 2)  # both judged x = 0
    assert [one.wasserstein for one in gap.parties] == pytest.approx([0.75 * 2, 0.25 * 2])
    assert gap.heterogeneous.total == pytest.approx(0.75)
    assert gap.heterogeneous.parts == pytest.approx((0.075, 0.675))
    even = interpolated(LINE, by_hand(1, 3), {"x": 0.5}, weights=[1, 1], distances=[[0, 2], [2, 0]])
    assert [one.wasserstein for one in even.parties] == pytest.approx([1.0, 1.0])


def test_in_the_maximum_only_the_party_with_the_highest_surface_counts():
    """Wherever a party is the highest here, it has a trial, and its surrogate interpolates."""
    gap = interpolated(LINE, by_hand(), {"x": 0.5}, surface="mplm")
    assert [one.alpha for one in gap.parties] == [0.0, 1.0]
    assert gap.homogeneous.total == 0.0


def test_without_a_shared_configuration_there_is_no_beta_and_no_heterogeneous_bound():
    told = [on_line({0.0: 0.1}), on_line({1.0: 0.2})]
    gap = interpolated(LINE, told, {"x": 0.5}, distances=[[0, 1], [1, 0]])
    assert (gap.beta, gap.heterogeneous) == (None, None)
    assert gap.parties[0].wasserstein == 0.5


def test_parties_at_no_distance_have_the_homogeneous_bound():
    gap = interpolated(LINE, by_hand(), {"x": 0.5}, distances=np.zeros((2, 2)))
    assert gap.heterogeneous == gap.homogeneous


def test_noise_between_close_trials_does_not_count_as_slope():
    told = [on_line({0.5: 0.0, 0.501: 0.9, 0.0: 0.1})]
    assert interpolated(LINE, told, {"x": 0.5}).parties[0].lipschitz_loss < 2
    assert interpolated(LINE, [on_line({0.5: 0.3})], {"x": 0.5}).parties[0].lipschitz_loss == 0


@given(st.integers(0, 2**32))
def test_distances_are_those_of_the_space(seed):
    rng = np.random.default_rng(seed)
    ones, others = ([MIXED.sample(rng) for _ in range(n)] for n in (5, 4))
    expected = [[MIXED.distance(one, other) for other in others] for one in ones]
    assert bound._distances(MIXED, ones, others) == pytest.approx(np.array(expected))


TWICE = [Evidence([MIXED.clip({})], [loss]) for loss in (0.6, 0.1)]


@settings(max_examples=30)
@example(TWICE, "aplm", 1e-313)  # next to the same rows: no slope overflows
@given(evidences(), st.sampled_from(["aplm", "mplm"]), st.floats(0, 5))
def test_the_total_is_the_sum_of_the_parts_and_no_less_than_at_the_choice(told, surface, apart):
    distances = apart * (1 - np.eye(len(told)))
    chosen = MIXED.sample(np.random.default_rng(0))
    gap = interpolated(MIXED, told, chosen, draws=10, surface=surface, distances=distances)
    assert sum(one.alpha for one in gap.parties) == pytest.approx(1)
    for one in (gap.homogeneous, gap.heterogeneous):
        assert sum(one.parts) == pytest.approx(one.total)
        assert all(0 <= part <= one.total + 1e-12 for part in one.parts)
    slopes = [p.lipschitz_loss + p.lipschitz_surface for p in gap.parties]
    here = [
        2 * p.alpha * (slope * p.nearest_trial + p.delta)
        for p, slope in zip(gap.parties, slopes, strict=True)
    ]
    assert gap.homogeneous.total >= sum(here) - 1e-12
    assert gap.heterogeneous.total >= gap.homogeneous.total - 1e-12


@settings(max_examples=30)
@given(evidences())
def test_a_surrogate_that_interpolates_has_no_delta(told):
    gap = interpolated(MIXED, told, MIXED.clip({}))
    assert [one.delta for one in gap.parties] == [0.0] * len(told)


@pytest.mark.parametrize("surrogate", ["forest", "gp"])
def test_the_diagnostic_is_reproducible_and_survives_json(surrogate):
    rng = np.random.default_rng(1)
    trials = [MIXED.sample(rng) for _ in range(12)]
    told = [Evidence(trials, [abs(t["x"] - c) for t in trials]) for c in (0.2, 0.6)]
    distances = [[0, 0.5], [0.5, 0]]
    one, other = (
        optimality_gap(MIXED, told, trials[3], surrogate=surrogate, seed=4, distances=distances)
        for _ in range(2)
    )
    assert one == other == msgspec.json.decode(msgspec.json.encode(one), type=OptimalityGap)
    assert one.beta == pytest.approx(0.4 / 0.5)
    assert all(party.delta > 0 and party.lipschitz_surface > 0 for party in one.parties)


@pytest.mark.parametrize("surface", ["sgm", "sgm+u", "other"])
def test_surfaces_that_the_theorem_does_not_cover_are_an_error(surface):
    with pytest.raises(UsageError, match="aplm and mplm only"):
        optimality_gap(LINE, by_hand(), {"x": 0.5}, surface=surface)


@pytest.mark.parametrize("options", [{"weights": [1]}, {"weights": [0, 0]}, {"distances": [[0.0]]}])
def test_weights_and_distances_are_one_for_each_party(options):
    with pytest.raises(UsageError, match="2 parties need 2 weights"):
        optimality_gap(LINE, by_hand(), {"x": 0.5}, **options)


@pytest.mark.parametrize("evidence", [[], [Evidence([], [])]])
def test_there_is_no_bound_without_trials(evidence):
    with pytest.raises(UsageError, match="at least one configuration"):
        optimality_gap(LINE, evidence, {"x": 0.5})
