"""The pool of single-threaded worker processes that runs a party's fits."""

from __future__ import annotations

import multiprocessing.resource_tracker
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from cotune.errors import CotuneError
from cotune.learners import learner
from cotune.party.fit import DIED, Fitted, Job, run_job
from cotune.party.ration import bounded

if TYPE_CHECKING:
    from cotune.data.schema import Schema
    from cotune.learners.contract import Learner
    from cotune.problem import Problem

T = TypeVar("T")

#: How often processes that start are looked for, and how long each holds the task that does.
ARRIVALS = 50
TURN = 0.02

#: Read by OpenMP and the BLAS libraries when a worker starts.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class Cancelled(CotuneError):
    """The round was given up while fits were running."""


class Workers:
    """Runs jobs on any `concurrent.futures.Executor`; on a pool of its own by default.

    A job that ends its process (out of memory, a crash in a library) is run once more in a process
    of its own, and becomes a failed fit if it dies there too; the others go on.

    Parameters
    ----------
    executor
        A running executor, say `dask.distributed.Client().get_executor()`. It stays the
        caller's to close. Its processes must see the folder with the rows (`scratch`).
    processes
        Size of the own pool; the number of cores that this process may use by default.
    """

    def __init__(self, executor: Executor | None = None, processes: int | None = None) -> None:
        self._given = executor
        self._processes = processes
        self._own: Any = None
        self._warm: tuple[Any, str] = None, ""  # the pool that was prepared, and for what
        self._given_up: Future[None] = Future()
        self._lock = threading.Lock()
        #: Called when a party begins to wait for its jobs: another of this process may go on.
        self.on_wait: Callable[[], None] = lambda: None
        self.done = 0  # fits finished since the start, for progress displays

    @property
    def given_up(self) -> Future[None]:
        """Done as soon as the work that is begun now is given up: take it when work begins."""
        return self._given_up

    def ready(self, problem: Problem | None = None) -> bool:
        """Whether there is nothing for `prepare` to do. A given executor is its owner's."""
        if self._given is not None or (problem is None and self._own is not None):
            return True
        return problem is not None and self._warm == (self._own, problem.digest)

    def prepare(self, problem: Problem | None, given_up: Future[None]) -> None:
        """Start the own pool; with a problem, return when all its processes are ready to fit.

        Each has then imported what the problem's learners need. What goes wrong here is no failure:
        the first fit comes upon it again, and says so. Not for a thread that signals interrupt.
        """
        if self.ready(problem):
            return
        with suppress(BrokenExecutor, CancelledError, RuntimeError, Cancelled):
            pool: Any = self._executor(given_up)
            if problem is None:
                _sent_to_each(pool, (), None)
                return
            learners, arrived = tuple(map(learner, problem.learners)), set[int]()
            for _ in range(ARRIVALS):
                some = _sent_to_each(pool, learners, problem.schema)
                arrived |= {_awaited(future, given_up) for future in some}
                if len(arrived) == pool._max_workers:
                    break
            self._warm = pool, problem.digest

    def run(self, jobs: Sequence[Job], given_up: Future[None] | None = None) -> list[Fitted]:
        """The results of all jobs, in their order. Raises `Cancelled` once they are given up."""
        given_up = given_up or self._given_up
        futures: list[Future[Fitted] | None] = []
        alone = _Alone(given_up)
        try:
            futures += (self._submit(job, given_up) for job in jobs)
            self.on_wait()
            pairs = zip(jobs, futures, strict=True)
            return [self._result(job, future, alone) for job, future in pairs]
        finally:
            alone.close()
            if self._given is not None:  # the own pool ends its futures itself, and trips over ours
                for future in filter(None, futures):
                    future.cancel()

    def call(
        self, function: Callable[..., T], *arguments: Any, given_up: Future[None] | None = None
    ) -> T:
        """What `function` returns on a worker; it must be one of a module, its arguments small.

        What it raises is raised here. A worker that dies is a `CotuneError`.
        """
        given_up = given_up or self._given_up
        _check(given_up)
        try:
            future = self._begun(function, *arguments)
            self.on_wait()
            return _awaited(future, given_up)
        except (BrokenExecutor, CancelledError) as error:
            self._drop_broken()
            raise CotuneError("a worker of the party ended: out of memory?") from error

    def cancel(self) -> None:
        """Give up all jobs; hung fits are ended with their processes.

        In an executor of the caller's, what runs goes on to its end, unheard.
        """
        with self._lock:
            given_up, self._given_up = self._given_up, Future()
            pool, self._own = self._own, None
        given_up.set_result(None)
        if pool is not None:
            pool.shutdown(wait=True, kill_workers=True)

    def _begun(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """A call on a process; on one of our own with a bound of its memory."""
        with _interrupts_elsewhere():
            if self._given is not None:
                return self._given.submit(function, *arguments)
            return self._executor().submit(bounded, function, *arguments)

    def _submit(self, job: Job, given_up: Future[None]) -> Future[Fitted] | None:
        _check(given_up)
        try:
            return self._count(self._begun(run_job, job), job)
        except BrokenExecutor:
            return None
        except RuntimeError:  # the pool was shut down between the two calls
            _check(given_up)
            raise

    def _count(self, future: Future[Fitted], job: Job) -> Future[Fitted]:
        def finished(_: object) -> None:
            self.done += len(job.folds)

        future.add_done_callback(finished)
        return future

    def _result(self, job: Job, future: Future[Fitted] | None, alone: _Alone) -> Fitted:
        try:
            if future is not None:
                return _awaited(future, alone.given_up)
        except (BrokenExecutor, CancelledError):
            pass
        except Exception as error:  # a foreign executor has its own words for a lost worker
            if self._given is None or isinstance(error, OSError | ImportError):
                raise
        self._drop_broken()
        return alone.run(job)

    def _executor(self, given_up: Future[None] | None = None) -> Executor:
        """Of work that was given up there is none any more: it would outlive its owner."""
        if self._given is not None:
            return self._given
        with self._lock:
            if given_up not in (None, self._given_up):
                raise Cancelled("the round was given up")
            if self._own is None:
                self._own = _pool(self._processes)
            own: Executor = self._own
            return own

    def _drop_broken(self) -> None:
        with self._lock:
            if self._own is not None and self._own._flags.broken is not None:
                self._own.shutdown(wait=False, kill_workers=True)
                self._own = None


class _Alone:
    """One process for jobs that may have ended the pool's, one after the other."""

    def __init__(self, given_up: Future[None]) -> None:
        self.given_up = given_up
        self._pool: Any = None

    def run(self, job: Job) -> Fitted:
        self._pool = self._pool or _pool(1)
        try:
            with _interrupts_elsewhere():
                future: Future[Fitted] = self._pool.submit(bounded, run_job, job)
            return _awaited(future, self.given_up)
        except BrokenExecutor:
            self.close()
            return Fitted((), 0.0, DIED)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, kill_workers=True)
            self._pool = None


