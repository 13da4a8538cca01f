"""Tune a learner of your own: naive Bayes, in one small class.

python examples/own_learner.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.naive_bayes import GaussianNB

import cotune
from cotune.data.schema import Schema, TaskKind
from cotune.learners.contract import SpaceName


class NaiveBayes(cotune.Learner):
    """Naive Bayes with a normal distribution per class and column.

    The federation trains it as an ensemble: every party's own model, averaged. Such a model holds
    means and variances, no rows; of one that does, say so with `keeps_rows = True`.
    """

    name = "naive_bayes"
    features = "dense"
    tasks = ("classification",)

    def space(self, task: TaskKind, which: SpaceName = "default") -> cotune.Space:
        return cotune.Space({"var_smoothing": (1e-9, 10.0, "log")})

    def defaults(self, task: TaskKind) -> dict[str, Any]:
        return {"var_smoothing": 1e-9}

    def estimator(
        self, params: Mapping[str, Any], *, task: TaskKind, seed: int, schema: Schema
    ) -> Any:
        unknown = set(params) - set(self.space(task))
        if unknown:
            raise cotune.UsageError(f"unknown naive_bayes parameter {min(unknown)!r}")
        return GaussianNB(**params)


cotune.register_learner(NaiveBayes())

with cotune.simulate("sklearn:wine", parties=3) as federation:
    outcome = cotune.tune(federation, learners=["naive_bayes"], trials=8, folds=3)

print(outcome.leaderboard().to_string())
print("best:", outcome.best_learner, outcome.best_params)
print(outcome.model.describe())
