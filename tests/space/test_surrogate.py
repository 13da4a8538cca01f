from __future__ import annotations

import numpy as np
import pytest

from cotune.errors import UsageError
from cotune.space import Space, when
from cotune.space.surrogate import SURROGATES, Surrogate

LINE = Space({"x": (0.0, 1.0)})
PLANE = Space({"x": (0.0, 1.0), "rate": (1e-3, 1.0, "log")})
MIXED = Space(
    {
        "x": (0.0, 1.0),
        "kernel": ["rbf", "poly", "linear"],
        "degree": when((1, 9), kernel="poly"),
        "solver": "adam",
    }
)
#: Log of a third of the rows, as the parties judge it; and of three times as many.


def drawn(space, count, seed=0):
    rng = np.random.default_rng(seed)
    return [space.sample(rng) for _ in range(count)]


def bowl(params):
    """Least at x = 0.3 and a rate of 0.1."""
    rate = (np.log10(params["rate"]) + 3) / 3
    return 0.2 + (params["x"] - 0.3) ** 2 + (rate - 2 / 3) ** 2


def mixed(params):
    """Least at the polynomial of degree 3 and x = 0.8."""
    offset = {"rbf": 0.3, "poly": 0.0, "linear": 0.5}[params["kernel"]]
    return offset + (params["x"] - 0.8) ** 2 + 0.05 * abs(params.get("degree", 3) - 3)


@pytest.mark.parametrize("kind", SURROGATES)
def test_the_minimum_of_a_bowl_is_found(kind):
    trials = drawn(PLANE, 40)
    surrogate = Surrogate(PLANE, kind).fit(trials, [bowl(p) for p in trials])
    candidates = drawn(PLANE, 300, seed=1)
    mean, _ = surrogate.predict(candidates)
    assert bowl(candidates[mean.argmin()]) < 0.2 + 0.02


@pytest.mark.parametrize("kind", SURROGATES)
def test_the_same_seed_predicts_the_same(kind):
    trials, candidates = drawn(PLANE, 15), drawn(PLANE, 20, seed=1)
    losses = [bowl(p) for p in trials]
    one, again = (
        Surrogate(PLANE, kind, seed=7).fit(trials, losses).predict(candidates) for _ in range(2)
    )
    np.testing.assert_array_equal(one, again)


def test_another_seed_grows_another_forest():
    trials, candidates = drawn(PLANE, 15), drawn(PLANE, 20, seed=1)
    losses = [bowl(p) for p in trials]
    one, other = (
        Surrogate(PLANE, "forest", seed).fit(trials, losses).predict(candidates)[0]
        for seed in (0, 1)
    )
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("kind", SURROGATES)
def test_uncertainty_is_less_where_there_were_trials(kind):
    """The forest disagrees where the loss jumps, the process where it has not looked."""
    trials = [{"x": x} for x in np.linspace(0.0, 0.4, 12)]
    losses = [0.5 if p["x"] > 0.35 else 0.1 + 0.01 * p["x"] for p in trials]
    _, deviation = Surrogate(LINE, kind).fit(trials, losses).predict([{"x": 0.1}, {"x": 0.9}])
    assert (deviation >= 0).all()
    assert deviation[0] < deviation[1]


@pytest.mark.parametrize("kind", SURROGATES)
def test_categories_and_conditions_count(kind):
    trials = drawn(MIXED, 60)
    surrogate = Surrogate(MIXED, kind).fit(trials, [mixed(p) for p in trials])
    candidates = drawn(MIXED, 300, seed=1)
    best = candidates[surrogate.predict(candidates)[0].argmin()]
    assert best["kernel"] == "poly"
    assert abs(best["degree"] - 3) <= 2
    assert abs(best["x"] - 0.8) < 0.2


@pytest.mark.parametrize("kind", SURROGATES)
def test_a_space_without_choice_predicts_the_mean(kind):
    space = Space({"solver": "adam"})
    trials = [{"solver": "adam"}] * 4
    mean, deviation = Surrogate(space, kind).fit(trials, [0.1, 0.1, 0.2, 0.2]).predict(trials[:2])
    assert mean == pytest.approx([0.15, 0.15], abs=0.02)
    assert np.isfinite(deviation).all()


@pytest.mark.parametrize("kind", SURROGATES)
def test_a_single_trial_predicts_its_own_loss(kind):
    surrogate = Surrogate(LINE, kind).fit([{"x": 0.5}], [0.25])
    assert surrogate.predict([{"x": 0.5}])[0] == pytest.approx([0.25], abs=1e-6)


def test_an_unknown_surrogate_is_refused():
    with pytest.raises(UsageError, match="unknown surrogate 'forst': did you mean 'forest'"):
        Surrogate(LINE, "forst")


def test_a_process_knows_where_losses_are_bad_among_many_pairs():
    """More than it can take, most of them good: the few bad ones must not be left out."""
    trials = drawn(PLANE, 600)
    losses = [0.5 if p["x"] > 0.8 else 0.2 + 0.1 * p["x"] for p in trials]
    surrogate = Surrogate(PLANE, "gp").fit(trials, losses)
    bad, good = [[p for p in trials if (p["x"] > 0.85) == side] for side in (True, False)]
    assert surrogate.predict(bad)[0].min() > surrogate.predict(good)[0].mean()


def test_a_process_learns_from_some_of_many_pairs():
    trials = drawn(LINE, 300)
    surrogate = Surrogate(LINE, "gp").fit(trials, [abs(p["x"] - 0.6) for p in trials])
    mean, deviation = surrogate.predict(candidates := LINE.grid(41))
    assert candidates[mean.argmin()]["x"] == pytest.approx(0.6, abs=0.06)
    assert np.isfinite(deviation).all()


def test_how_bad_the_bad_ones_are_does_not_move_the_minimum():
    trials = LINE.grid(15)
    losses = [0.2 + (p["x"] - 0.3) ** 2 for p in trials]
    broken = [1.0 if p["x"] > 0.75 else loss for p, loss in zip(trials, losses, strict=True)]
    candidates = LINE.grid(51)
    for told in (losses, broken):
        mean, _ = Surrogate(LINE, "gp").fit(trials, told).predict(candidates)
        assert candidates[mean.argmin()]["x"] == pytest.approx(0.3, abs=0.06)


@pytest.mark.parametrize("kind", SURROGATES)
def test_a_loss_that_is_doubted_moves_the_surface_less(kind):
    trials = LINE.grid(21)
    losses = [(p["x"] - 0.3) ** 2 for p in trials]
    lucky = [*losses[:-1], 0.0]  # at x = 1, where the truth is 0.49
    at_the_end = []
    for doubt in (1.0, 50.0):
        doubts = [1.0] * 20 + [doubt]
        surrogate = Surrogate(LINE, kind).fit(trials, lucky, doubts)
        at_the_end.append(surrogate.predict([{"x": 1.0}])[0][0])
    believed, doubted = at_the_end
    assert doubted > believed
