from __future__ import annotations

import json

import msgspec
import pytest

import cotune
from cotune.errors import UsageError
from cotune.learners import register_learner
from cotune.party.tasks import Inspect
from cotune.run.outcome import Outcome
from tests.parts import Raising, diabetes, federation_of, iris, parts

LEARNERS = ["decision_tree", "logistic_regression"]


@pytest.fixture(scope="module")
def outcome():
    with federation_of(parts(iris(90))) as federation:
        return cotune.tune(
            federation, learners=LEARNERS, trials=3, folds=2, metric="accuracy", train=False
        )


def test_the_best_is_the_trial_of_least_loss_and_the_earliest_of_equals(outcome):
    least = min(trial.loss for trial in outcome.trials)
    first = next(trial for trial in outcome.trials if trial.loss == least)
    assert outcome.best is first
    assert outcome.best_loss == least
    assert outcome.best_value == 1 - least
    assert (outcome.best_learner, outcome.best_params) == (first.learner, first.params)


def test_an_error_is_shown_as_it_is():
    with federation_of(parts(diabetes())) as federation:
        outcome = cotune.tune(
            federation, "defaults", learners=["decision_tree"], folds=2, train=False
        )
    assert outcome.best_value == outcome.best_loss > 1
    assert outcome.leaderboard().loc[0, "rmse"] == outcome.best_value


def test_the_leaderboard_has_the_best_first_and_the_cost_in_every_row(outcome):
    board = outcome.leaderboard()
    assert list(board.columns) == [
        *("learner", "accuracy", "error", "trials", "failed", "rounds", "bytes_up", "bytes_down"),
        *("fits", "cpu_seconds", "params"),
    ]
    assert board["accuracy"].is_monotonic_decreasing
    assert set(board["learner"]) == set(LEARNERS)
    assert board.loc[0, "learner"] == outcome.best_learner
    assert board.loc[0, "params"] == outcome.best_params
    assert board["fits"].sum() == outcome.ledger.fits == 2 * 3 * 2 * 3
    assert board["cpu_seconds"].sum() == pytest.approx(outcome.ledger.cpu_seconds, abs=1e-3)
    assert (board["rounds"] == 6).all()
    assert (board["bytes_up"] == outcome.ledger.bytes_up).all()


def test_the_leaderboard_counts_the_rounds_of_the_search_alone(outcome):
    trained = msgspec.structs.replace(outcome, rounds=outcome.rounds * 2, searched=6)
    assert trained.leaderboard().equals(outcome.leaderboard())
    assert trained.ledger.rounds == 12


def test_trials_come_as_a_table_in_their_order(outcome):
    table = outcome.trials_dataframe()
    assert table["number"].tolist() == list(range(6))
    assert table["learner"].tolist() == LEARNERS * 3
    assert (table["value"] == 1 - table["loss"]).all()
    assert {"params_max_depth", "params_C", "parties", "fits", "cpu_seconds"} <= set(table.columns)


def test_failed_trials_are_counted_and_their_reason_is_shown(registry):
    register_learner(Raising())
    with federation_of(parts(iris(90))) as federation:
        outcome = cotune.tune(
            federation, "defaults", learners=["raising", "decision_tree"], folds=2, train=False
        )
    assert outcome.best_learner == "decision_tree"
    assert outcome.leaderboard()["failed"].tolist() == [0, 1]
    assert outcome.trials_dataframe()["failed"].tolist() == ["3 x the fit raised an error", ""]


def test_the_summary_has_the_figures_that_scripts_read(outcome):
    summary = outcome.summary()
    assert json.loads(json.dumps(summary)) == summary
    assert set(summary) >= {
        *("method", "learner", "params", "loss", "metric", "value", "parties", "rounds"),
        *("bytes_up", "bytes_down", "fits", "cpu_seconds", "seconds", "disclosed", "run"),
    }
    assert summary["parties"] == 3
    assert (summary["compare_by"], summary["left_out"]) == ("federation", 0)
    assert summary["error"] == outcome.best_error > 0.0
    assert [sentence.partition(":")[0] for sentence in summary["disclosed"]] == [
        "inspect",
        "measure",
        "differ",
        "evaluate",
    ]
    assert Inspect.discloses in summary["disclosed"][0]


