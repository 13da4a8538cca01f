"""The messages between coordinator and party: typed, bounded, without code in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from cotune.errors import Malformed
from cotune.party.closed_list import any_task
from cotune.party.keys import Keyed
from cotune.party.task import Label, Reply, Task, Term
from cotune.privacy.protection import Protection
from cotune.problem import Problem

Verb = Literal["gather", "sum"]
#: How a party's part of a sum travels: in the clear, under masks, under encryption.
Way = Literal["gather", "sum", "masked", "encrypted"]

#: What a party's "no" can be about. Only `data` is the user's to mend at the party; `refused` says
#: that its policy forbids it, `version` that it has another version of cotune.
Code = Literal[
    "data",
    "malformed",
    "no_problem",
    "no_state",
    "no_keys",
    "unknown",
    "unknown_learner",
    "storage",
    "internal",
    "timeout",
    "lost",
    "cancelled",
    "refused",
    "version",
]


class Request(msgspec.Struct, frozen=True):
    """One message to one party. `attached` travels until the party has it, then the digest does."""

    run: Label
    round: int
    verb: Way
    task: any_task
    problem: str = ""
    attached: Problem | None = None
    keyed: Keyed | None = None
    protection: Protection | None = None


class Cost(msgspec.Struct, frozen=True):
    """What a reply cost: model fits, and CPU seconds of the party's workers."""

    fits: int = 0
    cpu_seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether a party can have meant it."""
        return 0 <= self.fits < 2**31 and 0.0 <= self.cpu_seconds < 2.0**31

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.fits + other.fits, self.cpu_seconds + other.cpu_seconds)


class Gathered(msgspec.Struct, frozen=True, tag="gathered"):
    """The reply to `gather`: the task's own reply, and its cost."""

    body: msgspec.Raw
    cost: Cost


class Summand(msgspec.Struct, frozen=True, tag="summand"):
    """The reply to `sum`: one vector per term (float64, little-endian), ready to be added.

    They lie where they are in memory, and are not copied into a message or out of it.
    """

    terms: dict[str, memoryview]


class Masked(msgspec.Struct, frozen=True, tag="masked"):
    """The reply to a masked sum: whole numbers below 2**64, little-endian, random by themselves."""

    digits: bytes


class Encrypted(msgspec.Struct, frozen=True, tag="encrypted"):
    """The reply to an encrypted sum: ciphertexts of whole numbers."""

    ciphertexts: tuple[bytes, ...]


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """A party's or an engine's "no": a code and a sentence that holds nothing of the data."""

    code: Code
    sentence: str


#: Bytes of a refusal, at most.
LONGEST_REFUSAL = 4096

#: What decoding can raise: wrong bytes, wrong text, and messages nested beyond all measure.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_requests = msgspec.msgpack.Decoder(Request)
Answer = Gathered | Summand | Masked | Encrypted | Refusal
_replies = msgspec.msgpack.Decoder(Answer)

encode = msgspec.msgpack.Encoder().encode  # keeps the order of keys: a space's order has meaning


def decode_request(message: bytes) -> Request:
    try:
        return _requests.decode(message)
    except _UNREADABLE as error:
        raise Malformed("the message is not a request of this version of cotune") from error


def too_long(most: int) -> str:
    """What is wrong with a reply that is longer than any honest one: it is not decoded."""
    return f"the reply is too long: it may have {most:,} bytes"


def decode_bounded(message: bytes, most: int) -> Answer:
    """A reply of at most so many bytes: decoding a longer one could take all memory."""
    if len(message) > most:
        raise Malformed(too_long(most))
    return decode_reply(message)


def decode_reply(message: bytes) -> Answer:
    try:
        reply: Answer = _replies.decode(message)
    except _UNREADABLE as error:
        raise Malformed("the reply is not a message of this version of cotune") from error
    return Refusal(reply.code, _line(reply.sentence)) if isinstance(reply, Refusal) else reply


def _line(sentence: str) -> str:
    """One line for the user's terminal, which would obey the control characters in another's."""
    return "".join(c if c.isprintable() else " " for c in sentence[:LONGEST_REFUSAL])


def refusal_of(reply: bytes) -> Refusal | None:
    """The reply, if it is a refusal; long ones need not be read to know that they are none."""
    if len(reply) > LONGEST_REFUSAL:
        return None
    answer = decode_reply(reply)
    return answer if isinstance(answer, Refusal) else None


def decode_body(task: Task, body: msgspec.Raw, problem: Problem | None = None) -> Reply:
    """The gathered reply of `task`, its shape checked by the task."""
    try:
        reply = msgspec.msgpack.decode(body, type=task.reply)
    except _UNREADABLE as error:
        raise Malformed(f"the reply does not fit the task {task.name}") from error
    task.check(reply, problem)
    return reply


#: Travels with every sum: the party's weight, and what the reply cost (fits, CPU seconds).
OWN_TERMS: dict[str, Term] = {"own": Term(3, low=0.0, high=2.0**31, resolution=2.0**-20)}


def rounded_terms(
    terms: Mapping[str, Term], values: Mapping[str, Any], weight: float
) -> dict[str, np.ndarray]:
    """The party's vectors, rounded to their resolution and multiplied by its weight where asked."""
    return {
        name: term.rounded(np.asarray(values[name], dtype=np.float64), name, weight)
        for name, term in terms.items()
    }


def pack_terms(vectors: Mapping[str, np.ndarray]) -> dict[str, memoryview]:
    """Vectors as they travel in the clear."""
    return {name: v.astype("<f8", copy=False).data.cast("B") for name, v in vectors.items()}


def unpack_terms(
    terms: Mapping[str, Term], packed: Mapping[str, memoryview]
) -> dict[str, np.ndarray]:
    """A party's vectors, each checked for length, finite values and bounds."""
    if packed.keys() != terms.keys():
        raise Malformed("the reply's terms are not the ones the task asked for")
    if [len(packed[name]) for name in terms] != [8 * term.length for term in terms.values()]:
        raise Malformed("a term of the reply has another length than the task asked for")
    vectors = {name: np.frombuffer(packed[name], dtype="<f8") for name in terms}
    weight = float(vectors["own"][0])
    for name, term in terms.items():
        factor = weight if term.weighted else 1.0
        if not term.holds(vectors[name], factor):
            raise Malformed(f"the term {name} of the reply is not finite or out of bounds")
    if not weight > 0:
        raise Malformed("the reply's weight is not above 0")
    return vectors
