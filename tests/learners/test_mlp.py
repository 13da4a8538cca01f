from __future__ import annotations

import pytest

from cotune.learners import learner
from cotune.space import Space
from tests.learners.rows import make_schema

# FLoRA, appendix D.2.3
FIXED = {
    "solver": "adam",
    "activation": "relu",
    "early_stopping": True,
    "shuffle": True,
    "batch_size": "auto",
    "tol": 1e-4,
    "validation_fraction": 0.1,
    "beta_1": 0.9,
    "beta_2": 0.999,
    "epsilon": 1e-8,
}


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_paper_space_and_baseline_are_the_appendix(task):
    searched = {
        "hidden_layer_sizes": (50, 200),
        "alpha": (1e-5, 1e1, "log"),
        "learning_rate_init": (1e-5, 1e-1, "log"),
    }
    baseline = {"hidden_layer_sizes": 100, "alpha": 1e-4, "learning_rate_init": 1e-3}
    assert learner("mlp").space(task, "paper") == Space({**searched, **FIXED})
    assert learner("mlp").defaults(task) == {**baseline, **FIXED, "layers": 1}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, (100,)),
        ({"hidden_layer_sizes": 64}, 64),
        ({"hidden_layer_sizes": 64, "layers": 2}, (64, 64)),
        ({"layers": 3}, (100, 100, 100)),
    ],
)
def test_layers_repeat_the_width(params, expected):
    model = learner("mlp").estimator(params, task="classification", seed=0, schema=make_schema())
    assert model.get_params()["hidden_layer_sizes"] == expected
