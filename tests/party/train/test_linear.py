from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cotune
from cotune.coordinator.journal import Journal
from cotune.party.train.linear import Fourier, Slope, balanced_weights
from cotune.party.train.losses import bent
from cotune.problem import Budget
from cotune.protocol.wire import OWN_TERMS, Refusal, decode_request, encode, unpack_terms
from tests.parts import ask, diabetes, iris, party_of, people, problem_of

FRAME = people(90, labels="xyz")
PROBLEM = problem_of(FRAME, learners=("logistic_regression",))
NUMBERS = diabetes().iloc[:90]
MAP = Fourier(0.1, 3, seed=5)


def asking(loss="logistic", outputs=3, columns=5, seed=0, **fields):
    drawn = np.random.default_rng(seed).normal(size=outputs * (columns + 1))
    return Slope(loss, drawn.astype("<f8").tobytes(), **fields)


def summed(party, task, problem=PROBLEM):
    reply = ask(party, task, problem, verb="sum")
    assert not isinstance(reply, Refusal), reply
    return unpack_terms(task.terms(problem) | OWN_TERMS, reply.terms)


TASKS = [
    asking(curvature="whole"),
    asking(curvature="block", balanced=True),
    asking("squared_hinge", columns=6, curvature="block", fourier=MAP),
]


@settings(deadline=None, max_examples=10)
@given(st.lists(st.integers(0, 2), min_size=90, max_size=90), st.sampled_from(TASKS))
def test_sums_over_any_split_of_the_rows_are_those_of_all(tmp_path_factory, owners, task):
    scratch = tmp_path_factory.mktemp("rows")
    whole = summed(party_of(FRAME, scratch / "whole"), task)
    tables = [FRAME[np.array(owners) == owner] for owner in set(owners)]
    shares = [summed(party_of(table, scratch / str(i)), task) for i, table in enumerate(tables)]
    for name in task.terms(PROBLEM):
        total = np.sum([share[name] for share in shares], axis=0)
        np.testing.assert_allclose(total, whole[name], rtol=0, atol=4 * 2.0**-30)


@pytest.mark.parametrize(
    ("frame", "task"),
    [
        (FRAME, asking(curvature="whole")),
        (FRAME, asking("squared_hinge", curvature="whole", balanced=True)),
        (iris(60).query("target < 2"), asking(outputs=1, columns=4, curvature="block")),
        (iris(60).query("target < 2"), asking("squared_hinge", 1, 6, fourier=MAP)),
        (NUMBERS, asking("squared_epsilon", 1, 10, curvature="whole", epsilon=0.3)),
    ],
)
def test_gradient_and_curvature_are_the_derivatives_of_the_loss(frame, task, tmp_path):
    problem = problem_of(frame, learners=("svm",))
    party = party_of(frame, tmp_path)
    at = np.frombuffer(task.coefficients, "<f8")
    here = summed(party, task, problem)
    side = int((np.sqrt(8 * len(here["curvature"]) + 1) - 1) / 2)
    square = np.zeros((side, side))
    square[np.triu_indices(side)] = here["curvature"]
    square = square + np.triu(square, 1).T
    for position in range(len(at)):
        moved = 1e-5 * np.eye(len(at))[position]
        up, down = (
            summed(party, msgspec.structs.replace(task, coefficients=(at + way).tobytes()), problem)
            for way in (moved, -moved)
        )
        slope = (up["loss"] - down["loss"]) / 2e-5
        np.testing.assert_allclose(slope, here["gradient"][position], rtol=1e-4, atol=2e-3)
        if position < side:
            bend = (up["gradient"] - down["gradient"])[:side] / 2e-5
            np.testing.assert_allclose(bend, square[position], rtol=1e-3, atol=2e-3)


@given(st.integers(0, 2**20), st.sampled_from(["logistic", "squared_hinge"]), st.integers(1, 4))
def test_losses_are_convex_and_no_row_costs_less_than_nothing(seed, loss, outputs):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, max(2, outputs), 20)
    one, other = rng.normal(0, 20, (2, 20, outputs))
    ends = bent(loss, one, y, 0.0).loss + bent(loss, other, y, 0.0).loss
    middle = bent(loss, (one + other) / 2, y, 0.0).loss
    assert (middle >= 0.0).all()
    assert (2.0 * middle <= ends + 1e-9).all()


def test_far_scores_do_not_overflow():
    scores = np.array([[1e4], [-1e4]])
    here = bent("logistic", scores, np.array([0, 0]), 0.0)
    np.testing.assert_allclose(here.loss, [1e4, 0.0])
    several = bent("logistic", np.array([[1e4, 0.0, -1e4]]), np.array([2]), 0.0)
    np.testing.assert_allclose(several.loss, [2e4])


def test_rows_are_looked_at_in_parts(monkeypatch, tmp_path):
    whole = summed(party_of(FRAME, tmp_path / "a"), TASKS[0])
    monkeypatch.setattr("cotune.party.train.linear.CHUNK", 7)
    parted = summed(party_of(FRAME, tmp_path / "b"), TASKS[0])
    np.testing.assert_allclose(parted["curvature"], whole["curvature"], atol=1e-8)


def test_balanced_weights_are_scikit_learns():
    from sklearn.utils.class_weight import compute_class_weight

    y = np.repeat([0, 1, 2], [3, 10, 5])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=y)
    np.testing.assert_allclose(balanced_weights((3, 10, 5)), expected)
    assert np.isfinite(balanced_weights((3, 0))).all()


def test_coefficients_of_another_model_are_refused(tmp_path):
    reply = ask(party_of(FRAME, tmp_path), asking(columns=4), PROBLEM, verb="sum")
    assert reply == Refusal("malformed", "the coefficients are not as many as the model has")


@pytest.mark.parametrize("gamma", [0.0, -1.0])
def test_a_map_without_a_width_is_no_message(gamma):
    from cotune.errors import Malformed
    from cotune.protocol.wire import Request

    request = Request("run", 1, "sum", asking(fourier=Fourier(gamma, 3, 5)))
    with pytest.raises(Malformed):
        decode_request(encode(request))


def test_a_sum_out_of_bounds_is_said_to_be_one(tmp_path):
    frame = FRAME.assign(age=FRAME["age"] * 1e9)
    problem = problem_of(frame, learners=("svm",), scaling="none")
    reply = ask(party_of(frame, tmp_path), asking(), problem, verb="sum")
    assert reply.code == "data"
    assert "go beyond 2**31" in reply.sentence


def test_a_reply_is_no_longer_than_was_said(tmp_path):
    party = party_of(FRAME, tmp_path)
    for task in TASKS:
        reply = ask(party, task, PROBLEM, verb="sum")
        assert len(encode(reply)) <= task.most_bytes(PROBLEM)


def test_sums_are_made_on_worker_processes():
    with cotune.simulate(FRAME, parties=2, processes=1) as base:
        federation = base.for_run("run", Journal(), Budget())
        federation.problem = PROBLEM
        sums = federation.sum(TASKS[2])
    assert sums.parties == 2
    assert sums.sum("mass") == [90.0]
    assert federation.ledger.cpu_seconds > 0.0
