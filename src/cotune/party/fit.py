"""One job of a worker process: fit a configuration on some folds and score it."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
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
from cotune.party.rows import Opened, fold_indices, fraction_of, open_rows
from cotune.party.score import NotFinite, loss, predictions
from cotune.party.shift import Shifted, label_shift
from cotune.party.task import Configuration
from cotune.party.tasks import REASONS
from cotune.protocol.tally import Tally, class_weights, statistic

REFUSED, RAISED, NOT_FINITE, DIED = REASONS


class Job(msgspec.Struct, frozen=True):
    """Which folds of which configuration to fit, and where the rows lie.

    The learner travels as an object, not by name, so that one that was registered in the
    user's own script is known to the worker too. `free` are smaller numbers of its iterations
    to score with the same fits. Rows of a class of which the party has fewer than `smallest` are
    left out of tallies.
    """

    folder: Path
    learner: Learner
    configuration: Configuration
    folds: tuple[int, ...]
    free: tuple[int, ...] = ()
    smallest: int = 1


class Fitted(msgspec.Struct, frozen=True):
    """Losses of the job's folds that could be fitted, in order; why, if any could not.

    `free` has for each of these folds the losses of the job's free counts; none where the fit
    cannot know them. `tallies` and `free_tallies` are those of the same predictions, where the run
    compares by the federation's figures.
    """

    losses: tuple[float, ...]
    cpu_seconds: float
    reason: str | None = None
    free: tuple[tuple[float, ...], ...] = ()
    tallies: tuple[Tally, ...] = ()
    free_tallies: tuple[tuple[Tally, ...], ...] = ()


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
    return Fitted(
        losses=tuple(one.loss for one, _ in scored),
        cpu_seconds=time.thread_time() - began,
        reason=reason,
        free=tuple(tuple(count.loss for count in free) for _, free in scored),
        tallies=_tallies(one for one, _ in scored),
        free_tallies=tuple(_tallies(free) for _, free in scored),
    )


class _Judged(msgspec.Struct, frozen=True):
    """What a fold comes to."""

    loss: float
    tally: Tally | None


#: A fold with all iterations, and with the free counts of them.
_Scored = tuple[_Judged, tuple[_Judged, ...]]


def _tallies(judged: Iterable[_Judged]) -> tuple[Tally, ...]:
    return tuple(one.tally for one in judged if one.tally is not None)


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
    ratios = label_shift(rows.problem, estimator, rows.y[train])
    judge = _Judge(job, rows)

    def judged(fitted: Any) -> _Judged:
        if ratios is not None:
            fitted = Shifted(fitted, ratios, job.learner.most_probable)
        return judge(rows.y[test], predictions(rows.problem, fitted, present, X[test]))

    return judged(estimator), _judged_free(job, estimator, judged)


class _Judge:
    """Turns the predictions of a fold into its loss and, if parties are not compared, its tally.

    For balanced accuracy of the federation a party's loss is sum_c misses_c / N_c over
    sum_c rows_c / N_c, with the federation's rows N_c of each class c: the mean of such losses,
    weighted by the denominators, is that of the federation. That of a fold has the mean denominator
    of all folds, so that the party's loss is the mean of its folds'.
    """

    def __init__(self, job: Job, rows: Opened) -> None:
        self._problem = rows.problem
        self._federated = rows.problem.compare_by == "federation"
        if self._federated:
            self._statistic = statistic(rows.problem)
            judged = job.folder, job.configuration.fraction
            self._kept = kept_classes(*judged, job.smallest)
            self._weights = _row_weights(*judged)

    def __call__(self, y: np.ndarray, predicted: np.ndarray) -> _Judged:
        if not self._federated:
            return _Judged(loss(self._problem, y, predicted), None)
        tally = self._statistic.tally(y, predicted, self._kept)
        if self._weights is None:
            return _Judged(loss(self._problem, y, predicted), tally)
        return _Judged(float(self._weights[y[y != predicted]].sum()), tally)


@lru_cache(maxsize=32)
def kept_classes(folder: Path, fraction: float, smallest: int) -> np.ndarray | None:
    """Of which classes the party has so many rows among those that are judged."""
    rows = open_rows(folder)
    if rows.problem.task == "regression":
        return None
    classes = len(rows.problem.schema.classes)
    kept: np.ndarray = np.bincount(judged_targets(folder, fraction), minlength=classes) >= smallest
    return kept


@lru_cache(maxsize=32)
def _row_weights(folder: Path, fraction: float) -> np.ndarray | None:
    """By class, what a miss counts in a fold's loss; None where all rows count alike."""
    problem = open_rows(folder).problem
    if problem.metric_name != "balanced_accuracy":
        return None
    weights = class_weights(problem.schema)
    total = weights[judged_targets(folder, fraction)].sum()
    scaled: np.ndarray = weights * (problem.folds / total)
    return scaled


def judged_targets(folder: Path, fraction: float) -> np.ndarray:
    """The target of all rows that some fold judges."""
    rows = open_rows(folder)
    targets: np.ndarray = rows.y[fraction_of(rows.y, fraction, rows.problem, rows.key)]
    return targets


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


def _judged_free(job: Job, estimator: Any, judged: Callable[[Any], _Judged]) -> tuple[_Judged, ...]:
    """The job's free counts; what goes wrong here does not fail the fold."""
    try:
        views = [_truncated(job.learner, estimator, count) for count in job.free]
        return () if any(view is None for view in views) else tuple(map(judged, views))
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
