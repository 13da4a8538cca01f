from __future__ import annotations

import msgspec
import pytest

from cotune import learners
from cotune.data.schema import Column, Schema
from cotune.errors import UsageError
from cotune.problem import Budget
from cotune.run.settings import USUAL_LEARNERS, Settings, spaces_as_json
from cotune.space import Space

CLASSES = Schema("target", "classification", (), classes=("a", "b"))
NUMBERS = Schema("target", "regression", ())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"method": "dsh"}, "unknown method 'dsh': did you mean 'dash'"),
        ({"learners": ("svn",)}, "unknown learner 'svn': did you mean 'svm'"),
        ({"spaces": {"svn": {}}}, "unknown learner 'svn'"),
        ({"fixed": {"svn": {}}}, "unknown learner 'svn'"),
        ({"metric": "acc", "task": "classification"}, "unknown metric 'acc'"),
        ({"metric": "rmse", "task": "classification"}, "'rmse' is not one for classification"),
        ({"folds": 1}, "folds is 1: cross-validation needs at least 2"),
        ({"folds": 2.5}, r"folds is 2\.5"),
        ({"seed": -1}, "the seed is -1: give a whole number"),
        ({"seed": 2**32}, "the seed is 4294967296"),
        ({"seed": 0.5}, r"the seed is 0\.5"),
        ({"weights": "row"}, "unknown weights 'row': did you mean 'rows'"),
        ({"compare_by": "party"}, "unknown compare_by 'party': did you mean 'parties'"),
        (
            {"compare_by": "federation", "weights": "equal"},
            "count parties by their rows: leave weights='equal' out, or compare by parties",
        ),
        (
            {"compare_by": "federation", "weights": "equal", "noise": 1.0, "privacy": "masked"},
            "count parties by their rows",
        ),
        ({"compare_by": "federation", "method": "fedex"}, "fedex compares by the clients' losses"),
        ({"scaling": "standrad"}, "unknown scaling 'standrad': did you mean 'standard'"),
        ({"method": "flora", "options": {"surfac": "aplm"}}, "option of method flora 'surfac'"),
        ({"method": "central", "options": {"until": 0.1}}, "option of method central 'until'"),
        ({"space": "papers"}, "unknown space 'papers': did you mean 'paper'"),
        ({"options": {"samplr": 1}}, "unknown option of method dash 'samplr'"),
    ],
)
def test_what_is_wrong_is_said_before_any_work_starts(given, sentence):
    with pytest.raises(UsageError, match=sentence):
        Settings(**given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "federation"),
        ({"compare_by": "parties"}, "parties"),
        ({"weights": "equal"}, "parties"),
        ({"weights": "equal", "noise": 1.0, "privacy": "masked"}, "parties"),
        ({"method": "fedex"}, "parties"),
    ],
)
def test_a_run_compares_by_the_federations_figures_unless_these_have_no_sense(given, expected):
    assert Settings(**given).compares_by == expected


def test_a_learner_whose_library_is_missing_is_refused(monkeypatch):
    monkeypatch.setattr(learners, "_installed", lambda learner: learner.name != "xgboost")
    with pytest.raises(UsageError, match=r"pip install 'cotune\[boost\]'"):
        Settings(learners=("xgboost",))


def test_the_usual_learners_are_those_that_can_do_the_task():
    assert Settings().problem(CLASSES).learners == USUAL_LEARNERS
    assert Settings().problem(NUMBERS).learners == ("hgb", "random_forest")


