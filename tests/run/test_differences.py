"""How far parties differ, from totals."""

from __future__ import annotations

import io
import logging

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import cotune
from cotune.coordinator.federation import Federation
from cotune.coordinator.journal import Journal
from cotune.errors import FederationError
from cotune.party.differ import Differ
from cotune.problem import Budget
from cotune.report.show import show_outcome
from cotune.run.differences import Differing, differ, may_be_shown
from cotune.testing.tables import make_tables
from tests.parts import diabetes, federation_of, iris, parts, problem_of, wine
from tests.run.test_compare_by import skewed

TREE = {"learners": ["decision_tree"], "folds": 3, "train": False, "progress": False}


def found_of(tables, privacy="plain", **settings) -> tuple[Differing, object]:
    problem = problem_of(*tables.values(), privacy=privacy, **settings)
    with federation_of(tables) as base:
        federation = base.for_run("run", Journal(), Budget(), privacy)
        federation.problem = problem
        return differ(federation, problem), problem


def test_class_shares_are_compared_row_by_row_with_the_federations():
    tables = skewed()
    found, problem = found_of(tables)
    assert (found.parties, found.one_class, found.lacking) == (5, 2, 3)
    pooled = pd.concat(tables.values())
    shares = pooled["target"].value_counts(normalize=True)
    apart = 0.0
    for frame in tables.values():
        own = frame["target"].value_counts(normalize=True).reindex(shares.index, fill_value=0.0)
        apart += len(frame) * float((own - shares).abs().sum()) / 2.0
    assert found.target == pytest.approx(apart / len(pooled), abs=1e-5)
    assert found.sentences(problem)[0] == (
        f"2 of 5 parties have one class; class shares differ by {100 * found.target:.0f} % in the "
        "mean: figures of local models say little about the joint model, which rows set aside "
        "would show (--holdout 0.2)"
    )


def between(tables, values) -> float:
    """The share of a variance that lies between the parties, over rows that have a value."""
    owns = [values(frame).to_numpy(float) for frame in tables.values()]
    owns = [own[~np.isnan(own)] for own in owns]
    pooled = np.concatenate(owns)
    return sum(len(own) * (own.mean() - pooled.mean()) ** 2 for own in owns) / (
        len(pooled) * pooled.var()
    )


def test_the_share_of_a_columns_variance_between_parties_is_that_of_the_pooled_rows():
    tables = make_tables()
    tables["party-1"]["height"] += 15.0
    found, problem = found_of(tables)
    for name in ("height", "weight"):
        expected = between(tables, lambda frame, name=name: frame[name])
        assert found.columns[name] == pytest.approx(expected, abs=1e-4)
    assert found.sentences(problem)[1].startswith(
        "columns of whose variance most lies between parties: height ("
    )
    pooled = pd.concat(tables.values())
    one_hot = pd.get_dummies(pooled["colour"])
    varied = within = 0.0
    for name in one_hot:
        varied += len(pooled) * one_hot[name].var(ddof=0)
        within += (
            len(pooled)
            * one_hot[name].var(ddof=0)
            * between(tables, lambda frame, name=name: (frame["colour"] == name).astype(float))
        )
    assert found.columns["colour"] == pytest.approx(within / varied, abs=1e-4)


def test_of_numbers_the_share_of_the_targets_variance_is_said():
    frame = diabetes().sort_values("target")
    tables = {"low": frame.iloc[:200], "high": frame.iloc[200:]}
    found, problem = found_of(tables)
    assert found.one_class is found.lacking is None
    assert found.target == pytest.approx(between(tables, lambda own: own["target"]), abs=1e-4)
    share = f"{100 * found.target:.0f} % of the target's variance lies between parties: figures of"
    assert found.sentences(problem)[0].startswith(share)


def test_alike_parties_are_said_to_be_and_nothing_is_concluded():
    found, problem = found_of(parts(wine()))
    (sentence,) = found.sentences(problem)
    assert sentence.startswith("class shares differ by ")
    assert "figures" not in sentence


def test_masked_totals_give_the_same_to_the_last_bit():
    tables = skewed()
    assert found_of(tables, "masked")[0] == found_of(tables)[0]


def test_no_count_of_a_private_sum_is_about_one_party():
    tables = skewed()
    tables["party-2"] = pd.concat([tables["party-2"], tables["party-3"].iloc[-60:]])  # and draws
    plain, private = (found_of(tables, privacy)[0] for privacy in ("plain", "masked"))
    assert plain.one_class == 1
    assert private.one_class is None
    assert private.target == plain.target
    assert not may_be_shown(4, 5)
    assert may_be_shown(5, 5)


