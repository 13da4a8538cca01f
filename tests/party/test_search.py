from __future__ import annotations

import warnings

import numpy as np
import optuna
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeClassifier

from cotune.coordinator.federation import Federation
from cotune.engines.local import LocalEngine
from cotune.learners import register_learner
from cotune.party.search import free_counts
from cotune.party.task import Configuration
from cotune.party.tasks import MOST_FREE, Evaluate, Search
from cotune.protocol.wire import Gathered, Refusal, decode_body
from cotune.run.settings import spaces_as_json
from cotune.space import Space, when
from tests.parts import Counting, OwnLearner, ask, iris, parts, party_of, problem_of


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


def board(rows=300):
    """Rows on which configurations differ clearly: the squares of a chess board."""
    values = np.random.default_rng(0).random((rows, 2))
    colour = np.floor(values * 4).sum(axis=1) % 2
    return pd.DataFrame({"a": values[:, 0], "b": values[:, 1], "target": colour.astype(int)})


TREES = Search(("decision_tree",), trials=25)
PRUNED = Search(("decision_tree",), trials=25, pruning=True)


@pytest.fixture(scope="module")
def many_folds():
    return problem_of(board(), folds=10)


def found_by(party, task, problem, **where):
    """What the search of one learner found, and what it cost."""
    reply = ask(party, task, problem, **where)
    return decode_body(task, reply.body, problem).found[0], reply.cost


def judge(party, learner, configurations, problem, **where):
    task = Evaluate(tuple(Configuration(learner, params) for params in configurations))
    return decode_body(task, ask(party, task, problem, **where).body, problem)


def best(found):
    return min(found.pairs, key=lambda pair: pair.loss)


def test_a_pruned_search_finds_as_good_a_configuration_with_fewer_fits(tmp_path, many_folds):
    whole, cost = found_by(party_of(board(), tmp_path / "whole"), TREES, many_folds)
    pruned, less = found_by(party_of(board(), tmp_path / "pruned"), PRUNED, many_folds)
    assert len(pruned.pairs) == 25
    assert less.fits == pruned.fits < 0.8 * cost.fits
    assert best(pruned).loss <= best(whole).loss + 0.01


def test_the_best_of_a_pruned_search_was_judged_on_all_folds(tmp_path, many_folds):
    party = party_of(board(), tmp_path)
    found, _ = found_by(party, PRUNED, many_folds)
    again = judge(party, "decision_tree", [best(found).params], many_folds, round=2)
    assert again.losses == [best(found).loss]
    assert again.fits == [0]


def test_a_stopped_configuration_is_completed_at_the_cost_of_its_missing_folds(
    tmp_path, many_folds
):
    party, fresh = (party_of(board(), tmp_path / name) for name in ("searched", "fresh"))
    found, _ = found_by(party, PRUNED, many_folds)
    asked = list({repr(pair.params): pair.params for pair in found.pairs}.values())
    completed = judge(party, "decision_tree", asked, many_folds, round=2)
    assert found.fits + sum(completed.fits) == 10 * len(asked)
    assert {0, 8} <= set(completed.fits)
    assert completed.losses == judge(fresh, "decision_tree", asked, many_folds).losses


FREE_AND_PRUNED = Search(("hgb", "random_forest"), trials=6, free_pairs=True, pruning=True)


@pytest.fixture(scope="module")
def small_ensembles():
    spaces = {
        "hgb": {"max_iter": (2, 30, "log"), "learning_rate": (1e-3, 1.0, "log")},
        "random_forest": {"n_estimators": (2, 20), "max_depth": (1, 8)},
    }
    spaces = spaces_as_json(spaces)
    return problem_of(board(120), learners=tuple(spaces), spaces=spaces, folds=5)


