"""Folds on which models of the federation are evaluated: in the end, or for every configuration."""

from __future__ import annotations

import msgspec
import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.preprocessing import StandardScaler

import cotune
from cotune.coordinator.federation import Federation
from cotune.errors import FederationError, UsageError
from cotune.methods.evaluate import evaluate
from cotune.party.rows import fold_indices, open_rows
from cotune.party.task import Configuration
from cotune.party.tasks import Evaluate
from cotune.protocol.wire import Refusal
from cotune.run.settings import Settings
from cotune.testing import METHOD_CHECKS, Faulty
from cotune.testing.faults import Killed
from cotune.training import train
from cotune.training.folds import cross_validated
from tests.parts import (
    TREE,
    ask,
    diabetes,
    federation_of,
    iris,
    parts,
    party_of,
    problem_of,
    unreliable,
    wine,
)

TWO = {"learners": ["decision_tree", "logistic_regression"], "trials": 2, "folds": 3}
SHALLOW = Evaluate((Configuration("decision_tree", TREE),))
RIDGE = Configuration("logistic_regression", {"C": 1.0})


def tuned(tables, *, engine=None, **options):
    with federation_of(tables) as federation:
        asked = Federation(engine(federation.engine)) if engine else federation
        return cotune.tune(asked, **(TWO | options))


def told(outcome):
    """All but times of what a second run must give again, bit for bit."""
    trials = [(t.learner, t.params, t.loss, t.error, t.weight, t.reasons) for t in outcome.trials]
    finalists = [(f.params, f.held_out, f.failed, f.rounds) for f in outcome.finalists]
    return trials, finalists, outcome.best_params, outcome.headline, len(outcome.rounds)


# The rows of a fold


def test_the_folds_are_those_of_cross_validation(tmp_path):
    frame = wine()
    problem, party = problem_of(frame), party_of(frame, tmp_path)
    ask(party, SHALLOW, problem)
    expected = fold_indices(party.folder("codes"), 1.0)
    for fold, (outside, inside) in enumerate(expected):
        ask(party, SHALLOW, replace(problem, fold=fold))
        assert party.held_out.index.tolist() == inside.tolist()
        assert party.frame.index.tolist() == outside.tolist()
        assert len(open_rows(party.folder("codes")).y) == len(outside)


@pytest.mark.parametrize("kept", [True, False])
def test_the_problems_of_a_run_have_nothing_in_common_at_a_party(tmp_path, kept):
    """Nor after it was restarted in between."""
    frame = wine()
    problem, state = problem_of(frame), tmp_path / "state"
    asked = [problem, replace(problem, fold=0), replace(problem, fold=1)]
    party = party_of(frame, tmp_path / "rows", state=state)
    alone = [
        ask(party, SHALLOW, one, run=f"alone-{number}").body for number, one in enumerate(asked)
    ]
    assert len({bytes(body) for body in alone}) == 3
    for number, one in enumerate((*asked, *asked), start=1):
        if not kept:
            party = party_of(frame, tmp_path / f"rows {number}", state=state)
        answer = msgspec.msgpack.decode(ask(party, SHALLOW, one, round=number).body)
        first = msgspec.msgpack.decode(alone[(number - 1) % 3])
        assert answer["counts"] == first["counts"]
        assert answer["losses"] == first["losses"]


@pytest.mark.parametrize(("folds", "fold"), [(3, 3), (3, -1), (1, 0)])
def test_a_fold_that_does_not_exist_is_malformed(tmp_path, folds, fold):
    problem = replace(problem_of(iris()), folds=folds, fold=fold)
    refused = ask(party_of(iris(), tmp_path), SHALLOW, problem)
    assert isinstance(refused, Refusal)
    assert refused.code == "malformed"


def test_a_party_of_fewer_rows_than_folds_learns_from_all_and_evaluates_none(tmp_path):
    frame = iris(5)
    party = party_of(frame, tmp_path)
    kept, held = party.divided(replace(problem_of(iris()), folds=6, fold=0))
    assert len(kept) == 5
    assert held.empty


# Finalists where no rows are set aside


@pytest.fixture(scope="module")
def finished():
    return tuned(parts(wine()), finalists=3)


def test_finalists_are_compared_by_folds_where_no_rows_are_set_aside(finished):
    assert finished.problem.holdout == 0.0
    assert finished.headline.of == "federated cross-validation"
    assert "3-fold cross-validation on 178 rows" in finished.headline.words
    low, high = finished.headline.interval
    assert low < finished.headline.value < high
    best = min(finished.finalists, key=lambda one: one.held_out.loss)
    assert (finished.best_learner, finished.best_params) == (best.learner, best.params)
    assert all(one.held_out.rows == len(wine()) for one in finished.finalists)


