from __future__ import annotations

import logging

import msgspec
import numpy as np
import pytest

from cotune.learners import register_learner
from cotune.party.predict import bounded, judged_pairs, surrogate_seed
from cotune.party.task import Configuration
from cotune.party.tasks import Candidates, Evaluate, Pair, Predict, Search, Searches
from cotune.protocol.wire import OWN_TERMS, Refusal, decode_body, unpack_terms
from cotune.space.surrogate import Surrogate
from tests.parts import Counting, ask, diabetes, federation_of, iris, parts, party_of, problem_of

TREE = "decision_tree"
FRAME = iris(90)
PROBLEM = problem_of(FRAME)
SPACE = PROBLEM.space(TREE)
SEARCH = Search((TREE,), trials=4)
SHALLOW = Configuration(TREE, SPACE.clip({"max_depth": 2}))


@pytest.fixture(autouse=True)
def _quiet_log(caplog):
    caplog.set_level(logging.CRITICAL)


def candidates_of(space, count=12, seed=1, around=(), epsilon=0.0):
    described = Candidates(count, seed, around, epsilon)
    digest = described.digest_of(space, described.drawn(space))
    return msgspec.structs.replace(described, digest=digest)


FEW = candidates_of(SPACE)


def asking(**changes):
    return msgspec.structs.replace(Predict(SEARCH, (FEW,)), **changes)


def told(task, reply):
    return decode_body(task, reply.body, PROBLEM)


@pytest.fixture
def party(tmp_path):
    return party_of(FRAME, tmp_path / "rows")


# What is predicted


def test_predictions_are_those_of_a_surrogate_of_the_partys_own_search(party):
    found = msgspec.msgpack.decode(ask(party, SEARCH, PROBLEM).body, type=Searches).found[0]
    surrogate = Surrogate(SPACE, "forest", surrogate_seed(PROBLEM, TREE))
    surrogate.fit([pair.params for pair in found.pairs], [pair.loss for pair in found.pairs])
    expected = surrogate.predict(FEW.drawn(SPACE))[0]
    reply = told(asking(), ask(party, asking(), PROBLEM, round=2))
    assert reply.losses == pytest.approx(expected, abs=1e-8)
    assert reply.losses == bounded(PROBLEM, expected).tolist()


def test_only_the_pairs_that_may_be_told_are_learnt_from(party):
    few = msgspec.structs.replace(SEARCH, keep=1)
    reply = told(asking(), ask(party, asking(search=few), PROBLEM))
    assert len(set(reply.losses)) == 1


def test_what_all_parties_judged_is_learnt_too(party):
    judged = (SHALLOW,)
    ask(party, asking(surrogate="gp"), PROBLEM)
    ask(party, Evaluate(judged), PROBLEM, round=2)
    task = asking(surrogate="gp", anew=False)
    before, after = (
        told(task, ask(party, one, PROBLEM, round=3)).losses
        for one in (task, msgspec.structs.replace(task, judged=judged))
    )
    assert before != after


def test_the_candidates_of_several_learners_follow_each_other(tmp_path):
    learners = (TREE, "extra_tree")
    problem = problem_of(FRAME, learners=learners)
    party = party_of(FRAME, tmp_path)
    counts = (5, 3)
    lists = tuple(
        candidates_of(problem.space(name), count)
        for name, count in zip(learners, counts, strict=True)
    )
    task = Predict(Search(learners, 3), lists)
    reply = decode_body(task, ask(party, task, problem).body, problem)
    assert len(reply.losses) == 8
    assert reply.fits == [9, 9]
    alone = Predict(Search(learners[:1], 3), lists[:1])
    assert (
        decode_body(alone, ask(party, alone, problem, round=2).body, problem).losses
        == (reply.losses[:5])
    )


def test_predictions_stay_within_the_bounds_that_a_sum_needs():
    worst = PROBLEM.metric.worst(PROBLEM.schema)
    term = asking().terms(PROBLEM)["losses"]
    predicted = bounded(PROBLEM, np.array([-0.2, 1.7, 1 / 3]))
    assert predicted[:2].tolist() == [0.0, worst]
    full = np.resize(predicted, term.length)
    np.testing.assert_array_equal(term.rounded(full, "losses"), full)


def test_a_regressions_losses_are_predicted_in_its_unit(tmp_path):
    frame = diabetes().iloc[:90]
    problem = problem_of(frame)
    task = Predict(Search((TREE,), 3), (candidates_of(problem.space(TREE), 4),), "gp")
    reply = decode_body(task, ask(party_of(frame, tmp_path), task, problem).body, problem)
    assert all(20 < loss < 200 for loss in reply.losses)


# Candidates


@pytest.mark.parametrize("around", [(), (SPACE.clip({}), SPACE.clip({"max_depth": 2}))])
def test_candidates_are_drawn_alike_on_both_sides(around):
    described = candidates_of(SPACE, around=around, epsilon=0.1)
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(described), type=Candidates)
    there = problem_of(FRAME).space(TREE)
    drawn = described.drawn(SPACE)
    assert travelled.drawn(there) == drawn
    assert travelled.digest == travelled.digest_of(there, drawn)
    assert len(drawn) == 12
    assert tuple(drawn[: len(around)]) == around


