"""Where a training stands, as bytes: structs with vectors of float64 in them."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import numpy as np

T = TypeVar("T")


def write(state: Any) -> bytes:
    return msgspec.msgpack.encode(state, enc_hook=_write_vector)


def read(written: bytes, kind: type[T]) -> T:
    return msgspec.msgpack.decode(written, type=kind, dec_hook=_read_vector)


def _write_vector(vector: Any) -> bytes:
    written: bytes = np.asarray(vector, "<f8").tobytes()
    return written


def _read_vector(kind: type, written: Any) -> np.ndarray:
    return np.frombuffer(written, "<f8")
