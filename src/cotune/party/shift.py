"""A party's classifier, corrected for having been fitted on class shares of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from cotune.model.predictors import probabilities
from cotune.party.score import finite
from cotune.problem import Problem


def label_shift(problem: Problem, estimator: Any, y: np.ndarray) -> np.ndarray | None:
    """Of each class of the fitted rows y, in its order, the federation's rows over those of y.

    None where there is nothing to correct:

    - the parties' own losses are compared, as published;
    - the classes are in the federation's proportions, so that the learner's own predictions stay;
    - the learner weighs all classes alike, here and in the federation;
    - it gives no probabilities (`svm`: corrected margins order its configurations no better);
    - the metric is ROC AUC, which goes by ranks: corrected scores order configurations no better.
    """
    known = problem.schema.class_rows
    if (
        problem.compare_by == "parties"
        or problem.metric_name == "roc_auc"
        or not known
        or not hasattr(estimator, "predict_proba")
        or isinstance(getattr(estimator, "class_weight", None), str)  # "balanced"
    ):
        return None
    present, own = np.unique(y, return_counts=True)
    federation = np.maximum(np.array(known)[present], 1)
    ratios: np.ndarray = federation / own
    return None if (own * federation[0] == federation * own[0]).all() else ratios


class Shifted:
    """A classifier that expects the classes as often as the federation has them.

    A model expects them as often as the rows have them that it was fitted on. Its probabilities
    p_c times the ratio of the new share of c to the old one, normalised, are those of a model that
    knows the new shares, if the rows of a class are alike here and there: label shift (Saerens,
    Latinne, Decaestecker: Adjusting the Outputs of a Classifier to New a Priori Probabilities,
    Neural Computation 2002, equation 4). A common factor of all ratios does not matter.

    It predicts the most probable class; where the correction does not change which one that is,
    what the estimator predicts, unless that is the same (`most_probable`).
    """

    def __init__(self, estimator: Any, ratios: np.ndarray, most_probable: bool) -> None:
        self._estimator = estimator
        self._ratios = ratios
        self._most_probable = most_probable

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        scaled = finite(probabilities(self._estimator, X)) * self._ratios
        shares: np.ndarray = scaled / scaled.sum(axis=1, keepdims=True)
        return shares

    def predict(self, X: np.ndarray) -> np.ndarray:
        known = finite(probabilities(self._estimator, X))
        chosen: np.ndarray = (known * self._ratios).argmax(axis=1)
        if self._most_probable:
            return chosen
        kept = chosen == known.argmax(axis=1)
        return np.where(kept, self._estimator.predict(X), chosen)
