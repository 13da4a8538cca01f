"""The search space: what can be written, and what holds for every configuration of it."""

import json
import math
import pickle
import subprocess
import sys
import warnings

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.errors import UsageError
from cotune.space import Space, when
from cotune.space.domain import Category, Fixed, Integer, Real

often = settings(deadline=None, max_examples=60)
sometimes = settings(deadline=None, max_examples=30)

EXAMPLE = {
    "max_iter": (10, 200),
    "learning_rate": (1e-3, 1.0, "log"),
    "subsample": (0.5, 1.0, 0.1),
    "kernel": ["rbf", "linear"],
    "solver": "adam",
    "gamma": when((1e-5, 10.0, "log"), kernel="rbf"),
}
space = Space(EXAMPLE)
valid = {
    "max_iter": 50,
    "learning_rate": 0.1,
    "subsample": 0.8,
    "kernel": "rbf",
    "solver": "adam",
    "gamma": 0.5,
}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([0.5, -1.25, 1e-7]),
    st.text("ab", max_size=3),
)
categories = st.lists(scalars, min_size=1, max_size=4, unique_by=lambda value: hash(value))


@st.composite
def intervals(draw):
    kind = draw(st.sampled_from(["float", "log float", "float step", "int", "log int", "int step"]))
    if kind == "float":
        low = draw(st.floats(-1e6, 1e6))
        return (low, low + draw(st.floats(1e-3, 1e6)))
    if kind == "log float":
        low = draw(st.floats(1e-9, 1e6))
        return (low, low * draw(st.floats(1.1, 1e9)), "log")
    if kind == "float step":
        low, steps = draw(st.integers(-50, 50)), draw(st.integers(1, 40))
        return (low / 10, (low + steps) / 10, 0.1)
    if kind == "int":
        low = draw(st.integers(-1000, 1000))
        return (low, low + draw(st.integers(1, 10**6)))
    if kind == "log int":
        low = draw(st.integers(1, 1000))
        return (low, low + draw(st.integers(1, 10**6)), "log")
    low, step = draw(st.integers(-20, 20)), draw(st.integers(2, 7))
    return (low, low + step * draw(st.integers(1, 30)), step)


@st.composite
def spaces(draw, most=5):
    """Spaces of every kind of domain; from the second parameter on, some are conditional."""
    literal, parents = {}, {}
    for name in "abcdefgh"[: draw(st.integers(0, most))]:
        domain = draw(st.one_of(intervals(), categories, scalars))
        if parents and draw(st.booleans()):
            parent = draw(st.sampled_from(sorted(parents)))
            accepted = draw(st.lists(st.sampled_from(parents[parent]), min_size=1, unique_by=repr))
            literal[name] = when(domain, **{parent: accepted})
        else:
            literal[name] = domain
        if not isinstance(domain, tuple):
            parents[name] = domain if isinstance(domain, list) else [domain]
        elif all(isinstance(item, int) for item in domain):
            parents[name] = list(domain[:2])
    return Space(literal)


seeds = st.integers(0, 2**32 - 1)


@st.composite
def spaces_with(draw, count):
    drawn = draw(spaces())
    rng = np.random.default_rng(draw(seeds))
    return (drawn, *(drawn.sample(rng) for _ in range(count)))


# What can be written


def test_a_literal_means_the_domain_its_types_say():
    assert space["max_iter"] == Integer(10, 200)
    assert space["learning_rate"] == Real(1e-3, 1.0, log=True)
    assert space["subsample"] == Real(0.5, 1.0, step=0.1)
    assert space["kernel"] == Category(("rbf", "linear"))
    assert space["solver"] == Fixed("adam")
    assert Space({"x": (0, 1, 0.5)})["x"] == Real(0.0, 1.0, step=0.5)
    assert Space({"x": (0, 9, 3)})["x"] == Integer(0, 9, step=3)
    assert Space({"x": (np.int64(1), np.int64(9), "log")})["x"] == Integer(1, 9, log=True)


def test_optuna_distributions_are_accepted():
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    assert Space(
        {
            "a": FloatDistribution(1e-3, 1.0, log=True),
            "b": IntDistribution(0, 10, step=5),
            "c": CategoricalDistribution(["x", None]),
            "d": FloatDistribution(2.0, 2.0),
        }
    ) == Space({"a": (1e-3, 1.0, "log"), "b": (0, 10, 5), "c": ["x", None], "d": 2.0})


