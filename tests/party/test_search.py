from __future__ import annotations

import warnings

import optuna
import pytest

from cotune.federation.federation import Federation
from cotune.federation.local import LocalEngine
from cotune.federation.wire import Gathered, Refusal, decode_body
from cotune.learners import register_learner
from cotune.party.tasks import Search
from tests.parts import Counting, ask, iris, parts, party_of, problem_of


@pytest.fixture
def problem():
    return problem_of(iris(), space="paper")


def search(party, problem, **fields):
    task = Search(("decision_tree",), **fields)
    reply = ask(party, task, problem)
    assert isinstance(reply, Gathered)
    return decode_body(task, reply.body, problem), reply.cost


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "grid"])
def test_every_trial_lies_in_the_space_and_the_default_comes_first(tmp_path, problem, sampler):
    searches, _ = search(party_of(iris(), tmp_path), problem, trials=9, sampler=sampler)
    space = problem.space("decision_tree")
    pairs = searches.found[0].pairs
    assert 1 < len(pairs) <= 9
    for pair in pairs:
        space.validate(pair.params)
        assert 0 <= pair.loss <= 1
    assert pairs[0].params == space.clip(problem.defaults("decision_tree"))


def test_a_search_is_the_same_when_repeated_and_another_at_another_party(tmp_path, problem):
    frame = iris()
    one, same, other = (
        search(party_of(frame, tmp_path / str(i), name=name), problem, trials=6)[0].found[0].pairs
        for i, name in enumerate(("a", "a", "b"))
    )
    assert one == same
    assert one[1:] != other[1:]


def test_a_search_tells_the_partys_rows_and_what_it_cost(tmp_path, problem):
    searches, cost = search(party_of(iris(), tmp_path), problem, trials=3)
    assert searches.weight == 150.0
    assert searches.found[0].fits == cost.fits
    assert 3 <= cost.fits <= 9
    assert cost.fits % 3 == 0


def test_searches_of_several_learners_are_those_that_each_would_have_alone(tmp_path, problem):
    names = ("decision_tree", "extra_tree")
    problem = problem_of(iris(), learners=names, space="paper")
    task = Search(names, trials=5)
    together = decode_body(
        task, ask(party_of(iris(), tmp_path / "both"), task, problem).body, problem
    )
    for name, found in zip(names, together.found, strict=True):
        alone = Search((name,), trials=5)
        reply = ask(party_of(iris(), tmp_path / name), alone, problem)
        assert decode_body(alone, reply.body, problem).found[0].pairs == found.pairs


def test_a_search_tells_the_best_pairs_only_if_asked_so(tmp_path, problem):
    party = party_of(iris(), tmp_path)
    (whole,) = search(party, problem, trials=8)[0].found
    (kept,) = search(party, problem, trials=8, keep=3)[0].found
    assert [pair.loss for pair in kept.pairs] == sorted(pair.loss for pair in whole.pairs)[:3]


def test_a_search_does_not_fit_what_it_tried_before(tmp_path, registry):
    counting = Counting()
    register_learner(counting)
    problem = problem_of(iris(), learners=("counting",))
    party = party_of(iris(), tmp_path)
    reply = ask(party, Search(("counting",), trials=12), problem)
    assert len(counting.fits) <= 5 * 3  # there are five depths
    assert reply.cost.fits == len(counting.fits)


def test_searches_side_by_side_leave_optuna_as_it_was(problem, pool):
    engine = LocalEngine(parts(iris(), 6), "target", executor=pool)
    before = optuna.logging.get_verbosity(), list(warnings.filters)
    with Federation(engine, problem=problem) as federation:
        federation.gather(Search(("decision_tree",), trials=10))
    assert (optuna.logging.get_verbosity(), list(warnings.filters)) == before


def test_an_unknown_learner_is_refused_by_name(tmp_path, problem):
    reply = ask(party_of(iris(), tmp_path), Search(("no_such",), trials=3), problem)
    assert reply == Refusal(
        "unknown_learner", "the learner 'no_such' is not installed at this party"
    )
