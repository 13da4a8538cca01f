from __future__ import annotations

import cotune
from tests.parts import federation_of, iris, parts


def test_every_learner_is_judged_once_at_its_default_in_one_round():
    learners = ["decision_tree", "logistic_regression"]
    with federation_of(parts(iris())) as federation:
        outcome = cotune.tune(federation, "defaults", learners=learners, folds=2, train=False)
    assert [(t.learner, t.params) for t in outcome.trials] == [
        (name, outcome.problem.defaults(name)) for name in learners
    ]
    assert [entry.task for entry in outcome.rounds] == ["inspect", "measure", "differ", "evaluate"]
    assert outcome.best_loss == min(trial.loss for trial in outcome.trials)


def test_a_number_of_trials_does_not_matter():
    with federation_of(parts(iris())) as federation:
        outcome = cotune.tune(
            federation, "defaults", learners=["decision_tree"], folds=2, trials=9, train=False
        )
    assert len(outcome.trials) == 1


def test_what_the_user_fixed_is_part_of_the_default():
    with federation_of(parts(iris())) as federation:
        outcome = cotune.tune(
            federation,
            "defaults",
            learners=["decision_tree"],
            folds=2,
            fixed={"decision_tree": {"max_depth": 3}},
            train=False,
        )
    assert outcome.best_params["max_depth"] == 3
