"""Every training that adds up gives the same model under private sums."""

from __future__ import annotations

import numpy as np
import pytest

import cotune
from cotune.learners import learner_names
from cotune.training import by_sums
from tests.parts import federation_of, iris, parts
from tests.privacy.agents import ready

TABLES = parts(iris(), 4)
#: Small enough for a test: cnn and char_lstm are trained like torch_mlp, lightgbm like hgb,
#: extra_tree like decision_tree; mlp is averaged in hundreds of rounds.
CASES = {
    "logistic_regression": {},
    "svm": {},
    "decision_tree": {"max_depth": 2},
    "hgb": {"max_iter": 10, "max_leaf_nodes": 4},
    "xgboost": {"n_estimators": 20, "max_depth": 2},
    "torch_mlp": {"rounds": 2, "hidden": 16, "layers": 1},
}


def model(learner, privacy):
    with federation_of(TABLES) as federation:
        outcome = cotune.tune(
            federation, "defaults", learners=[learner], fixed={learner: CASES[learner]}, folds=2,
            privacy=privacy, progress=False,
        )  # fmt: skip
    assert {entry.way for entry in outcome.ledger if entry.task != "inspect"} <= {"sum", privacy}
    return outcome.model.predict_proba(iris())


@pytest.mark.parametrize("learner", CASES)
def test_masks_do_not_change_the_model(learner):
    assert np.array_equal(model(learner, "masked"), model(learner, "plain"))


@ready
@pytest.mark.parametrize("learner", ["logistic_regression", "torch_mlp", "decision_tree"])
def test_encryption_does_not_change_the_model(learner):
    assert np.array_equal(model(learner, "encrypted"), model(learner, "plain"))


def test_what_is_trained_by_sums_is_known():
    trained = {name for name in learner_names() if by_sums(name)}
    assert trained >= CASES.keys()
    assert not trained & {"random_forest", "extra_trees"}