def _awaited(future: Future[T], given_up: Future[None]) -> T:
    either: tuple[Future[Any], ...] = (future, given_up)
    wait(either, return_when=FIRST_COMPLETED)
    _check(given_up)
    return future.result()


def _check(given_up: Future[None]) -> None:
    if given_up.done():
        raise Cancelled("the round was given up")


def _sent_to_each(
    pool: Any, learners: Sequence[Learner], schema: Schema | None
) -> list[Future[int]]:
    """A job that makes ready, as often as the pool has processes; the first of all starts them."""
    with _interrupts_elsewhere():
        return [pool.submit(_arrive, learners, schema) for _ in range(pool._max_workers)]


def _arrive(learners: Sequence[Learner], schema: Schema) -> int:
    """Make estimators, which imports their libraries, and say which process this is."""
    import cotune.party.evaluate  # noqa: F401 - what a fit needs beside them

    for one in learners:
        with suppress(Exception):  # a fit will meet it, too
            one.estimator(one.defaults(schema.task), task=schema.task, seed=0, schema=schema)
    time.sleep(TURN)  # so that the other processes get one of these, too
    return os.getpid()


def _pool(processes: int | None) -> Any:
    from loky import ProcessPoolExecutor, cpu_count

    return ProcessPoolExecutor(
        processes or cpu_count(), env=ONE_THREAD, initializer=_begin, initargs=(os.getpid(),)
    )


@contextmanager
def _interrupts_elsewhere() -> Iterator[None]:
    """Processes that are started now know of no Ctrl-C, from their first moment on.

    They inherit that from the thread that starts them. Python's own resource tracker, which loky
    starts with the first worker, would end it too early, so it is started before.
    """
    multiprocessing.resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(parent: int) -> None:
    """Ctrl-C is the coordinator's to handle, and a worker does not outlive its coordinator."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