def test_each_finalist_costs_a_training_per_fold_and_the_best_one_more(finished):
    scores = [entry for entry in finished.rounds if entry.task == "score"]
    assert len(scores) == 3 * len(finished.finalists)
    spent = sum(one.rounds for one in finished.finalists)
    last = len(finished.rounds) - finished.searched - spent
    assert last == finished.model.about["rounds"]


def test_the_model_that_is_shipped_is_trained_on_all_rows(finished):
    alone = Configuration(finished.best_learner, finished.best_params)
    rows = wine().drop(columns="target")
    with federation_of(parts(wine()), problem=finished.problem) as federation:
        model = train(federation, finished.problem, alone)
    pd.testing.assert_frame_equal(model.predict_proba(rows), finished.model.predict_proba(rows))


def test_the_figure_of_the_folds_is_that_of_the_rows_in_one_place():
    tables = parts(wine())
    problem = replace(
        problem_of(*tables.values(), learners=("logistic_regression",)), compare_by="federation"
    )
    with federation_of(tables, problem=problem) as federation:
        found = cross_validated(
            federation, problem, lambda outside: train(federation, outside, RIDGE)
        ).held_out
        parties = [federation.engine.party(name) for name in tables]
        predicted, true = [], []
        for fold in range(problem.folds):
            both = [party.divided(replace(problem, fold=fold)) for party in parties]
            kept, held = (pd.concat(rows) for rows in zip(*both, strict=True))
            scaler = StandardScaler().fit(wine().drop(columns="target"))
            model = LogisticRegression(C=1.0, max_iter=1000).fit(
                scaler.transform(kept.drop(columns="target")), kept["target"]
            )
            predicted += list(model.predict(scaler.transform(held.drop(columns="target"))))
            true += list(held["target"])
    assert 1 - found.loss == pytest.approx(balanced_accuracy_score(true, predicted), abs=1e-9)
    assert (found.rows, found.parties, found.folds) == (178, 3, 3)


# Every configuration judged so


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
def test_a_method_keeps_what_it_promises_if_it_is_judged_by_training(check):
    check("defaults", judge="federated", trials=None)


@pytest.fixture(scope="module")
def judged():
    return tuned(parts(wine()), judge="federated")


def test_a_configuration_is_judged_by_the_model_that_the_federation_trains(judged):
    assert judged.problem.judge == "federated"
    assert "evaluate" not in {entry.task for entry in judged.rounds}
    assert len([entry for entry in judged.rounds if entry.task == "score"]) == 4
    assert all(trial.weight == trial.validation == 60 for trial in judged.trials)
    assert judged.headline.of == "validation rows"
    assert "by a model that they trained without these" in judged.headline.words
    problem = judged.problem
    with federation_of(parts(wine()), problem=problem) as federation:
        again = evaluate(federation, [Configuration(t.learner, t.params) for t in judged.trials])
    assert [trial.loss for trial in again] == [trial.loss for trial in judged.trials]


@pytest.mark.parametrize("options", [{"judge": "federated"}, {"finalists": 3}])
def test_private_sums_come_to_the_same_to_the_last_bit(options):
    plain, masked = (tuned(parts(wine()), **options, privacy=way) for way in ("plain", "masked"))
    assert told(plain)[0] == told(masked)[0]
    assert [f.held_out for f in plain.finalists] == [f.held_out for f in masked.finalists]
    assert plain.headline == masked.headline


def test_regression_is_judged_by_trained_models_too():
    found = tuned(parts(diabetes()), learners=["decision_tree"], judge="federated", train=False)
    assert all(30 < trial.loss < 120 and trial.error > 0 for trial in found.trials)


def test_a_party_with_one_class_takes_part():
    frame = wine()
    single = frame[frame["target"] == 1].iloc[:30].reset_index(drop=True)
    tables = parts(frame) | {"single": single}
    for options in ({"judge": "federated"}, {"finalists": 2}):
        found = tuned(tables, **options)
        assert not found.ledger.failures
        assert found.headline.parties == 4
        assert found.headline.value > 0.5


OWN = {"logistic_regression": {"C": (0.1, 10.0, "log"), "fit_intercept": [False, True]}}


def test_a_configuration_that_cannot_be_trained_has_the_worst_loss_and_a_reason(tmp_path):
    options = {"learners": ["logistic_regression"], "space": OWN, "trials": 6}
    run = tmp_path / "run"
    found = tuned(parts(wine()), **options, judge="federated", run=run)
    failed = [trial for trial in found.trials if not trial.params["fit_intercept"]]
    assert 0 < len(failed) < len(found.trials)
    for trial in failed:
        assert (trial.loss, trial.weight) == (1.0, 0.0)
        ((reason, parties),) = trial.reasons.items()
        assert "fit_intercept=False cannot be trained by the federation" in reason
        assert parties == 3
    assert found.best_params["fit_intercept"]
    (run / "outcome.json").unlink()
    with federation_of(parts(wine())) as federation:
        assert told(cotune.resume(run, federation, progress=False)) == told(found)