@pytest.mark.parametrize(
    ("domain", "complaint"),
    [
        ((5, 3), "low below high, not (5, 3)"),
        ((3, 3), "low below high"),
        ((0.0, 1.0, "log"), "low above 0 on a log scale, not 0.0"),
        ((0.0, math.inf), "finite"),
        ((math.nan, 1.0), "(low, high)"),
        ((-1e308, 1e308), "too far apart"),
        ((1e300, math.nextafter(1e300, math.inf), "log"), "too close"),
        ((1, 2**50), "whole numbers between"),
        ((1, 10, "ln"), "(low, high, 'log')"),
        ((1, 10, 0), "step above 0, not 0"),
        ((1, 10, 4), "divides 1 to 10, not 4"),
        ((0.0, 1.0, 1e-15), "more than"),
        ((True, 3), "(low, high)"),
        ((1,), "(low, high)"),
        ([], "one or more distinct categories"),
        ([1, True], "distinct"),
        ([[1]], "not [1]"),
        ([math.nan], "finite"),
        (math.inf, "finite"),
        ({"low": 1}, "a tuple, a list"),
        (when((1, 2), kernl="rbf"), "unknown earlier parameter 'kernl': did you mean 'kernel'?"),
        (when((1, 2), kernel="poly"), "'kernel', which must be one of 'rbf', 'linear', not 'poly'"),
        (when((1, 2), kernel=[]), "none of its values"),
        (when((1, 2), rate=0.5), "no categories"),
        (when((1, 2), depth=9), "'depth', which must be a whole number from 1 to 5, not 9"),
        (when(when((1, 2), depth=1), depth=1), "a tuple, a list"),
    ],
)
def test_a_wrong_domain_is_an_error_of_one_line_that_names_the_parameter(domain, complaint):
    literal = {"kernel": ["rbf", "linear"], "rate": (0.0, 1.0), "depth": (1, 5), "wrong": domain}
    with pytest.raises(UsageError) as caught:
        Space(literal)
    message = str(caught.value)
    assert message.startswith("parameter 'wrong' ")
    assert complaint in message
    assert "\n" not in message


def test_a_condition_speaks_of_an_earlier_parameter():
    with pytest.raises(UsageError, match="unknown earlier parameter 'kernel'"):
        Space({"gamma": when((1, 2), kernel="rbf"), "kernel": ["rbf"]})
    with pytest.raises(UsageError, match="needs a condition"):
        when((1, 2))


@often
@given(spaces())
def test_repr_is_the_literal_back(drawn):
    assert eval(repr(drawn), {"Space": Space, "when": when}) == drawn


def test_spaces_are_equal_when_written_alike():
    assert Space(EXAMPLE) == space
    assert hash(Space(EXAMPLE)) == hash(space)
    assert Space({"x": 1}) != Space({"x": True})
    assert Space({"x": 1}) != Space({"x": 1.0})
    assert space != EXAMPLE
    assert pickle.loads(pickle.dumps(space)) == space


def test_a_space_is_a_collection_of_its_names():
    assert space.names == list(space) == list(EXAMPLE)
    assert len(space) == 6
    assert "gamma" in space
    assert "gama" not in space
    with pytest.raises(UsageError, match="did you mean 'gamma'"):
        space["gama"]
    with pytest.raises(AttributeError):
        space._domains = {}


def test_importing_the_space_does_not_import_optuna():
    code = "import sys, cotune.space, cotune.space.search; sys.exit('optuna' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# Conditions, validation and clipping


def test_conditions_decide_what_is_active():
    nested = Space(
        {
            "depth": (1, 3),
            "kernel": when(["rbf", "poly"], depth=[2, 3]),
            "degree": when((2, 5), kernel="poly", depth=3),
            "mode": "fast",
            "shots": when((1, 9), mode="fast"),
        }
    )
    assert nested.active({"depth": 1, "kernel": "poly"}) == ["depth", "mode", "shots"]
    assert nested.active({"depth": 3, "kernel": "poly"}) == nested.names
    assert nested.active({"depth": 2, "kernel": "poly"}) == ["depth", "kernel", "mode", "shots"]
    assert nested.active({}) == ["depth", "mode", "shots"]


