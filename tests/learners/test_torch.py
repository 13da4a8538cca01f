"""Networks as learners, and those of users."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

import cotune
from cotune import learners
from cotune.learners.torch import register_network
from cotune.networks.parts import CLIENT
from tests.parts import federation_of, iris, letters, parts, pictures


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch):
    monkeypatch.setattr(learners, "_registered", {})


def linear(shape, outputs, bias):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), outputs, bias=bias))


def test_the_papers_space_is_that_of_appendix_d2():
    space = learners.learner("cnn").space("classification", "paper")
    assert (space["lr"].low, space["lr"].high, space["lr"].log) == (1e-4, 1.0, True)
    assert (space["momentum"].low, space["momentum"].high) == (0.0, 1.0)
    assert (space["weight_decay"].low, space["weight_decay"].high) == (1e-5, 1e-1)
    assert (space["epochs"].low, space["epochs"].high) == (1, 5)
    assert (space["batch_size"].low, space["batch_size"].high) == (8, 128)
    assert (space["dropout"].low, space["dropout"].high) == (0.0, 0.5)
    assert (space["server_lr"].low, space["server_lr"].high) == (0.1, 10.0)
    assert (space["server_decay"].low, space["server_decay"].high) == (1e-4, 1e-2)
    assert set(CLIENT) <= set(space)


def test_a_network_of_ones_own_is_tuned_by_its_name():
    register_network("mine", linear, bias=True)
    with federation_of(parts(iris())) as federation:
        outcome = cotune.tune(
            federation, "fedex", learners=["mine"], wrapper="rs", rounds=6, max_rounds=3, arms=2,
            fixed={"mine": {"bias": False}}, folds=2, progress=False,
        )  # fmt: skip
    assert outcome.best_params["bias"] is False
    assert len(outcome.model.estimator.flat) == 4 * 3
    assert set(outcome.model.predict(iris())) <= {0, 1, 2}


@pytest.mark.parametrize(("name", "frame"), [("cnn", pictures(60, 8)), ("char_lstm", letters(60))])
def test_other_methods_judge_networks_by_cross_validation(name, frame):
    fixed = {"rounds": 2} | ({"hidden": 4} if name == "char_lstm" else {"channels": 2, "hidden": 4})
    with federation_of(parts(frame)) as federation:
        outcome = cotune.tune(
            federation, "dash", learners=[name], trials=2, folds=2, fixed={name: fixed},
            progress=False,
        )  # fmt: skip
    assert 0 <= outcome.best_loss <= 1
    assert len(outcome.model.predict(frame)) == len(frame)


def test_unknown_settings_of_a_factory_are_refused():
    register_network("mine", linear, bias=True)
    with federation_of(parts(iris())) as federation, pytest.raises(cotune.UsageError, match="bais"):
        cotune.tune(federation, "fedex", learners=["mine"], fixed={"mine": {"bais": 1}})
