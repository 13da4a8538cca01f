from __future__ import annotations

import gc
import tempfile

import numpy as np
import pandas as pd
import pytest

import cotune
from cotune.coordinator.federation import Federation
from cotune.engines.recorded import STAND_IN, RecordedEngine
from cotune.errors import DataError, FederationError, UsageError
from cotune.party.task import Configuration
from cotune.party.tasks import Candidates, Evaluate, Inspect, Predict, Search
from cotune.protocol.wire import Gathered, Refusal, Request, decode_body, decode_reply, encode
from cotune.testing import Faulty, Killed
from tests.parts import problem_of

INSPECT = encode(Request("run", 1, "gather", Inspect(10)))
TOL = 1e-3


def bowl(C: float, gamma: float, centre: float = 1.0) -> float:
    """A loss that is least at C = 10 and gamma = 0.01, in logarithms."""
    return 0.05 + 0.02 * ((np.log10(C) - centre) ** 2 + (np.log10(gamma) + 2) ** 2)


def table(centre: float = 1.0, low: int = -2, high: int = 3) -> pd.DataFrame:
    """A grid over svm's C and gamma, and two evaluations of another learner."""
    rows = [
        {"learner": "svm", "C": C, "gamma": gamma, "tol": TOL, "loss": bowl(C, gamma, centre)}
        for C in np.logspace(low, high, high - low + 1)
        for gamma in np.logspace(-5, 1, 7)
    ]
    boosted = {"learner": "hgb", "learning_rate": 0.1, "min_samples_leaf": 20}
    rows += [
        boosted | {"max_iter": 100, "l2_regularization": 0.0, "loss": 0.25},
        boosted | {"max_iter": 50, "l2_regularization": 0.01, "loss": 0.125},
    ]
    return pd.DataFrame(rows)


def tables() -> dict[str, pd.DataFrame]:
    return {"b": table(1.0), "a": table(0.5), "c": table(1.5)}


def svm(C: float, gamma: float, tol: float = TOL, **more) -> Configuration:
    return Configuration("svm", {"C": C, "gamma": gamma, "tol": tol} | more)


def problem(**settings):
    usual = {"learners": ("svm", "hgb"), "space": "paper", "compare_by": "parties"}
    return problem_of(STAND_IN, **usual | settings)


def ask(engine, task, stated=None, party="a", verb="gather", run="run"):
    """The party's decoded answer: the reply's body, or the refusal."""
    stated = stated or problem()
    message = encode(Request(run, 1, verb, task, stated.digest, stated))
    reply = decode_reply(engine.call({party: message}, None)[party])
    if isinstance(reply, Gathered):
        assert reply.cost.fits == 0
        return decode_body(task, reply.body, stated)
    return reply


def losses(engine, *configurations, **options):
    return ask(engine, Evaluate(configurations), **options).losses


def found(engine, search, **options):
    return [found.pairs for found in ask(engine, search, **options).found]


def tune(engine, method="dash", **options):
    usual = {"learners": ["svm"], "space": "paper", "progress": False}
    return cotune.tune(Federation(engine), method, **(usual | options), train=False)


def test_parties_are_sorted_and_each_answers_its_own_message():
    engine = RecordedEngine(tables())
    assert engine.parties() == ["a", "b", "c"]
    many = encode(Request("run", 1, "gather", Inspect(10_000)))
    replies = engine.call({"a": INSPECT, "c": many}, None)
    assert isinstance(decode_reply(replies["a"]), Gathered)
    assert decode_reply(replies["c"]).code == "data"
    assert set(replies) == {"a", "c"}


@pytest.mark.parametrize("junk", [b"", b"\xc1", b"\x00" * 1000, encode({"task": "os.system"})])
def test_garbage_and_unknown_tasks_are_refused_and_forgotten(junk):
    engine = RecordedEngine(tables())
    assert decode_reply(engine.call({"a": junk}, None)["a"]).code == "malformed"
    assert isinstance(decode_reply(engine.call({"a": INSPECT}, None)["a"]), Gathered)