@pytest.mark.parametrize(
    ("given", "schema", "sentence"),
    [
        ({"metric": "rmse"}, CLASSES, "rmse is not a metric for classification: balanced_accuracy"),
        ({"metric": "f1"}, NUMBERS, "f1 is not a metric for regression: rmse, mae, r2"),
        ({"learners": ("logistic_regression",)}, NUMBERS, "'logistic_regression' cannot do regr"),
        (
            {"learners": ("svm",), "fixed": {"svm": {"Q": 1}}},
            CLASSES,
            "unknown parameter 'Q'",
        ),
        (
            {"learners": ("decision_tree",), "fixed": {"decision_tree": {"max_depth": 99}}},
            CLASSES,
            "'max_depth' must be a whole number from 2 to 32, not 99",
        ),
        ({"learners": ("svm",), "fixed": {"hgb": {}}}, CLASSES, "'hgb', which is not tuned"),
        (
            {
                "learners": ("decision_tree",),
                "spaces": spaces_as_json({"decision_tree": {"max_dept": (1, 5)}}),
            },
            CLASSES,
            "unknown decision_tree parameter 'max_dept': did you mean 'max_depth'",
        ),
    ],
)
def test_what_does_not_fit_the_data_is_said_once_the_schema_is_known(given, schema, sentence):
    with pytest.raises(UsageError, match=sentence):
        Settings(**given).problem(schema)


def test_a_space_of_the_users_own_takes_the_place_of_the_learners():
    own = spaces_as_json({"svm": {"C": (0.1, 1.0)}, "hgb": Space({"max_iter": (5, 9)})})
    problem = Settings(learners=("svm", "hgb"), spaces=own).problem(CLASSES)
    assert problem.space("svm") == Space({"C": (0.1, 1.0)})
    assert problem.space("hgb") == Space({"max_iter": (5, 9)})


def test_fixed_parameters_are_not_searched():
    settings = Settings(learners=("hgb",), fixed={"hgb": {"max_iter": 50}})
    space = settings.problem(CLASSES).space("hgb")
    assert space.clip({"max_iter": 1})["max_iter"] == 50


def test_the_papers_space_can_be_chosen():
    wide, paper = (
        Settings(learners=("hgb",), space=which).problem(CLASSES).space("hgb")
        for which in ("default", "paper")
    )
    assert wide != paper


def test_the_problem_says_how_columns_are_scaled():
    standard, none = (
        Settings(learners=("svm",), scaling=scaling).problem(CLASSES)
        for scaling in ("standard", "none")
    )
    assert Settings(learners=("svm",)).problem(CLASSES) == standard
    assert (standard.scaling, none.scaling) == ("standard", "none")
    assert standard.digest != none.digest


def test_the_metric_says_the_task_unless_the_user_does():
    assert Settings().expected_task is None
    assert Settings(metric="mae").expected_task == "regression"
    assert Settings(task="classification").expected_task == "classification"


def test_settings_can_be_written_down_and_read_back():
    settings = Settings(
        learners=("svm",),
        spaces=spaces_as_json({"svm": {"C": (0.1, 1.0, "log"), "kernel": ["rbf", "linear"]}}),
        budget=Budget(trials=5, seconds=2.5),
        options={"sampler": "random"},
        drop=("name",),
    )
    written = msgspec.json.encode(settings)
    read = msgspec.json.decode(written, type=Settings)
    assert msgspec.json.encode(read) == written
    assert read.problem(CLASSES).digest == settings.problem(CLASSES).digest


@pytest.mark.parametrize("number", [0, -1, 2.5, 2**20])
def test_trees_between_two_merges_are_a_whole_number(number):
    with pytest.raises(UsageError, match=r"merge_every is .*: give a number of trees from 1"):
        Settings(learners=("hgb",), merge_every=number)


def test_learners_of_tables_are_not_given_arrays(monkeypatch):
    images = Schema("target", "classification", (Column("x", "array", shape=(2,)),), ("a", "b"))
    monkeypatch.setattr(learners, "_registered", {"net": Network()})
    for given in ((), ("svm",), ("net", "hgb")):
        with pytest.raises(
            UsageError, match=r"hold arrays \(column 'x'\).* does not take: use .*net"
        ):
            Settings(learners=given).problem(images)
    assert Settings(learners=("net",)).problem(images).learners == ("net",)


class Network(type(learners.learner("decision_tree"))):
    name = "net"
    features = "tensor"