def test_a_party_that_draws_other_candidates_does_not_answer(party):
    other = msgspec.structs.replace(FEW, digest="0" * 16)
    reply = ask(party, asking(candidates=(other,)), PROBLEM)
    assert isinstance(reply, Refusal)
    assert reply.code == "malformed"
    assert "do the versions of NumPy differ?" in reply.sentence


# What it costs


def test_the_search_is_paid_once(party):
    first = ask(party, asking(), PROBLEM)
    again = ask(party, asking(), PROBLEM)
    zoom = candidates_of(SPACE, seed=2)
    later = ask(party, asking(candidates=(zoom,), anew=False), PROBLEM, round=2)
    assert (first.cost.fits, told(asking(), first).fits) == (12, [12])
    assert first == again  # a coordinator that was killed in this round asks it again
    assert (later.cost.fits, told(asking(), later).fits) == (0, [0])
    assert asking().most_fits(PROBLEM) == 12
    assert asking(anew=False).most_fits(PROBLEM) == 0


def test_a_party_that_did_not_search_refuses(party):
    reply = ask(party, asking(anew=False), PROBLEM)
    sentence = "the party does not remember what it was asked to build on"
    assert reply == Refusal("unknown", sentence)


def test_a_party_that_judged_but_did_not_search_refuses(party):
    ask(party, Evaluate((SHALLOW,)), PROBLEM)
    assert isinstance(ask(party, asking(anew=False), PROBLEM, round=2), Refusal)


def test_a_party_that_missed_what_was_judged_fits_nothing(party):
    ask(party, asking(), PROBLEM)
    task = asking(anew=False, judged=(SHALLOW,))
    reply = ask(party, task, PROBLEM, round=2)
    without = ask(party, asking(anew=False), PROBLEM, round=2)
    assert reply.cost.fits == 0
    assert told(task, reply).losses == told(task, without).losses


def test_the_mean_is_that_of_the_parties_that_searched():
    tables = parts(FRAME)
    problem = problem_of(*tables.values())
    with federation_of(tables, problem=problem) as federation:
        two = federation.for_run("run", federation.journal, federation.budget)
        two.problem, two.parties = problem, ["party-1", "party-3"]
        two.sum(asking())
        two.parties = sorted(tables)
        sums = two.sum(asking(anew=False))
        entry = list(two.ledger)[-1]
        alone = federation.for_run("run", federation.journal, federation.budget)
        alone.problem, alone.parties = problem, ["party-1", "party-3"]
        expected = alone.sum(asking())
    assert (sums.parties, sums.weight) == (2, 60.0)
    assert {party: refused.code for party, refused in entry.failures.items()} == {
        "party-2": "unknown"
    }
    assert sums.mean("losses").tolist() == expected.mean("losses").tolist()


def test_a_restarted_party_recalls_its_search_at_no_fits(tmp_path, registry):
    counting = Counting()
    register_learner(counting)
    problem = problem_of(FRAME, learners=("counting",))
    task = Predict(Search(("counting",), 4), (candidates_of(problem.space("counting")),))
    replies = []
    for start, anew in enumerate((True, False)):
        party = party_of(FRAME, tmp_path / str(start), state=tmp_path / "state")
        one = msgspec.structs.replace(task, anew=anew)
        replies.append(ask(party, one, problem, round=1 + start))
    fitted = len(counting.fits)
    first, later = (decode_body(task, reply.body, problem) for reply in replies)
    assert first.losses == later.losses
    assert (first.fits, later.fits) == ([fitted], [0])
    assert replies[1].cost.fits == 0


def test_a_party_that_was_restarted_without_its_state_refuses(tmp_path):
    ask(party_of(FRAME, tmp_path / "one"), asking(), PROBLEM)
    reply = ask(party_of(FRAME, tmp_path / "two"), asking(anew=False), PROBLEM, round=2)
    assert reply.code == "unknown"


def test_a_summed_reply_tells_the_same_as_a_gathered_one(party):
    gathered = told(asking(), ask(party, asking(), PROBLEM))
    summand = ask(party, asking(), PROBLEM, verb="sum")
    terms = unpack_terms(asking().terms(PROBLEM) | OWN_TERMS, summand.terms)
    assert (terms["losses"] / 90.0).tolist() == gathered.losses
    assert terms["fits"].tolist() == gathered.fits


def test_shuffles_of_one_configuration_are_one_pair_that_is_doubted_less():
    def judged(depth, shuffle, learner="decision_tree"):
        return Configuration(learner, {"max_depth": depth}, shuffle=shuffle)

    told = [
        (judged(3, 1), 0.1),
        (judged(5, 1), 0.4),
        (judged(3, 2), 0.3),
        (judged(3, 1), 0.1),  # asked again: it is no further shuffle
        (judged(3, 1, "extra_tree"), 0.9),
    ]
    first, second = judged_pairs("decision_tree", told)
    assert (first.params, first.loss, first.doubt) == ({"max_depth": 3}, pytest.approx(0.2), 0.5)
    assert second == Pair({"max_depth": 5}, 0.4)
