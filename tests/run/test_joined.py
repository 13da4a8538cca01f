"""What joining gained, shown with the result of a run."""

from __future__ import annotations

import io
import json
import logging

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import cotune
from cotune.coordinator.federation import Federation
from cotune.party.train.assess import assessed, compared
from cotune.protocol.wire import Refusal, decode_request
from cotune.report.show import _joining, show_assessment, show_outcome
from cotune.run.joined import Assessment, Judged
from cotune.testing import Faulty
from cotune.testing.faults import Killed
from tests.parts import federation_of, iris, parts, people, problem_of, wine

LINEAR = {
    "learners": ["logistic_regression"],
    "trials": 2,
    "folds": 2,
    "holdout": 0.3,
    "progress": False,
}


def loner() -> dict[str, pd.DataFrame]:
    """Three parties of few rows, a large one, and one in which the classes lie the other way."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(0.0, 1.0, (1000, 6)), columns=list("abcdef"))
    high = frame.to_numpy() @ np.array([3.0, 2.0, 1.0, 1.0, 0.5, 0.5]) + rng.normal(0, 1, 1000) > 0
    frame["target"] = np.where(high, "yes", "no")
    turned = frame.iloc[800:].assign(target=np.where(high[800:], "no", "yes"))
    return {"turned": turned, **parts(frame.iloc[:60], 3), "large": frame.iloc[60:800]}


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    with federation_of(loner()) as federation:
        return cotune.tune(federation, **LINEAR, run=tmp_path_factory.mktemp("runs") / "run")


def shown(outcome) -> str:
    console = Console(width=200, file=io.StringIO())
    show_outcome(outcome, console)
    return console.file.getvalue()


def test_it_is_what_evaluate_says_of_the_same_run(joined):
    with federation_of(loner()) as federation:
        assert cotune.evaluate(joined.run, federation) == joined.joined
    assert joined.joined.total.joint == pytest.approx(joined.headline.value, abs=1e-9)
    assert joined.joined.asked == 5
    assert joined.joined.gained == sum(joined.joined.gain(one) > 0 for one in joined.joined.parties)
    assert joined.summary()["joined"]["gained"] == joined.joined.gained
    assert cotune.Outcome.load(joined.run).joined == joined.joined


def test_it_costs_one_round_and_one_fit_at_each_party(joined):
    (entry,) = [entry for entry in joined.rounds if entry.task == "assess"]
    assert entry == joined.rounds[-1]
    assert entry.cost.fits == 5


def test_a_party_that_does_better_alone_is_named_first(joined):
    first, *_ = joined.joined.better_alone
    assert first.party == "turned"
    text = shown(joined)
    assert "joining" in text
    assert f"- all rows set aside, alone -> together: {joined.joined.total.own:.4f} ->" in text
    assert f"{joined.joined.gained} of 5 parties gained" in text
    assert f"- turned: {first.own:.4f} -> {first.joint:.4f}: better alone" in text
    assert text.index("- turned:") < text.index("- party-1:")


def test_each_party_reports_its_own_pair_to_its_own_operator(caplog):
    with (
        federation_of(loner()) as federation,
        caplog.at_level(logging.INFO, "cotune.party.operator"),
    ):
        cotune.tune(federation, **LINEAR, privacy="masked")
    said = [text for text in caplog.messages if "a model of your own rows alone has" in text]
    assert len(said) == 5
    (turned,) = [text for text in said if text.startswith("turned:")]
    assert turned.endswith("here you do better alone, clearly")


def test_what_differs_by_less_than_its_error_is_not_clear():
    problem = problem_of(iris(), metric="accuracy")
    y = np.repeat([0, 1, 2], 20)
    near = np.where(np.arange(60) == 0, 1, y)
    assert compared(problem, y, y, near).endswith("here joining gains, within the noise")
    assert compared(problem, y, near, y).endswith("here you do better alone, within the noise")
    assert compared(problem, y, near, near).endswith("here joining makes no difference")
    assert compared(problem, y, None, y).endswith("here you do better alone, clearly")


def test_private_sums_give_the_same_total_and_no_party(joined):
    with federation_of(loner()) as federation:
        private = cotune.tune(federation, **LINEAR, privacy="masked").joined
    assert private.parties == ()
    assert private.total == joined.joined.total
    few = {1, 4}
    assert private.gained == (None if joined.joined.gained in few else joined.joined.gained)


def test_a_count_about_one_party_is_not_shown_under_private_sums():
    tables = loner()
    tables.pop("large")
    with federation_of(tables) as federation:
        plain = cotune.tune(federation, **LINEAR)
        private = cotune.tune(federation, **LINEAR, privacy="masked")
    if plain.joined.gained in (1, 3):
        assert private.joined.gained is None
        assert "parties gained" not in shown(private)
    else:
        assert private.joined.gained == plain.joined.gained


@pytest.mark.parametrize(
    "options",
    [
        {"holdout": None},
        {"privacy": "masked", "weights": "equal", "noise": 5.0},
        {"method": "central"},
        {"train": False},
    ],
)
def test_nobody_is_asked_without_rows_set_aside_under_noise_or_for_references(options):
    with federation_of(parts(wine())) as federation:
        outcome = cotune.tune(federation, **LINEAR | options)
    assert outcome.joined is None
    assert outcome.summary()["joined"] is None
    assert "assess" not in {entry.task for entry in outcome.rounds}


def test_parties_that_refuse_do_not_cost_the_model():
    class Refusing(Faulty):
        def call(self, messages, timeout):
            if decode_request(next(iter(messages.values()))).task.name == "assess":
                return {party: Refusal("refused", "not here") for party in messages}
            return super().call(messages, timeout)

    with federation_of(parts(wine())) as federation:
        outcome = cotune.tune(Federation(Refusing(federation.engine)), **LINEAR)
    assert outcome.joined is None
    assert outcome.headline.of == "rows set aside"
    assert outcome.model.learner == "logistic_regression"


def test_a_run_killed_before_its_last_round_resumes_to_the_same(joined, tmp_path):
    with federation_of(loner()) as federation:
        dying = Federation(Faulty(federation.engine, dies_at=len(joined.rounds)))
        with pytest.raises(Killed):
            cotune.tune(dying, **LINEAR, run=tmp_path / "run")
        resumed = cotune.resume(tmp_path / "run", Federation(federation.engine), progress=False)
    assert resumed.joined == joined.joined
    assert len(resumed.rounds) == len(joined.rounds)
    assert resumed.finalists == joined.finalists


def test_a_party_without_rows_set_aside_takes_no_part():
    tables = {"tiny": iris().drop_duplicates("target"), **parts(iris(), 2)}
    with federation_of(tables) as federation:
        found = cotune.tune(federation, **LINEAR).joined
    assert [one.party for one in found.parties] == ["party-1", "party-2"]
    assert found.asked == 2


def test_that_a_party_with_one_class_is_always_right_alone_is_said():
    frame = wine()
    tables = {"one": frame.query("target == 0"), "other": frame.query("target > 0"), "all": frame}
    with federation_of(tables) as federation:
        outcome = cotune.tune(federation, **LINEAR)
    (one,) = [judged for judged in outcome.joined.parties if judged.party == "one"]
    assert one.own == 1.0
    assert "a party with one class is always right alone, and only on its own rows" in shown(
        outcome
    )


def test_of_many_parties_ten_are_listed():
    parties = tuple(Judged(f"p{i}", 10 + i, 0.8, 0.7 + 0.02 * i, 0.1, 0.1) for i in range(14))
    found = Assessment("accuracy", parties, Judged("all", 200, 0.8, 0.8, 0.1, 0.1), 5, 14)
    lines = _joining(found)
    assert len(lines) == 12
    assert lines[1] == "p13: 0.9600 -> 0.8000: better alone"
    assert lines[-1] == "and 4 parties more: --json"


def apart() -> dict[str, pd.DataFrame]:
    """A party of one class, one that can set no row aside, and three with all classes."""
    frame = wine()
    tiny = frame.drop_duplicates("target")
    rest = frame.drop(tiny.index)
    one = rest.query("target == 0").iloc[:20]
    return {"one": one, "tiny": tiny, **parts(rest.drop(one.index), 3)}


def test_a_party_whose_rows_do_not_define_the_metric_has_no_figure_and_does_not_count(tmp_path):
    run = tmp_path / "run"
    with federation_of(apart()) as federation:
        outcome = cotune.tune(federation, **LINEAR, metric="roc_auc", run=run)
        again = cotune.evaluate(run, federation)
    assert cotune.Outcome.load(run).joined == outcome.joined == again
    found = outcome.joined
    (one,) = [judged for judged in found.parties if judged.party == "one"]
    assert one.joint is one.own is found.gain(one) is None
    assert found.asked == 3
    assert found.gained == sum((found.gain(judged) or 0) > 0 for judged in found.parties)
    text = shown(outcome)
    assert "- one: one class only" in text
    assert "nan" not in text
    assert "always right alone" not in text
    json.dumps(outcome.summary()["joined"], allow_nan=False)
    console = Console(width=200, file=io.StringIO())
    show_assessment(again, console)
    assert "nan" not in console.file.getvalue()
    assert "one class only" in console.file.getvalue()


def test_its_operator_reads_why_a_party_has_no_figure():
    problem = problem_of(iris(), metric="roc_auc")
    said = compared(problem, np.zeros(9, dtype=int), np.eye(3)[np.zeros(9, dtype=int)], None)
    assert said == "roc auc on the 9 rows set aside: they have one class only, or are too few"


@pytest.mark.parametrize("metric", ["balanced_accuracy", "roc_auc", "log_loss"])
def test_plain_and_private_sums_ask_the_same_parties(metric):
    tables = apart()
    tables["small"] = tables["tiny"]  # two of one kind, so that a private sum shows their count
    if metric == "roc_auc":
        tables.pop("one")
    found = {}
    with federation_of(tables) as federation:
        for privacy in ("plain", "masked"):
            outcome = cotune.tune(federation, **LINEAR, metric=metric, privacy=privacy)
            found[privacy] = outcome.joined
    plain, masked = found["plain"], found["masked"]
    assert plain.asked == masked.asked == len(tables) - 2
    assert plain.total == masked.total
    assert masked.gained in (None, plain.gained)


def test_how_many_were_asked_is_not_shown_if_that_singles_out_a_party():
    tables = apart()
    tables.pop("one")
    with federation_of(tables) as federation:
        found = cotune.tune(federation, **LINEAR, privacy="masked").joined
    assert found.asked is found.gained is None  # 3 of 4


@pytest.mark.parametrize("metric", ["balanced_accuracy", "accuracy", "f1", "roc_auc", "log_loss"])
def test_rows_that_a_party_leaves_out_have_no_say_in_whether_it_gained(metric):
    """It has one row of the third class, and two models differ on that one only."""
    frame = people(400, labels="xy")
    frame.loc[:3, "target"] = "z"
    problem = problem_of(frame, metric=metric)
    y = np.array([0] * 20 + [1] * 20 + [2])
    own = y.copy()
    own[:3], own[40] = 1, 0
    right = own.copy()
    right[40] = 2
    by_scores = metric in ("roc_auc", "log_loss")
    replies = [
        assessed(problem, y, *(np.eye(3)[m] * 0.8 + 0.1 if by_scores else m for m in (a, own)), 5)
        for a in (own, right)
    ]
    assert replies[0] == replies[1]
    assert (replies[0].asked, replies[0].gained) == ((1,), (0,))
