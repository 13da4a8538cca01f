"""What holds for every built-in learner."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from cotune.errors import UsageError
from cotune.learners import learner, learner_names
from tests.learners.rows import KINDS, make_rows, make_schema, task_of

#: Learners of tables; the others' rows are in test_torch.py.
NAMES = [name for name in learner_names() if learner(name).shape is None]
CASES = [
    pytest.param(name, kind, id=f"{name}-{kind}")
    for name in NAMES
    for kind in KINDS
    if task_of(kind) in learner(name).tasks
]
CODED = [name for name in learner_names() if learner(name).features == "codes"]
SIZES = ("n_estimators", "max_iter")


@pytest.fixture(autouse=True)
def no_warnings():
    """Any warning fails, except of optimisers stopped early by the small sizes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def small(params):
    """The same configuration with at most 15 trees or iterations."""
    return {name: min(value, 15) if name in SIZES else value for name, value in params.items()}


def configurations(name, task):
    random = np.random.default_rng(0)
    spaces = [learner(name).space(task, which) for which in ("paper", "default")]
    return [learner(name).defaults(task)] + [
        space.sample(random) for space in spaces for _ in range(2)
    ]


def predict(name, kind, params, *, seed=0, n=120):
    chosen = learner(name)
    X, y = make_rows(chosen, kind, n)
    model = chosen.estimator(small(params), task=task_of(kind), seed=seed, schema=make_schema(kind))
    return model.fit(X, y).predict(X)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_configuration_fits_and_predicts(name, kind):
    for params in configurations(name, task_of(kind)):
        predicted = predict(name, kind, params)
        assert predicted.shape == (120,)
        if kind == "regression":
            assert np.isfinite(predicted).all()
        else:
            assert set(np.unique(predicted)) <= set(range(3))


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_same_seed_predicts_the_same(name, kind):
    params = configurations(name, task_of(kind))[-1]
    largest = 2**32 - 1
    np.testing.assert_array_equal(
        predict(name, kind, params, seed=largest), predict(name, kind, params, seed=largest)
    )


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_defaults_find_the_signal(name, kind):
    _, y = make_rows(learner(name), kind, 600)
    predicted = predict(name, kind, learner(name).defaults(task_of(kind)), n=600)
    loss = np.mean((predicted - y) ** 2) if kind == "regression" else np.mean(predicted != y)
    guess = np.var(y) if kind == "regression" else 1 - np.bincount(y).max() / len(y)
    assert loss < 0.9 * guess


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
@pytest.mark.parametrize("name", NAMES)
def test_classifiers_score_every_class(name, kind):
    chosen = learner(name)
    X, y = make_rows(chosen, kind)
    params = small(chosen.defaults("classification"))
    model = chosen.estimator(params, task="classification", seed=0, schema=make_schema(kind))
    model.fit(X, y)
    if hasattr(model, "predict_proba"):
        assert model.predict_proba(X).shape == (120, len(np.unique(y)))
    else:
        assert len(model.decision_function(X)) == 120


@pytest.mark.parametrize("name", NAMES)
def test_an_estimator_runs_on_one_thread(name):
    model = learner(name).estimator({}, task="classification", seed=0, schema=make_schema())
    assert model.get_params().get("n_jobs") in (1, None)


@pytest.mark.parametrize("name", NAMES)
def test_a_fitted_estimator_can_be_copied_and_pickled(name):
    chosen = learner(name)
    X, y = make_rows(chosen, "binary")
    params = small(chosen.defaults("classification"))
    model = chosen.estimator(params, task="classification", seed=0, schema=make_schema())
    model.fit(X, y)
    expected = model.predict(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), expected)
    np.testing.assert_array_equal(clone(model).fit(X, y).predict(X), expected)


@pytest.mark.parametrize("empty", [1, 3], ids=["numeric", "categorical"])
@pytest.mark.parametrize("name", CODED)
def test_columns_may_be_empty_and_codes_unseen(name, empty):
    chosen = learner(name)
    X, y = make_rows(chosen, "binary")
    X = np.nan_to_num(X)
    X[:, empty] = np.nan
    params = small(chosen.defaults("classification"))
    model = chosen.estimator(params, task="classification", seed=0, schema=make_schema())
    model.fit(X, y)
    unseen = np.array([[np.nan] * 4, [0.0, 1.0, 2.0, 254.0]])
    assert model.predict(unseen).shape == (2,)


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_parameter_is_named(name):
    with pytest.raises(UsageError, match=f"unknown {name} parameter 'speed'"):
        learner(name).estimator({"speed": 1}, task="classification", seed=0, schema=make_schema())


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_space_is_named(name):
    with pytest.raises(UsageError, match="unknown space 'papers': did you mean 'paper'"):
        learner(name).space("classification", "papers")


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_defaults_set_every_parameter_of_the_paper_space(name, kind):
    task = task_of(kind)
    assert set(learner(name).space(task, "paper").names) <= set(learner(name).defaults(task))
