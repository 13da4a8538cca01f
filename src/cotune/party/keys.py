"""A party's secrets: what it shares with each other party, and its shares in the key agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np

from cotune.errors import Malformed, UsageError
from cotune.party.task import Label, Reply, Task
from cotune.privacy.agent import messages as agent

if TYPE_CHECKING:
    from cotune.party.party import Party
    from cotune.privacy.client import Agent
    from cotune.privacy.masks import Pairs

#: A total of fewer parties would tell what one of them has.
FEWEST = 2

Key = Annotated[bytes, msgspec.Meta(max_length=32)]
#: Bytes of a public key, a ciphertext or a decryption share, and of a part of an evaluation key,
#: at most: they have 0.4 to 3.7 and 7 to 9.5 million in the schemes of `agent.schemes`.
MOST_CIPHERTEXT, MOST_SWITCH = 4_000_000, 12_000_000
Ciphertext = Annotated[bytes, msgspec.Meta(max_length=MOST_CIPHERTEXT)]
SwitchPart = Annotated[bytes, msgspec.Meta(max_length=MOST_SWITCH)]


class Aim(msgspec.Struct, frozen=True):
    """What of a total is to be known: all of it, where it reaches `least`, or quotients.

    Quotients are of sums by counts that lie in `low`..`high`: see the task's `fractions`. They, and
    comparisons that are `approximate`, are PrivTuna's own protocols, under encryption only;
    elsewhere the total is told.
    """

    least: Annotated[int, msgspec.Meta(ge=0, le=8)] = 0
    low: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    high: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    approximate: bool = False

    @property
    def scheme(self) -> Literal["sum", "mask", "density", "mean"]:
        """Of the key agent, see `cotune.privacy.agent.messages.Scheme`."""
        if self.high:
            return "mean"
        if self.least:
            return "density" if self.approximate else "mask"
        return "sum"


WHOLE = Aim()


class Keyed(msgspec.Struct, frozen=True):
    """Under which keys a sum is asked for, and of whom: masks must cancel among these."""

    session: Label
    among: tuple[str, ...]
    aim: Aim = WHOLE
    #: Of the sum in its session: masks are used for one, however often it is begun.
    number: int = 0
    #: A total of fewer parties is not to be opened.
    fewest: int = FEWEST


class Masked(msgspec.Struct, frozen=True):
    """The last sum that a party masked: which one, of what, and as what."""

    keyed: Keyed
    digits: bytes
    made: bytes


class NoKeys(UsageError):
    """The party does not have the keys that it was asked to use: it was restarted, say."""


class Keys:
    """What a party must not give away. It lasts as long as the party's process."""

    def __init__(self, name: str, start_agent: Callable[[], Agent]) -> None:
        self._name = name
        self._start_agent = start_agent
        self._pairs: Pairs | None = None
        self._session = ""
        self._masked: Masked | None = None
        self._gone: frozenset[str] = frozenset()
        #: Which scheme a session is of, and which agent has the party's share in it.
        self._dealt: dict[str, tuple[agent.Scheme, Agent]] = {}

    def introduce(self) -> bytes:
        """A fresh pair of keys for masks; the public one."""
        from cotune.privacy.masks import Pairs

        self._pairs, self._session = Pairs(self._name), ""
        return self._pairs.public

    def meet(self, roster: dict[str, bytes]) -> None:
        """Agree on secrets, once for each key: masks would come again otherwise."""
        from cotune.privacy.masks import name_of

        if self._pairs is None:
            raise NoKeys("the party has no keys: it was restarted since")
        if self._session:
            raise Malformed("the party's key was used for another roster before")
        self._pairs.meet(roster)
        self._session, self._masked, self._gone = name_of(roster), None, frozenset()

    def mask(self, digits: np.ndarray, keyed: Keyed) -> bytes:
        """The digits under the masks of this sum. They are used once: asked again, it is the same.

        Sums are numbered, so that no mask can be asked for a second time.
        """
        pairs, last, values = self._of_session(keyed.session), self._masked, digits.tobytes()
        if last is not None and last.keyed == keyed and last.digits == values:
            return last.made
        if last is not None and keyed.number <= last.keyed.number:
            raise Malformed("the masks of this sum were used before")
        if len(set(keyed.among)) < FEWEST or self._name not in keyed.among:
            raise Malformed(f"a private total needs {FEWEST} parties, this one among them")
        if not pairs.knows(keyed.among):
            raise NoKeys("the party has no keys with some of the others")
        made = pairs.mask(digits, keyed.among, _label(keyed)).tobytes()
        self._masked, self._gone = Masked(keyed, values, made), frozenset()
        return made

    def reveal(self, session: str, number: int, gone: tuple[str, ...]) -> dict[str, bytes]:
        """The keys of this sum's streams with parties that did not answer, and no others'."""
        pairs, last = self._of_session(session), self._masked
        if last is None or last.keyed.number != number:
            raise Malformed("the party did not answer in that sum")
        among, all_gone = set(last.keyed.among), self._gone | set(gone)
        fewest = max(FEWEST, last.keyed.fewest)
        if not all_gone <= among - {self._name} or len(among - all_gone) < fewest:
            raise Malformed(f"fewer than {fewest} parties would be left in the total")
        self._gone = all_gone
        return {other: pairs.stream_key(other, _label(last.keyed)) for other in gone}

    def _of_session(self, session: str) -> Pairs:
        if self._pairs is None or not session or session != self._session:
            raise NoKeys("the party does not have the keys of this sum")
        return self._pairs

    def encrypt(self, values: Sequence[np.ndarray], keyed: Keyed) -> tuple[bytes, ...]:
        """Ciphertexts of vectors, one after the other, under the joint key of the session.

        Digits and counts that are compared exactly are whole numbers; what is compared or divided
        approximately is scaled to small floating-point numbers.
        """
        if len(set(keyed.among)) < FEWEST:
            raise Malformed(f"a private total needs {FEWEST} parties")
        dealt = self._dealt.get(keyed.session)
        if dealt is None or dealt[0].name != keyed.aim.scheme:
            raise NoKeys("the party has no keys for a sum of this kind")
        written = [_scaled(vector, keyed.aim, dealt[0].parties) for vector in values]
        holder = self.holder(keyed.session)
        made = [self.ask(agent.Encrypt(**holder, values=one)).made for one in written]
        return tuple(ciphertext for ciphertexts in made for ciphertext in ciphertexts)

    def deal(self, session: str, scheme: agent.Scheme, lead: bytes | None) -> tuple[bytes, ...]:
        """Make a share of a new joint key; that of the scheme's last session is forgotten."""
        key_agent = self._start_agent()
        for name, (earlier, holds) in list(self._dealt.items()):
            if earlier.name == scheme.name:
                del self._dealt[name]
                if holds is key_agent:
                    key_agent.ask(agent.Forget(self._name, name))
        made = key_agent.ask(agent.Generate(self._name, session, scheme, lead)).made
        self._dealt[session] = scheme, key_agent
        return (made,)

    def ask(self, message: agent.HolderAsk) -> Any:
        """Let the key agent do what only the party's share can do."""
        from cotune.privacy.client import AgentError

        key_agent = self._start_agent()
        dealt = self._dealt.get(message.session)
        if dealt is None or dealt[1] is not key_agent:
            raise NoKeys("the party does not have a share in the joint key")
        try:
            return key_agent.ask(message)
        except AgentError as error:
            raise NoKeys("the party's key agent has died, and its share with it") from error

    def holder(self, session: str) -> dict[str, str]:
        return {"holder": self._name, "session": session}


