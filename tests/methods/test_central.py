from __future__ import annotations

import pandas as pd
import pytest

import cotune
from cotune.errors import UsageError
from tests.parts import federation_of, iris, parts, unreliable

LEARNERS = ["decision_tree", "logistic_regression"]
TABLES = parts(iris(90))
QUICK = {"learners": LEARNERS, "folds": 3, "trials": 3, "seed": 5}


def judged(outcome):
    return [(t.learner, t.params, t.loss, t.fits, t.weight) for t in outcome.trials]


def test_it_is_a_search_by_one_party_that_holds_all_rows():
    with federation_of(TABLES) as federation:
        pooled = cotune.tune(federation, "central", **QUICK, train=False)
    everything = pd.concat([TABLES[name] for name in sorted(TABLES)], ignore_index=True)
    with federation_of({"one": everything}) as federation:
        alone = cotune.tune(federation, "dash", **QUICK, train=False)
    assert judged(pooled) == judged(alone)
    assert {trial.parties for trial in pooled.trials} == {1}
    assert pooled.ledger.fits == 2 * 3 * 3


def test_only_the_pooled_party_is_asked_and_booked():
    with federation_of(TABLES) as federation:
        outcome = cotune.tune(federation, "central", **QUICK | {"trials": 2}, train=False)
    assert [entry.asked for entry in outcome.rounds if entry.task == "evaluate"] == [
        ("all-parties-pooled",)
    ] * 2
    assert outcome.parties == tuple(sorted(TABLES))
    assert "all parties' rows lie in one place" in outcome.ledger.disclosed[-1]


def test_no_real_federation_has_all_rows_in_one_place():
    """An engine that says nothing of a pooled party has none."""
    with (
        unreliable(TABLES, lambda call, party, reply: reply) as federation,
        pytest.raises(UsageError, match="in a simulation only"),
    ):
        cotune.tune(federation, "central", **QUICK, train=False)


def test_the_federation_itself_stays_as_it_was():
    with federation_of(TABLES) as federation:
        alone = federation.pooled()
        assert alone.parties == ["all-parties-pooled"]
        assert alone.ledger is federation.ledger
        assert federation.parties == sorted(TABLES)
