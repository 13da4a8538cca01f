from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import VotingClassifier
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier

from cotune.coordinator.agree import agree
from cotune.data.encode import encode, encode_target
from cotune.errors import FederationError, UsageError
from cotune.learners import register_learner
from cotune.model.predictors import AllClasses
from cotune.model.skops import OF_MODELS, dumped, loaded
from cotune.party.task import Configuration
from cotune.run.settings import Settings
from cotune.training import Stage
from cotune.training.ensemble import ensemble
from tests.parts import diabetes, federation_of, iris, people
from tests.party.train.test_ensemble import own_learner

pytestmark = pytest.mark.usefixtures("registry")


def trained(tables, make, **options):
    register_learner(own_learner(make, **options))
    with federation_of(tables) as federation:
        federation.problem = Settings(learners=("own",), folds=2).problem(
            agree(federation, folds=2, task=None)
        )
        stages = []
        training = ensemble(federation, federation.problem, Configuration("own", {}))
        while True:
            try:
                stages.append(next(training))
            except StopIteration as end:
                return end.value, federation.problem.schema, stages


def test_probabilities_are_averaged_by_the_parties_rows():
    tables = {"a": iris()[:100], "b": iris()[100:]}
    model, schema, stages = trained(tables, LogisticRegression)
    rows = encode(iris(), schema, "dense")
    own = [
        LogisticRegression()
        .fit(encode(table, schema, "dense"), encode_target(table, schema))
        .predict_proba(rows)
        for table in tables.values()
    ]
    assert stages == [Stage(0, 1), Stage(1, 1)]
    assert isinstance(model, VotingClassifier)
    np.testing.assert_allclose(model.predict_proba(rows), (2 * own[0] + own[1]) / 3)
    assert np.mean(model.predict(rows) == iris()["target"]) > 0.9


@pytest.mark.parametrize("make", [LogisticRegression, RidgeClassifier])
def test_parties_that_lack_classes_say_nothing_of_them(make):
    tables = {
        "a": people(60, labels="xy"),
        "b": people(60, labels="yz", seed=1),
        "c": people(60, labels="z", seed=2),
    }
    model, schema, _ = trained(tables, make)
    rows = encode(people(20, seed=3), schema, "dense")
    shares = model.predict_proba(rows)
    assert shares.shape == (20, 3)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert (shares[:, 2] >= 1 / 3).all()
    assert model.classes_.tolist() == [0, 1, 2]
    assert set(model.predict(rows)) <= {0, 1, 2}


@pytest.mark.parametrize("features", ["dense", "codes"])
def test_a_regression_predicts_in_the_targets_own_unit(features):
    frame = diabetes()
    tables = {"a": frame[:300], "b": frame[300:]}
    model, schema, _ = trained(tables, Ridge, features=features)
    rows = encode(frame, schema, features)
    own = [
        Ridge().fit(encode(t, schema, features), t["target"]).predict(rows) for t in tables.values()
    ]
    expected = np.average(own, axis=0, weights=[300, 142])
    np.testing.assert_allclose(model.predict(rows), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("frame", "make"), [(iris(), LogisticRegression), (diabetes(), Ridge)], ids=["iris", "diabetes"]
)
def test_a_saved_ensemble_predicts_the_same(frame, make):
    model, schema, _ = trained({"a": frame[:90], "b": frame[90:]}, make)
    rows = encode(frame, schema, "dense")
    again = loaded(dumped(model), rows.shape[1], OF_MODELS)
    np.testing.assert_array_equal(again.predict(rows), model.predict(rows))


def test_a_learner_that_keeps_rows_is_refused_before_anyone_is_asked():
    with pytest.raises(UsageError, match="holds rows"):
        trained({"a": iris()}, KNeighborsClassifier, keeps_rows=True)


def test_a_model_that_no_party_lets_go_stops_the_run_with_the_reason():
    with pytest.raises(FederationError, match="holds rows that it was fitted on"):
        trained({"a": iris()[:80], "b": iris()[80:]}, KNeighborsClassifier)


def test_decision_values_are_read_as_shares():
    X = np.random.default_rng(0).normal(size=(60, 3))
    for y in (np.arange(60) % 2, np.arange(60) % 3):
        classifier = RidgeClassifier().fit(X, y)
        model = AllClasses(classifier, np.unique(y) + 1, 5)
        np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
        np.testing.assert_array_equal(model.predict(X), classifier.predict(X) + 1)
