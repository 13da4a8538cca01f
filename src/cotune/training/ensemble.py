"""The way of training for any learner: parties fit models, whose predictions are averaged."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cotune import learners
from cotune.errors import UsageError
from cotune.party.train.ensemble import FitOwn, OwnModel, holds_rows, read_model
from cotune.training import Stage

if TYPE_CHECKING:
    from cotune.coordinator.federation import Federation
    from cotune.data.schema import Schema
    from cotune.party.task import Configuration
    from cotune.problem import Problem


def ensemble(
    federation: Federation, problem: Problem, configuration: Configuration
) -> Generator[Stage, None, Any]:
    """scikit-learn's voting estimator over the parties' models, by their weights.

    Of classifiers the probabilities are averaged. Each model sees one party's rows only, so the
    mean is weaker than a joint training where the parties differ; it takes one round.
    """
    learner = learners.learner(configuration.learner)
    if learner.keeps_rows:
        raise UsageError(holds_rows(learner.name))
    learner.estimator(  # refuses unknown parameters before anyone is asked
        configuration.params, task=problem.task, seed=problem.seed, schema=problem.schema
    )
    yield Stage(0, 1)
    replies = cast("dict[str, OwnModel]", federation.gather(FitOwn(configuration)))
    listed = [reply for _, reply in sorted(replies.items())]
    models = [read_model(reply, problem, learner.name) for reply in listed]
    weights = [reply.weight for reply in listed]
    yield Stage(1, 1)
    if problem.task == "classification":
        return _classifier(models, weights)
    voting = _regressor(models, weights)
    return _in_own_units(voting, problem.schema) if learner.features == "dense" else voting


def _classifier(models: list[Any], weights: list[float]) -> Any:
    from sklearn.ensemble import VotingClassifier
    from sklearn.preprocessing import LabelEncoder

    voting = VotingClassifier(_named(models), voting="soft", weights=weights)
    voting.estimators_ = models
    voting.le_ = LabelEncoder().fit(models[0].classes_)
    voting.classes_ = voting.le_.classes_
    return voting


def _regressor(models: list[Any], weights: list[float]) -> Any:
    from sklearn.ensemble import VotingRegressor

    voting = VotingRegressor(_named(models), weights=weights)
    voting.estimators_ = models
    return voting


def _named(models: list[Any]) -> list[tuple[str, Any]]:
    return [(f"model-{number}", model) for number, model in enumerate(models, start=1)]


def _in_own_units(regressor: Any, schema: Schema) -> Any:
    """A regressor of the standardised target as one of the target itself."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    scaler.mean_, scaler.scale_ = np.array([schema.target_mean]), np.array([schema.target_scale])
    scaler.var_, scaler.n_features_in_, scaler.n_samples_seen_ = scaler.scale_**2, 1, 1
    whole = TransformedTargetRegressor(regressor, transformer=StandardScaler())
    whole.regressor_, whole.transformer_, whole._training_dim = regressor, scaler, 1
    return whole