def test_validate_gives_every_value_its_own_type():
    given_types = valid | {"max_iter": 50.0, "subsample": 0.7 + 1e-12, "gamma": np.int64(1)}
    normal = space.validate(given_types)
    assert normal == valid | {"subsample": 0.7, "gamma": 1.0}
    assert [type(value) for value in normal.values()] == [int, float, float, str, str, float]
    assert space.validate({k: v for k, v in valid.items() if k != "solver"}) == valid


@pytest.mark.parametrize("bound", [1e-5, 10.0])
@pytest.mark.parametrize("digits", [-1e-15, 1e-15])
def test_what_misses_a_bound_by_its_last_digits_is_at_the_bound(bound, digits):
    space = Space({"gamma": (1e-5, 10.0, "log")})
    given = bound * (1 + digits)
    assert space.validate({"gamma": given})["gamma"] == min(max(given, 1e-5), 10.0)
    with pytest.raises(UsageError, match="'gamma' must be a number"):
        space.validate({"gamma": bound * (1 + 1e-9 if bound > 1 else 1 - 1e-9)})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"max_itr": 3}, "unknown parameter 'max_itr': did you mean 'max_iter'?"),
        ({"max_iter": 500}, "'max_iter' must be a whole number from 10 to 200, not 500"),
        ({"max_iter": 50.5}, "'max_iter' must be a whole number from 10 to 200, not 50.5"),
        ({"max_iter": True}, "'max_iter' must be a whole number"),
        ({"max_iter": "50"}, "'max_iter' must be a whole number"),
        ({"max_iter": 10**400}, "'max_iter' must be a whole number"),
        ({"learning_rate": math.nan}, "'learning_rate' must be a number from 0.001 to 1.0"),
        ({"learning_rate": 10**400}, "'learning_rate' must be a number from 0.001 to 1.0"),
        ({"learning_rate": math.inf}, "'learning_rate' must be a number from 0.001 to 1.0"),
        ({"subsample": 0.55}, "'subsample' must be a number from 0.5 to 1.0 in steps of 0.1"),
        ({"kernel": "poly"}, "'kernel' must be one of 'rbf', 'linear', not 'poly'"),
        ({"kernel": np.arange(2)}, "'kernel' must be one of"),
        ({"solver": "sgd"}, "'solver' must be 'adam', not 'sgd'"),
        ({"kernel": "linear"}, "'gamma' is given, but only counts when kernel='rbf'"),
    ],
)
def test_validate_names_the_parameter_and_what_is_allowed(change, complaint):
    with pytest.raises(UsageError) as caught:
        space.validate(valid | change)
    assert complaint in str(caught.value)


def test_validate_asks_for_what_is_missing():
    with pytest.raises(UsageError, match="'gamma' is missing: give a number from 1e-05 to 10"):
        space.validate({k: v for k, v in valid.items() if k != "gamma"})


def test_true_is_not_one():
    with pytest.raises(UsageError):
        Space({"x": [0, 1]}).validate({"x": True})
    assert Space({"x": [0, 1]}).clip({"x": True}) == {"x": 0}


def test_clip_moves_what_is_outside_to_the_nearest_value():
    clipped = space.clip(
        {"max_iter": 9999, "learning_rate": 0, "subsample": 0.62, "kernel": "linear", "gamma": 1}
    )
    assert clipped == {
        "max_iter": 200,
        "learning_rate": 0.001,
        "subsample": 0.6,
        "kernel": "linear",
        "solver": "adam",
    }
    assert space.clip({"kernel": "poly", "max_iter": None})["kernel"] == "rbf"
    assert space.clip({"max_iter": math.nan}) == space.clip({}) == space.clip({"max_iter": "x"})
    assert space.clip({})["learning_rate"] == pytest.approx(10**-1.5)


@often
@given(spaces(), st.dictionaries(st.sampled_from("abcdez"), scalars | st.floats()))
def test_clip_gives_a_valid_configuration(drawn, params):
    clipped = drawn.clip(params)
    assert drawn.validate(clipped) == clipped


