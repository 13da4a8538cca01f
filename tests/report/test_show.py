"""Tables are read at 80 columns, at a terminal or in a file."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from cotune.coordinator.ledger import Round
from cotune.data.schema import Schema
from cotune.problem import Problem
from cotune.protocol.wire import Cost, Refusal
from cotune.report.show import (
    gain_of_tuning,
    show_comparison,
    show_outcome,
    show_runs,
    show_trials,
    show_unfinished,
)
from cotune.run.outcome import Outcome
from cotune.trial import Finalist, HeldOut, Trial

DISCLOSED = "evaluate: each party tells its mean cross-validated loss of each configuration asked"


@pytest.fixture
def page():
    return Console(file=io.StringIO(), width=80, highlight=False)


def text(page: Console) -> str:
    written: str = page.file.getvalue()
    assert max(map(len, written.splitlines())) <= 80
    return written


def rows_of(page: Console, first: str) -> list[list[str]]:
    return [line.split() for line in text(page).splitlines() if line.startswith(first)]


def outcome(method="dash", *, metric="balanced_accuracy", loss=0.1, failures=None, **changes):
    trials = (
        Trial(
            "decision_tree", {"max_depth": 7, "ccp_alpha": 0.000123456789}, loss, 3, 90.0, 15, 0.25
        ),
        Trial(
            "logistic_regression", {"C": 1.0}, loss + 0.1, 3, 90.0, 15, 1.5, {"did not converge": 2}
        ),
    )
    asked = ("north", "south", "west")
    entry = Round(1, "evaluate", "sum", asked, 3207, 6939, 2.5, Cost(30, 1.75), DISCLOSED)
    other = Round(
        2, "evaluate", "sum", asked, 1, 1, 0.5, Cost(), DISCLOSED, failures=failures or {}
    )
    spaces = {"decision_tree": {}, "logistic_regression": {}}
    problem = Problem(Schema("y", "classification", (), ("a", "b")), tuple(spaces), spaces, metric)
    values = {"run": "runs/20250131-120000-digits-dash"} | changes
    return Outcome(method, problem, trials, (entry, other), asked, **values)


def row(**changes):
    return {
        "run": "runs/20250131-120000-breast_cancer-compare/defaults",
        "method": "defaults",
        "data": "sklearn:breast_cancer",
        "state": "finished",
        "rounds": 3,
        "value": 0.9431,
        "of": "rows set aside",
        "began": "2025-01-31T12:00:00+01:00",
    } | changes


def test_an_outcome_ranks_learners_in_the_direction_of_the_metric(page):
    show_outcome(outcome(), page)
    assert rows_of(page, "decision_tree") == [["decision_tree", "0.9000", "1", "0", "15", "0.2"]]
    assert rows_of(page, "logistic") == [["logistic_regression", "0.8000", "1", "1", "15", "1.5"]]
    assert text(page).index("decision_tree") < text(page).index("logistic_regression")


def test_the_headline_says_what_it_is_made_of(page):
    show_outcome(outcome(), page)
    shown = text(page)
    assert "5-fold cross-validation at 3 parties; the best of 2 trials" in shown
    assert "+-" not in shown  # no spread is known


def test_rows_set_aside_make_the_headline_and_the_search_comes_after(page):
    show_outcome(outcome(held_out=HeldOut(0.2, 40, 3)), page)
    shown = text(page)
    assert "balanced accuracy 0.8000 by decision_tree" in shown
    assert "on 40 rows that 3 parties set aside" in shown
    assert shown.index("0.8000 by") < shown.index("search       0.9000 5-fold cross-validation")


def test_the_headline_of_rows_set_aside_has_its_error_and_says_what_was_left_out(page):
    show_outcome(outcome(held_out=HeldOut(0.2, 40, 3, error=0.0123, left_out=4)), page)
    words = " ".join(text(page).split())
    assert "balanced accuracy 0.8000 (90 %: 0.7798 to 0.8202) by decision_tree" in words
    assert "on 40 rows that 3 parties set aside, but 4 rows of classes of which a party" in words


def test_finalists_are_shown_with_what_tuning_gained(page):
    found = HeldOut(0.2, 40, 3, error=0.01)
    finalists = (
        Finalist("decision_tree", {}, 0.1, held_out=found),
        Finalist("hgb", {}, 0.15, failed="out of memory"),
        Finalist(
            "decision_tree", {"max_depth": None}, None, True, HeldOut(0.21, 40, 3, error=0.01)
        ),
    )
    show_outcome(outcome(held_out=found, finalists=finalists), page)
    words = " ".join(text(page).split())
    assert "decision_tree: 0.9000 in the search, 0.8000 +- 0.0100 as trained" in words
    assert "hgb: 0.8500 in the search, given up, out of memory" in words
    assert "decision_tree (default settings): - in the search, 0.7900 +- 0.0100" in words
    assert "tuning gained 0.0100 +- 0.0141 over default settings: within the noise" in words
    assert "the best of 2 trained models" in words


def test_what_tuning_gained_is_over_the_default_settings_of_the_answers_own_learner():
    def one(learner, params, loss, default=True):
        found = HeldOut(loss, 40, 3, error=0.01)
        return Finalist(learner, params, loss, default, found)

    best = one("decision_tree", {"max_depth": 7}, 0.1, default=False)
    other, own = one("logistic_regression", {"C": 1.0}, 0.3), one("decision_tree", {}, 0.15)
    trial = Trial("decision_tree", best.params, 0.1, 3, 90.0, 15, 0.25)
    tuned = outcome(chosen=trial, held_out=best.held_out, finalists=(other, best, own))
    assert gain_of_tuning(tuned).startswith("tuning gained 0.0500 +- 0.0141 over default settings")
    assert gain_of_tuning(msgspec.structs.replace(tuned, finalists=(other, best))) == ""


def test_a_spread_is_shown_where_it_is_known(page):
    chosen = Trial("decision_tree", {}, 0.1, 3, 90.0, 15, 0.25, error=0.0123)
    show_outcome(outcome(chosen=chosen), page)
    assert "balanced accuracy 0.9000 +- 0.0123 by decision_tree" in text(page)


def test_a_comparison_ranks_by_the_headline_and_says_what_each_is(page):
    better = outcome("dash", loss=0.05, held_out=HeldOut(0.3, 40, 3))
    show_comparison([better, outcome("vote", loss=0.1)], None, page)
    shown = text(page)
    assert shown.index("vote") < shown.index("dash")
    assert "dash: 0.7000 on 40 rows that 3 parties set aside" in shown
    assert "vote: 0.9000 5-fold cross-validation" in shown


def test_a_figure_has_its_standard_error_and_says_what_it_is_over(page):
    shown = outcome()
    best = msgspec.structs.replace(shown.trials[0], error=0.0123, left_out=12)
    problem = msgspec.structs.replace(shown.problem, compare_by="federation")
    show_outcome(msgspec.structs.replace(shown, trials=(best,), problem=problem), page)
    assert "balanced accuracy 0.9000 +- 0.0123 by decision_tree" in text(page)
    words = " ".join(text(page).split())
    assert "the figure over all parties' rows but 12 rows of classes of which a party has" in words


def test_an_outcome_says_if_parties_were_compared(page):
    show_outcome(outcome(), page)
    assert "compared by  the mean of the parties' own losses" in text(page)


def test_an_outcome_says_what_it_cost_and_disclosed_and_where_it_lies(page):
    show_outcome(outcome(), page)
    shown = text(page)
    assert "2 rounds, 3.2 kB up, 6.9 kB down, 30 fits, 1.8 CPU s, 3.0 s" in shown
    assert "- evaluate: each party tells" in shown
    assert "runs/20250131-120000-digits-dash" in shown
    assert "0.000123457" in shown
    assert "ended early" not in shown


def test_an_epsilon_says_that_the_first_rounds_are_not_in_it(page):
    show_outcome(outcome(noises=(20.0,)), page)
    (line,) = [line for line in text(page).splitlines() if line.startswith("epsilon")]
    assert line.rstrip().endswith("for one party; without the first rounds")


def test_an_outcome_says_which_budget_ended_it(page):
    show_outcome(outcome(ended="the budget of 2 rounds is spent"), page)
    assert "ended early  the budget of 2 rounds is spent" in text(page)


def test_failures_are_listed_up_to_a_number(page):
    refused = {f"party-{n:02}": Refusal("timeout", "no reply in 3 seconds") for n in range(14)}
    show_outcome(outcome(failures=refused), page)
    shown = text(page)
    assert "no reply in 3 seconds" in shown
    assert "party-09" in shown
    assert "party-10" not in shown
    assert "and 4 more" in shown


def test_square_brackets_are_text(page):
    show_outcome(outcome(run="runs/[bold]x"), page)
    assert "runs/[bold]x" in text(page)


def test_a_comparison_has_the_best_method_first_and_its_full_price(page):
    show_comparison([outcome("defaults", loss=0.3), outcome("dash", loss=0.1)], "runs/c", page)
    price = ["2", "3.2", "6.9", "30", "1.8", "3.0"]
    assert rows_of(page, "dash") == [["dash", "decision_tree", "0.9000", *price]]
    assert text(page).index("dash") < text(page).index("defaults")
    assert "runs/c" in text(page)


def test_a_comparison_names_the_method_that_disclosed_more(page):
    quiet = outcome("defaults", loss=0.3)
    talkative = Round(1, "tell", "gather", (), 1, 1, 1.0, Cost(), "tell: each party tells all")
    loud = outcome("dash", loss=0.2)
    loud = Outcome("dash", loud.problem, loud.trials, (*loud.rounds, talkative), loud.parties)
    show_comparison([quiet, loud], None, page)
    assert "dash only: tell: each party tells all" in text(page)
    assert "dash only: evaluate" not in text(page)


def test_trials_show_their_configuration_and_why_they_failed(page):
    show_trials(outcome(), page)
    shown = text(page)
    assert "max_depth 7" in shown
    assert "failed: did not" in shown


def test_runs_fold_long_names_at_a_hyphen(page):
    interrupted = row(state="interrupted", rounds=1, value=None)
    show_runs([row(), interrupted], Path("runs"), page)
    lines = [line.split()[0] for line in text(page).splitlines()[2:5]]
    assert "".join(lines) == "20250131-120000-breast_cancer-compare/defaults"
    assert all(line.endswith(("-", "/", "defaults")) for line in lines)
    assert "0.9431" in text(page)
    assert "held out" in text(page)
    assert "1 round " in text(page)


def test_an_unfinished_run_says_how_to_go_on(page):
    show_unfinished(row(state="interrupted", run="runs/a"), page)
    assert "cotune resume runs/a" in text(page)
    assert "interrupted, 3 rounds" in text(page)


def test_a_running_run_is_not_to_be_resumed(page):
    show_unfinished(row(state="running", run="runs/a"), page)
    assert "resume" not in text(page)