def _label(keyed: Keyed) -> str:
    """Names a sum among all that these keys are used for."""
    return f"{keyed.session} {keyed.number}"


def _scaled(values: np.ndarray, aim: Aim, parties: int) -> bytes:
    """Numbers as the key agent takes them for this aim."""
    from cotune.privacy.agent.approximate import Divisor, Threshold

    if aim.scheme in ("sum", "mask"):
        whole = np.minimum(values, aim.least) if aim.least else values
        return bytes(whole.astype("<i8").tobytes())
    told = Divisor(aim.low, aim.high) if aim.high else Threshold(parties, aim.least)
    return np.array(told.scaled(values.tolist()), dtype="<f8").tobytes()


class OfKeys(Task, frozen=True):
    """A task about keys alone: it tells nothing of the data, and may be asked in any run."""

    instead = ""
    needs_problem = False

    def most_bytes(self, problem: Any) -> int:
        return 64


class PublicKey(Reply, frozen=True):
    key: bytes


class Acknowledged(Reply, frozen=True):
    """That is all."""


class Introduce(OfKeys, frozen=True):
    """Make a fresh key for masks."""

    discloses = "a public key, made of random numbers for this purpose"
    reply = PublicKey

    def perform(self, party: Party) -> PublicKey:
        return PublicKey(party.keys.introduce())

    def check(self, reply: PublicKey, problem: Any) -> None:
        if len(reply.key) != 32:
            raise Malformed("the reply's public key has not 32 bytes")


class Acquaint(OfKeys, frozen=True):
    """Agree on a secret with each other party, by its public key."""

    discloses = "that it received the others' public keys"
    reply = Acknowledged

    roster: dict[str, Key]

    def perform(self, party: Party) -> Acknowledged:
        party.keys.meet(self.roster)
        return Acknowledged()


class Streams(Reply, frozen=True):
    """Keys of the masks with parties that are gone, by these."""

    keys: dict[str, bytes]