@often
@given(spaces_with(1))
def test_clip_leaves_a_valid_configuration_alone(case):
    drawn, params = case
    assert drawn.clip(params) == params


def test_fix_gives_one_value_and_drops_what_it_rules_out():
    assert space.fix(kernel="linear") == Space(
        {k: v for k, v in EXAMPLE.items() if k != "gamma"} | {"kernel": "linear"}
    )
    fixed = space.fix(gamma=1, max_iter=20.0)
    assert fixed["gamma"] == Fixed(1.0)
    assert fixed.fix(kernel="rbf").clip({})["gamma"] == 1.0
    assert "gamma" not in fixed.clip({"kernel": "linear"})


def test_fix_narrows_conditions_on_several_values():
    several = Space({"kernel": ["a", "b", "c"], "gamma": when((1, 2), kernel=["a", "b"])})
    assert several.fix(kernel="b") == Space({"kernel": "b", "gamma": when((1, 2), kernel="b")})


def test_fix_refuses_values_that_cannot_be():
    with pytest.raises(UsageError, match="'max_iter' must be a whole number"):
        space.fix(max_iter=1)
    with pytest.raises(UsageError, match="did you mean 'max_iter'"):
        space.fix(max_itre=1)
    with pytest.raises(UsageError, match="'gamma' is given, but only counts when kernel='rbf'"):
        space.fix(kernel="linear", gamma=0.1)


@often
@given(spaces_with(1), st.data())
def test_a_configuration_of_a_fixed_space_is_one_of_the_space(case, data):
    drawn, params = case
    kept = data.draw(st.sets(st.sampled_from(sorted(params)))) if params else set()
    fixed = drawn.fix(**{name: params[name] for name in kept})
    assert fixed.validate(params) == params
    again = fixed.sample(np.random.default_rng(0))
    assert drawn.validate(again) == again
    assert all(again[name] == params[name] for name in kept if name in again)


# Drawing


@often
@given(spaces_with(3))
def test_samples_are_valid(case):
    drawn, *samples = case
    for params in samples:
        assert drawn.validate(params) == params
        assert list(params) == drawn.active(params)


