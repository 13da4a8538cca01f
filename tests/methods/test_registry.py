from __future__ import annotations

import pytest

import cotune
from cotune import methods
from cotune.errors import UsageError
from cotune.methods.evaluate import evaluate
from cotune.party.task import Configuration
from cotune.trial import Step
from tests.parts import federation_of, iris, parts


def one_tree(federation, problem, *, depth=2):
    """One tree of a given depth."""
    yield Step(evaluate(federation, [Configuration("decision_tree", {"max_depth": depth})]), 1, 1)


def test_built_in_methods_are_known():
    names = (
        "dash", "flora", "flash", "fedex", "privtuna", "vote", "multishot", "central", "defaults",
    )  # fmt: skip
    assert methods.method_names()[: len(names)] == names


def test_an_unknown_method_is_answered_with_the_closest():
    with pytest.raises(UsageError, match="unknown method 'dahs': did you mean 'dash'"):
        methods.method("dahs")


def test_a_registered_method_runs_with_its_own_options(registry):
    cotune.register_method("one_tree", one_tree)
    with federation_of(parts(iris())) as federation:
        outcome = cotune.tune(
            federation,
            "one_tree",
            learners=["decision_tree"],
            folds=2,
            depth=3,
            trials=5,
            train=False,
        )
    assert outcome.best_params == {"max_depth": 3}
    assert "one_tree" in cotune.method_names()


def test_a_built_in_method_is_not_replaced(registry):
    with pytest.raises(UsageError, match="there is a built-in method 'dash'"):
        cotune.register_method("dash", one_tree)


def test_an_option_that_the_method_does_not_have_is_refused_by_name():
    with pytest.raises(UsageError, match=r"unknown option of method dash 'samplr': did you mean"):
        methods.options_of("dash", {"samplr": "tpe"})
    assert methods.options_of("dash", {"sampler": "tpe"}) == {"sampler": "tpe"}
