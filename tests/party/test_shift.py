from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score, log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from cotune.data.schema import Schema
from cotune.learners import learner
from cotune.party.fit import Job, run_job
from cotune.party.key import RunKey
from cotune.party.rows import Rows
from cotune.party.score import NotFinite
from cotune.party.shift import Shifted, label_shift
from cotune.party.task import Configuration
from cotune.problem import Problem
from tests.parts import problem_of

FOLDS = 3


def stated(class_rows, metric="balanced_accuracy", compare_by="federation"):
    schema = Schema("t", "classification", (), classes=tuple("abc"), class_rows=class_rows)
    return Problem(schema, (), {}, metric, compare_by=compare_by)


def coded(*rows: int) -> np.ndarray:
    """So many rows of each class."""
    return np.repeat(np.arange(len(rows)), rows)


def drawn(*rows: int, seed: int = 0) -> pd.DataFrame:
    """So many rows of each class, which overlap."""
    y = coded(*rows)
    X = np.random.default_rng(seed).normal(0.0, 1.0, (len(y), 2))
    X[:, 0] += 1.4 * y
    return pd.DataFrame(X, columns=["a", "b"]).assign(target=np.array(list("xyz"))[y])


class Giving:
    """Predicts what it was given."""

    def __init__(self, probabilities, predicted=None):
        self.predict_proba = lambda X: np.array(probabilities)
        self.predict = lambda X: np.array(predicted)


# The correction


def test_a_corrected_model_is_the_one_with_the_federations_shares_as_priors():
    frame, new = drawn(90, 40, 10), np.array([0.2, 0.2, 0.6])
    X, y = frame[["a", "b"]].to_numpy(), coded(90, 40, 10)
    expected = GaussianNB(priors=new).fit(X, y)
    own = GaussianNB().fit(X, y)
    ratios = label_shift(stated((200, 200, 600)), own, y)
    shifted = Shifted(own, ratios, True)
    np.testing.assert_allclose(shifted.predict_proba(X), expected.predict_proba(X), rtol=1e-9)
    np.testing.assert_array_equal(shifted.predict(X), expected.predict(X))
    assert (own.predict(X) != expected.predict(X)).sum() > 10


def test_the_ratios_are_of_the_classes_that_were_fitted():
    ratios = label_shift(stated((30, 20, 50)), DecisionTreeClassifier(), np.array([0, 0, 0, 2]))
    np.testing.assert_allclose(ratios / ratios[0], [1.0, 5.0])


def test_a_class_that_no_party_counted_keeps_a_chance():
    """As where each party has too few rows of it to say so."""
    ratios = label_shift(stated((30, 30, 0)), DecisionTreeClassifier(), coded(3, 3, 1))
    assert ratios[2] > 0


@pytest.mark.parametrize(
    ("y", "options", "estimator"),
    [
        (coded(5, 1, 1), {"compare_by": "parties"}, DecisionTreeClassifier()),
        (coded(5, 1, 1), {"metric": "roc_auc"}, DecisionTreeClassifier()),
        (coded(5, 1, 1), {"class_rows": ()}, DecisionTreeClassifier()),
        (coded(5, 1, 1), {}, DecisionTreeClassifier(class_weight="balanced")),
        (coded(5, 1, 1), {}, SVC()),
        (coded(2, 2, 6), {}, DecisionTreeClassifier()),
        (np.array([0, 1]), {}, DecisionTreeClassifier()),  # of those that it has, as many
        (np.array([1, 1]), {}, DecisionTreeClassifier()),
    ],
    ids=["parties", "ranks", "unknown", "balanced", "margins", "agreed", "subset", "one class"],
)
def test_there_may_be_nothing_to_correct(y, options, estimator):
    problem = stated(**({"class_rows": (20, 20, 60)} | options))
    assert label_shift(problem, estimator, y) is None


def test_a_threshold_of_the_learners_own_stays_where_the_correction_changes_no_class():
    """The third row is predicted as rare below one half, and the correction changes the second."""
    estimator = Giving([[0.9, 0.1], [0.55, 0.45], [0.7, 0.3], [0.2, 0.8]], [0, 1, 1, 1])
    ratios, X = np.array([1.0, 1.3]), np.zeros((4, 1))
    assert Shifted(estimator, ratios, False).predict(X).tolist() == [0, 1, 1, 1]
    assert Shifted(estimator, ratios, True).predict(X).tolist() == [0, 1, 0, 1]
    assert Shifted(estimator, 1 / ratios, False).predict(X).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_probabilities_that_are_not_finite_are_an_error(value):
    shifted = Shifted(Giving([[0.5, 0.5], [value, 0.5]]), np.array([1.0, 2.0]), True)
    for read in (shifted.predict, shifted.predict_proba):
        with pytest.raises(NotFinite):
            read(np.zeros((2, 1)))


