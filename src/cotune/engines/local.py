"""The local engine: parties in this process, their fits on worker processes."""

from __future__ import annotations

import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd

from cotune.errors import FederationError
from cotune.party import scratch
from cotune.party.doubts import Doubt, doubts
from cotune.party.key import KeyFile
from cotune.party.party import Party
from cotune.party.workers import Workers
from cotune.protocol.engine import Engine
from cotune.protocol.wire import Refusal

if TYPE_CHECKING:
    from cotune.privacy.client import Agent
    from cotune.problem import Problem

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
    keys
        Those of real parties, by which they choose rows; others choose as the run's seed says.
    smallest_cell
        What fewer rows of a party have in common it does not name.
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
        keys: Mapping[str, KeyFile] = MappingProxyType({}),
        smallest_cell: int = 1,
    ) -> None:
        if not tables:
            raise FederationError("a federation needs at least 1 party")
        if self.pooled in tables:
            raise FederationError(f"no party can be called {self.pooled!r}: rename it")
        #: Where the fits of all parties run.
        self.workers = Workers(executor, processes)
        self._scratch = _scratch_folder(scratch)
        self._turns = _Turns(min(len(tables), MOST_THREADS))
        self.workers.on_wait = self._turns.go_on
        self._agents: list[Agent] = []  # one for all parties, each with keys of its own
        self._close = weakref.finalize(
            self, _close, self.workers, self._turns, self._scratch, self._agents
        )
        self._tables = dict(tables)
        self._target = target
        self._start = partial(
            Party,
            target=target,
            workers=self.workers,
            scratch=self._scratch,
            state=state,
            agent=partial(_agent, self._agents, threading.Lock()),
            smallest_cell=smallest_cell,
        )
        self._parties = {
            name: self._start(name, frame, key=keys.get(name)) for name, frame in tables.items()
        }

    def parties(self) -> list[str]:
        return sorted(self._tables)

    def party(self, name: str) -> Party:
        """One of the parties itself: a real one's process holds just one."""
        return self._parties[name]

    def call(
        self, messages: Mapping[str, bytes], timeout: float | None
    ) -> dict[str, bytes | Refusal]:
        if self.pooled in messages and self.pooled not in self._parties:
            members = [self._parties[name] for name in self.parties()]
            self._parties[self.pooled] = _Pooled(self.pooled, members, **self._start.keywords)
        turns = {
            name: partial(self._parties[name].perform, message)
            for name, message in messages.items()
        }
        answers: dict[str, bytes | Refusal] = {}
        try:
            # With a timeout none may be late because of another.
            replies = self._turns.begin(turns, 1 if timeout is None else len(turns))
            deadline = None if timeout is None else time.monotonic() + timeout
            while len(answers) < len(turns):
                name, reply = replies.get(timeout=_left(deadline))
                if isinstance(reply, BaseException):
                    raise reply
                answers[name] = reply
        except Empty:
            self._give_up()
            late = Refusal("timeout", f"no reply within {timeout:.1f} seconds")
            return {name: answers.get(name, late) for name in turns}
        except BaseException:  # Ctrl-C: nothing goes on in the background
            self._give_up()
            raise
        return {name: answers[name] for name in turns}

    def doubts(self, drop: tuple[str, ...], folds: int) -> tuple[Doubt, ...]:
        return doubts(list(self._tables.values()), self._target, drop, folds)

    def prepare(self, problem: Problem | None = None) -> None:
        """Start the workers. On another thread: see `_Turns` for why."""
        if self.workers.ready(problem):
            return
        done: SimpleQueue[None] = SimpleQueue()
        given_up = self.workers.given_up

        def prepare() -> None:
            try:
                self.workers.prepare(problem, given_up)
            finally:
                done.put(None)

        threading.Thread(target=prepare, name="cotune-prepare", daemon=True).start()
        if problem is None:
            return
        try:
            done.get()
        except BaseException:  # Ctrl-C
            self._give_up()
            raise

    def progress(self) -> int:
        return self.workers.done

    def close(self) -> None:
        self._close()

    def _give_up(self) -> None:
        self._turns.drop()
        self.workers.cancel()


class _Pooled(Party):
    """All parties' rows in one place. What each of them sets aside is set aside here as well."""

    def __init__(self, name: str, members: Sequence[Party], **options: Any) -> None:
        rows = pd.concat([member.all_rows for member in members], ignore_index=True)
        super().__init__(name, rows, **options | {"smallest_cell": 1})  # theirs is seen to
        self._members = members

    def divided(self, problem: Problem) -> tuple[pd.DataFrame, pd.DataFrame]:
        kept, held = zip(*(member.divided(problem) for member in self._members), strict=True)
        return pd.concat(kept, ignore_index=True), pd.concat(held, ignore_index=True)


#: What a party answered, or the mistake in cotune that kept it from answering.
_Reply = tuple[str, bytes | BaseException]


class _Turns:
    """Lets parties go one after the other, and the next already while one waits for its workers.

    Threads that compute hand the interpreter to and fro, which is slower than taking turns. With a
    timeout, though, each party has a thread.

    The caller's thread only puts into queues and gets from them, which a signal leaves whole.
    Ctrl-C amid the workers' bookkeeping could leave a lock behind that nobody gives back.
    """

    def __init__(self, threads: int) -> None:
        self._left: deque[tuple[str, Callable[[], bytes], SimpleQueue[_Reply]]] = deque()
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"cotune-party-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, turns: Mapping[str, Callable[[], bytes]], threads: int) -> SimpleQueue[_Reply]:
        """Where the replies will come, in any order, of parties that so many threads begin with."""
        replies: SimpleQueue[_Reply] = SimpleQueue()
        self._left.extend((name, perform, replies) for name, perform in turns.items())
        self.go_on(threads)
        return replies

    def go_on(self, threads: int = 1) -> None:
        """Begin with the next ones on other threads, if any are left."""
        for _ in range(min(threads, len(self._left))):
            self._calls.put(True)

    def drop(self) -> None:
        """Forget the turns that have not begun."""
        self._left.clear()

    def close(self) -> None:
        """Wait for the turns that have begun, and end the threads."""
        for _ in self._threads:
            self._calls.put(False)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while self._calls.get():
            while self._left:
                try:
                    name, perform, replies = self._left.popleft()
                except IndexError:  # another thread was quicker
                    break
                try:
                    replies.put((name, perform()))
                except BaseException as error:  # which ends the call
                    self.drop()
                    replies.put((name, error))


def _left(deadline: float | None) -> float | None:
    """Seconds until then."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _agent(started: list[Agent], lock: threading.Lock) -> Agent:
    """The parties' key agent, started by the first that needs it, and anew if it has died."""
    from cotune.privacy.client import Agent

    with lock:
        if started and not started[0].alive:
            started.pop().close()
        if not started:
            started.append(Agent())
        return started[0]


def _close(workers: Workers, turns: _Turns, folder: Path, agents: list[Agent]) -> None:
    """End what the engine started; at the latest when the process ends."""
    turns.drop()
    workers.cancel()
    turns.close()
    for agent in agents:
        agent.close()
    scratch.remove(folder)


def _scratch_folder(parent: Path | None) -> Path:
    try:
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        return scratch.private_folder(parent)
    except OSError as error:
        raise FederationError(
            f"no scratch folder can be made in {parent or tempfile.gettempdir()} "
            f"({error.strerror}): give another with TMPDIR"
        ) from error
