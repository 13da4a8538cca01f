import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from cotune.learners import prebinned
from cotune.learners.tolerant import TolerantBoostingClassifier


def rows(seed=0, n=600):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    X[rng.random(X.shape) < 0.1] = np.nan
    return X, (np.nansum(X[:, :2], axis=1) > 0).astype(int)


@pytest.fixture
def empty_memory(monkeypatch):
    memory = prebinned._Binned()
    monkeypatch.setattr(prebinned, "_binned", memory)
    return memory


def both(X, y, **params):
    """Probabilities of scikit-learn's own model and of ours."""
    settings = {"random_state": 0, "early_stopping": False, **params}
    return [
        build(**settings).fit(X, y).predict_proba(X)
        for build in (HistGradientBoostingClassifier, TolerantBoostingClassifier)
    ]


def test_a_model_on_remembered_bins_is_the_same_model(empty_memory):
    X, y = rows()
    for max_iter in (3, 10, 20):
        plain, ours = both(X, y, max_iter=max_iter)
        assert np.array_equal(plain, ours)
    assert len(empty_memory._known) == 1


def test_other_rows_bins_and_categories_are_binned_anew(empty_memory):
    X, y = rows()
    categories = np.column_stack([X, np.arange(len(X)) % 4])
    mask = [False] * 5 + [True]
    for table, params in (
        (X, {}),
        (X[:500], {}),
        (X, {"max_bins": 31}),
        (categories, {}),
        (categories, {"categorical_features": mask}),
    ):
        plain, ours = both(table, y[: len(table)], max_iter=5, **params)
        assert np.array_equal(plain, ours)
    assert len(empty_memory._known) == 5


def test_the_memory_is_bounded(empty_memory, monkeypatch):
    monkeypatch.setattr(prebinned, "MOST_BYTES", 8000)
    for seed in range(5):
        X, y = rows(seed)
        plain, ours = both(X, y, max_iter=3)
        assert np.array_equal(plain, ours)
    assert len(empty_memory._known) == 2
    assert empty_memory._bytes <= 8000
