from __future__ import annotations

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import (
    ExtraTreesClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)

from cotune.coordinator.agree import agree
from cotune.coordinator.journal import Journal
from cotune.data.encode import encode, encode_target
from cotune.errors import FederationError, UsageError
from cotune.model.skops import OF_MODELS, dumped, loaded
from cotune.party.task import Configuration
from cotune.problem import Budget, seed_of
from cotune.protocol.wire import Gathered, decode_reply
from cotune.protocol.wire import encode as encode_message
from cotune.run.settings import Settings
from cotune.training import Stage, forest
from tests.parts import diabetes, federation_of, iris, parts, people, unreliable

TREES = {"n_estimators": 10, "max_depth": 4}


def trained(federation, params, learner="random_forest", **settings):
    """The stages and the estimator of a training."""
    settings = Settings(learners=(learner,), folds=2, **settings)
    if federation.problem is None:
        schema = agree(federation, folds=2, task=settings.expected_task)
        federation.problem = settings.problem(schema)
    stages = []
    training = forest.forest(federation, federation.problem, Configuration(learner, params))
    while True:
        try:
            stages.append(next(training))
        except StopIteration as end:
            return stages, end.value


def uneven() -> dict[str, pd.DataFrame]:
    frame = iris()
    return {"a": frame[:90], "b": frame[90:140], "c": frame[140:]}


@pytest.mark.parametrize(
    ("learner", "build"),
    [("random_forest", RandomForestClassifier), ("extra_trees", ExtraTreesClassifier)],
)
def test_the_forest_is_the_union_of_forests_that_the_parties_grow(learner, build):
    tables = uneven()
    with federation_of(tables) as federation:
        stages, union = trained(federation, TREES, learner)
        schema = federation.problem.schema
    trees = []
    for party, share in {"a": 6, "b": 3, "c": 1}.items():
        X = encode(tables[party], schema, "codes")
        seed = seed_of(0, "forest", party, 0)
        own = build(share, max_depth=4, random_state=seed).fit(
            X, encode_target(tables[party], schema)
        )
        trees += own.estimators_
    rows = encode(iris(), schema, "codes")
    assert type(union) is build
    assert stages == [Stage(0, 10), Stage(10, 10)]
    np.testing.assert_allclose(
        union.predict_proba(rows), np.mean([tree.predict_proba(rows) for tree in trees], axis=0)
    )
    np.testing.assert_allclose(
        union.feature_importances_, np.mean([t.feature_importances_ for t in trees], axis=0)
    )
    depths = [tree.get_depth() for tree in union.estimators_]
    assert depths == [tree.get_depth() for tree in trees]
    assert union.score(rows, iris()["target"]) > 0.9


def test_classes_that_parties_lack_have_no_share_in_their_trees():
    tables = {
        "a": people(40, labels="xy"),
        "b": people(40, labels="yz", seed=1),
        "c": people(40, labels="z", seed=2),
    }
    with federation_of(tables) as federation:
        _, union = trained(federation, TREES)
        rows = encode(pd.concat(tables.values()), federation.problem.schema, "codes")
    shares = union.predict_proba(rows)
    assert union.classes_.tolist() == [0, 1, 2]
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert set(union.predict(rows)) <= {0, 1, 2}
    per_tree = [tree.predict_proba(rows).max(axis=0) > 0 for tree in union.estimators_]
    assert [list(known) for known in per_tree][-1] == [False, False, True]
    assert not per_tree[0][2]


def test_a_regression_averages_the_parties_trees():
    tables = parts(diabetes(), 2)
    with federation_of(tables) as federation:
        _, union = trained(federation, {"n_estimators": 7}, metric="rmse")
        schema = federation.problem.schema
    rows = encode(diabetes(), schema, "codes")
    own = [
        RandomForestRegressor(share, random_state=seed_of(0, "forest", party, 0))
        .fit(encode(tables[party], schema, "codes"), tables[party]["target"])
        .predict(rows)
        for party, share in {"party-1": 4, "party-2": 3}.items()
    ]
    assert type(union) is RandomForestRegressor
    np.testing.assert_allclose(union.predict(rows), (4 * own[0] + 3 * own[1]) / 7)


