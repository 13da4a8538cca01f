from __future__ import annotations

import shutil
import sqlite3
import time
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.tree import DecisionTreeClassifier

import cotune
from cotune.coordinator.federation import Federation
from cotune.errors import DataError, FederationError, UsageError
from cotune.learners import register_learner
from cotune.party.tasks import REASONS
from cotune.protocol.wire import Refusal, encode
from cotune.testing.faults import Faulty, Killed
from tests.parts import (
    Counting,
    Exiting,
    OwnLearner,
    Raising,
    SlowToStart,
    diabetes,
    federation_of,
    iris,
    parts,
    people,
    threads,
    unreliable,
)

TABLES = parts(iris())
LEARNERS = ["decision_tree", "logistic_regression"]
QUICK = {"learners": LEARNERS, "trials": 4, "folds": 2}


def simulate(frame, **options):
    return cotune.simulate(frame, executor=threads(), **options)


def told(outcome):
    """Everything of an outcome that a second run must give again, bit for bit."""
    trials = [(t.learner, t.params, t.loss, t.parties, t.fits, t.reasons) for t in outcome.trials]
    rounds = [
        (r.number, r.task, r.asked, r.bytes_up, r.bytes_down, r.cost.fits, encode(r.failures))
        for r in outcome.rounds
    ]
    return outcome.problem.digest, trials, rounds, outcome.best_params, outcome.ended


# What comes out


@pytest.mark.parametrize("weights", ["rows", "equal"])
def test_the_loss_is_what_cross_val_score_gives_at_each_party(weights):
    tables = {"large": iris().head(100), "small": iris().tail(50)}
    with federation_of(tables) as federation:
        outcome = cotune.tune(
            federation,
            "defaults",
            learners=["decision_tree"],
            metric="accuracy",
            folds=4,
            weights=weights,
            compare_by="parties",
            seed=5,
            train=False,
        )
    folds = StratifiedKFold(4, shuffle=True, random_state=5)
    tree = DecisionTreeClassifier(random_state=5)
    values = [
        cross_val_score(tree, frame.drop(columns="target"), frame["target"], cv=folds).mean()
        for frame in tables.values()
    ]
    expected = np.average(values, weights=[100, 50] if weights == "rows" else None)
    assert outcome.best_value == pytest.approx(expected, abs=1e-9)


def test_the_same_run_gives_the_same_outcome():
    outcomes = []
    for _ in range(2):
        with simulate(people(90), split="dirichlet:1.0") as federation:
            outcomes.append(cotune.tune(federation, **QUICK, train=False))
    assert told(outcomes[0]) == told(outcomes[1])


def test_worker_processes_give_the_same_losses_as_a_thread(pool):
    outcomes = []
    for executor in (pool, threads()):
        with cotune.simulate(people(90), executor=executor) as federation:
            outcomes.append(cotune.tune(federation, **QUICK, train=False))
    assert told(outcomes[0]) == told(outcomes[1])


def test_an_executor_of_dask_gives_the_same_losses(pool, tmp_path):
    distributed = pytest.importorskip("distributed")
    with cotune.simulate(iris(), executor=pool) as federation:
        expected = told(cotune.tune(federation, **QUICK, train=False))
    with (
        distributed.Client(
            n_workers=1,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            local_directory=tmp_path,
            timeout=60,
        ) as client,
        cotune.simulate(iris(), executor=client.get_executor(), timeout=60) as federation,
    ):
        assert told(cotune.tune(federation, **QUICK, train=False)) == expected


def test_one_party_is_a_federation_too():
    with federation_of(parts(people(), 1)) as federation:
        assert cotune.tune(federation, **QUICK, train=False).trials[0].parties == 1


def test_parties_may_lack_classes_and_categories_and_order_their_columns_as_they_like():
    tables = {
        "a": people(40, seed=1, cities="ab", labels="x"),
        "b": people(40, seed=2, cities="bc", labels="yz")[["target", "city", "rare", "age"]],
        "c": people(40, seed=3, cities="d", labels="xz").assign(rare=np.nan),
    }
    for metric in ("balanced_accuracy", "log_loss", "roc_auc"):
        with federation_of(tables) as federation:
            outcome = cotune.tune(federation, **QUICK, metric=metric, train=False)
        assert all(not trial.reasons for trial in outcome.trials)
        assert all(trial.parties == 3 for trial in outcome.trials)


def test_regression_is_tuned_in_the_targets_unit():
    with federation_of(parts(diabetes())) as federation:
        outcome = cotune.tune(
            federation, learners=["decision_tree"], trials=5, folds=3, train=False
        )
    assert outcome.problem.metric_name == "rmse"
    assert 40 < outcome.best_value < 90


