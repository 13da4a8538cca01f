"""PrivTuna's combine strategies: by hand, and what holds for every space."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.errors import UsageError
from cotune.methods.combine import STRATEGIES, clusters, combine, good, knee, merged, trimmed
from cotune.party.tasks import Pair
from cotune.space import Space, when
from tests.space.test_space import spaces

ONE_EACH = [name for name in STRATEGIES if name != "dbscan"]
often = settings(deadline=None, max_examples=40)
LINE = Space({"x": (0.0, 1.0)})


def party(*pairs):
    """Pairs of one number and its loss."""
    return [Pair({"x": x}, loss) for x, loss in pairs]


def xs(members):
    return sorted(pair.params["x"] for pair in members)


def drawn(space, seed, parties, trials):
    """What parties would have tried, with losses from a few values, so that some are equal."""
    rng = np.random.default_rng(seed)
    return [
        [Pair(space.sample(rng), float(rng.integers(1, 5)) / 4) for _ in range(trials)]
        for _ in range(parties)
    ]


def around(*centres, names=("x",)):
    """Twelve configurations on a short diagonal through each centre, all with its loss."""
    return [
        Pair(dict.fromkeys(names, centre + step), loss)
        for centre, loss in centres
        for step in np.linspace(-0.01, 0.01, 12).tolist()
    ]


# One configuration


def test_mean_median_and_trimmed_are_of_each_partys_best():
    tried = [party((0.9, 0.5), (value, 0.1)) for value in (0.0, *[0.1] * 5, *[0.3] * 5, 0.9)]
    found = {name: combine(name, LINE, tried) for name in ("mean", "median", "trimmed")}
    assert found["mean"][0].params["x"] == pytest.approx(2.9 / 12)
    assert found["median"][0].params["x"] == pytest.approx(0.2)
    assert found["trimmed"][0].params["x"] == pytest.approx(0.2)  # without 0 and 0.9
    for [made] in found.values():
        assert (made.loss, made.members) == (pytest.approx(0.1), 12)


def test_trimming_fewer_than_ten_leaves_the_mean():
    assert trimmed(np.arange(9.0)) == 4.0
    assert trimmed(np.array([-100.0, *[1.0] * 8, 3.0])) == 1.0


def test_the_best_twentieth_of_each_party_and_at_least_one_is_combined():
    many = party(*((0.01 * i, 0.5 + 0.001 * i) for i in range(59)))  # two of 59
    few = party((0.8, 0.2), (0.9, 0.3))
    [found] = combine("best-mean", LINE, [many, few])
    assert found.members == 3
    assert found.params["x"] == pytest.approx((0.00 + 0.01 + 0.8) / 3)
    assert found.loss == pytest.approx((0.5 + 0.501 + 0.2) / 3)
    [middle] = combine("best-median", LINE, [many, few])
    assert middle.params["x"] == pytest.approx(0.01)


def test_numbers_are_combined_in_the_scale_of_the_search():
    space = Space({"rate": (1e-4, 1.0, "log"), "depth": (1, 9)})
    tried = [[Pair({"rate": 1e-4, "depth": 2}, 0.1)], [Pair({"rate": 1e-2, "depth": 5}, 0.3)]]
    for name in ONE_EACH:
        [found] = combine(name, space, tried)
        assert found.params == {"rate": pytest.approx(1e-3), "depth": 4}
        assert type(found.params["depth"]) is int


def test_categories_are_voted_on_and_a_tie_goes_to_the_first_choice():
    space = Space({"kernel": ["rbf", "linear", "poly"]})
    tried = [[Pair({"kernel": kernel}, 0.1)] for kernel in ("poly", "linear", "poly", "linear")]
    assert combine("mean", space, tried)[0].params == {"kernel": "linear"}
    assert combine("median", space, tried[:3])[0].params == {"kernel": "poly"}


def test_a_conditional_number_is_combined_where_it_is_active():
    space = Space({"kernel": ["rbf", "linear"], "gamma": when((0.0, 1.0), kernel="rbf")})
    told = [{"kernel": "rbf", "gamma": 0.2}, {"kernel": "linear"}, {"kernel": "rbf", "gamma": 0.4}]
    assert merged(space, told) == {"kernel": "rbf", "gamma": pytest.approx(0.3)}
    assert merged(space, told[:2], middle=np.median) == told[0]  # a tie
    assert merged(space, told[1:2] * 2) == told[1]


# Clusters


@pytest.mark.parametrize("count", [1, 2, 5])
def test_clusters_are_found_for_one_parameter_and_for_many(count):
    names = [f"x{i}" for i in range(count)]
    space = Space(dict.fromkeys(names, (0.0, 1.0)))
    pairs = around((0.2, 0.3), (0.8, 0.1), names=names)
    stray = Pair(dict.fromkeys(names, 0.5), 0.0)
    low, high = clusters(space, [*pairs, stray])
    assert [pair.loss for pair in low] == [0.1] * 12  # the least loss first, the stray in neither
    assert [pair.loss for pair in high] == [0.3] * 12


def test_a_centroid_is_the_mean_of_its_cluster():
    tried = [
        party((0.10, 0.20), (0.80, 0.21), (0.5, 0.9)),
        party((0.12, 0.22), (0.82, 0.23), (0.4, 0.9)),
        party((0.14, 0.24), (0.84, 0.25), (0.3, 0.9)),
    ]
    first, second = combine("dbscan", LINE, tried)
    assert (first.params["x"], first.loss) == (pytest.approx(0.12), pytest.approx(0.22))
    assert (second.params["x"], second.loss) == (pytest.approx(0.82), pytest.approx(0.23))
    assert first.members == second.members == 3


def test_configurations_of_different_categories_are_no_neighbours():
    space = Space({"x": (0.0, 1.0), "kernel": ["rbf", "linear"]})
    pairs = [
        Pair({"x": pair.params["x"], "kernel": kernel}, loss)
        for kernel, loss in (("rbf", 0.2), ("linear", 0.1))
        for pair in around((0.5, 0.0))
    ]
    found = clusters(space, pairs, eps=10.0)
    assert [{pair.params["kernel"] for pair in members} for members in found] == [
        {"linear"},
        {"rbf"},
    ]


def test_configurations_with_other_active_parameters_are_no_neighbours():
    space = Space({"layers": (1, 2), "width": when((0.0, 1.0), layers=2)})
    shallow, deep = {"layers": 1}, {"layers": 2, "width": 0.5}
    pairs = [Pair(params, 0.1) for params in (shallow, deep) for _ in range(6)]
    assert len(clusters(space, pairs, eps=10.0)) == 2


def test_categories_alone_make_a_cluster_each():
    space = Space({"kernel": ["rbf", "linear"], "solver": "adam"})
    told = [Pair({"kernel": k, "solver": "adam"}, 0.1) for k in ("rbf", "linear", "rbf", "linear")]
    assert [len(members) for members in clusters(space, told)] == [2, 2]


def test_a_shared_grid_does_not_make_every_popular_point_a_cluster():
    grid = [Pair({"x": x}, 0.1) for x in (0.10, 0.15, 0.20, 0.25) for _ in range(8)]
    far = [Pair({"x": x}, 0.2) for x in (0.80, 0.85, 0.90) for _ in range(2)]
    assert [len(members) for members in clusters(LINE, [*grid, *far], min_points=4)] == [32, 6]


def test_without_a_cluster_the_best_are_averaged():
    tried = [party((0.1, 0.1)), party((0.5, 0.2))]
    assert clusters(LINE, [pair for own in tried for pair in own], min_points=3) == []
    space = Space({"x": (0.0, 1.0), "y": (0.0, 1.0)})
    flat = [[Pair({"x": x, "y": x}, 0.1)] for x in (0.1, 0.4, 0.9)]  # MinPts is 4
    assert combine("dbscan", space, flat) == combine("best-mean", space, flat)


def test_the_knee_is_where_the_distances_begin_to_rise():
    assert knee([*np.linspace(0.1, 0.2, 20), 1.5, 2.0, 3.0]) == pytest.approx(0.2)
    assert knee([0.3] * 5) == 0.3
    assert knee([]) == 0.0


def test_good_pairs_are_within_a_share_of_the_best_score():
    pairs = party((0.0, 0.1), (0.1, 0.2), (0.2, 0.24), (0.3, 0.5), (0.4, 1.1))
    assert xs(good(pairs)) == [0.0, 0.1, 0.2]  # below 1.1 - 0.85 of 1
    assert xs(good(pairs, worst=1.0)) == [0.0, 0.1]  # accuracies from 0.85 of 0.9
    assert xs(good(pairs, share=0.5)) == [0.0, 0.1, 0.2, 0.3]
    assert xs(good(pairs, most=2)) == [0.0, 0.1]


def test_a_party_to_which_all_is_alike_tells_nothing():
    flat = party(*((i / 20, 0.3) for i in range(11)))
    assert good(flat) == []
    assert len(good(flat[:10])) == 10  # too few to choose among


# Every space


@often
@given(spaces(), st.sampled_from(STRATEGIES), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_identical_configurations_are_combined_to_themselves(space, name, parties, seed):
    params = space.sample(np.random.default_rng(seed))
    tried = [[Pair(params, 0.1 * i)] for i in range(parties)]
    found = combine(name, space, tried)
    assert [one.params for one in found] == [params]
    assert found[0].members == parties
    assert found[0].loss == pytest.approx(0.1 * (parties - 1) / 2)


@often
@given(
    spaces(),
    st.sampled_from(STRATEGIES),
    st.integers(1, 6),
    st.integers(1, 30),
    st.integers(0, 2**32 - 1),
)
def test_the_order_of_the_parties_changes_nothing(space, name, parties, trials, seed):
    tried = drawn(space, seed, parties, trials)
    order = np.random.default_rng(seed + 1).permutation(parties)
    assert combine(name, space, [tried[i] for i in order]) == combine(name, space, tried)


@often
@given(
    spaces(),
    st.sampled_from(STRATEGIES),
    st.integers(1, 6),
    st.integers(1, 30),
    st.integers(0, 2**32 - 1),
)
def test_what_is_combined_is_of_the_space_and_the_best_comes_first(
    space, name, parties, trials, seed
):
    found = combine(name, space, drawn(space, seed, parties, trials))
    assert found
    assert name == "dbscan" or len(found) == 1
    assert [one.loss for one in found] == sorted(one.loss for one in found)
    for one in found:
        assert space.validate(one.params) == one.params


@often
@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=12))
def test_the_encoded_mean_is_the_mean_of_the_encoded(cube):
    space = Space({"a": (-2.0, 5.0), "b": (1e-6, 1e3, "log"), "c": (0.5, 0.6)})
    tried = [[Pair(space.decode(np.array(row)), 0.1)] for row in cube]
    encoded = space.encode_many([own[0].params for own in tried])
    for name, middle in {"mean": np.mean, "median": np.median}.items():
        [found] = combine(name, space, tried)
        assert space.encode(found.params) == pytest.approx(middle(encoded, axis=0), abs=1e-9)


# What cannot be


def test_errors_name_what_to_do():
    with pytest.raises(UsageError, match="did you mean 'median'"):
        combine("medain", LINE, [party((0.1, 0.1))])
    for tried in ([], [party((0.1, 0.1)), []]):
        with pytest.raises(UsageError, match="leave it out"):
            combine("mean", LINE, tried)
