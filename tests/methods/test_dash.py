from __future__ import annotations

import pytest

import cotune
from cotune.errors import UsageError
from cotune.problem import seed_of
from cotune.search import Search
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
    assert outcome.ledger.rounds == 2 + 4
    assert [trial.learner for trial in outcome.trials] == LEARNERS * 4


def test_the_first_trial_is_the_default_brought_into_the_space(outcome):
    for trial in outcome.trials[:2]:
        space = outcome.problem.space(trial.learner)
        assert trial.params == space.clip(outcome.problem.defaults(trial.learner))


def test_every_trial_lies_in_the_learners_space(outcome):
    for trial in outcome.trials:
        outcome.problem.space(trial.learner).validate(trial.params)


def test_each_learner_is_searched_as_if_it_were_alone(outcome):
    """Algorithm 1: ask the sampler, tell it the parties' weighted mean loss."""
    for learner in LEARNERS:
        search = Search(
            outcome.problem.space(learner),
            seed=seed_of(3, learner),
            first=outcome.problem.defaults(learner),
        )
        for trial in (t for t in outcome.trials if t.learner == learner):
            asked = search.ask()
            assert asked.params == trial.params
            search.tell(asked, trial.loss)


def test_the_coordinator_learns_no_partys_own_loss(outcome):
    assert all(entry.verb == "sum" for entry in outcome.rounds if entry.task == "evaluate")


def test_the_same_seed_gives_the_same_trials_and_another_gives_others(outcome):
    again, other = tune(), tune(seed=4)
    seen = [[(t.learner, t.params, t.loss) for t in o.trials] for o in (outcome, again, other)]
    assert seen[0] == seen[1]
    assert seen[0][2:] != seen[2][2:]


@pytest.mark.parametrize("sampler", ["random", "grid"])
def test_other_samplers_can_be_asked_for(sampler):
    trials = tune(learners=["decision_tree"], sampler=sampler, space="paper", trials=9).trials
    assert 1 < len(trials) <= 9


def test_an_unknown_sampler_is_refused():
    with pytest.raises(UsageError, match="unknown sampler 'tep': did you mean 'tpe'"):
        tune(sampler="tep")