def test_a_learner_may_be_named_without_a_list():
    with federation_of(TABLES) as federation:
        outcome = cotune.tune(
            federation, "defaults", learners="decision_tree", folds=2, train=False
        )
    assert outcome.best_learner == "decision_tree"


def test_two_runs_on_one_federation_do_not_disturb_each_other():
    with federation_of(TABLES) as federation:
        first, other, again = (
            cotune.tune(federation, **QUICK, seed=seed, train=False) for seed in (0, 1, 0)
        )
    assert told(first) == told(again)
    assert told(first) != told(other)


def test_a_fit_that_ends_its_process_is_a_failed_trial_not_a_crash(registry):
    register_learner(Exiting())
    with cotune.simulate(iris(60), parties=1, processes=1) as federation:
        outcome = cotune.tune(
            federation,
            learners=["exiting"],
            trials=1,
            folds=2,
            fixed={"exiting": {"depth": 1}},
            train=False,
        )
    assert outcome.trials[0].reasons == {REASONS[3]: 1}
    assert outcome.best_loss == 1.0


# Parties that fail


def test_a_party_that_is_absent_for_a_while_is_missed_only_then():
    def change(call, name, reply):
        late = name == "party-2" and call == 5
        return Refusal("timeout", "no reply within 5 seconds") if late else reply

    with unreliable(TABLES, change) as federation:
        outcome = cotune.tune(
            federation, learners=["decision_tree"], trials=5, folds=2, train=False
        )
    assert [trial.parties for trial in outcome.trials] == [3, 2, 2, 3, 3]
    assert [(f.round, f.party, f.code) for f in outcome.ledger.failures] == [
        (5, "party-2", "timeout")
    ]


def test_a_run_that_loses_its_quorum_can_be_resumed(tmp_path):
    def change(call, name, reply):
        return Refusal("lost", "the connection broke") if call >= 5 else reply

    with (
        unreliable(TABLES, change) as federation,
        pytest.raises(FederationError, match="0 of 3 parties answered"),
    ):
        cotune.tune(federation, **QUICK, run=tmp_path / "run", train=False)
    with federation_of(TABLES) as federation:
        resumed = cotune.resume(tmp_path / "run", federation)
        whole = cotune.tune(federation, **QUICK, train=False)
    assert told(resumed) == told(whole)


# Budgets


@pytest.mark.parametrize("rounds", [3, 4, 6])
def test_rounds_stay_within_the_budget(rounds):
    with federation_of(TABLES) as federation:
        outcome = cotune.tune(federation, **QUICK, rounds=rounds, train=False)
    assert outcome.ledger.rounds == rounds
    assert ("rounds is spent" in outcome.ended) == (rounds < 6)


@pytest.mark.parametrize("fits", [12, 30, 47, 48])
def test_fits_stay_within_the_budget(fits):
    with federation_of(TABLES) as federation:
        outcome = cotune.tune(federation, **QUICK, fits=fits, train=False)
    assert outcome.ledger.fits == fits // 12 * 12
    assert (outcome.ended == "finished") == (fits == 48)


@pytest.mark.parametrize("limit", [12_000, 14_000])
def test_bytes_stay_within_the_budget(limit):
    with federation_of(TABLES) as federation:
        outcome = cotune.tune(federation, **(QUICK | {"trials": 40}), bytes=limit, train=False)
    assert outcome.ledger.bytes_up + outcome.ledger.bytes_down <= limit
    assert outcome.ended == f"the next round could exceed the budget of {limit} bytes"


def test_seconds_stay_within_the_budget():
    began = time.monotonic()
    with federation_of(TABLES) as federation:
        outcome = cotune.tune(
            federation, learners=LEARNERS, folds=2, trials=10_000, seconds=1.5, train=False
        )
    assert outcome.ledger.seconds <= 1.5
    assert time.monotonic() - began < 5
    assert "seconds is spent" in outcome.ended


def test_the_start_of_the_workers_stands_on_no_clock_and_no_budget(registry):
    """Starting two processes and the learner's library take longer than the whole budget."""
    register_learner(SlowToStart())
    with cotune.simulate(iris(), processes=2) as federation:
        outcome = cotune.tune(
            federation, learners=["slow_to_start"], folds=2, trials=2, seconds=0.9, train=False
        )
    assert outcome.ended == "finished"
    assert outcome.ledger.seconds < 0.9


@pytest.mark.parametrize("trials", [1, 3])
def test_trials_are_counted_per_learner(trials):
    with federation_of(TABLES) as federation:
        outcome = cotune.tune(federation, **(QUICK | {"trials": trials}), train=False)
    assert len(outcome.trials) == 2 * trials


