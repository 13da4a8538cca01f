from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import balanced_accuracy_score

import cotune
from cotune.coordinator.federation import Federation
from cotune.data.encode import encode_target
from cotune.errors import UsageError
from cotune.party.key import RunKey
from cotune.party.rows import set_aside
from cotune.party.score import score
from cotune.party.train.assess import Assess
from cotune.party.train.assess import assessed as judged_by
from cotune.protocol.tally import figures, terms
from cotune.protocol.wire import Refusal, decode_request
from cotune.testing import Faulty
from cotune.testing.faults import Killed
from tests.parts import CANARY, ask, federation_of, iris, parts, party_of, problem_of, wine

LINEAR_ONLY = {"learners": ["logistic_regression"], "folds": 2, "holdout": 0.3}
LINEAR = {"learners": ["logistic_regression"], "trials": 2, "folds": 2}


@pytest.fixture(scope="module")
def assessed(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "run"
    with federation_of(parts(wine())) as federation:
        outcome = cotune.tune(federation, **LINEAR, holdout=0.3, run=run)
        return outcome, cotune.evaluate(run, federation)


def test_every_party_is_judged_on_the_rows_it_set_aside(assessed):
    outcome, assessment = assessed
    assert [judged.party for judged in assessment.parties] == list(outcome.parties)
    own = [round(0.3 * len(frame)) for frame in parts(wine()).values()]
    assert [judged.rows for judged in assessment.parties] == own
    assert assessment.metric == "balanced_accuracy"


def test_the_total_is_over_all_rows_that_were_set_aside():
    """With accuracy that is the mean by rows; of one class alone it is not 1 in three parties."""
    frame = wine()
    tables = {"a": frame.query("target == 0"), "b": frame.query("target > 0"), "c": frame}
    with federation_of(tables) as federation:
        outcome = cotune.tune(federation, **LINEAR, holdout=0.3, metric="accuracy")
        assessment = cotune.evaluate(outcome, federation)
    for name in ("joint", "own"):
        summed = sum(getattr(judged, name) * judged.rows for judged in assessment.parties)
        assert getattr(assessment.total, name) == pytest.approx(summed / assessment.total.rows)
    assert all(0.0 < judged.joint_error < 0.2 for judged in (*assessment.parties, assessment.total))
    assert assessment.total.joint_error < min(one.joint_error for one in assessment.parties)


def test_the_total_of_balanced_accuracy_is_that_of_the_pooled_rows(assessed):
    outcome, assessment = assessed
    tables, key = parts(wine()).values(), RunKey(0)
    held = pd.concat(set_aside(frame, "target", 0.3, key)[1] for frame in tables)
    pooled = balanced_accuracy_score(held["target"], outcome.model.predict(held))
    assert assessment.total.joint == pytest.approx(pooled, abs=1e-12)


def test_the_joint_figure_is_the_models_on_the_held_out_rows(assessed):
    """Seen from outside: the model's accuracy over all rows, held out and not, lies near it."""
    outcome, assessment = assessed
    frame = wine()
    right = (outcome.model.predict(frame) == frame["target"]).mean()
    assert assessment.total.joint == pytest.approx(right, abs=0.1)


@pytest.mark.parametrize("metric", ["balanced_accuracy", "log_loss", "roc_auc"])
def test_of_a_private_run_only_the_figures_over_all_parties_are_told_and_alike(metric):
    with federation_of(parts(iris())) as federation:
        figures = {}
        for privacy in ("plain", "masked"):
            outcome = cotune.tune(
                federation, "defaults", **LINEAR_ONLY, metric=metric, privacy=privacy
            )
            figures[privacy] = cotune.evaluate(outcome, federation)
    assert figures["masked"].parties == ()
    assert figures["masked"].total == figures["plain"].total


def test_an_error_that_falls_is_a_gain():
    with federation_of(parts(iris().rename(columns={"petal width (cm)": "y"})), "y") as federation:
        outcome = cotune.tune(
            federation, "defaults", learners=["random_forest"], folds=2, metric="rmse", holdout=0.3
        )
        assessment = cotune.evaluate(outcome, federation)
    for judged in (*assessment.parties, assessment.total):
        assert assessment.gain(judged) == judged.own - judged.joint
    assert assessment.total.joint < 0.5


def test_rows_that_were_set_aside_are_not_learnt_from():
    with federation_of(parts(iris())) as federation:
        half = cotune.tune(federation, **LINEAR, holdout=0.5, train=False)
        whole = cotune.tune(federation, **LINEAR, train=False)
    assert half.trials[0].weight == len(iris()) / 2
    assert whole.trials[0].weight == len(iris())
    assert half.trials != whole.trials


def test_the_schema_is_that_of_all_rows_whatever_is_set_aside():
    """Else two runs would have two sets of rows, which somebody could choose to differ by one."""
    with federation_of(parts(iris())) as federation:
        half = cotune.tune(federation, **LINEAR, holdout=0.5, train=False)
        whole = cotune.tune(federation, **LINEAR, train=False)
    assert half.problem.schema == whole.problem.schema


def test_the_headline_is_the_models_figure_on_the_rows_that_were_set_aside(assessed):
    outcome, assessment = assessed
    headline = outcome.headline
    assert headline.value == pytest.approx(assessment.total.joint, abs=1e-6)
    assert headline.error == assessment.total.joint_error > 0
    assert (headline.of, headline.rows) == ("rows set aside", assessment.total.rows)
    assert f"on {headline.rows} rows that 3 parties set aside" in headline.words
    assert headline.value != outcome.best_value  # which stays what the search chose by
    assert outcome.searched_for.of == "cross-validation"
    assert outcome.summary()["headline"]["value"] == headline.value
    assert [entry.task for entry in outcome.rounds].count("score") == len(outcome.finalists)


@pytest.mark.parametrize("privacy", ["plain", "masked"])
def test_the_headline_of_a_private_run_is_made_of_a_private_total(privacy):
    with federation_of(parts(iris())) as federation:
        outcome = cotune.tune(federation, **LINEAR, holdout=0.3, privacy=privacy)
    (entry,) = [entry for entry in outcome.rounds if entry.task == "score"]
    assert entry.verb == "sum"
    assert (entry.way == "masked") == (privacy == "masked")
    assert outcome.headline.of == "rows set aside"


def test_rows_set_aside_make_no_headline_where_nothing_is_trained_or_sums_are_noised():
    noised = {"privacy": "masked", "weights": "equal", "noise": 5.0}
    with federation_of(parts(iris())) as federation:
        untrained = cotune.tune(federation, **LINEAR, holdout=0.3, train=False)
        hidden = cotune.tune(federation, **LINEAR, holdout=0.3, **noised)
    for outcome in (untrained, hidden):
        assert outcome.headline.of == "cross-validation"
        assert "score" not in {entry.task for entry in outcome.rounds}
    assert untrained.headline.error == untrained.best.error > 0
    assert hidden.headline.error == 0  # not known: it is left out under noise


@pytest.mark.parametrize("metric", ["balanced_accuracy", "f1", "log_loss", "roc_auc"])
def test_the_headline_is_the_figure_over_all_rows_that_were_set_aside(metric):
    """A party without such rows adds nothing, and private sums come to the same."""
    tables = {"tiny": iris().drop_duplicates("target"), **parts(iris(), 2)}
    found = []
    with federation_of(tables) as federation:
        for privacy in ("plain", "masked"):
            outcome = cotune.tune(federation, **LINEAR, holdout=0.3, metric=metric, privacy=privacy)
            found.append(outcome.headline)
        mine = [federation.engine.party(name) for name in tables]
        held = pd.concat([party.held_out for party in mine])
    pooled = score(
        outcome.problem,
        outcome.model.on_codes,
        np.arange(3),
        outcome.model.encoded(held),
        encode_target(held, outcome.problem.schema),
    )
    assert found[0] == found[1]
    assert found[0].loss == pytest.approx(pooled, abs=1e-3 if metric == "roc_auc" else 1e-9)
    assert 0.0 < found[0].error < 0.1


@pytest.mark.parametrize(("metric", "worst"), [("balanced_accuracy", 1.0), ("log_loss", 36.0)])
def test_rows_of_which_a_model_predicts_no_number_count_as_wrong(metric, worst):
    problem = problem_of(iris(), metric=metric)
    y = encode_target(iris(), problem.schema)
    right = y if metric == "balanced_accuracy" else np.eye(3)[y]
    reply = judged_by(problem, y, None, right, 1)
    joint, own = figures(problem, {n: np.array(getattr(reply, n)) for n in terms(problem, 2)})
    assert joint.loss >= worst
    assert own.loss == pytest.approx(0.0, abs=1e-9)
    assert joint.rows == own.rows == 150


def test_a_search_whose_budget_is_spent_is_judged_all_the_same(tmp_path):
    with federation_of(parts(iris())) as federation:
        spent = cotune.tune(federation, **LINEAR | {"trials": 9}, holdout=0.3, rounds=3)
    assert "rounds is spent" in spent.ended
    assert spent.headline.of == "rows set aside"


def test_parties_that_refuse_to_judge_do_not_cost_the_model():
    asked: list[str] = []

    class Refusing(Faulty):
        def call(self, messages, timeout):
            name = decode_request(next(iter(messages.values()))).task.name
            asked.append(name)
            if name == "score":
                return {party: Refusal("refused", "not here") for party in messages}
            return super().call(messages, timeout)

    with federation_of(parts(iris())) as federation:
        outcome = cotune.tune(Federation(Refusing(federation.engine)), **LINEAR, holdout=0.3)
    assert "score" in asked
    assert outcome.headline.of == "cross-validation"
    assert outcome.model.learner == "logistic_regression"


def test_a_resumed_run_has_the_same_headline(tmp_path):
    with federation_of(parts(iris())) as federation:
        whole = cotune.tune(federation, **LINEAR, holdout=0.3)
        dying = Faulty(federation.engine, dies_at=len(whole.rounds))  # before it is judged
        with pytest.raises(Killed):
            cotune.tune(Federation(dying), **LINEAR, holdout=0.3, run=tmp_path / "run")
        resumed = cotune.resume(tmp_path / "run", Federation(federation.engine), progress=False)
    assert resumed.headline == whole.headline
    assert cotune.Outcome.load(tmp_path / "run").headline == whole.headline


def test_a_party_that_could_set_no_row_aside_is_no_failure():
    """It has one row of each class, and learns from all of them."""
    frame = iris()
    tiny = frame.drop_duplicates("target").reset_index(drop=True)
    tables = {"tiny": tiny, **parts(frame, 2)}
    with federation_of(tables) as federation:
        outcome = cotune.tune(federation, **LINEAR, holdout=0.2, finalists=0)
    (entry,) = [entry for entry in outcome.rounds if entry.task == "score"]
    assert entry.failures == {}
    assert outcome.headline.rows == 30  # of 75 rows each


def test_without_rows_set_aside_or_without_a_model_there_is_nothing_to_judge():
    with federation_of(parts(iris())) as federation:
        outcome = cotune.tune(federation, **LINEAR, train=False)
        with pytest.raises(UsageError, match=r"no rows were set aside.*--holdout"):
            cotune.evaluate(outcome, federation)
        untrained = cotune.tune(federation, **LINEAR, train=False, holdout=0.2)
        with pytest.raises(UsageError, match="there is no model"):
            cotune.evaluate(untrained, federation)


@pytest.mark.parametrize("holdout", [-0.1, 0.95, "much"])
def test_a_share_that_cannot_be_is_refused(holdout):
    with (
        federation_of(parts(iris())) as federation,
        pytest.raises(UsageError, match=r"the holdout is .*: give a share"),
    ):
        cotune.tune(federation, **LINEAR, holdout=holdout)


def test_a_model_of_another_problem_learns_nothing_of_the_rows(assessed, tmp_path):
    """A schema that reads a text column as numbers must not make the party quote a cell."""
    outcome, _ = assessed
    frame = wine().assign(name=CANARY)
    (first, *others) = outcome.problem.schema.columns
    curious = msgspec.structs.replace(
        outcome.problem.schema, columns=(msgspec.structs.replace(first, name="name"), *others)
    )
    model = replace(outcome.model, schema=curious)
    task = Assess(model.learner, model.params, model.packed())
    answer = ask(party_of(frame, tmp_path), task, outcome.problem)
    assert isinstance(answer, Refusal)
    assert answer.code == "malformed"
    assert CANARY not in answer.sentence


def test_other_rows_than_those_of_the_run_are_refused(tmp_path):
    with cotune.simulate(iris(), parties=3, processes=1) as federation:
        cotune.tune(federation, "defaults", **LINEAR_ONLY, run=tmp_path / "run")
    with (
        cotune.simulate(iris(), parties=3, seed=1, processes=1) as other,
        pytest.raises(cotune.DataError, match="not those that the run was started with"),
    ):
        cotune.evaluate(tmp_path / "run", other)


def test_of_every_class_a_row_is_learnt_from():
    frame = pd.DataFrame({"x": np.arange(20.0), "target": ["a"] * 18 + ["b", "c"]})
    for seed in range(5):
        kept, held = set_aside(frame, "target", 0.8, RunKey(seed))
        assert set(kept["target"]) == {"a", "b", "c"}
        assert len(kept) + len(held) == 20
