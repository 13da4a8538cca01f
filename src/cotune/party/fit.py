"""One job of a worker process: fit a configuration on some folds and score it."""

from __future__ import annotations

import os
import time
import warnings
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from sklearn.dummy import DummyClassifier
from threadpoolctl import ThreadpoolController

from cotune.data.schema import Schema
from cotune.errors import UsageError
from cotune.learners.contract import Learner
from cotune.party.rows import Opened, fold_indices, open_rows
from cotune.party.score import NotFinite, score
from cotune.party.tasks import REASONS, Configuration

REFUSED, RAISED, NOT_FINITE, DIED = REASONS


class Job(msgspec.Struct, frozen=True):
    """Which folds of which configuration to fit, and where the rows lie.

    The learner travels as an object, not by name, so that one that was registered in the
    user's own script is known to the worker too.
    """

    folder: Path
    learner: Learner
    configuration: Configuration
    folds: tuple[int, ...]


class Fitted(msgspec.Struct, frozen=True):
    """Losses of the job's folds that could be fitted, in order; why, if any could not."""

    losses: tuple[float, ...]
    cpu_seconds: float
    reason: str | None = None


def run_job(job: Job) -> Fitted:
    """Fit and score every fold, on one thread, quietly; what goes wrong becomes a reason."""
    began = time.thread_time()
    rows = open_rows(job.folder)
    X = rows.features(job.learner.features)
    with warnings.catch_warnings(), np.errstate(all="ignore"), _one_thread(job.learner.name):
        warnings.simplefilter("ignore")
        results = [_attempt(job, rows, X, fold) for fold in job.folds]
    losses = tuple(result for result in results if isinstance(result, float))
    reason = next((result for result in results if isinstance(result, str)), None)
    return Fitted(losses, time.thread_time() - began, reason)


def _attempt(job: Job, rows: Opened, X: np.ndarray, fold: int) -> float | str:
    """The loss of one fold, or why there is none."""
    try:
        return _fit_fold(job, rows, X, fold)
    except UsageError:
        return REFUSED
    except NotFinite:
        return NOT_FINITE
    except Exception:
        return RAISED


def _fit_fold(job: Job, rows: Opened, X: np.ndarray, fold: int) -> float:
    problem, y = rows.problem, rows.y
    train, test = fold_indices(job.folder, job.configuration.fraction)[fold]
    estimator: Any = job.learner.estimator(
        job.configuration.params, task=problem.task, seed=problem.seed, schema=problem.schema
    )
    if problem.task == "regression":
        if job.learner.features == "dense":  # its target is standardised like its columns
            estimator = _Standardised(estimator, problem.schema)
        estimator.fit(X[train], y[train])
        return score(problem, estimator, np.empty(0), X[test], y[test])
    present, labels = np.unique(y[train], return_inverse=True)
    if len(present) == 1:  # a party may have one class only: there is one thing to predict
        estimator = DummyClassifier()
    estimator.fit(X[train], labels)
    return score(problem, estimator, present, X[test], y[test])


class _Standardised:
    """A regressor that sees its target with mean 0 and deviation 1, by the schema's figures."""

    def __init__(self, regressor: Any, schema: Schema) -> None:
        self._regressor = regressor
        self._mean, self._scale = schema.target_mean, schema.target_scale

    def fit(self, X: np.ndarray, y: np.ndarray) -> None:
        self._regressor.fit(X, (y - self._mean) / self._scale)

    def predict(self, X: np.ndarray) -> np.ndarray:
        predicted: np.ndarray = self._regressor.predict(X) * self._scale + self._mean
        return predicted


def _one_thread(learner: str) -> Any:
    """Small fits on many threads are 2-10 times slower than on one."""
    if os.environ.get("OMP_NUM_THREADS") == "1":  # a worker of our own pool was started so
        return nullcontext()
    return _threads(learner).limit(limits=1)


@lru_cache
def _threads(learner: str) -> ThreadpoolController:
    """The libraries loaded so far; looked at again for each learner, which may bring its own."""
    return ThreadpoolController()