def test_a_large_forest_takes_several_rounds(monkeypatch):
    monkeypatch.setattr(forest, "TREES_A_ROUND", 4)
    with federation_of(uneven()) as federation:
        stages, union = trained(federation, TREES)
    assert [stage.done for stage in stages] == [0, 6, 10]
    assert len(union.estimators_) == union.n_estimators == 10


def test_a_killed_training_goes_on_where_it_stood(monkeypatch, tmp_path):
    monkeypatch.setattr(forest, "TREES_A_ROUND", 4)

    def run(path, rounds=None):
        with federation_of(uneven()) as base:
            federation = base.for_run("run", Journal(path), Budget(rounds=rounds))
            try:
                return trained(federation, TREES), federation.ledger.rounds
            finally:
                federation.journal.close()

    (_, whole), rounds = run(tmp_path / "whole")
    with pytest.raises(Exception, match="budget of 4 rounds"):
        run(tmp_path / "killed", rounds=4)
    (stages, resumed), rounds_resumed = run(tmp_path / "killed")
    assert rounds == rounds_resumed
    assert stages[0].done > 0
    rows = iris().drop(columns="target").to_numpy()
    np.testing.assert_array_equal(resumed.predict_proba(rows), whole.predict_proba(rows))


def tampering(change):
    """Replies of `party-2` with trees are changed."""

    def apply(call, party, reply):
        answer = decode_reply(reply)
        if party != "party-2" or not isinstance(answer, Gathered):
            return reply
        body = msgspec.msgpack.decode(answer.body)
        if not body.get("trees"):
            return reply
        change(body)
        raw = msgspec.Raw(msgspec.msgpack.encode(body))
        return encode_message(Gathered(raw, answer.cost))

    return apply


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["trees"][0].update(nodes=b"\xff" * len(body["trees"][0]["nodes"])),
        lambda body: body["trees"].pop(),
        lambda body: body["classes"].pop(),
    ],
)
def test_trees_of_a_party_that_answers_wrongly_are_grown_by_the_others(change):
    with unreliable(parts(iris(), 3), tampering(change), retries=0) as federation:
        stages, union = trained(federation, TREES)
    assert len(union.estimators_) == 10
    assert [stage.done for stage in stages] == [0, 7, 10]


def test_a_forest_that_nobody_grows_is_an_error():
    def change(body):
        body["trees"] = []

    tables = {"party-2": iris()}
    with (
        unreliable(tables, tampering(change), retries=0) as federation,
        pytest.raises(FederationError, match="no party is left"),
    ):
        trained(federation, TREES)


def test_unknown_parameters_are_refused_before_anyone_is_asked():
    with federation_of(parts(iris())) as federation:
        with pytest.raises(UsageError, match="leaves"):
            trained(federation, {"leaves": 3})
        assert federation.ledger.rounds == 2  # those of the schema


def test_a_saved_forest_predicts_the_same():
    with federation_of({"a": people(60), "b": people(60, seed=1)}) as federation:
        _, union = trained(federation, TREES)
        rows = encode(people(50, seed=5), federation.problem.schema, "codes")
    again = loaded(dumped(union), rows.shape[1], OF_MODELS)
    assert type(again) is RandomForestClassifier
    np.testing.assert_array_equal(again.predict_proba(rows), union.predict_proba(rows))


weights = st.dictionaries(st.text(min_size=1), st.floats(1.0, 1e6), min_size=1, max_size=20)


@given(st.integers(0, 500), weights)
def test_shares_are_whole_sum_up_and_lie_next_to_the_proportion(count, weights):
    shares = forest.apportioned(count, weights)
    total = sum(weights.values())
    assert sum(shares.values()) == count
    for party, weight in weights.items():
        assert abs(shares[party] - count * weight / total) < 1.0 + 1e-6
