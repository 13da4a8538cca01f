"""Tune a learner of your own: nearest neighbours, in one small class.

python examples/own_learner.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

import cotune
from cotune.data.schema import Schema, TaskKind
from cotune.learners.contract import SpaceName


class NearestNeighbours(cotune.Learner):
    """k nearest neighbours on standardised columns."""

    name = "nearest_neighbours"
    features = "dense"

    def space(self, task: TaskKind, which: SpaceName = "default") -> cotune.Space:
        return cotune.Space(
            {"n_neighbors": (1, 30, "log"), "weights": ["uniform", "distance"], "p": [1, 2]}
        )

    def defaults(self, task: TaskKind) -> dict[str, Any]:
        return {"n_neighbors": 5, "weights": "uniform", "p": 2}

    def estimator(
        self, params: Mapping[str, Any], *, task: TaskKind, seed: int, schema: Schema
    ) -> Any:
        build = KNeighborsClassifier if task == "classification" else KNeighborsRegressor
        unknown = set(params) - set(self.space(task))
        if unknown:
            raise cotune.UsageError(f"unknown nearest_neighbours parameter {min(unknown)!r}")
        return build(**params)


cotune.register_learner(NearestNeighbours())

with cotune.simulate("sklearn:wine", parties=3) as federation:
    outcome = cotune.tune(
        federation, learners=["nearest_neighbours", "decision_tree"], trials=8, folds=3
    )

print(outcome.leaderboard().to_string())
print("best:", outcome.best_learner, outcome.best_params)
