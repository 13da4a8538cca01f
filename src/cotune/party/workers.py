"""The pool of single-threaded worker processes that runs a party's fits."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from typing import Any

from cotune.errors import CotuneError
from cotune.party.fit import DIED, Fitted, Job, run_job

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
        self._generation = 0
        self._lock = threading.Lock()
        self.done = 0  # fits finished since the start, for progress displays

    def run(self, jobs: Sequence[Job]) -> list[Fitted]:
        """The results of all jobs, in their order. Raises `Cancelled` if given up meanwhile."""
        generation = self._generation
        futures = [self._submit(job) for job in jobs]
        return [
            self._result(job, future, generation) for job, future in zip(jobs, futures, strict=True)
        ]

    def cancel(self) -> None:
        """Give up all running jobs; hung fits are ended with their processes."""
        with self._lock:
            self._generation += 1
            pool, self._own = self._own, None
        if pool is not None:
            pool.shutdown(wait=True, kill_workers=True)

    def _submit(self, job: Job) -> Future[Fitted] | None:
        try:
            return self._count(self._executor().submit(run_job, job), job)
        except BrokenExecutor:
            return None

    def _count(self, future: Future[Fitted], job: Job) -> Future[Fitted]:
        def finished(_: object) -> None:
            self.done += len(job.folds)

        future.add_done_callback(finished)
        return future

    def _result(self, job: Job, future: Future[Fitted] | None, generation: int) -> Fitted:
        try:
            if future is not None:
                return future.result()
        except (BrokenExecutor, CancelledError):
            pass
        if generation != self._generation:
            raise Cancelled("the round was given up")
        self._drop_broken()
        return _isolated(job)

    def _executor(self) -> Executor:
        if self._given is not None:
            return self._given
        with self._lock:
            if self._own is None:
                self._own = _pool(self._processes)
            own: Executor = self._own
            return own

    def _drop_broken(self) -> None:
        with self._lock:
            if self._own is not None and self._own._flags.broken is not None:
                self._own.shutdown(wait=False, kill_workers=True)
                self._own = None


def _isolated(job: Job) -> Fitted:
    pool = _pool(1)
    try:
        fitted: Fitted = pool.submit(run_job, job).result()
        return fitted
    except BrokenExecutor:
        return Fitted((), 0.0, DIED)
    finally:
        pool.shutdown(wait=True, kill_workers=True)


def _pool(processes: int | None) -> Any:
    from loky import ProcessPoolExecutor, cpu_count

    return ProcessPoolExecutor(
        processes or cpu_count(), env=ONE_THREAD, initializer=_begin, initargs=(os.getpid(),)
    )


def _begin(parent: int) -> None:
    """Ctrl-C is the coordinator's to handle, and a worker does not outlive its coordinator."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