def test_a_party_that_was_not_told_the_problem_says_so():
    task = Evaluate((svm(1.0, 0.1),))
    message = encode(Request("run", 1, "sum", task, problem().digest))
    reply = RecordedEngine(tables()).call({"a": message}, None)["a"]
    assert decode_reply(reply).code == "no_problem"


def test_a_call_with_no_time_left_returns_without_replies():
    engine = RecordedEngine(tables())
    (reply,) = engine.call({"a": INSPECT}, -1.0).values()
    assert isinstance(reply, Refusal)
    assert reply.code == "timeout"
    assert isinstance(engine.call({"a": INSPECT}, 60.0)["a"], bytes)


def test_what_was_recorded_is_answered_exactly():
    engine = RecordedEngine(tables())
    assert losses(engine, svm(10.0, 0.01), svm(0.01, 1e-5, class_weight="balanced")) == [
        bowl(10.0, 0.01, 0.5),
        bowl(0.01, 1e-5, 0.5),
    ]
    assert losses(engine, svm(10.0, 0.01), party="b") == [0.05]


def test_the_nearest_is_found_on_the_scale_of_the_space():
    engine = RecordedEngine(tables())
    assert losses(engine, svm(4.0, 0.01), svm(2.9, 0.01), svm(10.0, 0.01, tol=0.09)) == [
        bowl(10.0, 0.01, 0.5),
        bowl(1.0, 0.01, 0.5),
        bowl(10.0, 0.01, 0.5),
    ]


def test_the_nearest_may_lie_beyond_the_bounds_but_not_in_another_category():
    wider = table(low=-3, high=4)
    engine = RecordedEngine({"a": wider})
    narrow = problem(spaces={"svm": cotune.Space({"C": (1.0, 90.0, "log"), "gamma": (0.01, 0.1),
                                                  "tol": TOL}).to_json()})  # fmt: skip
    assert losses(engine, svm(90.0, 0.01), stated=narrow) == [bowl(100.0, 0.01)]
    linear = table().assign(class_weight="none")
    linear.loc[3, "class_weight"] = "balanced"
    engine = RecordedEngine({"a": linear})
    assert losses(engine, svm(1000.0, 10.0)) == [linear.loss[3]]


def test_a_default_off_the_scale_is_found_where_it_was_recorded():
    engine = RecordedEngine(tables())
    default = problem().defaults("hgb")
    assert default["l2_regularization"] == 0.0
    assert losses(engine, Configuration("hgb", default)) == [0.25]
    assert tune(engine, "defaults", learners=["hgb"]).best_loss == 0.25


def test_a_forest_interpolates_between_what_was_recorded():
    engine = RecordedEngine(tables(), answer="interpolated")
    between, far = losses(engine, svm(5.0, 0.02), svm(1000.0, 10.0))
    assert table(0.5).loss.min() < between < 0.08 < far < bowl(1000.0, 10.0, 0.5)
    assert losses(engine, svm(5.0, 0.02)) == [between]
    assert losses(RecordedEngine(tables(), answer="interpolated"), svm(5.0, 0.02)) == [between]


def test_a_search_tells_the_recorded_pairs_in_their_order():
    engine = RecordedEngine(tables())
    pairs, boosted = found(engine, Search(("svm", "hgb"), trials=5))
    assert [pair.loss for pair in pairs] == table(0.5).loss[:5].tolist()
    assert pairs[0].params == {"C": 0.01, "gamma": 1e-5, "tol": TOL, "class_weight": "balanced"}
    assert [pair.loss for pair in boosted] == [0.125]  # 0 lies outside the box
    assert boosted[0].params["max_iter"] == 50
    assert type(boosted[0].params["max_iter"]) is int


def test_a_search_keeps_the_best_of_its_trials_only():
    engine = RecordedEngine(tables())
    (pairs,) = found(engine, Search(("svm",), trials=20, keep=3))
    assert [pair.loss for pair in pairs] == sorted(table(0.5).loss[:20])[:3]


def test_what_lies_outside_the_box_does_not_count_as_a_trial():
    wide = table(low=-4, high=4)
    (pairs,) = found(RecordedEngine({"a": wide}), Search(("svm",), trials=10))
    assert [pair.loss for pair in pairs] == wide[wide.C >= 0.01].loss[:10].tolist()