# In the cross-validation of a party


def judged(tmp_path, frame, others, name, params, free=(), **settings):
    """The result of all folds on the rows of `frame`, and the problem."""
    chosen = learner(name)
    problem = problem_of(frame, *others, folds=FOLDS, learners=(name,), **settings)
    rows = Rows(tmp_path / problem.digest, frame, problem, RunKey(problem.seed))
    rows.prepare(chosen.features)
    job = Job(rows.folder, chosen, Configuration(name, params), tuple(range(FOLDS)), free)
    return run_job(job), problem


def out_of_fold(frame, make, class_rows=None):
    """Targets and corrected predictions of every fold, by hand."""
    y = np.unique(frame["target"], return_inverse=True)[1]
    X = frame.drop(columns="target").to_numpy()
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(X, y):
        p = make().fit(X[train], y[train]).predict_proba(X[test])
        if class_rows is not None:
            p = p * (np.array(class_rows) / np.bincount(y[train]))
        yield y[test], p / p.sum(axis=1, keepdims=True)


def hits_of(folds):
    y, p = (np.concatenate(parts) for parts in zip(*folds, strict=True))
    rows, hits = np.bincount(y), np.bincount(y[y == p.argmax(axis=1)], minlength=2)
    return {place + 1: int(n) for place, n in enumerate([*rows, *hits])}


def summed(tallies):
    places = sorted({place for tally in tallies for place in tally.counts})
    return {place: sum(tally.counts.get(place, 0) for tally in tallies) for place in places}


def tree():
    return DecisionTreeClassifier(max_depth=3, random_state=0)


FRAME, OTHERS = drawn(180, 24), (drawn(60, 216, seed=1),)


def test_tallies_are_of_corrected_predictions(tmp_path):
    result, problem = judged(tmp_path, FRAME, OTHERS, "decision_tree", {"max_depth": 3})
    assert problem.schema.class_rows == (240, 240)
    corrected = hits_of(out_of_fold(FRAME, tree, (240, 240)))
    assert summed(result.tallies) == corrected
    assert corrected != hits_of(out_of_fold(FRAME, tree))


def test_losses_by_which_a_party_searches_are_of_the_same_predictions(tmp_path):
    result, _ = judged(tmp_path, FRAME, OTHERS, "decision_tree", {"max_depth": 3}, metric="f1")
    plain, _ = judged(tmp_path, FRAME, OTHERS, "decision_tree", {"max_depth": 3}, metric="log_loss")
    folds = list(out_of_fold(FRAME, tree, (240, 240)))
    f1 = [1 - f1_score(y, p.argmax(axis=1), average="macro") for y, p in folds]
    np.testing.assert_allclose(result.losses, f1)
    np.testing.assert_allclose(plain.losses, [log_loss(y, p) for y, p in folds], rtol=1e-9)


@pytest.mark.parametrize("name", ["hgb", "random_forest", "lightgbm", "xgboost"])
@pytest.mark.parametrize("metric", ["balanced_accuracy", "log_loss"])
def test_smaller_numbers_of_iterations_are_corrected_too(tmp_path, name, metric):
    count = learner(name).iterations
    own, _ = judged(tmp_path, FRAME, OTHERS, name, {count: 9}, (4,), metric=metric)
    fewer, _ = judged(tmp_path, FRAME, OTHERS, name, {count: 4}, metric=metric)
    assert [losses for (losses,) in own.free] == pytest.approx(list(fewer.losses), abs=1e-6)
    for (free,), tally in zip(own.free_tallies, fewer.tallies, strict=True):
        assert free.counts == tally.counts
        assert free.amounts == pytest.approx(tally.amounts, rel=1e-6)


def test_parties_that_are_compared_by_their_own_losses_judge_as_published(tmp_path):
    result, _ = judged(
        tmp_path, FRAME, OTHERS, "decision_tree", {"max_depth": 3}, compare_by="parties"
    )
    own = [1 - balanced_accuracy_score(y, p.argmax(axis=1)) for y, p in out_of_fold(FRAME, tree)]
    assert list(result.losses) == own
    assert result.tallies == ()


def test_where_shares_agree_the_learners_own_predictions_are_judged(tmp_path):
    """Folds of 60 and 30 rows: every training part has the federation's two to one."""
    frame, others = drawn(60, 30), (drawn(120, 60, seed=1),)
    result, _ = judged(tmp_path, frame, others, "decision_tree", {"max_depth": 3})
    assert summed(result.tallies) == hits_of(out_of_fold(frame, tree))
