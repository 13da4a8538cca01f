from __future__ import annotations

import msgspec
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from cotune.errors import Malformed
from cotune.learners import register_learner
from cotune.learners.contract import Learner
from cotune.model.skops import dumped
from cotune.party.task import Configuration
from cotune.party.train import ensemble
from cotune.party.train.ensemble import FitOwn, OwnModel, keeps_rows, read_model
from cotune.protocol.wire import Refusal
from cotune.space import Space
from tests.parts import ask, diabetes, iris, party_of, people, problem_of

pytestmark = pytest.mark.usefixtures("registry")
TASK = FitOwn(Configuration("own", {}))


def own_learner(make, *, keeps_rows=False, features="dense", name="own") -> Learner:
    """A learner without parameters, whose estimators `make` builds."""

    class Own(Learner):
        tasks = ("classification", "regression")

        def space(self, task, which="default"):
            return Space({})

        def defaults(self, task):
            return {}

        def estimator(self, params, *, task, seed, schema):
            return make()

    Own.name, Own.features, Own.keeps_rows = name, features, keeps_rows
    return Own()


def sent_by(tmp_path, frame, make, **options):
    register_learner(own_learner(make, **options))
    problem = problem_of(frame, learners=("own",), train=False)
    return ask(party_of(frame, tmp_path), TASK, problem), problem


def decoded(answer) -> OwnModel:
    return msgspec.msgpack.decode(answer.body, type=OwnModel)


def test_a_party_sends_its_model_the_classes_it_has_and_its_weight(tmp_path):
    answer, problem = sent_by(tmp_path, iris(), LogisticRegression)
    reply = decoded(answer)
    TASK.check(reply, problem)
    assert (reply.classes, reply.weight) == ((0, 1, 2), 150.0)
    assert answer.cost.fits == 1


def test_a_party_with_one_class_sends_a_model_that_always_says_it(tmp_path):
    register_learner(own_learner(LogisticRegression))
    whole, one = people(labels="xyz"), people(labels="y")
    problem = problem_of(whole, one, learners=("own",))
    reply = decoded(ask(party_of(one, tmp_path), TASK, problem))
    model = read_model(reply, problem, "own")
    assert reply.classes == (1,)
    assert model.predict_proba(np.zeros((2, 6))).tolist() == [[0.0, 1.0, 0.0]] * 2


def test_a_regression_on_dense_rows_learns_the_standardised_target(tmp_path):
    answer, problem = sent_by(tmp_path, diabetes(), Ridge)
    model = read_model(decoded(answer), problem, "own")
    assert model.predict(np.zeros((1, 10))) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("make", [KNeighborsClassifier, lambda: SVC(C=0.1)])
def test_a_model_that_holds_rows_does_not_leave_whatever_its_learner_says(tmp_path, make):
    answer, _ = sent_by(tmp_path, iris(), make)
    assert isinstance(answer, Refusal)
    assert "holds rows" in answer.sentence


def test_a_learner_that_says_that_it_keeps_rows_is_refused(tmp_path):
    answer, _ = sent_by(tmp_path, iris(), LogisticRegression, keeps_rows=True)
    assert isinstance(answer, Refusal)
    assert "holds rows" in answer.sentence


def test_class_means_and_coefficients_are_no_rows():
    frame = iris()
    X, y = frame.drop(columns="target").to_numpy(), frame["target"]
    for model in (LogisticRegression(max_iter=1000), GaussianNB()):
        assert not keeps_rows(model.fit(X, y), X)
    assert keeps_rows({"deep": [KNeighborsClassifier().fit(X, y)]}, X)


class Strange(LogisticRegression):
    """A type that nobody but this test knows."""


class Unsaveable(LogisticRegression):
    def fit(self, X, y):
        self.handle_ = open("/dev/null")  # noqa: SIM115
        return super().fit(X, y)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (Strange, "takes from nobody .*Strange"),
        (DecisionTreeClassifier, "takes from nobody .*sklearn.tree._tree.Tree"),
        (Unsaveable, "'own'"),
    ],
)
def test_a_model_of_types_that_are_not_trusted_does_not_leave(tmp_path, make, sentence):
    answer, _ = sent_by(tmp_path, iris(), make)
    assert isinstance(answer, Refusal)
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(answer.sentence)


def test_a_model_beyond_the_bound_does_not_leave(tmp_path, monkeypatch):
    monkeypatch.setattr(ensemble, "MOST_BYTES", 100)
    answer, _ = sent_by(tmp_path, iris(), LogisticRegression)
    assert isinstance(answer, Refusal)
    assert "100 bytes" in answer.sentence


def test_replies_that_are_no_models_are_refused(tmp_path, monkeypatch):
    answer, problem = sent_by(tmp_path, iris(), LogisticRegression)
    whole = decoded(answer)
    narrow = LogisticRegression().fit(np.eye(3), [0, 1, 2])
    broken = LogisticRegression().fit(np.eye(4), [0, 1, 2, 2])
    broken.coef_ = broken.coef_ * np.nan
    for changed in (
        {"model": b""},
        {"model": whole.model[:-50]},
        {"model": dumped(narrow)},
        {"model": dumped(broken)},
        {"model": dumped(Strange().fit(np.eye(4), [0, 1, 2, 2]))},
        {"model": dumped(FunctionTransformer())},
        {"model": dumped([1, 2, 3])},
        {"classes": ()},
        {"classes": (0, 1)},
        {"classes": (0, 2, 1)},
        {"classes": (0, 1, 3)},
        {"weight": 0.0},
        {"weight": float("nan")},
    ):
        with pytest.raises(Malformed):
            TASK.check(msgspec.structs.replace(whole, **changed), problem)
    monkeypatch.setattr(ensemble, "MOST_BYTES", len(whole.model) - 1)
    with pytest.raises(Malformed, match="bytes"):
        TASK.check(whole, problem)
