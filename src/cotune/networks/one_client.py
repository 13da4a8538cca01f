"""A network trained on the rows of one client alone, by scikit-learn's interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator

from cotune.networks.flat import as_tensor
from cotune.networks.parts import FARTHEST, Common, Local, Server
from cotune.problem import seed_of

if TYPE_CHECKING:
    from cotune.data.schema import Schema
    from cotune.learners.torch import NetworkLearner


class OneClient(BaseEstimator):  # type: ignore[misc]
    """What a party's cross-validation fits: a federation with one client."""

    def __init__(
        self, learner: NetworkLearner, params: dict[str, Any], schema: Schema, seed: int
    ) -> None:
        self.learner = learner
        self.params = params
        self.schema = schema
        self.seed = seed

    def fit(self, X: np.ndarray, y: np.ndarray) -> OneClient:
        """Rounds of local training and aggregation, the client being the only one."""
        rows, local = as_tensor(X), Local.of(self.params)
        classes = int(y.max()) + 1 if self.schema.task == "classification" else None
        self.network_ = self.learner.network(self.params, self.schema, self.seed, classes)
        target, server = self.network_.target(y), Server.of(self.params)
        common = Common(self.network_.weights.astype(float))
        for number in range(self.params["rounds"]):
            weights = common.weights.astype(np.float32)
            self.network_.load(weights)
            self.network_.train(rows, target, local, seed_of(self.seed, "round", number))
            update = self.network_.weights - weights.astype(float)
            if not np.abs(update).max() <= FARTHEST:  # the learning rate is too high
                break
            common.take(update, server)
        self.network_.load(common.weights.astype(np.float32))
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.network_.predict(X)

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return self.network_.predict_proba(X)
