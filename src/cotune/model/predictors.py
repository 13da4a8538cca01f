"""Fitted models behind one face: class codes, probabilities or numbers from encoded rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin

from cotune.errors import Malformed
from cotune.party.train.bins import LARGEST


def probabilities(estimator: Any, X: np.ndarray) -> np.ndarray:
    """One column per class that the estimator knows.

    A learner without probabilities is read by the logistic function of its decision values, which
    ranks rows as it does but is not calibrated.
    """
    if hasattr(estimator, "predict_proba"):
        known: np.ndarray = estimator.predict_proba(X)
        return known
    decision = estimator.decision_function(X)
    if decision.ndim == 1:
        return np.column_stack([expit(-decision), expit(decision)])
    scores: np.ndarray = softmax(decision, axis=1)
    return scores


class AllClasses(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A party's classifier, among parties that have other classes: those it lacks get 0.

    Parameters
    ----------
    estimator
        Fitted on the labels 0, 1, ... of the classes that its party has.
    present
        These classes, as codes of the schema.
    classes
        How many classes the schema has.
    """

    def __init__(self, estimator: Any, present: np.ndarray, classes: int) -> None:
        self.estimator = estimator
        self.present = present
        self.classes = classes
        self.classes_ = np.arange(classes)

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        whole = np.zeros((len(X), self.classes))
        whole[:, self.present] = probabilities(self.estimator, X)
        return whole

    def predict(self, X: np.ndarray) -> np.ndarray:
        chosen: np.ndarray = self.predict_proba(X).argmax(axis=1)
        return chosen


class OfBooster:
    """An `xgboost.Booster` with scikit-learn's `predict` and `predict_proba`.

    Its objective gives the probability of the second class of two, or of every class; or numbers.
    """

    def __init__(self, booster: Any, classes: int) -> None:
        self._booster = booster
        self._classes = classes

    def predict(self, X: np.ndarray) -> np.ndarray:
        if not self._classes:
            return self._output(X)
        chosen: np.ndarray = self.predict_proba(X).argmax(axis=1)
        return chosen

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        output = self._output(X)
        return np.column_stack([1.0 - output, output]) if output.ndim == 1 else output

    def _output(self, X: np.ndarray) -> np.ndarray:
        from xgboost import DMatrix

        names, types = self._booster.feature_names, self._booster.feature_types
        X = np.clip(X, -LARGEST, LARGEST)  # beyond, XGBoost refuses; training did the same
        rows = DMatrix(X, feature_names=names, feature_types=types, enable_categorical=True)
        output: np.ndarray = self._booster.predict(rows)
        return output.astype(np.float64)


class Checked:
    """An estimator that may come from outside: it predicts for the classes, or it is `Malformed`.

    What is wrong in a foreign estimator shows in as many exceptions as there are types.
    """

    def __init__(self, estimator: Any, classes: int) -> None:
        self._estimator = estimator
        self._classes = classes

    def predict(self, X: np.ndarray) -> np.ndarray:
        found = _asked(lambda: self._estimator.predict(X), (len(X),))
        if self._classes and not np.isin(found, np.arange(self._classes)).all():
            raise Malformed("the model predicts classes that it does not have")
        return found

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        found = _asked(lambda: probabilities(self._estimator, X), (len(X), self._classes))
        if not np.isfinite(found).all():
            raise Malformed("the model predicts probabilities that are not finite")
        return found


def _asked(predict: Callable[[], Any], shape: tuple[int, ...]) -> np.ndarray:
    try:
        found = np.asarray(predict())
    except Exception as error:
        raise Malformed(
            "the model does not predict: its training went wrong, or its file was changed"
        ) from error
    if found.shape != shape or found.dtype.kind not in "biuf":
        raise Malformed("the model does not predict one number for each row and class")
    return found
