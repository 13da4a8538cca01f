"""The key agent's loop: a message in on standard input, its answer out on standard output.

A frame is 4 bytes of length, big-endian, and msgpack. The end of the input ends the process.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import BinaryIO

import msgspec

from .envelope import Refused
from .evaluator import Evaluator
from .holder import Holders
from .library import library
from .limits import (
    BASE,
    PER_BYTE,
    PER_ENCRYPTED,
    PER_MEMBER,
    PER_SHARE,
    allow_memory,
    allow_time,
    confine,
)
from .messages import Encrypt, HolderAsk, Reply, Wrong, decode_ask, encode

LENGTH = struct.Struct(">I")


class Desk:
    """Passes each message to whom it is for. Whatever goes wrong becomes an answer."""

    def __init__(self) -> None:
        self._holders = Holders()
        self._evaluator = Evaluator()

    def allow(self, extra: int = 0) -> None:
        """Memory for what is kept, and so many bytes more."""
        kept = PER_SHARE * self._holders.shares + PER_MEMBER * self._evaluator.members
        allow_memory(BASE + kept + extra)

    def answer(self, frame: bytes) -> Reply:
        try:
            ask = decode_ask(frame)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Wrong("the message cannot be read: both sides must run the same cotune")
        try:
            if isinstance(ask, Encrypt):  # by the party itself
                self.allow(PER_ENCRYPTED * len(frame))
            if isinstance(ask, HolderAsk):
                return self._holders.answer(ask)
            return self._evaluator.answer(ask)
        except Refused as error:
            return Wrong(str(error))
        except Exception:  # OpenFHE's: its texts quote paths and numbers
            return Wrong(
                f"{type(ask).__name__} failed in OpenFHE: a key or ciphertext does not fit this "
                "session; begin a new one"
            )


def serve(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Answer until the input ends."""
    desk = Desk()
    while len(head := incoming.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(head)
        desk.allow(PER_BYTE * length)
        allow_time(length)
        frame = incoming.read(length)
        if len(frame) < length:
            return
        answer = encode(desk.answer(frame))
        outgoing.write(LENGTH.pack(len(answer)))
        outgoing.write(answer)
        outgoing.flush()


def main() -> None:
    """Keep standard output for answers: a library's prints go to standard error."""
    confine()
    outgoing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    library()  # without it there is nothing to serve
    serve(sys.stdin.buffer, outgoing)


if __name__ == "__main__":
    main()
