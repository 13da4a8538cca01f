"""Ask and tell: what every sampler does, and what only the grid does."""

import logging
import math
import warnings

import optuna
import pytest

from cotune.errors import UsageError
from cotune.space import Space, when
from cotune.space import search as search_module
from cotune.space.search import SAMPLERS, Asked, Search

space = Space(
    {
        "x": (-5.0, 5.0),
        "rate": (1e-4, 1.0, "log"),
        "depth": (1, 8),
        "share": (0.1, 1.0, 0.1),
        "kernel": ["rbf", "linear"],
        "solver": "adam",
        "gamma": when((1e-3, 10.0, "log"), kernel="rbf"),
    }
)


def loss_of(params):
    penalty = abs(math.log10(params.get("gamma", 1.0)))
    return params["x"] ** 2 + (math.log10(params["rate"]) + 2) ** 2 + penalty


def run(search, trials):
    asks = []
    for _ in range(trials):
        asked = search.ask()
        asks.append(asked.params)
        search.tell(asked, loss_of(asked.params))
    return asks


@pytest.fixture(params=[name for name in SAMPLERS if name != "grid"])
def sampler(request):
    if request.param == "gp":
        pytest.importorskip("torch")
    return request.param


def test_every_ask_is_a_valid_configuration(sampler):
    for params in run(Search(space, sampler), 15):
        assert space.validate(params) == params


def test_the_same_seed_and_losses_give_the_same_asks(sampler):
    first = run(Search(space, sampler, seed=7), 16)
    assert run(Search(space, sampler, seed=7), 16) == first
    assert run(Search(space, sampler, seed=8), 16) != first


def test_later_asks_depend_on_the_losses():
    plain, upside_down = Search(space, seed=1), Search(space, seed=1)
    for _ in range(12):
        one, other = plain.ask(), upside_down.ask()
        plain.tell(one, loss_of(one.params))
        upside_down.tell(other, -loss_of(other.params))
    assert plain.ask().params != upside_down.ask().params


def test_tpe_finds_better_configurations_than_it_starts_with():
    search = Search(space, "tpe", seed=3)
    losses = [loss_of(params) for params in run(search, 60)]
    assert min(losses[10:]) < min(losses[:10])


def test_the_first_configuration_is_clipped_and_asked_first(sampler):
    search = Search(space, sampler, first={"x": 99, "share": 0.3, "kernel": "linear", "other": 1})
    asked = search.ask()
    assert asked.number == 0
    assert asked.params == space.clip({"x": 5.0, "share": 0.3, "kernel": "linear"})
    search.tell(asked, 1.0)
    assert search.ask().params != asked.params


def test_a_space_of_fixed_values_is_asked_over_and_over(sampler):
    search = Search(Space({"solver": "adam", "depth": 3}), sampler, first={"depth": 9})
    for _ in range(12):
        asked = search.ask()
        assert asked.params == {"solver": "adam", "depth": 3}
        search.tell(asked, 0.5)


def test_a_space_of_one_number_can_be_searched(sampler):
    search = Search(Space({"x": (0.0, 1.0)}), sampler)
    for _ in range(12):
        asked = search.ask()
        search.tell(asked, asked.params["x"])


def test_several_may_wait_and_be_told_in_any_order():
    search = Search(space)
    waiting = [search.ask() for _ in range(4)]
    assert [asked.number for asked in waiting] == [0, 1, 2, 3]
    for asked in reversed(waiting):
        search.tell(asked, float(asked.number))
    assert search.best == (waiting[0].params, 0.0)


def test_of_equal_losses_the_first_told_is_best():
    search = Search(space, "random")
    one, other = search.ask(), search.ask()
    search.tell(other, 0.5)
    search.tell(one, 0.5)
    assert search.best == (other.params, 0.5)


def test_there_is_no_best_before_a_loss():
    with pytest.raises(UsageError, match="before a loss"):
        _ = Search(space).best


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_must_be_finite(loss):
    search = Search(space)
    asked = search.ask()
    with pytest.raises(UsageError, match="finite"):
        search.tell(asked, loss)
    search.tell(asked, 1.0)


def test_a_trial_is_told_once_and_only_if_asked():
    search = Search(space)
    asked = search.ask()
    search.tell(asked, 1.0)
    for wrong in (asked, Asked(99, {})):
        with pytest.raises(UsageError, match="does not wait"):
            search.tell(wrong, 0.0)
    assert search.best == (asked.params, 1.0)


def test_an_unknown_sampler_is_refused_with_the_closest_name():
    with pytest.raises(UsageError, match="unknown sampler 'tpee': did you mean 'tpe'"):
        Search(space, "tpee")


def test_gp_without_pytorch_says_what_to_install(monkeypatch):
    monkeypatch.setattr(search_module, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs PyTorch: pip install 'cotune\[torch\]'"):
        Search(space, "gp")


def test_a_grid_ends():
    plane = Space({"x": (0.0, 1.0), "c": ["p", "q"], "y": when((0.0, 1.0), c="p")})
    search = Search(plane, "grid", trials=20)
    asks = []
    while asked := search.ask():
        asks.append(asked.params)
    assert asks == plane.grid(4)
    assert len(asks) == 20
    assert search.ask() is None


def test_a_grid_with_a_first_configuration_stays_within_the_trials():
    line = Space({"x": (0.0, 1.0)})
    search = Search(line, "grid", first={"x": 0.3}, trials=5)
    asks = [search.ask().params["x"] for _ in range(5)]
    assert asks == pytest.approx([0.3, 0, 1 / 3, 2 / 3, 1])
    assert search.ask() is None


def test_a_grid_does_not_repeat_the_first_configuration():
    search = Search(Space({"c": ["p", "q"]}), "grid", first={"c": "q"}, trials=5)
    assert [search.ask().params["c"] for _ in range(2)] == ["q", "p"]
    assert search.ask() is None


def test_a_grid_needs_enough_trials():
    with pytest.raises(UsageError, match="number of trials"):
        Search(space, "grid")
    with pytest.raises(UsageError, match="trials=2"):
        Search(Space({"c": ["p", "q", "r"]}), "grid", trials=2)


def test_optuna_is_silent_and_its_settings_are_left_alone(sampler, capfd):
    optuna.logging.set_verbosity(logging.INFO)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(Search(space, sampler, first={}), 14)
    assert optuna.logging.get_verbosity() == logging.INFO
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_a_configuration_can_be_learned_without_being_asked(sampler, kernel):
    search = Search(space, sampler, seed=2)
    run(search, 3)
    learned = space.clip({"x": 0.0, "rate": 0.01, "kernel": kernel})
    search.learn(learned, -1.0)
    assert search.best == (learned, -1.0)
    for params in run(search, 12):
        assert space.validate(params) == params


def test_a_sampler_heeds_what_was_learned():
    plain, taught = Search(space, seed=1), Search(space, seed=1)
    for search in (plain, taught):
        run(search, 12)
    for x in (4.0, 4.1, 4.2):
        taught.learn(space.clip({"x": x}), -1.0)
    assert plain.ask().params != taught.ask().params


def test_only_configurations_of_the_space_with_a_finite_loss_are_learned():
    search = Search(space)
    with pytest.raises(UsageError, match="finite"):
        search.learn(space.clip({}), math.nan)
    with pytest.raises(UsageError, match="'depth' must be"):
        search.learn(space.clip({}) | {"depth": 99}, 0.5)
