from __future__ import annotations

import msgspec
import numpy as np
import pytest

import cotune
from cotune import learners
from cotune.coordinator.journal import Journal
from cotune.party.task import Configuration
from cotune.party.train.averaging import Epochs, flat, install, untrained
from cotune.problem import Budget
from cotune.protocol.wire import OWN_TERMS, Refusal, encode, unpack_terms
from tests.parts import ask, diabetes, iris, party_of, problem_of

FRAME = iris()
PROBLEM = problem_of(FRAME, learners=("mlp",))
SMALL = Configuration("mlp", {"hidden_layer_sizes": 8, "batch_size": 16, "early_stopping": True})


def network(problem=PROBLEM, configuration=SMALL, columns=4):
    return untrained(problem, learners.learner("mlp"), configuration, columns)


def asking(epochs=1, round=0, configuration=SMALL, weights=None):
    weights = flat(network()) if weights is None else weights
    return Epochs(configuration, weights.astype("<f4").tobytes(), round, epochs)


def told(party, task, problem=PROBLEM):
    reply = ask(party, task, problem, verb="sum")
    assert not isinstance(reply, Refusal), reply
    terms = unpack_terms(task.terms(problem) | OWN_TERMS, reply.terms)
    return terms | {"weights": terms["weights"] / terms["own"][0]}


@pytest.fixture
def party(tmp_path):
    return party_of(FRAME, tmp_path / "rows")


def test_weights_come_back_as_they_were_installed():
    one = network()
    weights = np.arange(flat(one).size, dtype=float)
    install(one, weights)
    np.testing.assert_array_equal(flat(one), weights)
    assert one.coefs_[0].shape == (4, 8)


def test_the_first_weights_are_scikit_learns():
    from sklearn.neural_network import MLPClassifier

    own = MLPClassifier(8, random_state=PROBLEM.seed, learning_rate_init=1e-12, max_iter=1)
    with pytest.warns(match="Maximum iterations"):
        own.fit(np.zeros((3, 4)), [0, 1, 2])
    np.testing.assert_allclose(flat(network()), flat(own), atol=1e-9)


def test_epochs_lower_the_loss(party):
    weights = flat(network())
    losses = []
    for round in range(4):
        reply = told(party, asking(5, round, weights=weights))
        losses.append(reply["loss"][0] / reply["rows"][0])
        weights = reply["weights"]
    assert losses == sorted(losses, reverse=True)


def test_the_same_question_has_the_same_answer(party, tmp_path):
    elsewhere = party_of(FRAME, tmp_path / "elsewhere")
    told(party, asking(3, round=1))
    again, other = told(party, asking(2)), told(elsewhere, asking(2))
    np.testing.assert_array_equal(again["weights"], other["weights"])
    assert (again["weights"] != told(party, asking(2, round=1))["weights"]).any()


def test_a_share_of_the_rows_is_held_back(party):
    assert told(party, asking(0))["rows"] == [15.0]
    large = Configuration("mlp", SMALL.params | {"validation_fraction": 0.4})
    assert told(party, asking(0, configuration=large))["rows"] == [60.0]
    every = Configuration("mlp", SMALL.params | {"early_stopping": False})
    assert told(party, asking(0, configuration=every))["rows"] == [150.0]


def test_without_epochs_only_the_loss_is_told(party):
    assert told(party, asking(0))["weights"].size == 0
    assert told(party, asking(0))["loss"] == told(party, asking(1))["loss"]


def test_the_loss_of_numbers_is_in_deviations_of_the_target(tmp_path):
    frame = diabetes()
    problem = problem_of(frame, learners=("mlp",))
    every = Configuration("mlp", SMALL.params | {"early_stopping": False})
    weights = np.zeros(flat(network(problem, every, 10)).size)
    reply = told(
        party_of(frame, tmp_path), asking(0, configuration=every, weights=weights), problem
    )
    assert reply["loss"] / reply["rows"] == pytest.approx(0.5)  # half the variance


def test_weights_of_another_network_are_refused(party):
    reply = ask(party, asking(weights=np.zeros(7)), PROBLEM, verb="sum")
    assert reply == Refusal("malformed", "the weights are not as many as the network has")


def test_weights_out_of_bounds_are_said_to_be_so(party):
    far = np.full(flat(network()).size, 2.0**21)
    reply = ask(party, asking(weights=far), PROBLEM, verb="sum")
    assert reply.code == "data"
    assert "out of bounds" in reply.sentence


def test_a_reply_is_no_longer_than_was_said(party):
    for task in (asking(1), asking(0)):
        assert len(encode(ask(party, task, PROBLEM, verb="sum"))) <= task.most_bytes(PROBLEM)


def test_epochs_run_on_worker_processes():
    problem = msgspec.structs.replace(PROBLEM, weights="equal")
    with cotune.simulate(FRAME, parties=2, processes=1) as base:
        federation = base.for_run("run", Journal(), Budget())
        federation.problem = problem
        sums = federation.sum(asking(1))
    assert (sums.parties, sums.weight) == (2, 2.0)
    assert federation.ledger.cpu_seconds > 0.0
