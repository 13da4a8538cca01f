"""Where a training stands, as bytes: structs with vectors of float64 in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np

from cotune.errors import FederationError, Malformed
from cotune.files import UNREADABLE

T = TypeVar("T")


def write(state: Any) -> bytes:
    return msgspec.msgpack.encode(state, enc_hook=_write_vector)


def read(written: bytes, kind: type[T], check: Callable[[T], object] = lambda state: None) -> T:
    """The state that was written; `check` raises `Malformed` if it cannot be used."""
    try:
        state = msgspec.msgpack.decode(written, type=kind, dec_hook=_read_vector)
        check(state)
    except (Malformed, *UNREADABLE) as error:
        raise FederationError(
            "a checkpoint in the journal was changed or damaged: restore the folder from a copy, "
            "or start a new run"
        ) from error
    return state


def _write_vector(vector: Any) -> bytes:
    written: bytes = np.asarray(vector, "<f8").tobytes()
    return written


def _read_vector(kind: type, written: Any) -> np.ndarray:
    return np.frombuffer(written, "<f8")
