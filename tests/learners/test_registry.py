from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

import cotune.learners
from cotune.errors import UsageError
from cotune.learners import available, learner, learner_names, register_learner, require
from cotune.learners.linear import LogisticRegression
from tests.learners.rows import make_schema

BUILT_IN = (
    "hgb svm mlp random_forest decision_tree extra_tree extra_trees logistic_regression "
    "xgboost lightgbm torch_mlp cnn char_lstm"
)


class Mine(LogisticRegression):
    name = "mine"


MINE = Mine()


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch):
    monkeypatch.setattr(cotune.learners, "_registered", {})
    cotune.learners._entry_points.cache_clear()
    yield
    cotune.learners._entry_points.cache_clear()


def install(monkeypatch, *entries):
    points = [EntryPoint(name, value, "cotune.learners") for name, value in entries]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)


def test_names_are_the_built_in_then_registered_then_entry_points(monkeypatch):
    install(monkeypatch, ("theirs", "nowhere:Theirs"), ("hgb", "nowhere:Theirs"))
    register_learner(MINE)
    assert learner_names() == (*BUILT_IN.split(), "mine", "theirs")


def test_every_learner_answers_to_its_name():
    assert [learner(name).name for name in learner_names()] == list(learner_names())


def test_an_unknown_learner_gets_a_suggestion():
    with pytest.raises(UsageError, match="unknown learner 'hbg': did you mean 'hgb'"):
        learner("hbg")


def test_a_registered_learner_is_found():
    register_learner(MINE)
    assert learner("mine") is MINE


def test_a_name_in_use_is_refused_unless_replaced():
    register_learner(MINE)
    with pytest.raises(UsageError, match="there is a learner 'mine' already"):
        register_learner(Mine())
    replacement = Mine()
    register_learner(replacement, replace=True)
    assert learner("mine") is replacement
    assert learner_names().count("mine") == 1


def test_a_class_is_not_registered():
    with pytest.raises(UsageError, match="takes an instance"):
        register_learner(Mine)


@pytest.mark.parametrize("attribute", ["Mine", "MINE"])
def test_an_entry_point_is_loaded_from_a_class_or_an_instance(monkeypatch, attribute):
    install(monkeypatch, ("mine", f"{__name__}:{attribute}"))
    assert isinstance(learner("mine"), Mine)


@pytest.mark.parametrize("value", [f"{__name__}:Mine", f"{__name__}:BUILT_IN"])
def test_an_entry_point_that_is_no_learner_of_its_name_is_an_error(monkeypatch, value):
    install(monkeypatch, ("other", value))
    with pytest.raises(UsageError, match=r"entry point 'other' of cotune\.learners must be"):
        learner("other")


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_a_missing_library_is_an_error_that_names_the_extra(monkeypatch, name):
    monkeypatch.setattr(importlib.util, "find_spec", lambda library: None)
    expected = (
        f"learner '{name}' needs a package that is not installed: pip install 'cotune[boost]'"
    )
    chosen = learner(name)
    assert chosen.space("classification").names
    assert not available(name)
    assert available("hgb")
    with pytest.raises(UsageError) as required:
        require(chosen)
    with pytest.raises(UsageError) as built:
        chosen.estimator({}, task="classification", seed=0, schema=make_schema())
    assert str(required.value) == str(built.value) == expected


def test_a_missing_library_without_an_extra_is_named(monkeypatch):
    monkeypatch.setattr(Mine, "library", "no_such_package")
    with pytest.raises(UsageError, match=r"pip install no_such_package$"):
        require(MINE)


def test_the_registry_imports_no_heavy_library():
    program = """
import sys, cotune.learners
heavy = {"numpy", "sklearn", "optuna", "xgboost", "lightgbm"} & set(sys.modules)
assert not heavy, heavy
names = cotune.learners.learner_names()
for name in names:
    cotune.learners.learner(name)
late = {"sklearn", "xgboost", "lightgbm"} & set(sys.modules)
assert not late, late
"""
    subprocess.run([sys.executable, "-c", program], check=True)