def test_an_outcome_is_read_back_as_it_was_saved(outcome, tmp_path):
    path = tmp_path / "outcome.json"
    outcome.save(path)
    read = Outcome.load(path)
    assert read.trials == outcome.trials
    assert read.summary() == outcome.summary()
    assert read.problem.digest == outcome.problem.digest
    assert read.leaderboard().equals(outcome.leaderboard())
    read.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_an_outcome_holds_no_partys_replies(outcome, tmp_path):
    assert any(entry.replies for entry in outcome.rounds)
    outcome.save(tmp_path / "outcome.json")
    written = json.loads((tmp_path / "outcome.json").read_text())
    assert all(not entry["replies"] and not entry["total"] for entry in written["rounds"])


def test_a_run_without_an_outcome_is_an_error_of_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"there is no outcome in .*: is the run finished"):
        Outcome.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"method": "\xff"}'])
def test_an_outcome_that_is_damaged_is_not_said_to_be_missing(tmp_path, content):
    path = tmp_path / "outcome.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"outcome\.json cannot be read, .*: restore it from a"):
        Outcome.load(tmp_path)


def test_an_outcome_in_which_one_figure_was_changed_is_refused(outcome, tmp_path):
    path = tmp_path / "outcome.json"
    outcome.save(path)
    written = path.read_text()
    path.write_text(written.replace('"delta": 0.00001', '"delta": 0.00002'))
    assert path.read_text() != written
    with pytest.raises(UsageError, match="it was changed or damaged"):
        Outcome.load(path)
    path.write_text(json.dumps(json.loads(written)))  # laid out in another way, it is the same
    assert Outcome.load(path).trials == outcome.trials


# What a method settles on, and tells of itself


@pytest.fixture(scope="module")
def settled(outcome):
    """The same run, whose method settled on the worst trial of the learner that did not win."""
    others = [t for t in outcome.trials if t.learner != outcome.best_learner]
    report = {"gamma_p": {"decision_tree": 1.5}, "reached": None, "trainings": [1, 2]}
    chosen = max(others, key=lambda trial: trial.loss)
    return msgspec.structs.replace(outcome, chosen=chosen, report=report)


def test_the_best_is_what_the_method_settled_on(settled):
    assert settled.best is settled.chosen
    assert settled.best_learner == settled.chosen.learner
    assert (settled.summary()["loss"], settled.summary()["params"]) == (
        settled.chosen.loss,
        settled.chosen.params,
    )


def test_the_leaderboard_begins_with_what_the_method_settled_on(settled, outcome):
    board = settled.leaderboard()
    assert board.loc[0, "learner"] == settled.chosen.learner
    assert board.loc[0, "params"] == settled.chosen.params
    assert board.loc[0, "accuracy"] == 1 - settled.chosen.loss
    assert board.loc[1, "accuracy"] == outcome.best_value


def test_a_report_and_a_choice_survive_their_file(settled, tmp_path):
    settled.save(tmp_path / "outcome.json")
    read = Outcome.load(tmp_path / "outcome.json")
    assert read.report == settled.report == read.summary()["report"]
    assert read.chosen == read.best == settled.chosen


def test_an_outcome_without_them_has_an_empty_report_and_no_choice(outcome):
    assert outcome.summary()["report"] == {}
    assert outcome.chosen is None


def test_a_table_of_trials_says_what_was_predicted_and_on_how_many_rows(outcome):
    first = msgspec.structs.replace(outcome.trials[0], fraction=0.5)
    second = msgspec.structs.replace(outcome.trials[1], predicted=True)
    table = msgspec.structs.replace(outcome, trials=(first, second)).trials_dataframe()
    assert table["fraction"].tolist() == [0.5, 1.0]
    assert table["predicted"].tolist() == [False, True]
