"""Conformance suites for methods, learners and engines, for cotune's own and for yours.

In a test of your package:

    import pytest
    from cotune.testing import METHOD_CHECKS, check_method

    @pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
    def test_my_method(check):
        check("my_method")

or all at once: `check_method("my_method")`, `check_learner(MyLearner())`, `check_engine(make)`.
Each check is a function whose name is the sentence that it proves.
"""

from cotune.testing.engine import ENGINE_CHECKS, check_engine
from cotune.testing.faults import Faulty, Killed
from cotune.testing.learner import LEARNER_CHECKS, check_learner
from cotune.testing.method import METHOD_CHECKS, check_method

__all__ = [
    "ENGINE_CHECKS",
    "LEARNER_CHECKS",
    "METHOD_CHECKS",
    "Faulty",
    "Killed",
    "check_engine",
    "check_learner",
    "check_method",
]
