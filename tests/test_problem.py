from __future__ import annotations

import math
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.data.schema import Schema
from cotune.errors import UsageError
from cotune.problem import METRICS, RESOLUTION, Budget, Problem, metric, seed_of
from cotune.space import Space
from tests.parts import diabetes, iris, problem_of

SCHEMA = Schema("target", "regression", (), target_scale=3.0)


def test_a_loss_is_shown_in_the_users_direction():
    assert metric("accuracy").value(0.25) == 0.75
    assert metric("r2").value(1.5) == -0.5
    assert metric("rmse").value(2.5) == 2.5
    assert metric("log_loss").value(0.3) == 0.3


def test_an_unknown_metric_is_answered_with_the_closest():
    with pytest.raises(UsageError, match="unknown metric 'acuracy': did you mean 'accuracy'"):
        metric("acuracy")


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_has_a_finite_worst_loss_and_a_step_that_is_a_power_of_two(name):
    chosen = metric(name)
    assert 1 <= chosen.worst(SCHEMA) <= 3000
    mantissa, _ = math.frexp(chosen.resolution(SCHEMA))
    assert mantissa == 0.5


@given(st.floats(1e-12, 1e12))
def test_the_errors_of_a_regression_are_resolved_in_its_own_unit(scale):
    schema = msgspec.structs.replace(SCHEMA, target_scale=scale)
    step = metric("rmse").resolution(schema)
    assert RESOLUTION <= step / scale <= 2 * RESOLUTION
    assert metric("rmse").worst(schema) == pytest.approx(1000 * scale)


@pytest.mark.parametrize("name", Budget.__struct_fields__)
@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_budget_that_is_not_above_zero_is_refused(name, limit):
    with pytest.raises(UsageError, match=f"the budget in {name} is {limit}"):
        Budget(**{name: limit})


def test_what_is_counted_has_a_whole_budget_and_time_any():
    assert Budget(seconds=0.5).seconds == 0.5
    with pytest.raises(UsageError, match=r"trials is 2\.5: give a whole number"):
        Budget(trials=2.5)


def test_the_digest_names_the_statement_and_nothing_else():
    problem = problem_of(iris())
    assert msgspec.structs.replace(problem).digest == problem.digest
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(problem), type=Problem)
    assert travelled.digest == problem.digest
    for change in ({"seed": 1}, {"folds": 4}, {"metric_name": "accuracy"}, {"weights": "equal"}):
        assert msgspec.structs.replace(problem, **change).digest != problem.digest


def test_a_problem_gives_its_spaces_back():
    problem = problem_of(iris(), spaces={"decision_tree": Space({"max_depth": (1, 4)}).to_json()})
    assert problem.space("decision_tree") == Space({"max_depth": (1, 4)})


def test_a_search_asks_the_default_first():
    problem = problem_of(iris(), space="paper")
    search = problem.search("decision_tree")
    first = problem.space("decision_tree").clip(problem.defaults("decision_tree"))
    assert search.ask().params == first


@pytest.mark.parametrize(
    ("learner", "space", "outside"),
    [
        ("hgb", "paper", {"l2_regularization": 0.0}),
        ("decision_tree", "default", {"max_depth": None, "ccp_alpha": 0.0}),
        ("svm", "default", None),
        ("logistic_regression", "default", None),  # says nothing of class_weight, as the library
        ("mlp", "paper", None),  # says that there is one layer, which the space leaves open
        ("xgboost", "paper", None),  # says what the library does anyway
    ],
)
def test_a_default_is_beside_its_space_if_that_has_no_such_model(learner, space, outside):
    problem = problem_of(iris(), learners=(learner,), space=space)
    inside = problem.space(learner).clip(problem.defaults(learner))
    beside = problem.beside(learner)
    if outside is None:
        assert beside is None
        assert problem.default(learner) == inside
    else:
        assert beside.items() >= outside.items()
        assert problem.default(learner) == beside == problem.defaults(learner)


def test_no_answer_leaves_a_space_of_the_users_own():
    own = {"decision_tree": Space({"max_depth": (1, 4)}).to_json()}
    problem = problem_of(iris(), spaces=own)
    assert problem.beside("decision_tree") is None
    assert problem.default("decision_tree") == {"max_depth": 4}


def test_task_and_metric_follow_the_data():
    assert (problem_of(iris()).task, problem_of(iris()).metric.name) == (
        "classification",
        "balanced_accuracy",
    )
    assert (problem_of(diabetes()).task, problem_of(diabetes()).metric.name) == (
        "regression",
        "rmse",
    )


def test_seeds_are_the_same_in_every_process():
    code = "from cotune.problem import seed_of; print(seed_of(1, 'hgb', 'party-1'))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert int(printed.stdout) == seed_of(1, "hgb", "party-1")
    assert len({seed_of(s, n) for s in range(10) for n in ("a", "b")}) == 20
