from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotune import learners
from cotune.data.schema import Column, Schema
from cotune.learners import register_learner
from cotune.party.task import Configuration
from cotune.party.tasks import Evaluate, Inspect, Measure
from cotune.protocol.wire import (
    OWN_TERMS,
    Gathered,
    Refusal,
    Request,
    Summand,
    decode_body,
    decode_reply,
    encode,
    unpack_terms,
)
from tests.parts import CANARY, Counting, Raising, ask, iris, party_of, people, problem_of

TREE = Evaluate((Configuration("decision_tree", {"max_depth": 2}),))


@pytest.fixture(autouse=True)
def _quiet_log(caplog):
    caplog.set_level(logging.CRITICAL)


@pytest.fixture(scope="module")
def party(tmp_path_factory):
    return party_of(people(), tmp_path_factory.mktemp("rows"))


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_that_are_no_request_are_refused(party, message):
    reply = decode_reply(party.perform(message))
    assert isinstance(reply, Refusal)
    assert reply.code == "malformed"


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_request_always_gets_a_reply(party, data):
    message = bytearray(encode(Request("run", 1, "gather", Inspect(2, drop=("age",)))))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    assert isinstance(decode_reply(party.perform(bytes(message))), Refusal | Gathered)


def test_a_request_nested_beyond_measure_is_refused(party):
    reply = decode_reply(party.perform(b"\x81\xa1a" + b"\x91" * 100_000))
    assert reply.code == "malformed"


@pytest.mark.parametrize("run", ["../../escape", "/tmp/escape", "a/b", "..", "run\n"])
def test_the_name_of_a_run_cannot_lead_out_of_the_partys_folder(tmp_path, run):
    problem = problem_of(iris())
    party = party_of(iris(), tmp_path / "rows", state=tmp_path / "deep" / "er" / "state")
    reply = ask(party, TREE, problem, run=run)
    assert isinstance(reply, Refusal)
    assert reply.code == "malformed"
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_party_that_was_not_told_the_problem_asks_for_it(tmp_path):
    party, problem = party_of(iris(), tmp_path), problem_of(iris())
    short = encode(Request("run", 1, "sum", TREE, problem.digest))
    assert decode_reply(party.perform(short)).code == "no_problem"
    assert isinstance(ask(party, TREE, problem, verb="sum"), Summand)
    assert isinstance(decode_reply(party.perform(short)), Summand)


def test_a_problem_under_another_ones_name_is_not_taken(tmp_path):
    party, problem = party_of(iris(), tmp_path), problem_of(iris())
    message = encode(Request("run", 1, "sum", TREE, "0" * 24, problem))
    assert decode_reply(party.perform(message)).code == "no_problem"


def test_gathered_and_summed_replies_tell_the_same(tmp_path):
    party, problem = party_of(iris(), tmp_path), problem_of(iris(), compare_by="parties")
    told = decode_body(TREE, ask(party, TREE, problem).body, problem)
    summand = ask(party, TREE, problem, verb="sum")
    terms = unpack_terms(TREE.terms(problem) | OWN_TERMS, summand.terms)
    assert terms["own"][0] == 150.0
    assert terms["losses"] / 150.0 == pytest.approx(told.losses, abs=1e-9)
    assert terms["own"][1] == 3


def test_a_summed_tally_is_the_gathered_one_and_no_loss_goes_with_it(tmp_path):
    party, problem = party_of(iris(), tmp_path), problem_of(iris())
    told = decode_body(TREE, ask(party, TREE, problem).body, problem)
    summand = ask(party, TREE, problem, verb="sum")
    terms = unpack_terms(TREE.terms(problem) | OWN_TERMS, summand.terms)
    assert terms["counts"].tolist() == list(told.counts)
    assert set(terms) == {"counts", "fits", "cpu_seconds", "failed", "own"}


def test_a_party_weighs_by_its_share_of_every_class(tmp_path):
    """With equal shares that is by its rows."""
    alike, uneven = iris().iloc[::2], iris().query("target != 1")
    problem = problem_of(iris())
    for frame, expected in ((alike, 75.0), (uneven, 100.0)):
        summand = ask(party_of(frame, tmp_path / str(expected)), TREE, problem, verb="sum")
        own = unpack_terms(TREE.terms(problem) | OWN_TERMS, summand.terms)["own"]
        assert own[0] == pytest.approx(expected, abs=2.0)