def test_every_trial_of_a_reshuffled_search_has_folds_of_its_own(tmp_path, many_folds):
    task = Search(("decision_tree",), trials=6, reshuffle=True)
    party = party_of(board(), tmp_path)
    found, cost = found_by(party, task, many_folds)
    assert cost.fits == 6 * many_folds.folds
    told = [pair.loss for pair in found.pairs]
    by_number = [
        Configuration("decision_tree", pair.params, shuffle=-1 - number)
        for number, pair in enumerate(found.pairs)
    ]
    task = Evaluate(tuple(by_number))
    again = decode_body(task, ask(party, task, many_folds, round=2).body, many_folds)
    assert again.losses == told
    assert sum(again.fits) == 0
    usual = judge(party, "decision_tree", [p.params for p in found.pairs], many_folds, round=3)
    assert sum(a != b for a, b in zip(usual.losses, told, strict=True)) > 3


@pytest.mark.parametrize(
    "task",
    [
        FREE_AND_PRUNED,
        Search(FREE_AND_PRUNED.learners, trials=6, free_pairs=True),
        Search(FREE_AND_PRUNED.learners, trials=6, pruning=True),
    ],
    ids=["both", "free pairs", "pruning"],
)
def test_a_repeated_search_of_a_restarted_party_tells_the_same_and_fits_nothing(
    tmp_path, small_ensembles, task
):
    state = tmp_path / "state"
    before = ask(party_of(board(120), tmp_path / "1", state=state), task, small_ensembles)
    party = party_of(board(120), tmp_path / "2", state=state)
    searches = decode_body(task, before.body, small_ensembles).found
    completed = [
        judge(party, name, [pair.params for pair in found.pairs], small_ensembles, round=2)
        for name, found in zip(task.learners, searches, strict=True)
    ]
    assert any(sum(one.fits) for one in completed) == task.pruning
    fitted = (state / "party-1" / "run.jsonl").read_bytes()
    restarted = party_of(board(120), tmp_path / "3", state=state)
    assert ask(restarted, task, small_ensembles) == before
    assert (state / "party-1" / "run.jsonl").read_bytes() == fitted


@pytest.mark.parametrize("name", ["hgb", "random_forest"])
def test_free_pairs_are_what_evaluations_of_these_configurations_tell(
    tmp_path, small_ensembles, name
):
    task = Search((name,), trials=4, free_pairs=True)
    party, fresh = (party_of(board(120), tmp_path / side) for side in ("searched", "fresh"))
    found, cost = found_by(party, task, small_ensembles)
    assert cost.fits <= 4 * 5
    assert not found.pairs[0].free
    params = [pair.params for pair in found.pairs]
    losses = [pair.loss for pair in found.pairs]
    assert any(pair.free for pair in found.pairs)
    recalled = judge(party, name, params, small_ensembles, round=2)
    assert (recalled.losses, sum(recalled.fits)) == (losses, 0)
    assert judge(fresh, name, params, small_ensembles).losses == losses


def test_free_pairs_follow_the_pair_that_was_asked_for(tmp_path, small_ensembles):
    task = Search(("hgb",), trials=3, free_pairs=True)
    found, _ = found_by(party_of(board(120), tmp_path), task, small_ensembles)
    asked = None
    for pair in found.pairs:
        if not pair.free:
            asked, smallest = pair.params, 0
        else:
            assert pair.params | {"max_iter": asked["max_iter"]} == asked
            assert smallest < pair.params["max_iter"] < asked["max_iter"]
            smallest = pair.params["max_iter"]


def test_a_pair_says_how_far_its_loss_is_to_be_doubted(tmp_path, many_folds, small_ensembles):
    """By the folds that it was spared, and by the pairs with which it shares its fits."""
    party = party_of(board(), tmp_path / "pruned")
    found, cost = found_by(party, PRUNED, many_folds)
    folds = [10 / pair.doubt for pair in found.pairs]
    assert sum(folds) == pytest.approx(cost.fits)
    assert min(folds) < 10 == max(folds)
    task = Search(("hgb",), trials=4, free_pairs=True, pruning=True)
    found, _ = found_by(party_of(board(120), tmp_path / "free"), task, small_ensembles)
    together = [pair for pair in found.pairs if pair.doubt == found.pairs[0].doubt]
    assert found.pairs[0].doubt == len(together) > 1  # the default, on all folds


