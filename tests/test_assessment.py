from __future__ import annotations

import pytest

import cotune
from cotune.errors import UsageError
from tests.parts import federation_of, iris, parts, wine

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


def test_the_total_is_the_mean_by_rows(assessed):
    _, assessment = assessed
    for name in ("joint", "own"):
        summed = sum(getattr(judged, name) * judged.rows for judged in assessment.parties)
        assert getattr(assessment.total, name) == pytest.approx(summed / assessment.total.rows)


def test_the_joint_figure_is_the_models_on_the_held_out_rows(assessed):
    """Seen from outside: the model's accuracy over all rows, held out and not, lies near it."""
    outcome, assessment = assessed
    frame = wine()
    right = (outcome.model.predict(frame) == frame["target"]).mean()
    assert assessment.total.joint == pytest.approx(right, abs=0.1)


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
    """A party whose held-out rows change tells the same of everything before them."""
    with federation_of(parts(iris())) as federation:
        half = cotune.tune(federation, **LINEAR, holdout=0.5, train=False)
        whole = cotune.tune(federation, **LINEAR, train=False)
    assert half.trials[0].weight == len(iris()) / 2
    assert whole.trials[0].weight == len(iris())
    assert half.problem.schema.columns[0].mean != whole.problem.schema.columns[0].mean


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
