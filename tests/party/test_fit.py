from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from cotune.learners import learner
from cotune.learners.contract import Learner
from cotune.party.fit import DIED, NOT_FINITE, RAISED, REFUSED, Job, run_job
from cotune.party.key import RunKey
from cotune.party.rows import Rows
from cotune.party.task import Configuration
from cotune.party.tasks import REASONS
from cotune.space import Space
from tests.parts import (
    CANARY,
    NotANumber,
    Raising,
    binary,
    diabetes,
    iris,
    people,
    problem_of,
    wine,
)

FOLDS = 4


def fitted(tmp_path, frame, chosen, params, others=(), free=(), **settings):
    """The job's result for all folds, on the rows of `frame`."""
    problem = problem_of(frame, *others, **({"folds": FOLDS, "compare_by": "parties"} | settings))
    rows = Rows(tmp_path / problem.digest, frame, problem, RunKey(problem.seed))
    rows.prepare(chosen.features)
    folds = tuple(range(problem.folds))
    return run_job(Job(rows.folder, chosen, Configuration(chosen.name, params), folds, free))


@pytest.mark.parametrize(
    ("metric", "scoring"),
    [
        ("accuracy", "accuracy"),
        ("balanced_accuracy", "balanced_accuracy"),
        ("f1", "f1_macro"),
        ("roc_auc", "roc_auc_ovr"),
        ("log_loss", "neg_log_loss"),
    ],
)
@pytest.mark.parametrize("make", [wine, binary])
@pytest.mark.parametrize("name", ["decision_tree", "logistic_regression"])
def test_losses_of_classifiers_are_those_of_cross_val_score(tmp_path, metric, scoring, make, name):
    frame, seed = make(), 7
    X, y = frame.drop(columns="target"), frame["target"]
    if name == "decision_tree":
        params, model = {"max_depth": 3}, DecisionTreeClassifier(max_depth=3, random_state=seed)
    else:
        params, model = {"C": 0.5}, LogisticRegression(C=0.5, random_state=seed)
        X = StandardScaler().fit_transform(X)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    expected = np.abs(cross_val_score(model, X, y, cv=folds, scoring=scoring))
    result = fitted(tmp_path, frame, learner(name), params, metric=metric, seed=seed)
    losses = expected if metric == "log_loss" else 1 - expected
    assert result.reason is None
    np.testing.assert_allclose(result.losses, losses, atol=1e-9)


@pytest.mark.parametrize(
    ("metric", "scoring"),
    [
        ("rmse", "neg_root_mean_squared_error"),
        ("mae", "neg_mean_absolute_error"),
        ("r2", "r2"),
    ],
)
def test_losses_of_regressors_are_those_of_cross_val_score(tmp_path, metric, scoring):
    frame, seed = diabetes(), 3
    model = DecisionTreeRegressor(max_depth=3, random_state=seed)
    folds = KFold(FOLDS, shuffle=True, random_state=seed)
    scores = cross_val_score(
        model, frame.drop(columns="target"), frame["target"], cv=folds, scoring=scoring
    )
    result = fitted(
        tmp_path, frame, learner("decision_tree"), {"max_depth": 3}, metric=metric, seed=seed
    )
    np.testing.assert_allclose(result.losses, 1 - scores if metric == "r2" else -scores, atol=1e-9)


def test_a_dense_regressor_predicts_in_the_targets_own_unit(tmp_path):
    frame = diabetes()
    small = fitted(tmp_path, frame, learner("svm"), {"C": 10.0}, metric="rmse", learners=("svm",))
    large = frame.assign(target=frame["target"] * 1000 + 5e6)
    scaled = fitted(tmp_path, large, learner("svm"), {"C": 10.0}, metric="rmse", learners=("svm",))
    assert np.mean(small.losses) < frame["target"].std()
    np.testing.assert_allclose(np.array(scaled.losses) / 1000, small.losses, rtol=1e-3)


@pytest.mark.parametrize("metric", ["accuracy", "log_loss", "balanced_accuracy", "f1"])
def test_a_party_with_one_class_still_answers(tmp_path, metric):
    others = (people(labels="xyz"),)
    alone = people(labels="x", seed=1)
    for name in ("decision_tree", "logistic_regression"):
        result = fitted(tmp_path, alone, learner(name), {}, others, metric=metric)
        assert result.reason is None
        np.testing.assert_allclose(result.losses, 0.0, atol=1e-12)


@pytest.mark.parametrize("metric", ["accuracy", "log_loss", "roc_auc"])
def test_a_party_that_lacks_a_class_and_a_category_still_answers(tmp_path, metric):
    others = (people(labels="xyz", cities="abcd"),)
    lacking = people(labels="xz", cities="b", seed=1)
    for name in ("decision_tree", "logistic_regression"):
        result = fitted(tmp_path, lacking, learner(name), {}, others, metric=metric)
        assert result.reason is None
        assert np.isfinite(result.losses).all()