def test_of_a_stopped_configuration_no_smaller_counts_are_told(tmp_path, small_ensembles):
    task = Search(("hgb",), trials=12, free_pairs=True, pruning=True)
    found, cost = found_by(party_of(board(120), tmp_path), task, small_ensembles)
    assert cost.fits < 12 * small_ensembles.folds  # some were stopped
    asked = None
    for pair in found.pairs:
        asked = asked if pair.free else pair
        assert pair.doubt == asked.doubt
        assert not pair.free or pair.doubt <= MOST_FREE + 1


def test_a_learner_without_iterations_has_no_free_pairs(tmp_path, many_folds):
    task = Search(("decision_tree",), trials=4, free_pairs=True)
    found, _ = found_by(party_of(board(), tmp_path), task, many_folds)
    assert [pair.free for pair in found.pairs] == [False] * 4


def test_the_sampler_learns_that_fewer_iterations_did_better(tmp_path, registry):
    register_learner(Overfitting())
    problem = problem_of(iris(), learners=("overfitting",))
    free, plain = (
        found_by(
            party_of(iris(), tmp_path / str(i)),
            Search(("overfitting",), trials=25, free_pairs=free_pairs),
            problem,
        )[0]
        for i, free_pairs in enumerate((True, False))
    )
    rounds = [
        [pair.params["rounds"] for pair in found.pairs if not pair.free] for found in (free, plain)
    ]
    assert best(free).params["rounds"] == 1
    assert np.mean(rounds[0]) < np.mean(rounds[1])


class Overfitting(OwnLearner):
    """The more rounds, the more rows it predicts wrong."""

    name = "overfitting"
    iterations = "rounds"

    class _Estimator:
        def __init__(self, rounds):
            self.rounds = rounds

        def fit(self, X, y):
            self.tree = DecisionTreeClassifier(random_state=0).fit(X, y)

        def predict(self, X):
            right = self.tree.predict(X)
            return np.where(np.arange(len(X)) * 100 < self.rounds * len(X), (right + 1) % 3, right)

    def space(self, task, which="default"):
        return Space({"rounds": (1, 100), "other": (0.0, 1.0)})

    def defaults(self, task):
        return {"rounds": 50, "other": 0.5}

    def estimator(self, params, *, task, seed, schema):
        return self._Estimator(params["rounds"])

    def truncated(self, estimator, count):
        view = self._Estimator(count)
        view.tree = estimator.tree
        return view


@given(st.integers(0, 50), st.integers(1, 1000), st.data())
def test_free_counts_are_few_smaller_ones_of_the_space(low, width, data):
    space = Space({"n": (low, low + width), "x": (0.0, 1.0)})
    own = data.draw(st.integers(low, low + width))
    counts = free_counts(space, {"n": own, "x": 0.5}, "n")
    assert len(counts) <= MOST_FREE
    assert list(counts) == sorted(set(counts))
    assert all(max(1, low) <= count < own for count in counts)
    if own > max(1, low):
        assert counts[0] == max(1, low)


@pytest.mark.parametrize(
    ("space", "counts"),
    [
        (Space({"n": (10, 200)}), (10, 14, 20, 27, 38, 53, 74)),
        (Space({"n": (10, 110, 20)}), (10, 30, 50, 70)),
        (Space({"n": 104}), ()),
        (Space({"n": [52, 104]}), ()),
        (Space({"m": (10, 200)}), ()),
        (Space({"n": (10, 200), "m": when((0.0, 1.0), n=[10, 14, 20])}), (27, 38, 53, 74)),
    ],
    ids=["whole numbers", "steps", "fixed", "categories", "absent", "conditional"],
)
def test_free_counts_are_evenly_spread_in_their_logarithm(space, counts):
    params = space.clip({"n": 104})
    assert free_counts(space, params, "n") == counts
