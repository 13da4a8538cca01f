"""FedEx's arithmetic, written down once more from the paper."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.coordinator.federation import Sums
from cotune.coordinator.ledger import Total
from cotune.methods.exponentiated import (
    Discounted,
    Instance,
    Options,
    entropy,
    exponentiated,
    gradient,
    step_of,
)
from cotune.networks.parts import Common

#: One client's draw: its arm, its validation rows, its loss.
CLIENTS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 50), st.floats(0.0, 1.0)), min_size=1, max_size=10
)
K = 5


def options(**changed):
    usual = {
        "clients_per_round": 10,
        "objective": "personalized",
        "arms": K,
        "epsilon": 0.1,
        "step_size": "aggressive",
        "baseline": 0.5,
        "first_baseline": True,
        "floor": 0.0,
        "entropy_stop": 0.0,
        "product": False,
        "score_discount": 0.0,
        "judge_by": "mode",
        "validation": 0.1,
    }
    return Options(**usual | changed)


def instance(how, simplices=1):
    return Instance(
        number=0,
        learner="torch_mlp",
        params={},
        configurations=tuple({"lr": 0.1 * (j + 1), "epochs": j} for j in range(K)),
        names=("lr", "epochs") if simplices == 2 else (),
        theta=[np.full(K, 1 / K) for _ in range(simplices)],
        common=Common(np.zeros(1)),
        baseline=Discounted(how.baseline),
        scores=Discounted(how.score_discount),
        squares=[0.0] * simplices,
        thetas=[],
    )


def sums(clients, simplices=1, before=(0.0, 0.0)):
    """What a round tells the coordinator: totals only."""
    losses, rows = np.zeros(K), np.zeros(K)
    for arm, count, loss in clients:
        losses[arm] += count * loss
        rows[arm] += count
    terms = {
        "losses": np.tile(losses, simplices),
        "rows": np.tile(rows, simplices),
        "before": np.array(before),
        "own": np.array([1.0, 0.0, 0.0]),
    }
    packed = {name: values.astype("<f8").tobytes() for name, values in terms.items()}
    return Sums(Total(packed), len(clients))


def from_the_paper(rounds, gamma, schedule, first):
    """theta after each round: Algorithm 2, with lambda_t of C.3 and eta_t of appendix F."""
    theta, past, squares = [1 / K] * K, [], 0.0
    for clients in rounds:
        total = sum(v for _, v, _ in clients)
        mean = sum(v * loss for _, v, loss in clients) / total
        if past:
            t = len(past)
            weights = [gamma ** (t - s) for s in range(t)]
            baseline = (
                sum(w * loss for w, loss in zip(weights, past, strict=True)) / sum(weights)
                if gamma
                else past[-1]
            )
        else:
            baseline = mean if first else 0.0
        slope = [
            sum(v * (loss - baseline) for arm, v, loss in clients if arm == j) / (theta[j] * total)
            for j in range(K)
        ]
        largest = max(abs(entry) for entry in slope)
        squares += largest**2
        eta = math.sqrt(2 * math.log(K))
        if schedule == "aggressive":
            eta = eta / largest if largest > 1e-9 else 0.0  # less is rounding
        elif schedule == "adaptive":
            eta = eta / math.sqrt(squares) if math.sqrt(squares) > 1e-9 else 0.0
        grown = [share * math.exp(-eta * entry) for share, entry in zip(theta, slope, strict=True)]
        theta = [share / sum(grown) for share in grown]
        past.append(mean)
        yield theta


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("schedule", ["aggressive", "adaptive", "constant"])
@settings(max_examples=40, deadline=None)
@given(rounds=st.lists(CLIENTS, min_size=1, max_size=4), gamma=st.sampled_from([0.0, 0.3, 1.0]))
def test_theta_follows_the_paper(rounds, gamma, schedule, first):
    how = options(step_size=schedule, baseline=gamma, first_baseline=first)
    followed = instance(how)
    expected = from_the_paper(rounds, gamma, schedule, first)
    for clients in rounds:
        followed.update(sums(clients), how)
        np.testing.assert_allclose(followed.theta[0], next(expected), rtol=0, atol=1e-12)
        if followed.theta[0].min() < 1e-3:  # 1 / theta blows rounding up from here on
            break


@given(st.lists(st.floats(-1e6, 1e6), min_size=K, max_size=K), st.floats(0.0, 1e3))
def test_theta_stays_on_the_simplex_whatever_the_gradient(slope, step):
    moved = exponentiated(np.full(K, 1 / K), np.array(slope), step)
    assert np.all(moved >= 0)
    assert moved.sum() == pytest.approx(1.0, abs=1e-12)


def test_an_arm_that_nobody_drew_has_no_gradient():
    found = gradient(np.array([2.0, 0.0]), np.array([4.0, 0.0]), np.array([0.5, 0.5]), 0.25)
    np.testing.assert_allclose(found, [(2.0 - 0.25 * 4.0) / (0.5 * 4.0), 0.0], atol=1e-12)


def test_the_most_aggressive_step_moves_the_steepest_arm_by_a_fixed_factor():
    slope = np.array([0.0, 3.0, -1.0])
    step = step_of("aggressive", slope, 0.0)
    assert step == pytest.approx(math.sqrt(2 * math.log(3)) / 3, abs=1e-12)
    assert step_of("aggressive", np.zeros(3), 0.0) == 0.0


def test_the_published_first_round_pushes_down_what_was_drawn():
    """With a baseline of 0 even the better of two arms falls, below arms that nobody tried."""
    clients = [(0, 10, 0.9), (1, 10, 0.1)]
    published, mended = options(first_baseline=False), options()
    one, other = instance(published), instance(mended)
    one.update(sums(clients), published)
    other.update(sums(clients), mended)
    assert one.theta[0][1] < one.theta[0][2]
    assert other.theta[0][1] > other.theta[0][2] > other.theta[0][0]


def test_a_floor_keeps_every_arm_possible():
    how = options(floor=0.1)
    followed = instance(how)
    for _ in range(50):
        followed.update(sums([(0, 10, 0.9), (1, 10, 0.1)]), how)
    assert followed.theta[0].min() >= 0.1 / K - 1e-12
    assert followed.theta[0].sum() == pytest.approx(1.0)


def test_theta_stops_below_an_entropy():
    how = options(entropy_stop=1.0)
    followed = instance(how)
    for _ in range(30):
        followed.update(sums([(0, 10, 0.9), (1, 10, 0.1)]), how)
    stopped = followed.theta[0].copy()
    assert 0 < entropy(followed.theta) <= 1.0
    followed.update(sums([(0, 10, 0.9), (1, 10, 0.1)]), how)
    np.testing.assert_array_equal(followed.theta[0], stopped)


def test_a_product_of_simplices_has_the_sum_of_their_entropies():
    how = options(product=True)
    followed = instance(how, simplices=2)
    assert entropy(followed.theta) == pytest.approx(2 * math.log(K), abs=1e-12)
    followed.update(sums([(0, 10, 0.9), (1, 10, 0.1)], simplices=2), how)
    np.testing.assert_allclose(followed.theta[0], followed.theta[1])
    drawn = followed.arms.configuration([3, 1])
    assert drawn == {"lr": pytest.approx(0.4), "epochs": 1}


@pytest.mark.parametrize(("discount", "expected"), [(0.0, 0.2), (1.0, 0.5), (0.5, 0.35 / 1.75)])
def test_the_wrappers_score_discounts_the_past(discount, expected):
    how = options(score_discount=discount)
    followed = instance(how)
    losses = [0.9, 0.4, 0.2] if discount != 0.5 else [0.2, 0.2, 0.2]
    for loss in losses:
        followed.update(sums([(0, 10, loss)]), how)
    assert followed.scores.mean == pytest.approx(expected)


def test_the_global_objective_scores_the_weights_before_local_training():
    how = options(objective="global")
    followed = instance(how)
    followed.update(sums([(0, 10, 0.9)], before=(3.0, 10.0)), how)
    assert followed.scores.mean == pytest.approx(0.3)
    assert followed.baseline.mean == pytest.approx(0.9)


def test_a_client_that_names_an_arm_which_cannot_be_drawn_is_not_heard():
    theta = np.array([1.0, 0.0])
    slope = gradient(np.array([1.0, 5.0]), np.array([10.0, 10.0]), theta, 0.2)
    assert np.isfinite(slope).all()
    np.testing.assert_array_equal(exponentiated(theta, slope, 1.0), theta)


def test_a_round_in_which_no_client_could_be_judged_changes_nothing():
    how = options()
    followed = instance(how)
    followed.update(sums([]), how)
    assert followed.scores.mean is None
    np.testing.assert_array_equal(followed.theta[0], np.full(K, 1 / K))