def test_a_party_reports_to_its_own_operator_how_its_rows_differ(caplog):
    tables = skewed()
    tables["party-1"] = tables["party-1"].assign(a=tables["party-1"]["a"] + 30.0)
    with caplog.at_level(logging.INFO, "cotune.party.operator"):
        found_of(tables)
    said = {record.getMessage().split(":")[0]: record.getMessage() for record in caplog.records}
    assert len(said) == 5
    assert "your rows lack the classes 'd', 'l'; your class shares differ" in said["party-1"]
    assert "columns whose mean is far off, in deviations: a (+" in said["party-1"]
    assert "lack" not in said["party-3"]
    assert "far off" in said["party-3"]  # the mean has moved


def test_a_run_says_it_and_keeps_it(tmp_path):
    with federation_of(skewed()) as federation:
        outcome = cotune.tune(federation, "defaults", **TREE, run=tmp_path / "run")
    assert outcome.differing.one_class == 2
    assert [entry.task for entry in outcome.rounds] == ["inspect", "measure", "differ", "evaluate"]
    assert outcome.summary()["differing"]["columns"].keys() == set("abcd")
    again = cotune.Outcome.load(tmp_path / "run")
    assert again.differing == outcome.differing
    console = Console(width=500, file=io.StringIO())
    show_outcome(again, console)
    assert "- 2 of 5 parties have one class; class shares" in console.file.getvalue()


@pytest.mark.parametrize(
    "options", [{"compare_by": "parties"}, {"weights": "equal"}, {"rounds": 9}, {"seconds": 99.0}]
)
def test_nobody_is_asked_where_papers_or_budgets_count_the_rounds(options):
    with federation_of(parts(iris())) as federation:
        outcome = cotune.tune(federation, "dash", **TREE, trials=2, **options)
    assert outcome.differing is None
    assert "differ" not in {entry.task for entry in outcome.rounds}


def test_a_journal_of_before_is_refused_in_a_sentence(tmp_path):
    import sqlite3

    run = tmp_path / "run"
    with federation_of(parts(iris())) as federation:
        cotune.tune(federation, "defaults", **TREE, run=run)
        (run / "outcome.json").unlink()
        with sqlite3.connect(run / "journal.sqlite") as database:
            database.execute("PRAGMA user_version=4")
        with pytest.raises(FederationError, match="another version of cotune: start a new run"):
            cotune.resume(run, Federation(federation.engine), progress=False)


def test_rows_that_are_off_by_any_amount_stay_within_the_bounds():
    tables = parts(iris(), 2)
    problem = problem_of(*tables.values())
    tables["party-1"] = tables["party-1"].assign(**{"sepal length (cm)": 1e300})
    with federation_of(tables) as base:
        federation = base.for_run("run", Journal(), Budget())
        federation.problem = problem
        assert federation.sum(Differ()).parties == 2


def test_the_headline_says_where_it_is_not_the_joint_models():
    with federation_of(skewed()) as federation:
        apart = cotune.tune(federation, "defaults", **TREE)
        held = cotune.tune(federation, "defaults", **TREE | {"train": True}, holdout=0.2)
        trained = cotune.tune(federation, "defaults", **TREE | {"folds": 2}, judge="federated")
        central = cotune.tune(federation, "central", **TREE, trials=1)
    with federation_of(parts(wine())) as federation:
        alike = cotune.tune(federation, "defaults", **TREE)
    says = "not the joint model's: see --holdout or --finalists 3"
    assert apart.headline.words.endswith(says)
    assert apart.summary()["headline"]["words"].endswith(says)
    for other in (held, trained, central, alike):
        assert says not in other.headline.words
    assert says not in held.searched_for.words


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"holdout": 0.2}, "which is judged on rows set aside"),
        ({"finalists": 3, "holdout": 0}, "which is judged by cross-validation over all parties"),
        ({"finalists": 1, "holdout": 0}, "which rows set aside would show (--holdout 0.2)"),
        ({"judge": "federated", "holdout": 0}, ""),
    ],
)
def test_what_differing_parties_mean_depends_on_how_models_are_judged(given, says, capsys):
    with federation_of(skewed()) as federation:
        outcome = cotune.tune(
            federation, "defaults", **TREE | {"train": True, "progress": True, "folds": 2} | given
        )
    console = Console(width=500, file=io.StringIO())
    show_outcome(outcome, console)
    for text in (console.file.getvalue(), capsys.readouterr().err):
        words = " ".join(text.split())
        assert "parties have one class; class shares differ by" in words
        assert says in words
        assert ("figures of local models say little about" in words) == bool(says)
