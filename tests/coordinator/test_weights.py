from __future__ import annotations

import resource
import struct

import msgspec
import numpy as np
import pytest

import cotune
from cotune.coordinator.agree import agree
from cotune.coordinator.exchange import Exchange
from cotune.coordinator.federation import Federation
from cotune.coordinator.weights import Weights
from cotune.errors import FederationError
from cotune.party.keys import Introduce
from cotune.party.task import Configuration
from cotune.party.tasks import Evaluate, Search
from cotune.party.train.forest import Weigh
from cotune.protocol.wire import Cost, Gathered, Summand, decode_reply, encode
from cotune.testing import Faulty
from tests.parts import federation_of, iris, parts, problem_of, unreliable

TABLES = parts(iris())
TREE = Evaluate((Configuration("decision_tree", {"max_depth": 2}),))


@pytest.fixture(scope="module")
def problem():
    return problem_of(*TABLES.values(), compare_by="parties")


def claiming(weight: float):
    """Party-2 claims to have so many rows."""

    def change(call, party, reply):
        message = decode_reply(reply)
        if party != "party-2":
            return reply
        if isinstance(message, Summand):
            vectors = {name: np.frombuffer(v).copy() for name, v in message.terms.items()}
            factor = weight / vectors["own"][0]
            vectors["own"][0] = weight
            for name in {"losses", "variances", "counts"} & vectors.keys():
                vectors[name] *= factor
            return encode(Summand({name: v.tobytes() for name, v in vectors.items()}))
        body = msgspec.msgpack.decode(message.body) | {"weight": weight}
        return encode(msgspec.structs.replace(message, body=msgspec.Raw(encode(body))))

    return change


@pytest.mark.parametrize("ask", [Federation.sum, Federation.gather])
def test_a_party_that_claims_to_outweigh_all_is_left_out_and_named(problem, ask):
    with unreliable(TABLES, claiming(2.0**30), problem=problem) as federation:
        ask(federation, TREE)
        (failure,) = federation.ledger.failures
    assert (failure.party, failure.code) == ("party-2", "malformed")
    assert failure.sentence.startswith("the reply's weight is 1073741824, and by the party's count")


def test_a_gathered_weight_is_bounded_for_every_task_that_has_one(problem):
    with unreliable(TABLES, claiming(2.0**30), problem=problem) as federation:
        for task in (Weigh(), Search(("decision_tree",), 1)):
            assert "party-2" not in federation.gather(task)


@pytest.mark.parametrize(("weight", "parties"), [(50.0, 3), (51.0, 3), (52.0, 2)])
def test_a_party_weighs_no_more_rows_than_it_counted(weight, parties):
    """One more is allowed for a row that is set aside."""
    changing = claiming(weight)

    def change(call, party, reply):
        return changing(call, party, reply) if call > 2 else reply

    with unreliable(TABLES, change) as federation:
        schema = agree(federation, folds=2, task=None)
        problem = problem_of(*TABLES.values(), compare_by="parties")
        federation.problem = msgspec.structs.replace(problem, schema=schema)
        assert federation.sum(TREE).parties == parties


@pytest.mark.parametrize(("times", "parties"), [(1.0, 3), (2.0, 2)])
def test_a_party_judges_no_more_rows_than_it_counted(times, parties):
    def change(call, party, reply):
        message = decode_reply(reply)
        if party != "party-2" or call < 3 or not isinstance(message, Summand):
            return reply
        counts = times * np.frombuffer(message.terms["counts"])
        return encode(Summand(message.terms | {"counts": counts.tobytes()}))

    with unreliable(TABLES, change) as federation:
        schema = agree(federation, folds=2, task=None)
        federation.problem = msgspec.structs.replace(problem_of(*TABLES.values()), schema=schema)
        assert federation.sum(TREE).parties == parties
        assert all("rows, and by the party's" in one.sentence for one in federation.ledger.failures)