def test_a_search_with_nothing_in_the_box_is_refused_and_says_why():
    far = table()
    far = far[far.learner == "svm"].assign(C=lambda rows: rows.C * 1e6)
    refusal = ask(RecordedEngine({"a": far}), Search(("svm",), trials=10))
    assert refusal.code == "data"
    assert "no recorded evaluation of 'svm' lies in the problem's space: parameter 'C'" in (
        refusal.sentence
    )
    assert losses(RecordedEngine({"a": far}), svm(1.0, 0.1))


def test_a_parameter_that_was_not_recorded_is_named():
    engine = RecordedEngine({"a": table().drop(columns="tol")})
    refusal = ask(engine, Evaluate((svm(1.0, 0.1),)))
    assert refusal.code == "data"
    assert "parameter 'tol' is missing" in refusal.sentence
    fixed = problem(fixed={"svm": {"tol": 0.01}})
    assert losses(engine, svm(10.0, 0.01, tol=0.01), stated=fixed) == [bowl(10.0, 0.01)]


def test_a_learner_without_recorded_evaluations_is_refused():
    engine = RecordedEngine({"a": table()[lambda rows: rows.learner == "svm"]})
    for task in (Evaluate((Configuration("hgb", {}),)), Search(("svm", "hgb"), trials=2)):
        assert ask(engine, task) == Refusal(
            "unknown_learner", "no evaluation of 'hgb' was recorded"
        )
    assert ask(engine, Evaluate((svm(1.0, 0.1),)), problem(learners=("hgb",))).code == (
        "unknown_learner"
    )


def test_a_fraction_of_the_rows_cannot_be_asked():
    engine = RecordedEngine(tables())
    for task in (
        Evaluate((Configuration("svm", svm(1.0, 0.1).params, 0.5),)),
        Search(("svm",), trials=2, fraction=0.5),
    ):
        assert "there are none of a fraction" in ask(engine, task).sentence


def test_losses_of_another_metric_are_refused():
    engine = RecordedEngine({"a": table().assign(loss=lambda rows: rows.loss + 3)})
    refusal = ask(engine, Evaluate((svm(1.0, 0.1),)))
    assert "balanced_accuracy has losses from 0 to 1" in refusal.sentence
    assert losses(engine, svm(10.0, 0.01), stated=problem(metric="log_loss")) == [3.05]
    assert losses(engine, svm(10.0, 0.01), stated=problem(metric="rmse")) == [3.05]


def test_predictions_come_from_the_recorded_search():
    stated = problem()
    space = stated.space("svm")
    candidates = Candidates(16, 0)
    drawn = candidates.drawn(space)
    candidates = Candidates(16, 0, digest=candidates.digest_of(space, drawn))
    task = Predict(Search(("svm",), trials=50), (candidates,), anew=False)
    predicted = ask(RecordedEngine(tables()), task, stated).losses
    true = [bowl(params["C"], params["gamma"], 0.5) for params in drawn]
    assert np.corrcoef(predicted, true)[0, 1] > 0.9


def test_dash_finds_the_bottom_of_the_mean_of_the_tables():
    engine = RecordedEngine(tables())
    outcome = tune(engine, trials=40)
    assert np.log10(outcome.best_params["C"]) == pytest.approx(1.0, abs=0.51)
    mean = np.mean([bowl(10.0, 0.01, centre) for centre in (0.5, 1.0, 1.5)])
    assert outcome.best_loss == pytest.approx(mean)
    assert outcome.ledger.fits == 0


def test_the_ledger_says_in_every_round_that_a_table_answered_and_how():
    for answer, how in [("nearest", "by the nearest"), ("interpolated", "by a forest of them")]:
        engine = RecordedEngine(tables(), answer=answer)
        for shown in (engine, Faulty(engine)):
            rounds = list(tune(shown, "defaults").ledger)
            assert len(rounds) == 3
            assert all(
                entry.disclosed.endswith(f"[answered from recorded evaluations, {how}: no rows, "
                                         "no fits]")
                for entry in rounds
            )  # fmt: skip