@pytest.mark.parametrize("limit", ["rounds", "bytes"])
def test_a_budget_that_is_spent_amid_a_training_leaves_the_best_so_far(judged, limit, tmp_path):
    """And so it does in a resumed run, whose last training was then of something else."""
    # with a budget parties are not asked how far they differ
    searched = [entry for entry in judged.rounds[: judged.searched] if entry.task != "differ"]
    spent = {"rounds": len(searched), "bytes": sum(r.bytes_up + r.bytes_down for r in searched)}
    found = tuned(
        parts(wine()), judge="federated", **{limit: spent[limit] - 1}, run=tmp_path / "run"
    )
    assert "budget" in found.ended
    assert found.searched < judged.searched
    assert [t.loss for t in found.trials] == [t.loss for t in judged.trials[:2]]
    assert found.model.learner == found.best_learner
    (tmp_path / "run" / "outcome.json").unlink()
    with federation_of(parts(wine())) as federation:
        assert told(cotune.resume(tmp_path / "run", federation, progress=False)) == told(found)


LONG = {
    "learners": ["hgb", "logistic_regression"],
    "fixed": {"hgb": {"max_iter": 12, "max_leaf_nodes": 4}},
}


@pytest.mark.parametrize("options", [{"judge": "federated", "finalists": 2}, {"finalists": 2}])
def test_a_run_killed_amid_trainings_resumes_to_the_same_outcome(options, tmp_path):
    """Every few rounds in turn, over one journal: in trainings, between them, and after them."""
    options = LONG | options | {"trials": 1}
    whole = tuned(parts(wine()), **options, run=tmp_path / "whole")
    run, done = tmp_path / "run", False
    with federation_of(parts(wine())) as federation:
        with pytest.raises(Killed):
            cotune.tune(
                Federation(Faulty(federation.engine, dies_at=9)), **(TWO | options), run=run
            )
        for _ in range(len(whole.rounds)):
            dying = Federation(Faulty(federation.engine, dies_at=37))
            try:
                resumed = cotune.resume(run, dying, progress=False)
                done = True
                break
            except Killed:
                continue
    assert done
    assert told(resumed) == told(whole)
    assert resumed.ledger.bytes_up == whole.ledger.bytes_up
    assert resumed.ledger.bytes_down == whole.ledger.bytes_down


def test_a_training_that_was_finished_is_not_repeated(tmp_path):
    """Its model is in the journal."""
    run = tmp_path / "run"
    whole = tuned(parts(wine()), judge="federated", run=run)
    (run / "outcome.json").unlink()
    with federation_of(parts(wine())) as federation:
        watched = Faulty(federation.engine)
        resumed = cotune.resume(run, Federation(watched), progress=False)
        assert not watched.calls
    assert told(resumed) == told(whole)
    rows = wine().drop(columns="target")
    assert np.array_equal(resumed.model.predict(rows), whole.model.predict(rows))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"judge": "both"}, "local, federated"),
        *(
            ({"method": method}, f"{method} does not ask for .*use dash or defaults")
            for method in ("flora", "flash", "fedex", "privtuna", "vote", "central", "multishot")
        ),
        ({"noise": 5.0, "weights": "equal", "privacy": "masked"}, "under noise"),
        ({"compare_by": "parties"}, "over all of their rows"),
        ({"weights": "equal"}, "over all of their rows"),
        ({"merge_every": 5, "learners": ("hgb",)}, "the last training only"),
        ({"learners": ("random_forest",), "privacy": "masked"}, "models of single parties"),
    ],
)
def test_what_cannot_be_judged_by_training_is_refused_before_any_work(given, says):
    with pytest.raises(UsageError, match=says):
        Settings(**({"judge": "federated"} | given))


def test_nobody_is_advised_not_to_train_where_the_search_trains():
    with pytest.raises(UsageError) as refused:
        Settings(judge="federated", learners=("random_forest",), privacy="masked")
    assert "--no-train" not in str(refused.value)
    assert str(refused.value).endswith("leave 'random_forest' out, or judge")
    with pytest.raises(UsageError, match="--no-train"):
        Settings(learners=("random_forest",), privacy="masked")


def test_a_federation_without_enough_parties_stops_and_can_be_resumed(tmp_path):
    def lost(call, party, reply):
        return None if call > 12 else reply

    run = tmp_path / "run"
    with (
        unreliable(parts(wine()), lost) as federation,
        pytest.raises(FederationError, match="parties answered"),
    ):
        cotune.tune(federation, **TWO, judge="federated", run=run)
    with federation_of(parts(wine())) as federation:
        resumed = cotune.resume(run, federation, progress=False)
    assert [t.loss for t in resumed.trials] == [
        t.loss for t in tuned(parts(wine()), judge="federated").trials
    ]
