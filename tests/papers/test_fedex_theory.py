"""FedEx's Theorem 4.1: the tasks, the update of theta, the bound and the fall of the regret."""

from __future__ import annotations

import doctest
import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "papers"))

import fedex_theory as theory

SETTING = theory.Setting()


@pytest.fixture(scope="module")
def cases():
    return {
        (case["V"], case["tau"]): case
        for V in (0.02, 0.2)
        for case in theory.compare(SETTING, V, (10, 100, 1000), seeds=5)
    }


def one_pass(setting, optimum, directions, start, step):
    """OGD on a single task, as a textbook has it: its regret and its last iterate."""
    w, regret = start.copy(), 0.0
    for x in directions:
        regret += setting.G * abs(x @ (w - optimum))
        w = w - step * setting.G * np.sign(x @ (w - optimum)) * x
        w = w * min(1.0, setting.D / 2 / np.linalg.norm(w))
    return regret, w


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(theory).failed == 0


# The tasks


@pytest.mark.parametrize("deviation", [0.02, 0.2])
def test_optima_lie_in_the_ball_and_deviate_by_v(deviation):
    optima, directions = theory.tasks(SETTING, deviation, 5000, seed=0)
    assert np.linalg.norm(optima, axis=1).max() <= SETTING.D / 2 + 1e-12
    assert np.linalg.norm(directions, axis=2) == pytest.approx(1.0)
    assert theory.similarity(optima) == pytest.approx(deviation, rel=0.01)


def test_the_first_tasks_do_not_depend_on_how_many_follow_in_their_optima():
    few, many = (theory.tasks(SETTING, 0.1, count, seed=3)[0] for count in (10, 50))
    assert np.array_equal(few, many[:10])


def test_starts_follow_the_aggregation_with_one_over_t():
    optima, _ = theory.tasks(SETTING, 0.1, 30, seed=1)
    w, starts = np.zeros(SETTING.dimension), theory.initializations(optima)
    for t, optimum in enumerate(optima, start=1):
        assert starts[t - 1] == pytest.approx(w, abs=1e-12)
        w = (1 - 1 / t) * w + optimum / t


def test_regrets_of_all_tasks_and_arms_are_those_of_plain_gradient_descent(monkeypatch):
    monkeypatch.setattr(theory, "CHUNK", 7)
    setting = theory.Setting(D=2.0, G=0.5, m=6)
    optima, directions = theory.tasks(setting, 0.4, 20, seed=2)
    starts, arms = theory.initializations(optima), setting.arms(3)
    found = theory.regrets(setting, optima, directions, starts, arms)
    expected = [
        [one_pass(setting, *task, c)[0] for c in arms]
        for task in zip(optima, directions, starts, strict=True)
    ]
    assert found == pytest.approx(np.array(expected), abs=1e-12)


def test_the_regret_of_gradient_descent_is_what_its_bound_says_less_the_last_distance():
    setting = theory.Setting(offset=0.1)
    optima, directions = theory.tasks(setting, 0.05, 50, seed=0)
    step = setting.arms(8)[-1]  # too small to leave the ball: nothing is projected
    for optimum, xs in zip(optima, directions, strict=True):
        regret, last = one_pass(setting, optimum, xs, np.zeros(3), step)
        distances = np.sum(optimum**2) - np.sum((last - optimum) ** 2)
        assert regret == pytest.approx(distances / (2 * step) + step * setting.m / 2)


# The update of theta


def test_the_update_is_the_formula_to_the_twelfth_digit():
    random = np.random.default_rng(0)
    for _ in range(100):
        theta = random.dirichlet(np.ones(6))
        gradient, step = random.normal(scale=3.0, size=6), random.uniform(0.01, 2.0)
        weights = [p * math.exp(-step * g) for p, g in zip(theta, gradient, strict=True)]
        expected = [weight / math.fsum(weights) for weight in weights]
        assert theory.exponentiated(theta, gradient, step) == pytest.approx(expected, abs=1e-12)


def test_only_the_drawn_arm_is_judged_and_by_its_regret_over_its_share():
    feedback = np.array([[[3.0, 100.0, 100.0]]])
    chosen, theta = theory.fedex(feedback, eta=0.1, draws=np.array([[0.2]]))
    weights = np.array([math.exp(-0.1 * 3.0 / (1 / 3)), 1.0, 1.0])
    assert chosen.tolist() == [[0]]
    assert theta[0] == pytest.approx(weights / weights.sum(), abs=1e-12)


