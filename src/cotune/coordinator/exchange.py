"""The messages of one round: sent, counted, decoded."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from cotune.errors import Malformed
from cotune.party.task import Reply, Task
from cotune.protocol.engine import Engine
from cotune.protocol.wire import (
    Answer,
    Gathered,
    Refusal,
    Request,
    decode_body,
    decode_bounded,
    encode,
)


class Exchange:
    """Asks parties what a round needs besides its task, and keeps count of all its messages.

    A party that fails here is noted in `failures` and missing in what `ask` returns. Each message
    may take `timeout` seconds, and all of them may until the `deadline`.
    """

    def __init__(
        self,
        engine: Engine,
        run: str,
        round: int,
        timeout: float | None = None,
        deadline: float | None = None,
    ) -> None:
        self._engine = engine
        self._run, self._round = run, round
        self._timeout, self._deadline = timeout, deadline
        self.bytes_up = 0
        self.bytes_down = 0
        #: How many messages each party got, by the name of the task.
        self.messages: Counter[str] = Counter()
        self.failures: dict[str, Refusal] = {}

    def call(
        self, task: Task, messages: Mapping[str, bytes], longest: int
    ) -> dict[str, bytes | Refusal]:
        """Deliver messages about a task; they are counted, and the replies by `hear`.

        Replies have at most `longest` bytes, or are refused.
        """
        self._engine.longest_reply = longest
        self.messages[task.name] += 1
        self.bytes_down += sum(map(len, messages.values()))
        return self._engine.call(messages, self.left)

    def hear(self, replies: Mapping[str, bytes | Refusal]) -> None:
        self.bytes_up += sum(len(reply) for reply in replies.values() if isinstance(reply, bytes))

    def ask(self, tasks: Mapping[str, Task]) -> dict[str, Reply]:
        """The parties' own replies to tasks that need no problem; all are of one kind."""
        if not tasks:
            return {}
        encoded: dict[int, bytes] = {}  # the parties mostly get the same one
        for task in tasks.values():
            if id(task) not in encoded:
                encoded[id(task)] = encode(Request(self._run, self._round, "gather", task))
        messages = {party: encoded[id(task)] for party, task in tasks.items()}
        longest = max(task.longest_reply(None) for task in tasks.values())
        told = self.call(next(iter(tasks.values())), messages, longest)
        self.hear(told)
        replies: dict[str, Reply] = {}
        for party, task in tasks.items():
            try:
                replies[party] = _body(task, told.get(party, Refusal("lost", "no reply came")))
            except _Refused as refused:
                self.failures[party] = refused.refusal
        return replies

    @property
    def left(self) -> float | None:
        """Seconds that the next message may take, none below 0."""
        if self._deadline is None:
            return self._timeout
        left = max(0.0, self._deadline - time.perf_counter())
        return left if self._timeout is None else min(left, self._timeout)


class _Refused(Exception):
    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


def _body(task: Task, reply: bytes | Refusal) -> Reply:
    message: Answer
    try:
        if isinstance(reply, bytes):
            message = decode_bounded(reply, task.longest_reply(None))
        else:
            message = reply
        if isinstance(message, Refusal):
            raise _Refused(message)
        if not isinstance(message, Gathered):
            raise Malformed("the reply answers another verb than was asked")
        return decode_body(task, message.body)
    except Malformed as error:
        raise _Refused(Refusal("malformed", str(error))) from error