def test_rows_of_a_rare_class_may_outweigh_the_rows_of_a_party():
    """All rows of one class of two are as heavy as all of the other, and are no lie."""
    tables = {"rare": iris().query("target == 0")[:6], "usual": iris().query("target == 1")}
    with federation_of(tables) as federation:
        outcome = cotune.tune(federation, "defaults", learners=["decision_tree"], folds=2)
    assert outcome.ledger.failures == []
    assert outcome.trials[0].weight == 28 + 28


def test_where_all_parties_count_the_same_none_counts_twice():
    problem = problem_of(*TABLES.values(), weights="equal")
    with unreliable(TABLES, claiming(2.0), problem=problem) as federation:
        assert federation.sum(TREE).parties == 2


def test_what_was_counted_in_the_clear_bounds_each_party_and_else_their_total(problem):
    aside = msgspec.structs.replace(problem, holdout=0.5)
    counted = Weights(("a", "b"), {"a": 100.0, "b": 50.0})
    assert counted.most(problem, ("a",)) == 101.0
    assert counted.most(aside, ("a",)) == 202.0
    assert counted.most(problem, ("a", "b")) == 152.0
    assert Weights(("a", "b")).most(problem, ("a",)) == 151.0  # as read from the journal
    assert Weights(("a", "b")).most(problem, ("a", "b")) == 152.0
    assert counted.most(problem, ("a", "c")) == 101.0 + 2.0**20  # c was not there
    assert counted.most_rows(None, ("a",)) == float("inf")


class Overweight(Faulty):
    """Party-2 weighs a thousand times its rows, whatever is hidden on the way."""

    def __init__(self, engine) -> None:
        super().__init__(engine)
        party = engine.party("party-2")
        kind = type(party)
        party.__class__ = type(
            "Liar",
            (kind,),
            {name: property(lambda self: 50_000.0) for name in ("weight", "loss_weight")},
        )


@pytest.mark.parametrize("privacy", ["plain", "masked"])
def test_a_liar_is_left_out_where_it_is_seen_and_ends_the_run_where_it_is_hidden(privacy):
    options = {"learners": ["decision_tree"], "folds": 2, "trials": 2, "train": False}
    with federation_of(TABLES) as honest:
        federation = Federation(Overweight(honest.engine))
        if privacy == "plain":
            outcome = cotune.tune(federation, "dash", progress=False, **options)
            assert {failure.party for failure in outcome.ledger.failures} == {"party-2"}
        else:
            with pytest.raises(FederationError, match="can have 153: a party sent what it must"):
                cotune.tune(federation, "dash", privacy=privacy, progress=False, **options)


def test_a_huge_reply_is_refused_at_once_and_the_party_named(problem):
    """It is well-formed, and would take 40 times its size in memory if it were decoded."""
    zeros = b"\x81" + encode("losses") + b"\xdd" + struct.pack(">I", 30_000_000) + bytes(30_000_000)
    huge = encode(Gathered(msgspec.Raw(zeros), Cost()))
    del zeros
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def change(call, party, reply):
        return huge if party == "party-2" else reply

    with unreliable(TABLES, change, problem=problem) as federation:
        assert tuple(federation.gather(TREE)) == ("party-1", "party-3")
        (failure,) = federation.ledger.failures
    assert (failure.party, failure.code) == ("party-2", "malformed")
    assert failure.sentence.startswith("the reply is too long: it may have ")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kB


def test_the_reply_to_a_question_about_keys_is_bounded_too():
    def change(call, party, reply):
        return reply + bytes(10_000) if party == "party-2" else reply

    with unreliable(parts(iris(), 4), change) as federation:
        exchange = Exchange(federation.engine, "run", 1)
        assert exchange.ask(dict.fromkeys(federation.parties, Introduce())).keys() == {
            "party-1",
            "party-3",
            "party-4",
        }
    assert exchange.failures["party-2"].sentence == "the reply is too long: it may have 4,166 bytes"
