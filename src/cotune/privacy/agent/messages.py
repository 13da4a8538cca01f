"""What is said to the key agent, and what it answers.

No message carries a secret share, a row or code. `bytes` fields that hold keys or ciphertexts are
sealed (`envelope.py`): whoever passes them on need not understand them. Both interpreters import
this module, and the agent's can be CPython 3.10.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Scheme(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a session computes. All its members must name the same scheme, or nothing fits.

    "sum": integers with |v| < 2**bits, totals over at most `parties` parties are exact.
    "mask": counts; which totals reach a threshold of at most `least`. `bits` is not used.
    "mean": totals of real numbers divided by totals, approximately; neither total is told.
    "density": the same as "mask" in the arithmetic of "mean", as PrivTuna has it.

    For the last two (CKKS), parties encrypt what `Divisor.scaled` and `Threshold.scaled` of
    `approximate.py` make of their numbers. `Divide` and `Reaching` must name the same range or
    threshold, or the results are wrong; of a threshold, `parties` is the scheme's.
    """

    name: Literal["sum", "mask", "mean", "density"]
    parties: int
    bits: int = 0
    least: int = 8


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Anything that travels; the class name is its tag."""


class OfHolder(Message, frozen=True):
    """For the share that `holder` has in `session`. One agent may hold shares of several."""

    holder: str
    session: str


class OfSession(Message, frozen=True):
    """For the coordinator's side of `session`, which has no secret."""

    session: str


class Generate(OfHolder, frozen=True):
    """Make a key share; answers its public part. Without `lead`'s public part it is the lead's."""

    scheme: Scheme
    lead: bytes | None = None


class Switch(OfHolder, frozen=True):
    """First round of the relinearisation key. The lead goes first, the others get its answer."""

    lead: bytes | None = None


class Relinearise(OfHolder, frozen=True):
    """Second round, with what `JoinSwitches` answered."""

    joined: bytes


class Adopt(OfHolder, frozen=True):
    """Encrypt under this joint public key from now on."""

    public: bytes


class Encrypt(OfHolder, frozen=True):
    """Encrypt numbers, little-endian, one after another.

    They are int64 for the schemes "sum" and "mask", float64 from -1 to 1 for the others.
    """

    values: bytes


class Refresh(OfHolder, frozen=True):
    """This holder's part in a refresh, with what `Wanting` says; two objects for each ciphertext.

    A common element is answered once: a repetition would tell a decryption share.
    """

    asked: tuple[bytes, ...]
    common: tuple[bytes, ...]


class Decrypt(OfHolder, frozen=True):
    """This holder's shares of decrypting totals: each total once, never its own summand."""

    ciphertexts: tuple[bytes, ...]


class Forget(OfHolder, frozen=True):
    """Drop the share; what was encrypted for it cannot be decrypted any more."""


class Open(OfSession, frozen=True):
    """Begin the coordinator's side."""

    scheme: Scheme


class JoinKeys(OfSession, frozen=True):
    """The joint public key of all parties' public parts, the lead's first."""

    shares: tuple[bytes, ...]


class JoinSwitches(OfSession, frozen=True):
    """What all parties need for the second round, the lead's first."""

    shares: tuple[bytes, ...]


class JoinRelinearisations(OfSession, frozen=True):
    """The relinearisation key, kept here. Needed before `Reaching` and `Divide`."""

    shares: tuple[bytes, ...]


class Add(OfSession, frozen=True):
    """Totals of the parties' ciphertexts, position by position; each is added once only."""

    summands: tuple[tuple[bytes, ...], ...]


class Reaching(OfSession, frozen=True):
    """Compare totals, each once. The result can be decrypted, the totals cannot.

    Of a "mask" it is zero where the count is below `least`, else uniformly random. Of a "density"
    it is 0 or 1, and the answer may be `Wanting`.
    """

    totals: tuple[bytes, ...]
    least: int


class Divide(OfSession, frozen=True):
    """Divide totals of a "mean", each used once; the total counts lie within low..high.

    It may answer `Wanting`.
    """

    sums: tuple[bytes, ...]
    counts: tuple[bytes, ...]
    low: float
    high: float


class Refreshed(OfSession, frozen=True):
    """Go on after `Wanting`, with every holder's answer to `Refresh`, the lead's first."""

    parts: tuple[tuple[bytes, ...], ...]


class Fuse(OfSession, frozen=True):
    """Decrypt with all parties' decryption shares, the lead's first; `count` numbers."""

    shares: tuple[tuple[bytes, ...], ...]
    count: int


class Close(OfSession, frozen=True):
    """Forget the coordinator's side."""


class Made(Message, frozen=True):
    """One sealed object."""

    made: bytes


class Several(Message, frozen=True):
    """Sealed objects, in the order of what was asked."""

    made: tuple[bytes, ...]


class Wanting(Message, frozen=True):
    """A computation has run out of levels: ask every holder to `Refresh`, then say `Refreshed`."""

    asked: tuple[bytes, ...]
    common: tuple[bytes, ...]


class Values(Message, frozen=True):
    """Numbers, little-endian, one after another; int64 or float64 as in `Encrypt`.

    The mask of a "density" is 0.0 and 1.0.
    """

    values: bytes


class Done(Message, frozen=True):
    """Nothing to answer."""


class Wrong(Message, frozen=True):
    """The message was refused; nothing has changed."""

    sentence: str


HolderAsk = Generate | Switch | Relinearise | Adopt | Encrypt | Refresh | Decrypt | Forget
Join = JoinKeys | JoinSwitches | JoinRelinearisations
SessionAsk = Open | Join | Add | Reaching | Divide | Refreshed | Fuse | Close
Ask = HolderAsk | SessionAsk
Reply = Made | Several | Wanting | Values | Done | Wrong

encode = msgspec.msgpack.Encoder().encode
decode_ask = msgspec.msgpack.Decoder(Ask).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
