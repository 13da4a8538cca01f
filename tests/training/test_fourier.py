from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC, SVR

from cotune.errors import UsageError
from tests.parts import diabetes, iris, parts, problem_of, wine
from tests.training.trained import known_rounds, resumed, rows_of, trained


@pytest.mark.parametrize(
    ("frame", "C", "gamma"),
    [
        (load_breast_cancer(as_frame=True).frame, 1.0, 0.1),
        (load_breast_cancer(as_frame=True).frame, 100.0, 0.001),
        (wine(), 1.0, 0.1),
        (wine(), 10.0, 0.01),
        (load_digits(as_frame=True).frame, 10.0, 0.01),
    ],
)
def test_the_accuracy_is_that_of_a_machine_with_all_rows(frame, C, gamma):
    kept, held = train_test_split(frame, test_size=0.3, random_state=0, stratify=frame["target"])
    params = {"C": C, "gamma": gamma}
    model, problem, ledger = trained(parts(kept), "svm", params)
    pooled = SVC(**params, class_weight="balanced").fit(*rows_of(kept, problem))
    X, y = rows_of(held, problem)
    assert model.score(X, y) >= pooled.score(X, y) - 0.03
    assert ledger.rounds <= 100


@pytest.mark.parametrize(("C", "gamma"), [(1.0, 0.1), (1.0, 0.02), (100.0, 0.001)])
def test_numbers_are_predicted_in_their_own_unit(C, gamma):
    kept, held = train_test_split(diabetes(), test_size=0.3, random_state=0)
    model, problem, _ = trained(parts(kept), "svm", {"C": C, "gamma": gamma, "epsilon": 0.1})
    X, y = rows_of(kept, problem)
    mean, scale = problem.schema.target_mean, problem.schema.target_scale
    pooled = SVR(C=C, gamma=gamma, epsilon=0.1).fit(X, (y - mean) / scale)
    X, y = rows_of(held, problem)

    def rmse(predicted):
        return np.sqrt(np.mean((predicted - y) ** 2))

    assert rmse(model.predict(X)) <= 1.03 * rmse(pooled.predict(X) * scale + mean)


def test_products_of_the_features_come_close_to_the_kernel():
    model, problem, _ = trained(parts(iris()), "svm", {"gamma": 0.2})
    X, _ = rows_of(iris(), problem)
    features = model[0].transform(X)
    assert np.abs(features @ features.T - rbf_kernel(X, gamma=0.2)).max() < 0.15


def test_the_features_at_the_parties_are_those_of_the_pipeline():
    """What is the least loss to the parties is it to the pipeline: its gradient is next to 0."""
    frame = iris()
    model, problem, _ = trained(parts(frame), "svm", {"gamma": 0.1})
    X, y = rows_of(frame, problem)
    signs = np.where(y[:, None] == np.arange(3), 1.0, -1.0)
    short = np.maximum(0.0, 1.0 - signs * model.decision_function(X))
    features = model[0].transform(X)
    slope = model[1].coef_ - 2.0 * (signs * short).T @ features  # C is 1
    assert np.abs(slope).max() < 0.01 * np.abs(2.0 * signs.T @ features).max()


def test_a_party_may_lack_classes():
    frame = wine()
    tables = {str(code): frame[frame["target"] == code] for code in range(3)}
    model, problem, _ = trained(tables, "svm", {"gamma": 0.01})
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.score(*rows_of(frame, problem)) > 0.97


def test_the_split_of_the_rows_changes_nothing():
    frame = wine()
    problem = problem_of(frame, learners=("svm",))
    models = [trained(parts(frame, count), "svm", {"gamma": 0.1}, problem)[0] for count in (1, 5)]
    np.testing.assert_allclose(models[0][1].coef_, models[1][1].coef_, rtol=0, atol=1e-6)


def test_a_killed_training_resumes_to_the_same_machine(tmp_path):
    frame, params = wine(), {"C": 30.0, "gamma": 0.01}
    whole, problem, ledger = trained(parts(frame), "svm", params)
    again, _, longer = resumed(parts(frame), "svm", params, problem, tmp_path / "journal", 14)
    assert ledger.rounds > 14
    np.testing.assert_array_equal(whole[1].coef_, again[1].coef_)
    assert known_rounds(ledger) == known_rounds(longer)


def test_the_pipeline_is_scikit_learns_own_and_holds_no_rows():
    frame = iris()
    model, problem, _ = trained(parts(frame), "svm", {"gamma": 0.1})
    saved = skops.io.dumps(model)
    assert skops.io.get_untrusted_types(data=saved) == []
    X, _ = rows_of(frame, problem)
    np.testing.assert_array_equal(skops.io.loads(saved).predict(X), model.predict(X))
    values = [value for step in model for value in vars(step).values()]
    assert not any(len(frame) in np.shape(value) for value in values)


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"gamma": "scale"}, "gamma is 'scale': the federation needs a number above 0"),
        ({"kernel": "poly"}, "kernel='poly' cannot be trained by the federation"),
    ],
)
def test_what_cannot_be_trained_is_refused(params, sentence):
    tables: dict[str, pd.DataFrame] = parts(iris())
    with pytest.raises(UsageError, match=sentence):
        trained(tables, "svm", params)
