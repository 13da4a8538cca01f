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
    task = Search("decision_tree", **fields)
    reply = ask(party, task, problem)
    assert isinstance(reply, Gathered)
    return decode_body(task, reply.body), reply.cost


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "grid"])
def test_every_trial_lies_in_the_space_and_the_default_comes_first(tmp_path, problem, sampler):
    pairs, _ = search(party_of(iris(), tmp_path), problem, trials=9, sampler=sampler)
    space = problem.space("decision_tree")
    assert 1 < len(pairs.pairs) <= 9
    for pair in pairs.pairs:
        space.validate(pair.params)
        assert 0 <= pair.loss <= 1
    assert pairs.pairs[0].params == space.clip(problem.defaults("decision_tree"))


def test_a_search_is_the_same_when_repeated_and_another_at_another_party(tmp_path, problem):
    frame = iris()
    one, same, other = (
        search(party_of(frame, tmp_path / str(i), name=name), problem, trials=6)[0].pairs
        for i, name in enumerate(("a", "a", "b"))
    )
    assert one == same
    assert one[1:] != other[1:]


def test_a_search_tells_the_partys_rows_and_what_it_cost(tmp_path, problem):
    pairs, cost = search(party_of(iris(), tmp_path), problem, trials=3)
    assert pairs.weight == 150.0
    assert 3 <= cost.fits <= 9
    assert cost.fits % 3 == 0


def test_a_search_does_not_fit_what_it_tried_before(tmp_path, registry):
    counting = Counting()
    register_learner(counting)
    problem = problem_of(iris(), learners=("counting",))
    party = party_of(iris(), tmp_path)
    reply = ask(party, Search("counting", trials=12), problem)
    assert len(counting.fits) <= 5 * 3  # there are five depths
    assert reply.cost.fits == len(counting.fits)


def test_searches_side_by_side_leave_optuna_as_it_was(problem, pool):
    engine = LocalEngine(parts(iris(), 6), "target", executor=pool)
    before = optuna.logging.get_verbosity(), list(warnings.filters)
    with Federation(engine, problem=problem) as federation:
        federation.gather(Search("decision_tree", trials=10))
    assert (optuna.logging.get_verbosity(), list(warnings.filters)) == before


def test_an_unknown_learner_is_refused_by_name(tmp_path, problem):
    reply = ask(party_of(iris(), tmp_path), Search("no_such", trials=3), problem)
    assert reply == Refusal(
        "unknown_learner", "the learner 'no_such' is not installed at this party"
    )
