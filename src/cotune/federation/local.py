"""The local engine: parties in this process, their fits on worker processes."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from loky.backend import resource_tracker

from cotune.errors import FederationError
from cotune.federation.engine import Engine
from cotune.federation.wire import Refusal
from cotune.party.party import Party
from cotune.party.workers import Workers

if TYPE_CHECKING:
    from cotune.privacy.client import Agent

#: Threads that only wait for workers: enough to keep these busy, few enough for 200 parties.
MOST_THREADS = 16


class LocalEngine(Engine):
    """Simulates a federation on this machine; messages are bytes here too.

    Parameters
    ----------
    tables
        Each party's rows, by party name.
    target
        The column to predict.
    executor
        Runs the fits: any `concurrent.futures.Executor`; a pool of single-threaded processes,
        one per core, by default. See `cotune.party.workers.Workers`.
    processes
        Size of that default pool.
    scratch
        Where encoded rows are laid for the workers. A private temporary folder by default;
        with an executor on other machines, a folder that they share with this one.
    state
        Where parties remember their evaluations beyond this process.
    """

    pooled = "all-parties-pooled"

    def __init__(
        self,
        tables: Mapping[str, pd.DataFrame],
        target: str,
        *,
        executor: Executor | None = None,
        processes: int | None = None,
        scratch: Path | None = None,
        state: Path | None = None,
    ) -> None:
        if not tables:
            raise FederationError("a federation needs at least 1 party")
        if self.pooled in tables:
            raise FederationError(f"no party can be called {self.pooled!r}: rename it")
        #: Where the fits of all parties run.
        self.workers = Workers(executor, processes)
        self._scratch = _scratch_folder(scratch)
        threads = ThreadPoolExecutor(
            min(len(tables), MOST_THREADS),
            thread_name_prefix="cotune-party",
        )
        self._turns = _Turns(threads)
        self.workers.on_wait = self._turns.go_on
        self._agents: list[Agent] = []  # one for all parties, each with keys of its own
        self._close = weakref.finalize(
            self, _close, self.workers, threads, self._scratch, self._agents
        )
        self._tables = dict(tables)
        self._start = partial(
            Party,
            target=target,
            workers=self.workers,
            scratch=self._scratch,
            state=state,
            agent=partial(_agent, self._agents, threading.Lock()),
        )
        self._parties = {name: self._start(name, frame) for name, frame in tables.items()}

    def parties(self) -> list[str]:
        return sorted(self._tables)

    def party(self, name: str) -> Party:
        """One of the parties itself: a real one's process holds just one."""
        return self._parties[name]

    def call(
        self, messages: Mapping[str, bytes], timeout: float | None
    ) -> dict[str, bytes | Refusal]:
        if self.pooled in messages and self.pooled not in self._parties:
            rows = pd.concat([self._tables[name] for name in self.parties()], ignore_index=True)
            self._parties[self.pooled] = self._start(self.pooled, rows)
        futures = {
            name: self._turns.add(partial(self._parties[name].perform, message))
            for name, message in messages.items()
        }
        try:
            if timeout is None:
                self._turns.take()
            else:  # none may be late because of another
                self._turns.go_on(len(messages))
            _, late = wait(futures.values(), timeout)
        except BaseException:  # Ctrl-C: nothing goes on in the background
            self._give_up(futures)
            raise
        if late:
            self._give_up(futures)
        return {
            name: Refusal("timeout", f"no reply within {timeout:.1f} seconds")
            if future in late
            else future.result()
            for name, future in futures.items()
        }

    def progress(self) -> int:
        return self.workers.done

    def close(self) -> None:
        self._close()

    def _give_up(self, futures: Mapping[str, Future[bytes]]) -> None:
        for future in futures.values():
            future.cancel()
        self.workers.cancel()


class _Turns:
    """Lets parties go one after the other, and the next already while one waits for its workers.

    Threads that compute hand the interpreter to and fro, which is slower than taking turns. With a
    timeout, though, each party has a thread.
    """

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._left: deque[tuple[Future[bytes], Callable[[], bytes]]] = deque()

    def add(self, perform: Callable[[], bytes]) -> Future[bytes]:
        future: Future[bytes] = Future()
        self._left.append((future, perform))
        return future

    def go_on(self, threads: int = 1) -> None:
        """Begin with the next ones on other threads, if any are left."""
        for _ in range(min(threads, len(self._left))):
            self._threads.submit(self.take)

    def take(self) -> None:
        """Perform what is left."""
        while self._left:
            try:
                future, perform = self._left.popleft()
            except IndexError:  # another thread was quicker
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(perform())
            except BaseException as error:
                future.set_exception(error)
                raise


def _agent(started: list[Agent], lock: threading.Lock) -> Agent:
    """The parties' key agent, started by the first that needs it, and anew if it has died."""
    from cotune.privacy.client import Agent

    with lock:
        if started and not started[0].alive:
            started.pop().close()
        if not started:
            started.append(Agent())
        return started[0]


def _close(
    workers: Workers, threads: ThreadPoolExecutor, scratch: Path, agents: list[Agent]
) -> None:
    """End what the engine started; at the latest when the process ends."""
    workers.cancel()
    threads.shutdown(wait=True, cancel_futures=True)
    for agent in agents:
        agent.close()
    shutil.rmtree(scratch, ignore_errors=True)
    resource_tracker.unregister(str(scratch), "folder")


def _scratch_folder(parent: Path | None) -> Path:
    """A private folder that is removed even if this process is killed: rows lie in it."""
    try:
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="cotune-", dir=parent))
    except OSError as error:
        raise FederationError(
            f"no scratch folder can be made in {parent or tempfile.gettempdir()} "
            f"({error.strerror}): give another with TMPDIR"
        ) from error
    resource_tracker.register(str(folder), "folder")
    return folder
