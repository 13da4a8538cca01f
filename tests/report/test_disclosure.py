from __future__ import annotations

import msgspec
import pytest

import cotune
from cotune.party.closed_list import TASKS
from cotune.report.disclosure import as_text
from tests.parts import federation_of, iris, parts


def tune(privacy, **options):
    with federation_of(parts(iris())) as federation:
        return cotune.tune(
            federation, learners=["logistic_regression"], folds=2, trials=2, privacy=privacy,
            progress=False, **options,
        )  # fmt: skip


@pytest.fixture(scope="module")
def outcomes():
    return {privacy: tune(privacy) for privacy in ("plain", "masked")}


def test_every_kind_of_message_is_listed_once(outcomes):
    told = [one.message for one in outcomes["masked"].disclosures]
    assert told == ["inspect", "introduce", "acquaint", "measure", "evaluate", "slope"]
    assert [one.message for one in outcomes["plain"].disclosures] == [
        "inspect", "measure", "evaluate", "slope",
    ]  # fmt: skip


def test_it_says_how_the_coordinator_learnt_it(outcomes):
    plain = {one.message: one for one in outcomes["plain"].disclosures}
    masked = {one.message: one for one in outcomes["masked"].disclosures}
    assert plain["evaluate"].how == "in the clear"
    assert masked["evaluate"].how == "as a total"
    assert "no party's part" in masked["evaluate"].learns
    assert "take their own parts off the total" in masked["evaluate"].colluding
    assert masked["inspect"].how == "in the clear"
    assert masked["introduce"].how == "as random numbers"


def test_it_is_in_the_outcome_and_survives_saving(tmp_path, outcomes):
    outcome = outcomes["masked"]
    outcome.save(tmp_path / "outcome.json")
    again = cotune.Outcome.load(tmp_path / "outcome.json")
    assert again.disclosures == outcome.disclosures
    assert len(outcome.summary()["disclosures"]) == 6


def test_the_text_fits_a_terminal_and_names_every_message(outcomes):
    text = as_text(outcomes["masked"])
    assert max(map(len, text.splitlines())) <= 80
    assert "Sums were added up under masks" in text
    for one in outcomes["masked"].disclosures:
        assert f"\n{one.message} (" in text


@pytest.mark.parametrize("privacy", ["masked", "encrypted"])
def test_the_text_on_private_sums_says_that_a_total_may_be_about_one_row(outcomes, privacy):
    text = as_text(msgspec.structs.replace(outcomes["masked"], privacy=privacy))
    assert "A total may be about one row." in " ".join(text.split())


def test_the_text_says_what_epsilon_leaves_out(outcomes):
    noised = msgspec.structs.replace(outcomes["masked"], noises=(20.0,))
    assert "leaves out the first rounds" in " ".join(as_text(noised).split())
    assert "epsilon" not in as_text(outcomes["masked"])


def test_every_task_says_what_it_discloses():
    for task in TASKS:
        assert len(task.discloses) > 10, task