def test_arms_are_drawn_with_their_shares():
    draws = np.random.default_rng(0).random((1, 5000))
    chosen, _ = theory.fedex(np.zeros((1, 5000, 4)), 0.1, draws)
    assert np.bincount(chosen[0]) / 5000 == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("eta", [0.001, 1.0, 1e4])
def test_theta_stays_on_the_simplex_even_where_the_step_is_huge(eta):
    random = np.random.default_rng(1)
    feedback = random.random((4, 200, 5)) * SETTING.m
    chosen, theta = theory.fedex(feedback, eta, random.random((4, 200)))
    assert np.all(theta >= 0)
    assert theta.sum(axis=1) == pytest.approx(1.0, abs=1e-12)
    assert set(chosen.flat) <= set(range(5))


def test_theta_comes_to_favour_an_arm_that_is_clearly_better():
    feedback = np.broadcast_to([0.9, 0.1, 0.9], (3, 2000, 3))
    _, theta = theory.fedex(feedback, 0.02, np.random.default_rng(0).random((3, 2000)))
    assert np.all(theta[:, 1] > 0.9)


# The theorem


def test_the_two_terms_that_k_balances_are_equal_before_k_is_rounded():
    setting = theory.Setting(m=5)
    tau = 2 * 5 * 8**3  # so that k is 8 exactly
    k = setting.count(tau)
    assert k == 8
    exploring = setting.m * setting.b * math.sqrt(k * tau)
    assert setting.D / k * setting.G * tau * math.sqrt(setting.m / 2) == pytest.approx(exploring)


def test_eta_minimizes_the_bandit_part_of_the_bound():
    tau = 1000
    k, eta = SETTING.count(tau), SETTING.eta(tau)

    def part(step):
        return math.log(k) / step + step * k * tau * (SETTING.m * SETTING.b) ** 2

    assert part(eta) < min(part(0.9 * eta), part(1.1 * eta))
    expected = 2 * SETTING.m * SETTING.b * math.sqrt(k * math.log(k) / tau)
    assert part(eta) / tau == pytest.approx(expected)
    both = theory.bound(SETTING, tau, 0.1) - theory.arms_bound(SETTING, tau, 0.1)
    assert both == pytest.approx(expected)


@pytest.mark.parametrize("deviation", [0.0, 0.06, 0.2])
@pytest.mark.parametrize("tau", [2, 30, 600])
def test_the_best_arm_keeps_its_part_of_the_bound_in_every_single_sequence(deviation, tau):
    arms = SETTING.arms(SETTING.count(tau))
    for seed in range(5):
        optima, directions = theory.tasks(SETTING, deviation, tau, seed)
        starts = theory.initializations(optima)
        best = theory.regrets(SETTING, optima, directions, starts, arms).mean(axis=0).min()
        assert best <= theory.arms_bound(SETTING, tau, theory.similarity(optima))


def test_the_bound_of_the_theorem_holds(cases):
    for case in cases.values():
        assert case["fedex"][0] + case["fedex"][1] <= case["bound"]


def test_similar_tasks_have_less_regret_the_more_of_them_there_are(cases):
    early, late = cases[0.02, 100], cases[0.02, 1000]
    assert late["fedex"][0] + late["fedex"][1] < early["fedex"][0] - early["fedex"][1]


def test_similar_tasks_end_with_less_regret_than_dissimilar_ones(cases):
    assert cases[0.02, 1000]["fedex"][0] < 0.9 * cases[0.2, 1000]["fedex"][0]


def test_fedex_beats_single_tasks_and_uniform_arms_but_not_the_best_arm(cases):
    for V in (0.02, 0.2):
        case = cases[V, 1000]
        assert case["best_arm"][0] < case["fedex"][0] < 0.6 * case["single_task"][0]
        assert case["fedex_less_uniform"][0] + case["fedex_less_uniform"][1] < 0


def test_what_is_said_counts_the_cases_in_which_the_bound_fails(cases):
    broken = [{**case, "bound": 0.0} for case in cases.values()]
    assert "fifth line holds in 0 of 6 cases" in theory.findings(broken)[0]
    assert "fifth line holds in 6 of 6 cases" in theory.findings(list(cases.values()))[0]
