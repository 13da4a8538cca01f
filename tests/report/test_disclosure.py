from __future__ import annotations

import msgspec
import pytest

import cotune
from cotune.coordinator.ledger import Round
from cotune.party.closed_list import TASKS
from cotune.party.keys import OfKeys
from cotune.protocol.wire import Cost
from cotune.report.disclosure import as_text, disclosures
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
    assert told == ["inspect", "introduce", "acquaint", "measure", "differ", "evaluate", "slope"]
    assert [one.message for one in outcomes["plain"].disclosures] == [
        "inspect", "measure", "differ", "evaluate", "slope",
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
    assert len(outcome.summary()["disclosures"]) == 7


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


def one_round(task, **more):
    return Round(
        number=1, task=task, verb="gather", asked=("a", "b"), bytes_up=1, bytes_down=1, seconds=0.1,
        cost=Cost(), disclosed="", **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    "entry",
    [
        one_round("newer"),
        one_round("newer", messages={"newer": 1}),
        one_round("evaluate", way="masked", messages={"newer": 2, "evaluate": 1}),
    ],
)
def test_a_message_that_nobody_described_is_reported_as_not_described(entry):
    (one,) = (one for one in disclosures([entry]) if one.message == "newer")
    assert one.how == "not described"
    said = f"{one.what} {one.learns} {one.colluding}"
    assert "does not describe" in one.what
    assert "every party's part" in one.learns
    assert not any(word in said for word in ("random", "nothing", "nobody", "no party"))


def test_a_summed_message_that_nobody_described_is_not_taken_for_a_total():
    entry = msgspec.structs.replace(one_round("newer"), verb="sum", way="encrypted")
    assert [one.how for one in disclosures([entry])] == ["not described"]


@pytest.mark.parametrize("kind", [kind for kind in TASKS if issubclass(kind, OfKeys)])
def test_every_message_about_keys_is_described(kind):
    entry = one_round("evaluate", way="masked", messages={kind.__name__.lower(): 1})
    (one,) = disclosures([entry])
    assert one.how in ("as random numbers", "encrypted")
    assert one.what == kind.discloses
