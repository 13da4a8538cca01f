"""Everything that is registered passes the conformance suites."""

import pytest

from cotune.engines.local import LocalEngine
from cotune.learners import learner, learner_names
from cotune.methods import method_names
from cotune.testing import ENGINE_CHECKS, LEARNER_CHECKS, METHOD_CHECKS

#: Fewer fits where a method's own defaults would take minutes; the program is the same.
OPTIONS = {
    "flash": {"first": 0.5},
    "flora": {"few_shot": 3},
    "privtuna": {"trials": 6, "min_points": 2},
    "vote": {"top": 1},
    "fedex": {
        "learners": ["torch_mlp"],
        "fixed": {"torch_mlp": {"hidden": 16, "layers": 1}},
        "rounds": 12,
        "max_rounds": 6,
        "eta": 2,
        "eliminations": 2,
        "arms": 3,
        "clients_per_round": 3,
    },
}


def name_of(check):
    return check.__name__


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=name_of)
@pytest.mark.parametrize("method", method_names())
def test_method(method, check):
    check(method, **OPTIONS.get(method, {}))


@pytest.mark.parametrize("check", LEARNER_CHECKS, ids=name_of)
@pytest.mark.parametrize("name", learner_names())
def test_learner(name, check):
    check(learner(name))


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=name_of)
def test_local_engine(check):
    check(LocalEngine)