@sometimes
@given(spaces(), st.integers(0, 20), seeds)
def test_sobol_points_are_valid_and_repeatable(drawn, n, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        points = drawn.sobol(n, seed)
    assert len(points) == n
    assert [drawn.validate(params) for params in points] == points
    assert drawn.sobol(n, seed) == points


def test_sobol_covers_every_value_equally():
    points = Space({"x": (1, 4), "y": ["a", "b"]}).sobol(64, seed=3)
    for x in range(1, 5):
        assert sum(params["x"] == x for params in points) == 16
    assert sum(params["y"] == "a" for params in points) == 32


@sometimes
@given(spaces(most=4), st.integers(1, 3))
def test_grid_points_are_valid_and_distinct(drawn, resolution):
    points = drawn.grid(resolution)
    assert [drawn.validate(params) for params in points] == points
    assert len({repr(params) for params in points}) == len(points)


def test_grid_goes_from_end_to_end_in_the_transformed_scale():
    assert [params["x"] for params in Space({"x": (0.01, 1.0, "log")}).grid(3)] == pytest.approx(
        [0.01, 0.1, 1.0]
    )
    assert [params["x"] for params in Space({"x": (1, 5)}).grid(50)] == [1, 2, 3, 4, 5]


def test_finest_grid_is_the_largest_that_fits():
    plane = Space({"x": (0.0, 1.0), "y": (0.0, 1.0)})
    assert len(plane.finest_grid(10)) == 9
    assert len(Space({"x": (1, 5)}).finest_grid(100)) == 5
    assert Space({"x": ["a", "b", "c"]}).finest_grid(2) == []
    assert len(Space({f"x{i}": (0.0, 1.0) for i in range(60)}).finest_grid(100)) == 1


# The unit cube


def close(drawn, one, other):
    """Equal; continuous numbers up to 1e-12 of their range."""
    for name, value in one.items():
        domain = drawn[name]
        if isinstance(domain, Real) and domain.step is None:
            scale = value if domain.log else domain.high - domain.low
            assert abs(value - other[name]) <= 1e-12 * scale
        else:
            assert value == other[name]
            assert type(value) is type(other[name])
    return list(one) == list(other)


@often
@given(spaces_with(1))
def test_decode_undoes_encode(case):
    drawn, params = case
    vector = drawn.encode(params)
    assert vector.shape == (len(drawn.columns),)
    assert np.all((vector >= 0) & (vector <= 1))
    assert close(drawn, params, drawn.decode(vector))


@often
@given(spaces(), st.data())
def test_every_point_of_the_cube_decodes_to_a_valid_configuration(drawn, data):
    size = len(drawn.columns)
    vector = np.array(data.draw(st.lists(st.floats(0, 1), min_size=size, max_size=size)))
    params = drawn.decode(vector)
    assert drawn.validate(params) == params


@often
@given(spaces_with(4))
def test_many_configurations_encode_as_one_by_one(case):
    drawn, *samples = case
    many = drawn.encode_many(samples)
    assert np.array_equal(many, np.array([drawn.encode(params) for params in samples]))
    assert drawn.encode_many([]).shape == (0, len(drawn.columns))


def test_numbers_on_a_grid_own_cells_and_intervals_own_their_ends():
    cells = Space({"x": (1, 4)})
    assert [cells.encode({"x": x})[0] for x in range(1, 5)] == [0.125, 0.375, 0.625, 0.875]
    logs = Space({"x": (1, 4, "log")})
    assert logs.encode({"x": 2})[0] == pytest.approx(math.log(2 / 0.5) / math.log(4.5 / 0.5))
    ends = Space({"x": (0.01, 100.0, "log")})
    assert [ends.encode({"x": x})[0] for x in (0.01, 1.0, 100.0)] == pytest.approx([0, 0.5, 1])


def test_inactive_numbers_are_half_and_inactive_categories_zero():
    inactive = Space(
        {
            "on": [True, False],
            "x": when((0.0, 1.0), on=True),
            "c": when(["p", "q"], on=True),
            "solver": "adam",
        }
    )
    assert inactive.columns == ["on=True", "on=False", "x", "c=p", "c=q"]
    assert inactive.encode({"on": False, "solver": "adam"}).tolist() == [0, 1, 0.5, 0, 0]


def test_a_vector_of_the_wrong_length_is_refused():
    with pytest.raises(UsageError, match="6 columns"):
        space.decode(np.zeros(5))


def test_an_unknown_category_cannot_be_encoded():
    with pytest.raises(UsageError, match="'kernel' must be one of"):
        space.encode(valid | {"kernel": "poly"})


# FedEx's perturbation


@often
@given(spaces_with(1), seeds, st.floats(0, 1))
def test_perturb_stays_inside_the_space_and_within_epsilon(case, seed, epsilon):
    drawn, params = case
    moved = drawn.perturb(params, np.random.default_rng(seed), epsilon)
    assert drawn.validate(moved) == moved
    for name in moved.keys() & params.keys():
        assert within(drawn[name], params[name], moved[name], epsilon)


def within(domain, before, after, epsilon):
    if isinstance(domain, Category | Fixed):
        return epsilon > 0 or before == after
    if domain.log:
        factor = (domain.high / domain.low) ** epsilon * (1 + 1e-9)
        rounding = domain.cell / 2
        return before / factor - rounding <= after <= before * factor + rounding
    reach = (domain.high - domain.low) * epsilon
    if domain.cell:
        reach = math.ceil(round(reach / domain.cell, 9)) * domain.cell
    return abs(after - before) <= reach * (1 + 1e-9) + 1e-9 * domain.cell


@often
@given(spaces_with(1), seeds)
def test_perturb_by_nothing_changes_nothing(case, seed):
    drawn, params = case
    assert close(drawn, params, drawn.perturb(params, np.random.default_rng(seed), 0.0))


def test_whole_numbers_move_uniformly_from_floor_below_to_ceiling_above():
    rng = np.random.default_rng(0)
    counts = Space({"x": (0, 15)})
    seen = [counts.perturb({"x": 7}, rng)["x"] for _ in range(4000)]
    assert set(seen) == {6, 7, 8, 9}
    assert all(900 < seen.count(x) < 1100 for x in set(seen))
    exact = Space({"x": (0, 70)})
    assert {exact.perturb({"x": 35}, rng)["x"] for _ in range(500)} == set(range(28, 43))


def test_log_scales_are_perturbed_on_the_log_scale():
    rng = np.random.default_rng(0)
    rates = Space({"x": (1e-4, 1.0, "log")})
    decades = [math.log10(rates.perturb({"x": 0.01}, rng)["x"]) for _ in range(2000)]
    assert -2.4 <= min(decades) < -2.38
    assert -1.62 < max(decades) <= -1.6
    assert np.mean(decades) == pytest.approx(-2, abs=0.03)


def test_a_newly_active_parameter_is_sampled():
    rng = np.random.default_rng(0)
    start = space.clip({"kernel": "linear"})
    moved = [space.perturb(start, rng, 1.0) for _ in range(30)]
    active = [params for params in moved if params["kernel"] == "rbf"]
    assert active
    assert len({params["gamma"] for params in active}) == len(active)


# FLoRA's distance


@often
@given(spaces_with(3))
def test_distance_is_a_metric(case):
    drawn, one, two, three = case
    assert drawn.distance(one, one) == 0
    assert drawn.distance(one, two) == drawn.distance(two, one) >= 0
    assert (drawn.distance(one, two) > 0) == (one != two)
    assert (
        drawn.distance(one, three) <= drawn.distance(one, two) + drawn.distance(two, three) + 1e-12
    )


def test_distance_adds_the_norm_of_numbers_and_the_hops_of_categories():
    mixed = Space(
        {"x": (0.0, 10.0), "y": (1e-4, 1.0, "log"), "c": ["p", "q", "r"], "d": [True, False]}
    )
    one = {"x": 0.0, "y": 1e-4, "c": "p", "d": True}
    other = {"x": 3.0, "y": 10**-2.4, "c": "r", "d": False}
    assert mixed.distance(one, other) == pytest.approx(0.5 + 2)


def test_a_parameter_active_in_one_only_counts_one():
    partly = Space({"c": ["p", "q"], "x": when((0.0, 1.0), c="p")})
    assert partly.distance({"c": "p", "x": 0.3}, {"c": "q"}) == 2


# Optuna and JSON


@sometimes
@given(spaces(), seeds)
def test_optuna_suggests_valid_configurations(drawn, seed):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    params = drawn.suggest(study.ask())
    assert drawn.validate(params) == params


@often
@given(spaces())
def test_json_round_trip_is_equality(drawn):
    assert Space.from_json(json.loads(json.dumps(drawn.to_json()))) == drawn


def test_json_is_explicit():
    assert space.to_json()["gamma"] == {
        "type": "float",
        "low": 1e-5,
        "high": 10.0,
        "log": True,
        "step": None,
        "when": {"kernel": ["rbf"]},
    }


@pytest.mark.parametrize(
    "malformed",
    [
        None,
        [],
        {"x": 3},
        {"x": {}},
        {"x": {"type": "complex"}},
        {"x": {"type": "float", "low": 0.0}},
        {"x": {"type": "float", "low": "0", "high": 1.0}},
        {"x": {"type": "float", "low": 2.0, "high": 1.0}},
        {"x": {"type": "float", "low": 1.0, "high": 2.0, "log": True, "step": 1.0}},
        {"x": {"type": "int", "low": 1, "high": 9, "log": True, "step": 2}},
        {"x": {"type": "int", "low": 0, "high": 1.5}},
        {"x": {"type": "int", "low": 0, "high": 9, "hihg": 1}},
        {"x": {"type": "categorical", "choices": []}},
        {"x": {"type": "categorical", "choices": [{}]}},
        {"x": {"type": "fixed", "value": [1]}},
        {"x": {"type": "fixed", "value": math.nan}},
        {"x": {"type": "fixed", "value": 1, "when": []}},
        {"x": {"type": "fixed", "value": 1, "when": {"y": [1]}}},
        {1: {"type": "fixed", "value": 1}},
    ],
)
def test_malformed_json_is_a_usage_error(malformed):
    with pytest.raises(UsageError) as caught:
        Space.from_json(malformed)
    assert "\n" not in str(caught.value)
