from __future__ import annotations

import pytest

import cotune
from cotune.errors import UsageError
from cotune.learners.forest import DecisionTree
from cotune.problem import seed_of
from cotune.space.search import Search
from tests.parts import federation_of, iris, parts

LEARNERS = ["decision_tree", "logistic_regression"]
TABLES = parts(iris(90))


def tune(**options):
    settings = {"learners": LEARNERS, "folds": 2, "trials": 4, "seed": 3} | options
    with federation_of(TABLES) as federation:
        return cotune.tune(federation, "dash", **settings, train=False)


@pytest.fixture(scope="module")
def outcome():
    return tune()


def test_the_learners_of_one_iteration_travel_in_one_round(outcome):
    assert outcome.ledger.rounds == 3 + 4
    assert [trial.learner for trial in outcome.trials] == LEARNERS * 4


def test_the_first_trial_of_a_search_is_the_default_brought_into_the_space(outcome):
    for trial in outcome.trials[1:3]:  # the tree's own default comes before
        space = outcome.problem.space(trial.learner)
        assert trial.params == space.clip(outcome.problem.defaults(trial.learner))


def test_a_default_outside_of_its_space_is_a_first_trial_beside_the_search(outcome):
    """A tree of any depth; the linear model's default lies in its space."""
    beside = outcome.trials[0]
    assert (beside.learner, beside.params["max_depth"]) == ("decision_tree", None)
    assert beside.params == outcome.problem.defaults("decision_tree")
    assert outcome.problem.beside("logistic_regression") is None


def test_a_space_of_the_users_own_is_kept_to():
    shallow = {"decision_tree": {"max_depth": (1, 3)}}
    trials = tune(learners=["decision_tree"], space=shallow, trials=3).trials
    assert len(trials) == 3
    assert all(trial.params["max_depth"] <= 3 for trial in trials)


def test_a_default_that_is_left_out_of_the_space_can_win(monkeypatch):
    """Then it is the answer, saved, shown and trained as it is."""
    monkeypatch.setattr(DecisionTree, "wide", {"max_depth": (1, 2)})
    with federation_of(TABLES) as federation:
        outcome = cotune.tune(
            federation, learners=["decision_tree"], folds=2, trials=2, progress=False
        )
    assert outcome.best_params == outcome.problem.defaults("decision_tree")
    assert outcome.model.params == outcome.best_params


def test_every_other_trial_lies_in_the_learners_space(outcome):
    for trial in outcome.trials[1:]:
        outcome.problem.space(trial.learner).validate(trial.params)


def test_each_learner_is_searched_as_if_it_were_alone(outcome):
    """Algorithm 1: ask the sampler, tell it the parties' weighted mean loss."""
    for learner in LEARNERS:
        search = Search(
            outcome.problem.space(learner),
            seed=seed_of(3, learner),
            first=outcome.problem.defaults(learner),
        )
        for trial in (t for t in outcome.trials[1:] if t.learner == learner):
            asked = search.ask()
            assert asked.params == trial.params
            search.tell(asked, trial.loss)


def test_the_coordinator_learns_no_partys_own_loss(outcome):
    assert all(entry.verb == "sum" for entry in outcome.rounds if entry.task == "evaluate")


def test_the_same_seed_gives_the_same_trials_and_another_gives_others(outcome):
    again, other = tune(), tune(seed=4)
    seen = [[(t.learner, t.params, t.loss) for t in o.trials] for o in (outcome, again, other)]
    assert seen[0] == seen[1]
    assert seen[0][3:] != seen[2][3:]


@pytest.mark.parametrize("sampler", ["random", "grid"])
def test_other_samplers_can_be_asked_for(sampler):
    trials = tune(learners=["decision_tree"], sampler=sampler, space="paper", trials=9).trials
    assert 1 < len(trials) <= 9


def test_an_unknown_sampler_is_refused():
    with pytest.raises(UsageError, match="unknown sampler 'tep': did you mean 'tpe'"):
        tune(sampler="tep")
