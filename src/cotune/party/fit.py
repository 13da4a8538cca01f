"""One job of a worker process: fit a configuration on some folds and score it."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from sklearn.dummy import DummyClassifier
from threadpoolctl import ThreadpoolController

from cotune.data.schema import Schema
from cotune.errors import CotuneError, Malformed, UsageError
from cotune.learners.contract import Learner
from cotune.party.rows import Opened, fold_indices, open_rows
from cotune.party.score import NotFinite, score
from cotune.party.task import Configuration
from cotune.party.tasks import REASONS

REFUSED, RAISED, NOT_FINITE, DIED = REASONS


class Job(msgspec.Struct, frozen=True):
    """Which folds of which configuration to fit, and where the rows lie.

    The learner travels as an object, not by name, so that one that was registered in the
    user's own script is known to the worker too. `free` are smaller numbers of its iterations
    to score with the same fits.
    """

    folder: Path
    learner: Learner
    configuration: Configuration
    folds: tuple[int, ...]
    free: tuple[int, ...] = ()


class Fitted(msgspec.Struct, frozen=True):
    """Losses of the job's folds that could be fitted, in order; why, if any could not.

    `free` has for each of these folds the losses of the job's free counts; none where the fit
    cannot tell them.
    """

    losses: tuple[float, ...]
    cpu_seconds: float
    reason: str | None = None
    free: tuple[tuple[float, ...], ...] = ()


def run_job(job: Job) -> Fitted:
    """Fit and score every fold, on one thread, quietly; what goes wrong becomes a reason."""
    began = time.thread_time()
    rows = open_rows(job.folder)
    X = rows.features(job.learner.features)
    with warnings.catch_warnings(), np.errstate(all="ignore"), _one_thread(job.learner.name):
        warnings.simplefilter("ignore")
        results = [_attempt(job, rows, X, fold) for fold in job.folds]
    scored = [result for result in results if not isinstance(result, str)]
    reason = next((result for result in results if isinstance(result, str)), None)
    losses, free = tuple(loss for loss, _ in scored), tuple(free for _, free in scored)
    return Fitted(losses, time.thread_time() - began, reason, free)


#: The loss of a fold, and those of the free counts.
_Scored = tuple[float, tuple[float, ...]]


def _attempt(job: Job, rows: Opened, X: np.ndarray, fold: int) -> _Scored | str:
    """What one fold scored, or why it did not."""
    try:
        return _fit_fold(job, rows, X, fold)
    except UsageError:
        return REFUSED
    except NotFinite:
        return NOT_FINITE
    except MemoryError:  # as if it had ended its process: see `cotune.party.ration`
        return DIED
    except Exception:
        return RAISED


def fitted(job: Job) -> tuple[Any, np.ndarray]:
    """The job's configuration fitted on all of the party's rows, and the classes of these."""
    rows = open_rows(job.folder)
    X = rows.features(job.learner.features)
    with warnings.catch_warnings(), np.errstate(all="ignore"), _one_thread(job.learner.name):
        warnings.simplefilter("ignore")
        return _fit(job, rows, X, rows.y)


@contextmanager
def as_asked() -> Iterator[None]:
    """A learner that cannot be fitted as it was asked for: that is no mistake of the party's.

    What the library says of it is not passed on, as it could quote a row.
    """
    try:
        yield
    except (CotuneError, MemoryError):
        raise
    except Exception as error:
        raise Malformed("the learner cannot be fitted with these parameters") from error


def _fit_fold(job: Job, rows: Opened, X: np.ndarray, fold: int) -> _Scored:
    asked = job.configuration
    train, test = fold_indices(job.folder, asked.fraction, asked.shuffle)[fold]
    estimator, present = _fit(job, rows, X[train], rows.y[train])

    def loss(fitted: Any) -> float:
        return score(rows.problem, fitted, present, X[test], rows.y[test])

    return loss(estimator), _free_losses(job, estimator, loss)


def _fit(job: Job, rows: Opened, X: np.ndarray, y: np.ndarray) -> tuple[Any, np.ndarray]:
    """The fitted estimator, and the classes that it was fitted on."""
    problem, params = rows.problem, job.configuration.params
    seed = rows.key.fit_seed(job.learner.name, params)
    estimator: Any = job.learner.estimator(
        params, task=problem.task, seed=seed, schema=problem.schema
    )
    if problem.task == "regression":
        if job.learner.features == "dense":  # its target is standardised like its columns
            estimator = _Standardised(estimator, problem.schema)
        estimator.fit(X, y)
        return estimator, np.empty(0)
    present, labels = np.unique(y, return_inverse=True)
    if len(present) == 1:  # a party may have one class only: there is one thing to predict
        estimator = DummyClassifier()
    estimator.fit(X, labels)
    return estimator, present


def _free_losses(job: Job, estimator: Any, loss: Callable[[Any], float]) -> tuple[float, ...]:
    """The losses of the job's free counts; what goes wrong here does not fail the fold."""
    try:
        views = [_truncated(job.learner, estimator, count) for count in job.free]
        return () if any(view is None for view in views) else tuple(map(loss, views))
    except Exception:
        return ()


def _truncated(learner: Learner, estimator: Any, count: int) -> Any:
    if isinstance(estimator, DummyClassifier):  # predicts its one class after any count
        return estimator
    if isinstance(estimator, _Standardised):
        return estimator.truncated(learner, count)
    return learner.truncated(estimator, count)


class _Standardised:
    """A regressor that sees its target with mean 0 and deviation 1, by the schema's figures."""

    def __init__(self, regressor: Any, schema: Schema) -> None:
        self._regressor, self._schema = regressor, schema

    def fit(self, X: np.ndarray, y: np.ndarray) -> None:
        self._regressor.fit(X, (y - self._schema.target_mean) / self._schema.target_scale)

    def predict(self, X: np.ndarray) -> np.ndarray:
        standardised: np.ndarray = self._regressor.predict(X)
        return standardised * self._schema.target_scale + self._schema.target_mean

    def truncated(self, learner: Learner, count: int) -> _Standardised | None:
        regressor = learner.truncated(self._regressor, count)
        return None if regressor is None else _Standardised(regressor, self._schema)


def _one_thread(learner: str) -> Any:
    """Small fits on many threads are 2-10 times slower than on one."""
    if os.environ.get("OMP_NUM_THREADS") == "1":  # a worker of our own pool was started so
        return nullcontext()
    return _threads(learner).limit(limits=1)


@lru_cache
def _threads(learner: str) -> ThreadpoolController:
    """The libraries loaded so far; looked at again for each learner, which may bring its own."""
    return ThreadpoolController()