def test_the_order_of_the_columns_does_not_change_the_losses(tmp_path):
    frame = people()
    turned = frame[list(frame)[::-1]]
    one = fitted(tmp_path / "a", frame, learner("logistic_regression"), {})
    problem = problem_of(frame, folds=FOLDS, compare_by="parties")
    rows = Rows(tmp_path / "b", turned, problem, RunKey(problem.seed))
    rows.prepare("dense")
    job = Job(
        rows.folder,
        learner("logistic_regression"),
        Configuration("logistic_regression", {}),
        tuple(range(FOLDS)),
    )
    assert run_job(job).losses == one.losses


@pytest.mark.parametrize(
    ("chosen", "params", "reason"),
    [
        (Raising(), {"depth": 2}, RAISED),
        (NotANumber(), {"depth": 2}, NOT_FINITE),
        (learner("decision_tree"), {"no_such": 1}, REFUSED),
        (learner("decision_tree"), {"max_depth": -1}, RAISED),
    ],
)
def test_what_goes_wrong_becomes_a_reason_of_the_closed_list(tmp_path, chosen, params, reason):
    result = fitted(tmp_path, iris(), chosen, params)
    assert result.reason == reason
    assert result.losses == ()
    assert CANARY not in repr(result)


def test_a_fraction_that_is_none_becomes_a_reason(tmp_path):
    problem = problem_of(iris())
    rows = Rows(tmp_path / "rows", iris(), problem, RunKey(problem.seed))
    rows.prepare("codes")
    asked = Configuration("decision_tree", {}, float("nan"))
    assert run_job(Job(rows.folder, learner("decision_tree"), asked, (0,))).reason == RAISED


def test_the_reasons_are_the_closed_list():
    assert (REFUSED, RAISED, NOT_FINITE, DIED) == REASONS


def test_a_fold_in_which_the_metric_is_undefined_is_not_a_failure(tmp_path):
    frame = pd.DataFrame({"a": range(20), "target": [1] + [0] * 19})
    result = fitted(tmp_path, frame, learner("decision_tree"), {}, metric="roc_auc")
    assert result.reason is None
    assert np.isnan(result.losses).sum() == FOLDS - 1


def with_free(tmp_path, frame, chosen, params, counts, others=(), **settings):
    """The job's result with the counts scored too, and those of fits with these counts."""
    own = fitted(tmp_path, frame, chosen, params, others, free=counts, **settings)
    fewer = [
        fitted(tmp_path, frame, chosen, params | {chosen.iterations: count}, others, **settings)
        for count in counts
    ]
    return own, fewer


@pytest.mark.parametrize("name", ["hgb", "random_forest", "extra_trees"])
@pytest.mark.parametrize("metric", ["accuracy", "log_loss"])
def test_free_counts_score_what_fits_with_these_counts_score(tmp_path, name, metric):
    chosen = learner(name)
    own, fewer = with_free(tmp_path, wine(), chosen, {chosen.iterations: 12}, (1, 5), metric=metric)
    assert (
        own.losses
        == fitted(tmp_path, wine(), chosen, {chosen.iterations: 12}, metric=metric).losses
    )
    assert [tuple(losses) for losses in zip(*own.free, strict=True)] == [f.losses for f in fewer]


class Averaging(Learner):
    """Predicts the mean of the first draws; a dense regressor with iterations."""

    name = "averaging"
    features = "dense"
    iterations = "draws"

    class _Estimator:
        def __init__(self, draws):
            self.draws = draws

        def fit(self, X, y):
            self.y = y

        def predict(self, X):
            return np.full(len(X), self.y[: self.draws].mean())

    def space(self, task, which="default"):
        return Space({"draws": (1, 9)})

    def defaults(self, task):
        return {"draws": 9}

    def estimator(self, params, *, task, seed, schema):
        return self._Estimator(params["draws"])

    def truncated(self, estimator, count):
        view = self._Estimator(count)
        view.y = estimator.y
        return view


def test_free_counts_of_a_dense_regressor_are_in_the_targets_own_unit(tmp_path):
    own, fewer = with_free(tmp_path, diabetes(), Averaging(), {"draws": 9}, (2, 4), metric="rmse")
    assert [tuple(losses) for losses in zip(*own.free, strict=True)] == [f.losses for f in fewer]


def test_a_party_with_one_class_scores_free_counts_too(tmp_path):
    others = (people(labels="xyz"),)
    alone = people(labels="x", seed=1)
    own, fewer = with_free(tmp_path, alone, learner("hgb"), {"max_iter": 9}, (3,), others)
    assert own.free == tuple((loss,) for loss in fewer[0].losses)


class Untold(Averaging):
    def truncated(self, estimator, count):
        return None


class Failing(Averaging):
    def truncated(self, estimator, count):
        raise ValueError(CANARY)


@pytest.mark.parametrize("chosen", [Untold(), Failing()])
def test_a_fit_that_cannot_tell_free_counts_still_tells_its_own(tmp_path, chosen):
    result = fitted(tmp_path, diabetes(), chosen, {"draws": 9}, free=(2, 4), metric="rmse")
    assert result.reason is None
    assert len(result.losses) == FOLDS
    assert result.free == ((),) * FOLDS
