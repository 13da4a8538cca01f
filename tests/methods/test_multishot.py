from __future__ import annotations

import pytest

import cotune
from cotune.errors import UsageError
from tests.parts import federation_of, iris, parts, unreliable

TABLES = parts(iris(90))


def tune(method="multishot", **options):
    usual = {"learners": ["decision_tree"], "folds": 3, "trials": 4, "seed": 3}
    with federation_of(TABLES) as federation:
        return cotune.tune(federation, method, **usual | options, train=False)


@pytest.fixture(scope="module")
def outcome():
    return tune()


def test_every_configuration_is_a_training_of_the_federation(outcome):
    assert outcome.report == {"trainings": 4, "reached": None}
    assert [t.loss for t in outcome.trials] == [t.loss for t in tune("central").trials]


def test_all_learners_trainings_are_counted():
    both = tune(learners=["decision_tree", "logistic_regression"], trials=2)
    assert both.report["trainings"] == len(both.trials) == 4


def test_it_stops_at_the_first_training_that_reaches_the_loss(outcome):
    losses = [trial.loss for trial in outcome.trials]
    for until in {max(losses), min(losses)}:
        first = next(k for k, loss in enumerate(losses, 1) if loss <= until)
        stopped = tune(until=until)
        assert stopped.report == {"trainings": first, "reached": True}
        assert [t.loss for t in stopped.trials] == losses[:first]
        assert stopped.ended == "finished"


def test_a_loss_that_is_not_reached_is_said():
    assert tune(until=0.0, trials=2).report == {"trainings": 2, "reached": False}


def test_other_samplers_can_be_asked_for(outcome):
    other = tune(sampler="random")
    assert other.trials[0].params == outcome.trials[0].params
    assert other.report["trainings"] == 4


def test_it_needs_a_simulation():
    with (
        unreliable(TABLES, lambda call, party, reply: reply) as federation,
        pytest.raises(UsageError, match="in a simulation only"),
    ):
        cotune.tune(federation, "multishot", learners=["decision_tree"], trials=2, train=False)