class Reveal(OfKeys, frozen=True):
    """Tell the masks with parties that did not answer, so that they can be taken off the total."""

    discloses = (
        "the random masks that it and a party which did not answer would have cancelled in this "
        "sum; they are of no other use, unless that party's part comes after all"
    )
    reply = Streams

    session: Label
    number: int
    gone: tuple[str, ...]

    def most_bytes(self, problem: Any) -> int:
        return 64 + sum(len(name.encode()) + 64 for name in self.gone)

    def perform(self, party: Party) -> Streams:
        return Streams(party.keys.reveal(self.session, self.number, self.gone))

    def check(self, reply: Streams, problem: Any) -> None:
        if set(reply.keys) != set(self.gone) or any(len(key) != 32 for key in reply.keys.values()):
            raise Malformed("the reply does not have the masks that were asked for")


class Sealed(Reply, frozen=True):
    """What the key agent made: keys and ciphertexts, sealed by it."""

    made: tuple[bytes, ...]


def _check_one(reply: Sealed) -> None:
    if len(reply.made) != 1:
        raise Malformed("the reply has not one part of a key")


class Deal(OfKeys, frozen=True):
    """Make a share of a joint key; the lead goes first, the others build on its public part."""

    discloses = "the public part of its key share, made of random numbers for this purpose"
    reply = Sealed

    session: Label
    scheme: agent.Scheme
    lead: Ciphertext | None = None

    def most_bytes(self, problem: Any) -> int:
        return MOST_CIPHERTEXT

    def perform(self, party: Party) -> Sealed:
        return Sealed(party.keys.deal(self.session, self.scheme, self.lead))

    def check(self, reply: Sealed, problem: Any) -> None:
        _check_one(reply)


class Switch(OfKeys, frozen=True):
    """The first of two rounds to a key with which ciphertexts can be multiplied."""

    discloses = "a part of the joint evaluation key, which decrypts nothing"
    reply = Sealed

    session: Label
    lead: SwitchPart | None = None

    def most_bytes(self, problem: Any) -> int:
        return MOST_SWITCH

    def perform(self, party: Party) -> Sealed:
        made = party.keys.ask(agent.Switch(**party.keys.holder(self.session), lead=self.lead))
        return Sealed((made.made,))

    def check(self, reply: Sealed, problem: Any) -> None:
        _check_one(reply)


class Relinearise(OfKeys, frozen=True):
    """The second of these rounds."""

    discloses = "a part of the joint evaluation key, which decrypts nothing"
    reply = Sealed

    session: Label
    joined: SwitchPart

    def most_bytes(self, problem: Any) -> int:
        return MOST_SWITCH

    def perform(self, party: Party) -> Sealed:
        made = party.keys.ask(
            agent.Relinearise(**party.keys.holder(self.session), joined=self.joined)
        )
        return Sealed((made.made,))

    def check(self, reply: Sealed, problem: Any) -> None:
        _check_one(reply)


class Adopt(OfKeys, frozen=True):
    """Encrypt with this joint public key from now on; earlier keys are forgotten."""

    discloses = "that it received the joint public key"
    reply = Acknowledged

    session: Label
    public: Ciphertext

    def perform(self, party: Party) -> Acknowledged:
        party.keys.ask(agent.Adopt(**party.keys.holder(self.session), public=self.public))
        return Acknowledged()


class Refresh(OfKeys, frozen=True):
    """This party's part in restoring ciphertexts that can bear no more products.

    Distributed bootstrapping: they are decrypted under a common random mask, and encrypted anew.
    """

    discloses = (
        "its share of the decryption of an intermediate result under a random mask, from which "
        "nothing follows"
    )
    reply = Sealed

    session: Label
    asked: tuple[Ciphertext, ...]
    common: tuple[Ciphertext, ...]

    def most_bytes(self, problem: Any) -> int:
        return 64 + 2 * len(self.asked) * MOST_CIPHERTEXT

    def perform(self, party: Party) -> Sealed:
        made = party.keys.ask(
            agent.Refresh(**party.keys.holder(self.session), asked=self.asked, common=self.common)
        )
        return Sealed(made.made)


class Decrypt(OfKeys, frozen=True):
    """This party's part in the decryption of a total; all parties' parts are needed."""

    discloses = (
        "its share of the decryption of a total over all parties that took part, from which "
        "nothing follows without the shares of all others"
    )
    reply = Sealed

    session: Label
    ciphertexts: tuple[Ciphertext, ...]

    def most_bytes(self, problem: Any) -> int:
        return 64 + len(self.ciphertexts) * MOST_CIPHERTEXT

    def perform(self, party: Party) -> Sealed:
        made = party.keys.ask(
            agent.Decrypt(**party.keys.holder(self.session), ciphertexts=self.ciphertexts)
        )
        return Sealed(made.made)

    def check(self, reply: Sealed, problem: Any) -> None:
        if len(reply.made) != len(self.ciphertexts):
            raise Malformed("the reply has not one share for each ciphertext")


TASKS: tuple[type[Task], ...] = (
    Introduce, Acquaint, Reveal, Deal, Switch, Relinearise, Adopt, Refresh, Decrypt,
)  # fmt: skip
