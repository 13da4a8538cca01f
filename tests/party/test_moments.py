from __future__ import annotations

import logging

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.party.moments import BINS, SCALES, WIDTH, Features, Moments, Tally, edges, moments
from cotune.party.task import Configuration
from cotune.party.tasks import Evaluate, Pair, Search, Searches
from cotune.protocol.wire import OWN_TERMS, Refusal, decode_body, unpack_terms
from tests.parts import ask, diabetes, iris, party_of, problem_of

TREE = "decision_tree"
FRAME = iris(90)
PROBLEM = problem_of(FRAME)
SPACE = PROBLEM.space(TREE)
FEATURES = Features(PROBLEM, TREE)
SEARCH = Search((TREE,), trials=4, free_pairs=True)
SHALLOW = [Configuration(TREE, SPACE.clip({"max_depth": 2}), shuffle=s) for s in (1, 2)]
POINTS = [SPACE.sample(np.random.default_rng(i)) for i in range(40)]


@pytest.fixture(autouse=True)
def _quiet_log(caplog):
    caplog.set_level(logging.CRITICAL)


@pytest.fixture
def party(tmp_path):
    return party_of(FRAME, tmp_path / "rows")


def told(party, task, round=2, problem=PROBLEM):
    return decode_body(task, ask(party, task, problem, round=round).body, problem)


def whole(triangle):
    matrix = np.zeros((WIDTH, WIDTH))
    matrix[np.triu_indices(WIDTH)] = triangle
    return matrix


# Features


def test_features_are_drawn_alike_by_everyone_and_otherwise_for_another_seed():
    there = Features(problem_of(FRAME), TREE)
    other = Features(msgspec.structs.replace(PROBLEM, seed=1), TREE)
    assert FEATURES.of(POINTS).tolist() == there.of(POINTS).tolist()
    assert not np.allclose(FEATURES.of(POINTS), other.of(POINTS))
    assert np.abs(FEATURES.of(POINTS)).max() <= 1.0


def test_features_stand_for_a_kernel_of_each_length_scale():
    """It is 1 at no distance, and falls off sooner the shorter the scale."""
    phi = FEATURES.of(POINTS)[:, 1:]
    kernels = [(phi * variances) @ phi.T for variances in FEATURES.variances]
    for kernel in kernels:
        np.testing.assert_allclose(np.diag(kernel), 1.0)
    likeness = [np.abs(kernel - np.eye(len(phi))).mean() for kernel in kernels]
    assert len(likeness) == len(SCALES)
    assert likeness == sorted(likeness)


def test_where_all_is_fixed_the_features_are_too():
    problem = problem_of(FRAME, spaces={TREE: {"max_depth": {"type": "fixed", "value": 3}}})
    assert not problem.space(TREE).columns
    assert FEATURES.of(POINTS).shape[1] == WIDTH - 1
    phi = Features(problem, TREE).of([{"max_depth": 3}] * 2)
    assert (phi[0] == phi[1]).all()


# Moments


pairs = st.builds(
    Pair,
    params=st.sampled_from(POINTS),
    loss=st.floats(0, 1),
    doubt=st.sampled_from([1.0, 2.5, 8.0, 1 / 3]),
)


@settings(max_examples=30)
@given(st.lists(st.tuples(pairs, st.integers(0, 3)), min_size=1, max_size=30))
def test_moments_of_all_pairs_are_the_sum_of_the_parties_whatever_the_split(shared):
    together = moments(FEATURES, [pair for pair, _ in shared], 0.6)
    split = [[pair for pair, owner in shared if owner == party] for party in range(4)]
    apart = sum(moments(FEATURES, own, 0.6) for own in split if own)
    np.testing.assert_allclose(together, apart, atol=1e-9)