def test_equal_weights_count_every_party_once(tmp_path):
    party, problem = party_of(iris(), tmp_path), problem_of(iris(), weights="equal")
    summand = ask(party, TREE, problem, verb="sum")
    assert unpack_terms(TREE.terms(problem) | OWN_TERMS, summand.terms)["own"][0] == 1.0


def test_a_restarted_party_does_not_fit_again(tmp_path, registry):
    counting = Counting()
    register_learner(counting)
    problem = problem_of(iris(), learners=("counting",))
    task = Evaluate((Configuration("counting", {"depth": 2}),))
    replies = [
        ask(party_of(iris(), tmp_path / str(i), state=tmp_path / "state"), task, problem)
        for i in range(2)
    ]
    assert len(counting.fits) == 3
    assert replies[0] == replies[1]


def test_another_run_starts_with_an_empty_memory(tmp_path, registry):
    counting = Counting()
    register_learner(counting)
    problem = problem_of(iris(), learners=("counting",))
    task = Evaluate((Configuration("counting", {"depth": 2}),))
    party = party_of(iris(), tmp_path / "rows", state=tmp_path / "state")
    costs = [ask(party, task, problem, run=run).cost.fits for run in ("one", "two", "one")]
    assert costs == [3, 3, 3]
    assert len(counting.fits) == 6


@pytest.mark.parametrize("name", ["no_such", "absent"])
def test_a_learner_that_is_not_installed_is_refused_by_name(tmp_path, monkeypatch, name):
    real = learners.available
    monkeypatch.setattr("cotune.party.party.available", lambda n: n != "hgb" and real(n))
    learner = "hgb" if name == "absent" else name
    party, problem = party_of(iris(), tmp_path), problem_of(iris())
    reply = ask(party, Evaluate((Configuration(learner, {}),)), problem)
    expected = f"the learner {learner!r} is not installed at this party"
    assert reply == Refusal("unknown_learner", expected)


def poisoned():
    """Rows that hold the canary wherever an error could pick it up."""
    return people().assign(city=[CANARY] * 30 + ["a"] * 30, note=[CANARY, *range(59)])


def test_no_refusal_holds_an_exceptions_text_or_data(tmp_path, registry, caplog):
    register_learner(Raising())
    problem = problem_of(people())
    asked = [
        Measure(Schema("target", "classification", (Column("city", "numeric"),)), (0,), 0),
        Measure(Schema("target", "regression", (Column("note", "numeric"),)), (0,), 0),
        Measure(Schema(CANARY, "regression", ()), (), 0),
        Evaluate((Configuration("no_such", {}),)),
    ]
    party = party_of(poisoned(), tmp_path)
    for task in asked:
        for verb in ("gather", "sum"):
            message = party.perform(encode(Request("r", 1, verb, task, problem.digest, problem)))
            assert isinstance(decode_reply(message), Refusal)
            assert CANARY.encode() not in message
    for verb in ("gather", "sum"):
        failing = Evaluate((Configuration("raising", {"depth": 2}),))
        message = party.perform(encode(Request("r", 1, verb, failing, problem.digest, problem)))
        assert not isinstance(decode_reply(message), Refusal)
        assert CANARY.encode() not in message


def test_an_unforeseen_error_is_told_by_a_fixed_sentence_and_kept_in_the_partys_log(
    tmp_path, caplog, monkeypatch
):
    def fail(self, party):
        raise RuntimeError(CANARY)

    monkeypatch.setattr(Inspect, "perform", fail)
    caplog.set_level(logging.ERROR, "cotune.party.party")
    reply = ask(party_of(iris(), tmp_path), Inspect(2))
    assert reply == Refusal("internal", "the party failed; its own log says why")
    assert CANARY in caplog.text


def test_data_that_cannot_be_used_is_the_users_to_mend(tmp_path):
    reply = ask(party_of(iris(3), tmp_path), Inspect(5))
    assert reply.code == "data"
    assert "use fewer folds" in reply.sentence


def test_infinite_values_are_refused_not_fitted(tmp_path):
    frame = pd.DataFrame({"a": [1.0, np.inf, 2.0], "target": [0, 1, 0]})
    reply = ask(party_of(frame, tmp_path), Inspect(2))
    assert reply == Refusal("data", "column 'a' has an infinite value: mend or empty the cell")