def test_parties_count_the_same_or_by_the_rows_that_are_given():
    default = {"C": 1.0, "gamma": 0.1}
    each = [bowl(**default, centre=centre) for centre in (0.5, 1.0, 1.5)]
    assert tune(RecordedEngine(tables()), "defaults").best_loss == pytest.approx(np.mean(each))
    rows = {"a": 10, "b": np.int64(30), "c": 60}
    engine = RecordedEngine(tables(), weights=rows)
    weighted = np.average(each, weights=[10, 30, 60])
    assert tune(engine, "defaults").best_loss == pytest.approx(weighted)
    assert tune(engine, "defaults").best.weight == 100
    equal = tune(engine, "defaults", weights="equal")
    assert equal.best_loss == pytest.approx(np.mean(each))


def test_a_killed_run_resumes_to_the_same_outcome(tmp_path):
    whole = tune(RecordedEngine(tables()), trials=8)
    with pytest.raises(Killed):
        tune(Faulty(RecordedEngine(tables()), dies_at=6), trials=8, run=tmp_path / "run")
    federation = Federation(RecordedEngine(tables()))
    resumed = cotune.resume(tmp_path / "run", federation, progress=False)
    assert [(t.params, t.loss) for t in resumed.trials] == [
        (t.params, t.loss) for t in whole.trials
    ]
    assert resumed.ledger.bytes_down == whole.ledger.bytes_down
    assert resumed.ledger.disclosed == whole.ledger.disclosed


def test_whole_numbers_and_losses_may_come_in_any_type():
    typed = table().astype({"max_iter": "Int64", "loss": object})
    pairs = found(RecordedEngine({"a": typed}), Search(("svm", "hgb"), trials=2))
    assert pairs == found(RecordedEngine({"a": table()}), Search(("svm", "hgb"), trials=2))


def test_the_engine_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = RecordedEngine(tables())
    tune(engine, "defaults")
    engine.close()
    engine.close()
    RecordedEngine(tables())
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (table().drop(columns="loss"), "b: the table of evaluations has no column 'loss'"),
        (table().drop(columns="learner"), "b: the table of evaluations has no column 'learner'"),
        (table().head(0), "b: the table has no evaluations"),
        (table().replace({"learner": {"hgb": "hbg"}}), "b: unknown learner 'hbg': did you mean"),
        (table().assign(loss=[0.1, np.nan] + [0.2] * 42), "b: loss 2 is not a finite number"),
        (table().assign(loss=[0.1] * 43 + [np.inf]), "b: loss 44 is not a finite number"),
        (table().assign(loss="low"), "b: loss 1 is not a finite number"),
    ],
)
def test_a_table_that_cannot_be_used_is_named_with_its_fault(bad, sentence):
    with pytest.raises(DataError, match=sentence):
        RecordedEngine({"a": table(), "b": bad})


def test_other_arguments_are_checked_too():
    with pytest.raises(FederationError, match="at least 1 party"):
        RecordedEngine({})
    with pytest.raises(UsageError, match="unknown answer 'nearst': did you mean 'nearest'"):
        RecordedEngine(tables(), answer="nearst")
    for weights in ({"a": 1}, {"a": 1, "b": 2, "c": 0}, {"a": 1, "b": 2, "c": 2.5}):
        with pytest.raises(UsageError, match="give each party's number of rows"):
            RecordedEngine(tables(), weights=weights)


def test_a_default_that_was_not_recorded_has_the_loss_of_the_nearest():
    """That of trees has no limit of depth, which the paper's space does not hold."""
    depths = pd.DataFrame(
        [
            {"learner": "decision_tree", "max_depth": depth, "loss": loss}
            | {"min_samples_split": 2, "min_samples_leaf": 1}
            for depth, loss in ((4, 0.3), (12, 0.2), (20, 0.1))
        ]
    )
    with Federation(RecordedEngine({"a": depths, "b": depths})) as federation:
        outcome = cotune.tune(
            federation, learners=["decision_tree"], space="paper", trials=3, train=False
        )
    first = outcome.trials[0]
    assert (first.params["max_depth"], first.loss) == (None, pytest.approx(0.1))
    assert outcome.ended == "finished"
