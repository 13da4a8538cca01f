"""A client's part: what it draws, tells, keeps, and refuses."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from cotune.errors import Malformed
from cotune.party.rows import held_back
from cotune.party.train.network import Arms, Improve, Judge
from cotune.protocol.wire import Refusal, Summand
from cotune.training.rounds import fresh
from tests.parts import ask, iris, party_of, problem_of

GOOD = {"lr": 0.1, "epochs": 3, "batch_size": 16}
WILD = {"lr": 1e6, "momentum": 0.99, "epochs": 5}
SIZE = {"hidden": 16, "layers": 1}


@pytest.fixture(scope="module")
def problem():
    return problem_of(iris(), learners=("torch_mlp",), method="fedex", holdout=0.2)


def weights_of(problem):
    return fresh(problem, "torch_mlp", SIZE, 0).weights


def improve(problem, arms, **changed):
    usual = {"label": "0", "round": 0, "weights": weights_of(problem).tobytes()}
    return Improve("torch_mlp", SIZE, arms, **usual | changed)


def told(party, task, problem, round=1):
    answer = ask(party, task, problem, verb="sum", round=round)
    assert isinstance(answer, Summand), answer
    return {name: np.frombuffer(values) for name, values in answer.terms.items()}


def test_the_loss_stands_at_the_arm_that_was_drawn(problem, tmp_path):
    arms = Arms((WILD, GOOD), ((0.0, 1.0),))
    sums = told(party_of(iris(), tmp_path), improve(problem, arms), problem)
    held = held_back(120, 0.1)
    np.testing.assert_array_equal(sums["rows"], [0.0, held])
    assert sums["losses"][0] == 0.0
    assert 0 <= sums["losses"][1] <= held
    assert sums["own"][0] == 120 - held  # weighted by training rows
    assert np.abs(sums["update"]).max() > 0


def test_arms_are_drawn_by_theta_and_by_the_seed(problem, tmp_path):
    arms = Arms((GOOD, GOOD, GOOD), ((0.2, 0.5, 0.3),))
    party = party_of(iris(), tmp_path)
    drawn = [
        int(np.argmax(told(party, improve(problem, arms, round=n), problem)["rows"]))
        for n in range(60)
    ]
    again = [
        int(np.argmax(told(party, improve(problem, arms, round=n), problem)["rows"]))
        for n in range(5)
    ]
    assert again == drawn[:5]
    assert np.bincount(drawn, minlength=3) / 60 == pytest.approx([0.2, 0.5, 0.3], abs=0.15)


def test_training_that_goes_off_tells_no_update_and_the_worst_loss(problem, tmp_path):
    arms = Arms((WILD,), ((1.0,),))
    sums = told(party_of(iris(), tmp_path), improve(problem, arms), problem)
    assert sums["failed"] == [1.0]
    assert not sums["update"].any()
    assert sums["losses"] == sums["rows"]  # an error of 1


def test_the_global_objective_tells_the_loss_before_training(problem, tmp_path):
    arms = Arms((GOOD,), ((1.0,),))
    party = party_of(iris(), tmp_path)
    sums = told(party, improve(problem, arms, objective="global"), problem)
    assert sums["before"][1] == sums["rows"][0]
    assert sums["before"][0] > sums["losses"][0]
    assert not told(party, improve(problem, arms), problem)["before"].any()


def test_ditto_judges_a_model_of_its_own_and_updates_the_common_one_as_ever(problem, tmp_path):
    party = party_of(iris(), tmp_path)
    plain = told(party, improve(problem, Arms((GOOD,), ((1.0,),))), problem)
    held = told(party, improve(problem, Arms((GOOD | {"personal_mu": 100.0},), ((1.0,),))), problem)
    np.testing.assert_array_equal(held["update"], plain["update"])
    tight = told(party, improve(problem, Arms((GOOD | {"personal_mu": 5.0},), ((1.0,),))), problem)
    assert tight["losses"][0] >= plain["losses"][0]


def test_control_variates_outlive_a_round_and_a_party(problem, tmp_path):
    arms, zeros = Arms((GOOD,), ((1.0,),)), np.zeros_like(weights_of(problem)).tobytes()
    state = tmp_path / "state"
    party = party_of(iris(), tmp_path / "one", state=state)
    first = told(party, improve(problem, arms, control=zeros), problem)
    plain = told(party, improve(problem, arms), problem)
    np.testing.assert_array_equal(first["update"], plain["update"])  # c and c_i are 0 still
    later = improve(problem, arms, control=zeros, round=1)
    second = told(party, later, problem, round=2)
    restarted = party_of(iris(), tmp_path / "two", state=state)
    np.testing.assert_array_equal(
        told(restarted, later, problem, round=2)["update"], second["update"]
    )
    forgetful = party_of(iris(), tmp_path / "three", state=tmp_path / "elsewhere")
    other = told(forgetful, later, problem, round=2)
    assert not np.array_equal(other["update"], second["update"])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_option_two_of_the_control_variates(momentum, problem, tmp_path):
    """c_i+ is the mean gradient. Of plain descent: c_i+ - c_i = -c - (w_i - w) / (K lr).

    With momentum every gradient g_s moves the weights by lr times the sum of the powers of the
    momentum that are still to come. One batch each of the same rows, and a gradient that hardly
    changes, make that sum a factor.
    """
    common = np.full_like(weights_of(problem), 0.01)
    held = held_back(120, 0.1)
    arm = {"lr": 1e-4, "momentum": momentum, "epochs": 4, "batch_size": 120}
    task = improve(problem, Arms((arm,), ((1.0,),)), control=common.tobytes())
    sums = told(party_of(iris(), tmp_path), task, problem)
    weight = sums["own"][0]
    assert weight == 120 - held
    reach = sum(sum(momentum**k for k in range(4 - step)) for step in range(4))
    expected = -common - sums["update"] / weight / (reach * 1e-4)
    np.testing.assert_allclose(sums["control"] / weight, expected, atol=2e-3)


def test_without_momentum_the_control_is_what_the_distance_says(problem, tmp_path):
    """c_i+ - c_i = -c - (w_i - w) / (K lr), whatever the number of batches."""
    common = np.full_like(weights_of(problem), 0.01)
    task = improve(problem, Arms((GOOD,), ((1.0,),)), control=common.tobytes())
    sums = told(party_of(iris(), tmp_path), task, problem)
    steps = 3 * -(-(120 - held_back(120, 0.1)) // 16)
    weight = sums["own"][0]
    expected = -common - sums["update"] / weight / (steps * 0.1)
    np.testing.assert_allclose(sums["control"] / weight, expected, atol=1e-6)


def test_old_control_variates_are_forgotten(problem, tmp_path):
    arms, zeros = Arms((GOOD,), ((1.0,),)), np.zeros_like(weights_of(problem)).tobytes()
    party = party_of(iris(), tmp_path / "scratch", state=tmp_path / "state")
    for n in range(8):
        told(
            party,
            improve(problem, arms, control=zeros, round=n, since=max(0, n - 3)),
            problem,
            n + 1,
        )
    kept = sorted(int(file.stem) for file in tmp_path.glob("state/**/network-0/*.npy"))
    assert kept == [3, 4, 5, 6, 7]  # the newest of those before round 4, and all after


def test_test_rows_are_judged_before_and_after_fine_tuning(problem, tmp_path):
    arms = Arms((WILD, GOOD), ((0.1, 0.9),))
    task = Judge("torch_mlp", SIZE, arms, weights_of(problem).tobytes())
    sums = told(party_of(iris(), tmp_path), task, problem)
    assert sums["rows"] == [30.0]
    assert sums["personal"][0] < sums["common"][0]
    bare = msgspec.structs.replace(problem, holdout=0.0)
    sums = told(party_of(iris(), tmp_path / "bare"), task, bare)
    assert (sums["rows"], sums["common"]) == ([0.0], [0.0])


@pytest.mark.parametrize(
    "arms",
    [
        Arms((GOOD,), ((0.5,),)),
        Arms((GOOD, GOOD), ((1.0,),)),
        Arms((GOOD, GOOD), ((1.5, -0.5),)),
        Arms((GOOD, GOOD), ((0.5, 0.5),), ("lr", "epochs")),
    ],
)
def test_a_distribution_that_is_none_is_refused(arms, problem, tmp_path):
    with pytest.raises(Malformed, match="distribution"):
        arms.check()
    answer = ask(party_of(iris(), tmp_path), improve(problem, arms), problem, verb="sum")
    assert isinstance(answer, Refusal)
    assert answer.code == "malformed"


def test_weights_of_another_network_are_refused(problem, tmp_path):
    task = improve(problem, Arms((GOOD,), ((1.0,),)), weights=b"\0" * 40)
    answer = ask(party_of(iris(), tmp_path), task, problem, verb="sum")
    assert isinstance(answer, Refusal)
    assert (answer.code, "as many" in answer.sentence) == ("malformed", True)


def test_a_party_without_the_network_says_so(problem, tmp_path):
    task = msgspec.structs.replace(improve(problem, Arms((GOOD,), ((1.0,),))), learner="unheard")
    answer = ask(party_of(iris(), tmp_path), task, problem, verb="sum")
    assert isinstance(answer, Refusal)
    assert answer.code == "unknown_learner"


@pytest.mark.parametrize(("rows", "held"), [(1, 0), (2, 1), (10, 1), (100, 10)])
def test_rows_are_held_back_unless_there_is_only_one(rows, held):
    assert held_back(rows, 0.1) == held


@pytest.mark.parametrize("label", ["../out", "/etc/x", "a/b", "x" * 65])
def test_a_label_is_no_path(label, problem, tmp_path):
    zeros = np.zeros_like(weights_of(problem)).tobytes()
    task = improve(problem, Arms((GOOD,), ((1.0,),)), label=label, control=zeros)
    answer = ask(party_of(iris(), tmp_path / "in"), task, problem, verb="sum")
    assert isinstance(answer, Refusal)
    assert {path.name for path in tmp_path.iterdir()} <= {"in"}


def test_a_huge_network_is_not_built_for_weights_that_are_not_its_own(problem, tmp_path):
    huge = {"hidden": 10**6, "layers": 3}  # terabytes
    task = msgspec.structs.replace(improve(problem, Arms((GOOD,), ((1.0,),))), params=huge)
    answer = ask(party_of(iris(), tmp_path), task, problem, verb="sum")
    assert isinstance(answer, Refusal)
    assert answer.code == "malformed"


def test_rows_that_do_not_define_the_metric_count_nothing(tmp_path):
    frame = iris()
    frame = frame[frame["target"] < 2].reset_index(drop=True)
    curve = problem_of(
        frame, learners=("torch_mlp",), method="fedex", metric="roc_auc", holdout=0.0
    )
    one_class = frame[frame["target"] == 0]
    for arm in (GOOD, WILD):
        task = improve(curve, Arms((arm,), ((1.0,),)), objective="global")
        sums = told(party_of(one_class, tmp_path / str(arm["lr"])), task, curve)
        assert (sums["rows"], sums["losses"]) == ([0.0], [0.0])
        assert not sums["before"].any()


def test_where_parties_are_equal_losses_are_not_weighted_by_rows(tmp_path):
    equal = problem_of(
        iris(), learners=("torch_mlp",), method="fedex", weights="equal", holdout=0.0
    )
    sums = told(party_of(iris(), tmp_path), improve(equal, Arms((GOOD,), ((1.0,),))), equal)
    assert sums["rows"] == [1.0]
    assert sums["own"][0] == 1.0
