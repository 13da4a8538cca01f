"""What a run compares configurations by, on parties that differ."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import cross_val_score
from sklearn.tree import DecisionTreeClassifier

import cotune
from cotune.coordinator.federation import Federation
from cotune.engines.recorded import RecordedEngine
from cotune.errors import UsageError
from cotune.methods.evaluate import evaluate
from cotune.party.task import RESOLUTION, Configuration
from cotune.problem import METRICS
from tests.engines.test_recorded import tables as recorded
from tests.parts import diabetes, federation_of, iris, parts, wine
from tests.privacy import agents

TREE = {"learners": ["decision_tree"], "folds": 3, "train": False, "progress": False}


def games(rows: int, seed: int = 0) -> pd.DataFrame:
    """Three classes of unequal size that overlap, like the positions of connect-4."""
    rng = np.random.default_rng(seed)
    y = rng.choice(3, rows, p=[0.65, 0.25, 0.1])
    X = rng.normal(0.0, 1.0, (rows, 4))
    X[:, 0] += np.array([0.0, 0.6, -0.6])[y]
    return pd.DataFrame(X, columns=list("abcd")).assign(target=np.array(["w", "l", "d"])[y])


def skewed() -> dict[str, pd.DataFrame]:
    """Two of five parties have one class, two others lack one."""
    frame = games(1500)
    won, lost, drawn = (frame[frame["target"] == name] for name in "wld")
    return {
        "party-1": won.iloc[:500],
        "party-2": won.iloc[500:800],
        "party-3": pd.concat([won.iloc[800:], lost.iloc[:150], drawn.iloc[:60]]),
        "party-4": pd.concat([lost.iloc[150:260], drawn.iloc[60:80]]),
        "party-5": pd.concat([won.iloc[800:820], lost.iloc[260:], drawn.iloc[80:]]),
    }


def test_among_parties_of_few_classes_the_figure_is_that_of_the_pooled_rows():
    """The mean of the parties' figures is far above: one class is always predicted right there."""
    tables, found = skewed(), {}
    for compare_by in ("federation", "parties"):
        with federation_of(tables) as federation:
            found[compare_by] = cotune.tune(federation, "defaults", **TREE, compare_by=compare_by)
    best = found["federation"].best
    lies = found["parties"].best_value
    truth = balanced_accuracy_score(*out_of_fold(tables))
    assert found["federation"].best_value == pytest.approx(truth, abs=2.5 * best.error)
    assert lies > truth + 5 * best.error


def opposed() -> dict[str, pd.DataFrame]:
    """Two parties: nine of ten rows are of the one class here, and of the other there."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 0, 1], [540, 60, 60, 540])
    X = rng.normal(0.0, 1.0, (1200, 2))
    X[:, 0] += 1.4 * y
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(target=np.array(["no", "yes"])[y])
    return {"party-1": frame.iloc[:600], "party-2": frame.iloc[600:]}


def test_among_parties_of_other_shares_the_figure_is_that_of_a_model_of_all_rows():
    """Each party's own model expects the class that is frequent there, and is right there."""
    tables = opposed()
    with federation_of(tables) as federation:
        options = TREE | {"learners": ["logistic_regression"]}
        best = cotune.tune(federation, "defaults", **options).best
    pooled = pd.concat(tables.values())
    X, y = pooled[["a", "b"]], pooled["target"]
    truth = cross_val_score(LogisticRegression(), X, y, cv=5, scoring="balanced_accuracy").mean()
    assert 1.0 - best.loss == pytest.approx(truth, abs=2.5 * best.error)


def out_of_fold(tables):
    """Targets and predictions of trees that each party fits on other folds of its own."""
    from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict

    told = []
    for frame in tables.values():
        X, y = frame.drop(columns="target"), frame["target"]
        kind = StratifiedKFold if y.nunique() > 1 else KFold
        folds = kind(3, shuffle=True, random_state=0)
        model = DecisionTreeClassifier(random_state=0)
        told.append((y, cross_val_predict(model, X, y, cv=folds)))
    targets, predicted = zip(*told, strict=True)
    return np.concatenate(targets), np.concatenate(predicted)


def test_the_published_objective_is_the_weighted_mean_of_the_parties_losses_to_the_last_bit():
    """As it was before there was another: from scikit-learn's figures, fold by fold."""
    from sklearn.model_selection import StratifiedKFold

    tables = {"big": iris(90), "small": iris().iloc[90:]}
    with federation_of(tables) as federation:
        outcome = cotune.tune(federation, "defaults", **TREE, compare_by="parties")
    total = 0.0
    for frame in tables.values():
        X, y = frame.drop(columns="target").to_numpy(), frame["target"].to_numpy()
        losses = []
        for train, test in StratifiedKFold(3, shuffle=True, random_state=0).split(X, y):
            model = DecisionTreeClassifier(random_state=0).fit(X[train], y[train])
            right = np.bincount(y[test][y[test] == model.predict(X[test])], minlength=3)
            losses.append(1.0 - float(np.mean(right / np.bincount(y[test]))))
        total += np.rint(float(np.mean(losses)) / RESOLUTION) * RESOLUTION * len(frame)
    assert outcome.best_loss == total / 150.0


@pytest.mark.parametrize("metric", METRICS)
def test_masked_totals_give_the_same_figures_to_the_last_bit(metric):
    tables = parts(diabetes() if METRICS[metric].task == "regression" else wine())
    found = {}
    for privacy in ("plain", "masked"):
        with federation_of(tables) as federation:
            outcome = cotune.tune(
                federation, "dash", **TREE, trials=3, metric=metric, privacy=privacy
            )
        found[privacy] = [(trial.loss, trial.error) for trial in outcome.trials]
    assert found["masked"] == found["plain"]


@agents.ready
@pytest.mark.parametrize("metric", ["balanced_accuracy", "roc_auc", "r2"])
def test_encrypted_totals_give_the_same_figures_to_the_last_bit(metric):
    tables = parts(diabetes() if METRICS[metric].task == "regression" else wine())
    found = {}
    for privacy in ("plain", "encrypted"):
        with federation_of(tables) as federation:
            outcome = cotune.tune(federation, "defaults", **TREE, metric=metric, privacy=privacy)
        found[privacy] = [(trial.loss, trial.error) for trial in outcome.trials]
    assert found["encrypted"] == found["plain"]


@pytest.mark.parametrize("method", ["flora", "flash", "privtuna", "vote"])
def test_the_last_figure_of_a_method_is_the_federations(method):
    tables = skewed()
    with federation_of(tables) as federation:
        outcome = cotune.tune(federation, method, **TREE, trials=3)
        best, federation.problem = outcome.best, outcome.problem
        (again,) = evaluate(federation, [Configuration(best.learner, best.params)])
    assert not best.predicted
    near = 0.05 if method == "flora" else 1e-12  # which judges on folds shuffled otherwise
    assert again.loss == pytest.approx(best.loss, abs=near)


def test_recorded_losses_are_compared_by_parties():
    options = {"learners": ["svm"], "space": "paper", "train": False, "progress": False}
    with Federation(RecordedEngine(recorded())) as federation:
        outcome = cotune.tune(federation, "defaults", **options)
        assert outcome.problem.compare_by == "parties"
        with pytest.raises(UsageError, match="these parties have losses only"):
            cotune.tune(federation, "defaults", **options, compare_by="federation")
