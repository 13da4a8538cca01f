"""What is said beforehand of a reply's size is true of every real one."""

from __future__ import annotations

from collections import defaultdict

import pytest

import cotune
from cotune import learners
from cotune.coordinator.federation import Federation
from cotune.errors import UsageError
from cotune.methods import method_names
from cotune.party.task import FRAME
from cotune.protocol.wire import decode_request, refusal_of
from cotune.testing import Faulty
from cotune.testing.tables import make_tables
from tests.parts import federation_of, letters, parts, pictures
from tests.privacy.agents import ready
from tests.testing.test_conformance import OPTIONS


class Measured(Faulty):
    """Passes everything on, and compares each reply's size with what was expected of it."""

    def __init__(self, engine) -> None:
        super().__init__(engine)
        self._problems = {}
        self.longest: dict[str, float] = defaultdict(float)  # by task, as a share of the bound

    def call(self, messages, timeout):
        replies = super().call(messages, timeout)
        for party, message in messages.items():
            self._measure(decode_request(message), replies[party])
        return replies

    def _measure(self, request, reply):
        if request.attached is not None:
            self._problems[request.problem] = request.attached
        problem = self._problems.get(request.problem)
        if request.verb in ("gather", "sum") and refusal_of(reply) is None:
            most = request.task.most_bytes(problem)
            assert not most or len(reply) <= most + FRAME, request.task.name
        assert len(reply) <= self.longest_reply, request.task.name
        share = len(reply) / self.longest_reply
        self.longest[request.task.name] = max(self.longest[request.task.name], share)


def tuned(tables, method, **options):
    """By task, how much of its bound the longest reply has."""
    with federation_of(tables) as federation:
        measured = Measured(federation.engine)
        outcome = cotune.tune(Federation(measured), method, progress=False, **options)
    assert outcome.ledger.failures == []
    return measured.longest


USUAL = {"learners": ["decision_tree", "logistic_regression"], "folds": 3, "trials": 3}


@pytest.mark.parametrize("privacy", ["plain", "masked"])
@pytest.mark.parametrize("method", method_names())
def test_no_reply_of_a_method_is_longer_than_its_bound(method, privacy):
    options = USUAL | OPTIONS.get(method, {}) | {"holdout": 0.2}
    try:
        assert tuned(make_tables(3), method, privacy=privacy, **options)
    except UsageError:
        assert privacy == "masked"


@pytest.mark.parametrize("method", ["flora", "fedex"])
def test_no_reply_about_a_regression_is_longer_than_its_bound(method):
    options = USUAL | {"learners": ["decision_tree"]} | OPTIONS[method]
    assert tuned(make_tables(3, task="regression"), method, **options)


@pytest.mark.parametrize("learner", sorted({*learners.learner_names()} - {"cnn", "char_lstm"}))
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_no_reply_in_training_is_longer_than_its_bound(learner, task):
    if task not in learners.learner(learner).tasks:
        pytest.skip("the learner does not know the task")
    networks = {"torch_mlp": {"rounds": 2, "hidden": 16, "layers": 1}}
    options = {"learners": [learner], "fixed": {learner: networks.get(learner, {})}, "folds": 2}
    longest = tuned(make_tables(3, task=task), "defaults", **options)
    assert {"inspect", "measure", "evaluate"} < longest.keys()


@pytest.mark.parametrize("learner", ["hgb", "xgboost", "lightgbm"])
def test_no_merged_trees_are_longer_than_their_bound(learner):
    options = {"learners": [learner], "folds": 2, "merge_every": 20}
    assert "boost" in tuned(make_tables(3), "defaults", **options)


@pytest.mark.parametrize(("rows", "learner"), [(pictures(side=8), "cnn"), (letters(), "char_lstm")])
def test_no_reply_about_arrays_is_longer_than_its_bound(rows, learner):
    options = OPTIONS["fedex"] | {"learners": [learner], "fixed": {}}
    assert "improve" in tuned(parts(rows), "fedex", **options)


@ready
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("dash", {}),
        ("privtuna", {"combine": "mean"}),
        ("privtuna", {"combine": "mean", "edition": "faithful"}),
        ("privtuna", {"combine": "pf-dbscan"}),
        ("privtuna", {"combine": "pf-dbscan", "edition": "faithful"}),
    ],
)
def test_no_encrypted_reply_is_longer_than_its_bound(method, options):
    options = USUAL | {"learners": ["decision_tree"], "train": False} | options
    if method == "privtuna":
        options |= OPTIONS["privtuna"]
    longest = tuned(make_tables(3), method, privacy="encrypted", **options)
    assert {"deal", "adopt", "decrypt"} <= longest.keys()
