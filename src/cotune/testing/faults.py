"""An engine around another that loses, garbles or poisons replies, or dies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from cotune.protocol.engine import Engine
from cotune.protocol.wire import Gathered, Refusal, Summand, decode_reply, encode

Fault = Literal["lost", "late", "nan", "garbage", "short"]


class Killed(BaseException):
    """Stands for the coordinator's death: nothing in cotune catches it."""


class Faulty(Engine):
    """Passes everything on to `engine`, but for the faults that are asked for.

    Parameters
    ----------
    faults
        By party: its replies are `lost`, `late` (past any timeout), full of `nan`, `garbage`
        bytes, or vectors that are too `short`.
    dies_at
        The call (1, 2, ...) at which `Killed` is raised, before any party is reached.
    """

    def __init__(
        self, engine: Engine, faults: Mapping[str, Fault] | None = None, dies_at: int | None = None
    ) -> None:
        self._engine = engine
        self.pooled = engine.pooled
        self.remark = engine.remark
        self.has_rows = engine.has_rows
        self._faults = dict(faults or {})
        self._dies_at = dies_at
        self.calls = 0

    def parties(self) -> list[str]:
        return self._engine.parties()

    def call(
        self, messages: Mapping[str, bytes], timeout: float | None
    ) -> dict[str, bytes | Refusal]:
        self.calls += 1
        if self.calls == self._dies_at:
            raise Killed
        replies = self._engine.call(messages, timeout)
        return {party: self._spoil(party, reply) for party, reply in replies.items()}

    def close(self) -> None:
        self._engine.close()

    def _spoil(self, party: str, reply: bytes | Refusal) -> bytes | Refusal:
        match self._faults.get(party):
            case "lost":
                return Refusal("lost", "the connection was closed")
            case "late":
                return Refusal("timeout", "no reply within the time")
            case "garbage":
                return b"\xc1 no message of ours"
            case "nan" | "short" as fault if isinstance(reply, bytes):
                return _poisoned(reply, fault)
        return reply


def _poisoned(reply: bytes, fault: str) -> bytes:
    message = decode_reply(reply)
    if isinstance(message, Summand):
        terms = {
            name: memoryview(_bent(bytes(values), fault)) for name, values in message.terms.items()
        }
        return encode(Summand(terms))
    if isinstance(message, Gathered):
        body = _bent_body(msgspec.msgpack.decode(message.body), fault)
        return encode(Gathered(msgspec.Raw(encode(body)), message.cost))
    return reply


def _bent(values: bytes, fault: str) -> bytes:
    if fault == "short":
        return values[:-8]
    return np.full(len(values) // 8, np.nan).astype("<f8").tobytes()


def _bent_body(body: Any, fault: str) -> Any:
    """Numbers become NaN, lists of numbers lose their last one."""
    if isinstance(body, dict):
        return {key: _bent_body(value, fault) for key, value in body.items()}
    if isinstance(body, list):
        numbers = any(isinstance(value, float) for value in body)
        kept = body[:-1] if fault == "short" and numbers else body
        return [_bent_body(value, fault) for value in kept]
    return float("nan") if fault == "nan" and isinstance(body, float) else body