def test_a_doubted_loss_weighs_less_and_a_bad_one_is_cut_at_the_ceiling():
    told = [Pair(POINTS[0], 0.3), Pair(POINTS[1], 0.9, doubt=4.0)]
    matrix = whole(moments(FEATURES, told, 0.6))
    assert matrix[0, 0] == 1.25
    assert matrix[0, -1] == pytest.approx(0.5 + 0.25)
    assert matrix[-1, -1] == pytest.approx(0.25 + 0.25)


# What a party tells


def test_a_tally_counts_every_loss_of_the_search_in_its_bin(party):
    found = msgspec.msgpack.decode(ask(party, SEARCH, PROBLEM).body, type=Searches).found[0]
    reply = told(party, Tally(SEARCH), round=1)
    losses, ends = np.array([pair.loss for pair in found.pairs]), edges(PROBLEM)
    assert np.cumsum(reply.counts).tolist() == [int(np.sum(losses <= end)) for end in ends]
    assert sum(reply.counts) == len(losses)
    assert (reply.fits, Tally(SEARCH).most_fits(PROBLEM)) == ([found.fits], 12)


def test_the_bins_reach_from_next_to_nothing_to_the_worst_loss():
    ends = edges(PROBLEM)
    assert (len(ends), ends[-1]) == (BINS, 1.0)
    regression = problem_of(diabetes()[:60])
    assert edges(regression)[-1] == regression.metric.worst(regression.schema)
    assert edges(regression)[0] < 0.02 * regression.schema.target_scale


def test_a_partys_moments_are_those_of_its_search_and_of_what_all_judged(party):
    found = msgspec.msgpack.decode(ask(party, SEARCH, PROBLEM).body, type=Searches).found[0]
    task = Moments(SEARCH, (0.5,))
    before = told(party, task)
    np.testing.assert_allclose(before.moments, moments(FEATURES, found.pairs, 0.5))
    assert before.pairs == [len(found.pairs)]
    ask(party, Evaluate(tuple(SHALLOW)), PROBLEM, round=3)
    after = told(party, msgspec.structs.replace(task, judged=tuple(SHALLOW)), round=4)
    assert after.pairs == [len(found.pairs) + 1]
    # two shuffles of the folds: a loss of twice the weight
    assert after.moments[0] - before.moments[0] == pytest.approx(2.0)


def test_a_party_that_missed_what_was_judged_fits_nothing(party):
    ask(party, Tally(SEARCH), PROBLEM)
    reply = ask(party, Moments(SEARCH, (0.5,), tuple(SHALLOW)), PROBLEM, round=2)
    assert reply.cost.fits == 0
    assert reply.body == ask(party, Moments(SEARCH, (0.5,)), PROBLEM, round=2).body


def test_a_party_that_did_not_search_refuses(party):
    reply = ask(party, Moments(SEARCH, (0.5,)), PROBLEM)
    assert isinstance(reply, Refusal)
    assert reply.code == "unknown"


def test_summed_replies_keep_to_the_bounds_that_their_tasks_declare(party):
    ask(party, Evaluate(tuple(SHALLOW)), PROBLEM)
    for round, task in enumerate((Tally(SEARCH), Moments(SEARCH, (0.5,), tuple(SHALLOW))), start=2):
        summand = ask(party, task, PROBLEM, verb="sum", round=round)
        terms = unpack_terms(task.terms(PROBLEM) | OWN_TERMS, summand.terms)
        assert sum(map(len, terms.values())) * 8 < task.most_bytes(PROBLEM)


def test_the_learners_follow_each_other(tmp_path):
    learners = (TREE, "extra_tree")
    problem = problem_of(FRAME, learners=learners)
    party = party_of(FRAME, tmp_path)
    both, alone = (Search(names, 3) for names in (learners, learners[:1]))
    for search in (both, alone):
        ask(party, Tally(search), problem)
    two = told(party, Moments(both, (0.5, 0.7)), problem=problem)
    one = told(party, Moments(alone, (0.5,)), problem=problem)
    assert len(two.pairs) == 2
    assert two.moments[: len(one.moments)] == one.moments