@pytest.mark.parametrize("budget", [{"rounds": 2}, {"fits": 1}, {"bytes": 500}])
def test_a_budget_that_allows_nothing_is_said_to_be_too_small(budget):
    with (
        federation_of(TABLES) as federation,
        pytest.raises(FederationError, match=r"nothing was evaluated: .*larger budget"),
    ):
        cotune.tune(federation, **QUICK, **budget, train=False)


# Resuming


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run on files, and its outcome."""
    folder = tmp_path_factory.mktemp("finished")
    people(90).to_csv(folder / "people.csv", index=False)
    with simulate(folder / "people.csv", split="dirichlet:1.0") as federation:
        outcome = cotune.tune(federation, **QUICK, run=folder / "run", train=False)
    return folder / "run", outcome


def cut(run, copy, rounds):
    """A copy of the run as if it had been killed after so many rounds."""
    shutil.copytree(run, copy)
    (copy / "outcome.json").unlink()
    with sqlite3.connect(copy / "journal.sqlite") as database:
        database.execute("DELETE FROM rounds WHERE number > ?", (rounds,))


@pytest.mark.parametrize("rounds", range(7))
def test_a_run_killed_after_any_round_resumes_to_the_same_outcome(finished, tmp_path, rounds):
    run, outcome = finished
    cut(run, tmp_path / "run", rounds)
    with simulate(run.parent / "people.csv", split="dirichlet:1.0") as federation:
        resumed = cotune.resume(tmp_path / "run", federation)
    assert told(resumed) == told(outcome)
    kept = list(zip(resumed.rounds, outcome.rounds, strict=True))[:rounds]
    assert all(encode(one) == encode(other) for one, other in kept)


def test_a_simulation_on_files_is_resumed_without_being_given_again(finished, tmp_path):
    run, outcome = finished
    cut(run, tmp_path / "run", 4)
    assert told(cotune.resume(tmp_path / "run")) == told(outcome)


def test_finished_rounds_are_not_fitted_again(finished, tmp_path, registry):
    counting = Counting()
    register_learner(counting)
    settings = {"learners": ["counting"], "folds": 2, "trials": 5}
    with federation_of(TABLES) as federation:
        cotune.tune(federation, **settings, run=tmp_path / "run", train=False)
        cut(tmp_path / "run", tmp_path / "cut", 5)
        before = len(counting.fits)
        cotune.resume(tmp_path / "cut", federation)
    assert len(counting.fits) == before, "the party remembers what it fitted for this run"


def test_failed_fits_cost_the_same_in_a_resumed_run(tmp_path, registry):
    register_learner(Raising())
    settings = {"learners": ["raising"], "folds": 4, "trials": 4, "fits": 40}
    with federation_of(TABLES) as federation:
        outcome = cotune.tune(federation, **settings, run=tmp_path / "run", train=False)
    cut(tmp_path / "run", tmp_path / "cut", 5)
    with federation_of(TABLES) as federation:
        resumed = cotune.resume(tmp_path / "cut", federation)
    assert told(resumed) == told(outcome)
    assert outcome.trials[0].fits == 12


def test_parties_that_were_killed_too_do_not_fit_again(tmp_path, registry):
    counting = Counting()
    register_learner(counting)
    settings = {"learners": ["counting"], "folds": 2, "trials": 5}
    with federation_of(TABLES, state=tmp_path / "state") as federation:
        outcome = cotune.tune(federation, **settings, run=tmp_path / "run", train=False)
    cut(tmp_path / "run", tmp_path / "cut", 2)
    before = len(counting.fits)
    with federation_of(TABLES, state=tmp_path / "state") as federation:
        resumed = cotune.resume(tmp_path / "cut", federation)
    assert len(counting.fits) == before
    assert resumed.ledger.fits == outcome.ledger.fits == before
    assert resumed.ledger.cpu_seconds == outcome.ledger.cpu_seconds


def test_a_finished_run_is_read_not_run(finished):
    run, outcome = finished
    assert told(cotune.resume(run)) == told(outcome)


def test_changed_rows_are_refused_and_leave_the_run_as_it_was(finished, tmp_path):
    run, outcome = finished
    cut(run, tmp_path / "run", 3)
    with (
        simulate(people(90, seed=1), split="dirichlet:1.0") as other,
        pytest.raises(DataError, match="not those that the run was started with"),
    ):
        cotune.resume(tmp_path / "run", other)
    with simulate(run.parent / "people.csv", split="dirichlet:1.0") as same:
        assert told(cotune.resume(tmp_path / "run", same)) == told(outcome)


def test_a_budget_holds_over_an_interruption(tmp_path):
    with federation_of(TABLES) as federation:
        whole = cotune.tune(federation, **QUICK, fits=36, run=tmp_path / "run", train=False)
        cut(tmp_path / "run", tmp_path / "cut", 3)
        resumed = cotune.resume(tmp_path / "cut", federation)
    assert resumed.ledger.fits == whole.ledger.fits == 36


def test_a_folder_with_a_run_is_not_written_over(finished):
    run, _ = finished
    with (
        federation_of(TABLES) as federation,
        pytest.raises(UsageError, match="holds a run already"),
    ):
        cotune.tune(federation, **QUICK, run=run, train=False)


def test_wrong_arguments_leave_no_folder(tmp_path):
    with federation_of(TABLES) as federation, pytest.raises(UsageError, match="unknown learner"):
        cotune.tune(federation, learners=["no_such"], run=tmp_path / "run", train=False)
    assert not (tmp_path / "run").exists()


# The model in the end


def test_a_search_that_a_budget_ended_is_resumed_into_its_training(tmp_path):
    """Killed after a checkpoint of the training: the search is not asked further than before."""
    settings = {"learners": ["random_forest"], "trials": 9, "folds": 2, "rounds": 4}
    settings["fixed"] = {"random_forest": {"n_estimators": 150}}  # trained in two pieces
    with federation_of(TABLES) as federation:
        whole = cotune.tune(federation, **settings)
        dying = Faulty(federation.engine, dies_at=whole.ledger.rounds)
        with pytest.raises(Killed):
            cotune.tune(Federation(dying), **settings, run=tmp_path / "run")
        resumed = cotune.resume(tmp_path / "run", federation)
    assert resumed.ended == whole.ended
    assert "budget" in whole.ended
    assert resumed.ledger.rounds == whole.ledger.rounds
    frame = pd.concat(TABLES.values())
    same = resumed.model.predict_proba(frame) == whole.model.predict_proba(frame)
    assert same.to_numpy().all()


class Untrainable(OwnLearner):
    """Its models are of a type that may not leave a party."""

    name = "untrainable"


def test_a_search_whose_model_cannot_be_made_is_kept(tmp_path, registry):
    register_learner(Untrainable())
    settings = {"learners": ["untrainable"], "trials": 2, "folds": 2, "run": tmp_path / "run"}
    with federation_of(TABLES) as federation:
        with pytest.raises(FederationError):
            cotune.tune(federation, **settings)
        outcome = cotune.resume(tmp_path / "run", federation, train=False)
    assert len(outcome.trials) == 2
    with pytest.raises(UsageError, match="there is no model"):
        _ = outcome.model


def test_what_the_search_left_to_the_library_is_trained_as_it_was_judged():
    own = {"svm": {"C": (0.5, 2.0), "gamma": (0.01, 0.02)}}
    with federation_of(TABLES) as federation:
        outcome = cotune.tune(federation, learners=["svm"], trials=1, folds=2, space=own)
    assert "class_weight" not in outcome.best_params
    assert outcome.model.estimator[-1].class_weight is None  # scikit-learn's, not the papers'


# Doubts about the rows


def doubtful(rows: int = 90) -> pd.DataFrame:
    return iris(rows).assign(patient=np.arange(rows) * 7, same=1.0)


def test_a_simulation_warns_of_doubtful_columns_once_and_names_the_fix(tmp_path):
    run = tmp_path / "run"
    with simulate(doubtful()) as federation, pytest.warns(cotune.DataWarning) as caught:
        cotune.tune(federation, run=run, **QUICK)
    sentences = [str(one.message) for one in caught if one.category is cotune.DataWarning]
    assert ["--drop patient" in sentence for sentence in sentences] == [True, False]
    assert ["--drop same" in sentence for sentence in sentences] == [False, True]
    (run / "outcome.json").unlink()
    with warnings.catch_warnings(), simulate(doubtful()) as federation:
        warnings.simplefilter("error", cotune.DataWarning)
        cotune.resume(run, federation)


def test_columns_that_are_dropped_raise_no_doubt():
    with warnings.catch_warnings(), simulate(doubtful()) as federation:
        warnings.simplefilter("error", cotune.DataWarning)
        cotune.tune(federation, drop=("patient", "same"), **QUICK)


def test_a_quantity_with_rare_values_is_no_class_with_few_rows():
    frame = diabetes().head(60).assign(target=[*range(6)] * 9 + [9.0] * 5 + [7.0])
    options = {"learners": ["decision_tree"], "trials": 1, "folds": 2, "train": False}
    with simulate(frame, parties=2) as federation, pytest.warns(cotune.DataWarning, match="'7'"):
        cotune.tune(federation, task="classification", **options)
    with warnings.catch_warnings(), simulate(frame, parties=2) as federation:
        warnings.simplefilter("error", cotune.DataWarning)
        cotune.tune(federation, task="regression", **options)
