"""The wrapping of keys and ciphertexts: what it is, of which session, and that it is whole.

OpenFHE reads some damaged bytes as if nothing were wrong, and for others it asks for gigabytes. So
nothing reaches it before its digest was checked. That finds accidents and mix-ups; it does not
prove who sent the bytes.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple

from .messages import Scheme, encode

MAGIC = b"cTk1"
#: Magic, kind, session, subject, length and digest of the payload; a check of the header follows.
HEADER = struct.Struct(">4sB16s16sQ16s")
CHECK = 16
NO_SUBJECT = bytes(16)


class Kind(IntEnum):
    """What an envelope holds."""

    LEAD_KEY = 1
    KEY = 2
    JOINT_KEY = 3
    LEAD_SWITCH = 4
    SWITCH = 5
    JOINT_SWITCH = 6
    RELINEARISATION = 7
    SUMMAND = 8
    TOTAL = 9
    RESULT = 10
    LEAD_SHARE = 11
    SHARE = 12
    TO_REFRESH = 13
    COMMON_ELEMENT = 14
    MASKED_PART = 15
    MASK = 16

    @property
    def words(self) -> str:
        return self.name.lower().replace("_", " ")


class Refused(Exception):
    """A message that is not carried out; the text goes back to whoever sent it."""


class Opened(NamedTuple):
    """An envelope's content, and the digest that names it whatever envelope it is in.

    `subject` says of what it is a part: for a summand or a total, how many values were encrypted
    and which of their ciphertexts this is; for a decryption share, the digest of the ciphertext;
    in a refresh, the digest of the common element.
    """

    kind: Kind
    subject: bytes
    digest: bytes
    payload: bytes


def digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=16).digest()


class Seal:
    """Closes and opens the envelopes of one session; another session's are refused."""

    def __init__(self, session: str, scheme: Scheme) -> None:
        self.session = digest(encode((session, scheme)))

    def close(self, kind: Kind, payload: bytes, subject: bytes = NO_SUBJECT) -> bytes:
        header = HEADER.pack(MAGIC, kind, self.session, subject, len(payload), digest(payload))
        return b"".join((header, digest(header), payload))

    def open(self, sealed: bytes, *kinds: Kind) -> Opened:
        """The content, if it is of one of these kinds."""
        header, check = sealed[: HEADER.size], sealed[HEADER.size : HEADER.size + CHECK]
        if not header.startswith(MAGIC) or digest(header) != check:
            raise Refused("these bytes are no key or ciphertext of a key agent, or were changed")
        _, kind, session, subject, length, name = HEADER.unpack(header)
        payload = sealed[HEADER.size + CHECK :]
        if len(payload) != length:
            raise Refused(f"{length} bytes were expected, {len(payload)} came: send it again")
        if session != self.session:
            raise Refused("it belongs to another session, or to another scheme")
        if kind not in kinds:
            expected = " or ".join(known.words for known in kinds)
            raise Refused(f"{expected}: that was expected, but {Kind(kind).words} came")
        if digest(payload) != name:
            raise Refused("the bytes were changed on their way: send them again")
        return Opened(Kind(kind), subject, name, payload)


def name_of(sealed: bytes) -> bytes:
    """The digest in an envelope that was just closed here."""
    found: bytes = HEADER.unpack(sealed[: HEADER.size])[-1]
    return found
