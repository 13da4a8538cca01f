"""The coordinator's part in private sums: keys are agreed and totals are opened."""

from __future__ import annotations

import math
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import msgspec
import numpy as np

from cotune.coordinator.exchange import Exchange
from cotune.errors import CotuneError, FederationError, Malformed, Unusable, UsageError
from cotune.party.keys import (
    FEWEST,
    MOST_CIPHERTEXT,
    WHOLE,
    Acquaint,
    Adopt,
    Aim,
    Deal,
    Decrypt,
    Introduce,
    Keyed,
    PublicKey,
    Refresh,
    Relinearise,
    Reveal,
    Sealed,
    Streams,
    Switch,
)
from cotune.party.task import FRAME, Reply, Task
from cotune.privacy.agent import messages as agent
from cotune.privacy.agent.envelope import Kind, Refused, Seal
from cotune.privacy.fixed import WIDTHS
from cotune.problem import Privacy as Privacy
from cotune.protocol.wire import Refusal

if TYPE_CHECKING:
    from cotune.privacy.client import Agent

#: Numbers in one ciphertext.
RING = 8192
#: Bytes of a ciphertext of the scheme "sum", at most: it has 394,538.
MOST_SUMMAND = 400_000
#: That can add up under one joint key: see `cotune.privacy.agent.schemes`.
MOST_PARTIES = 200

MODES: tuple[Privacy, ...] = ("plain", "masked", "encrypted")


class Again(Exception):
    """A party whose part was needed is gone: the others must agree on keys anew."""


class Private(ABC):
    """One way of adding up without seeing what is added."""

    verb: ClassVar[Literal["masked", "encrypted"]]
    #: Whether a party that does not answer leaves the others unable to open the total.
    needs_all: ClassVar[bool]

    @abstractmethod
    def agree(
        self, exchange: Exchange, parties: Sequence[str], fewest: int, aim: Aim = WHOLE
    ) -> Keyed:
        """See to it that these parties have keys; those that could not be reached are left out.

        What of the total is to be known decides which keys. A total of fewer than `fewest` parties
        will not be opened.
        """

    @abstractmethod
    def most_bytes(self, slots: int, aim: Aim = WHOLE) -> int:
        """What one party and the coordinator send each other for a sum, about, new keys too."""

    @abstractmethod
    def longest_part(self, slots: int, aim: Aim = WHOLE) -> int:
        """Bytes of a reply with one party's part, at most."""

    @abstractmethod
    def check(self, part: Any, slots: int, aim: Aim = WHOLE) -> None:
        """Raise `Malformed` if a party's part cannot be added up."""

    @abstractmethod
    def total(
        self, exchange: Exchange, keyed: Keyed, told: Mapping[str, Any], slots: int
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        """The total of the digits (int64), and of whom; `told` is by the parties that answered."""

    @abstractmethod
    def forget(self) -> None:
        """Agree on new keys before the next total."""


class Masked(Private):
    """Pairwise masks, see `cotune.privacy.masks`; a party may drop out at any time."""

    verb = "masked"
    needs_all = False

    def __init__(self) -> None:
        self._session = ""
        self._met: frozenset[str] = frozenset()
        self._sums = 0

    def agree(
        self, exchange: Exchange, parties: Sequence[str], fewest: int, aim: Aim = WHOLE
    ) -> Keyed:
        from cotune.privacy.masks import name_of

        if not self._met.issuperset(parties):
            told = exchange.ask(dict.fromkeys(parties, Introduce()))
            roster = {party: cast(PublicKey, reply).key for party, reply in told.items()}
            self._met = frozenset(exchange.ask(dict.fromkeys(roster, Acquaint(roster))))
            self._session = name_of(roster)
        self._sums += 1
        among = tuple(party for party in parties if party in self._met)
        return Keyed(self._session, among, number=self._sums, fewest=fewest)

    def most_bytes(self, slots: int, aim: Aim = WHOLE) -> int:
        return 8 * slots + FRAME

    def longest_part(self, slots: int, aim: Aim = WHOLE) -> int:
        return 8 * slots + FRAME

    def check(self, part: Any, slots: int, aim: Aim = WHOLE) -> None:
        if len(part) != 8 * slots:
            raise Malformed("the reply has another length than the task asked for")

    def total(
        self, exchange: Exchange, keyed: Keyed, told: Mapping[str, Any], slots: int
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        from cotune.privacy.masks import signed

        counted = {party: np.frombuffer(vector, dtype="<u8") for party, vector in told.items()}
        revealed: dict[str, dict[str, bytes]] = {party: {} for party in counted}
        while gone := set(keyed.among) - counted.keys():
            asked = {
                party: Reveal(keyed.session, keyed.number, tuple(sorted(unknown)))
                for party in counted
                if (unknown := gone - revealed[party].keys())
            }
            if not asked:
                break
            check_enough(counted, keyed.fewest, exchange.failures)
            replies = exchange.ask(asked)
            for party in asked:
                if party in replies:
                    revealed[party] |= cast(Streams, replies[party]).keys
                else:
                    del counted[party]
        check_enough(counted, keyed.fewest, exchange.failures)
        total = np.zeros(slots, dtype=np.uint64)
        for party, vector in counted.items():
            total += vector
            for other, key in revealed[party].items():
                total -= signed(party, other, key, slots)
        return total.view(np.int64), tuple(counted)

    def forget(self) -> None:
        self._met = frozenset()


class Joint(msgspec.Struct, frozen=True):
    """A joint key that was agreed on: who has a share of it, the lead first."""

    session: str
    scheme: agent.Scheme
    holders: tuple[str, ...]
    #: Which key agent of the coordinator knows the session, by its process.
    process: int

    @property
    def seal(self) -> Seal:
        return Seal(self.session, self.scheme)


class Encrypted(Private):
    """Threshold homomorphic encryption: every party has a key share, the coordinator has none."""

    verb = "encrypted"
    needs_all = True

    def __init__(self) -> None:
        self._joint: dict[str, Joint] = {}  # by the name of the scheme

    def agree(
        self, exchange: Exchange, parties: Sequence[str], fewest: int, aim: Aim = WHOLE
    ) -> Keyed:
        name = aim.scheme
        if name not in self._joint or not self._fits(self._joint[name], parties, aim):
            self._close(name)
            bits = WIDTHS["encrypted"] if name == "sum" else 0
            scheme = agent.Scheme(name, max(FEWEST, len(parties)), bits, aim.least or 8)
            self._joint[name] = self._deal(exchange, parties, scheme)
        joint = self._joint[name]
        among = tuple(party for party in parties if party in joint.holders)
        return Keyed(joint.session, among, aim, fewest=fewest)

    def most_bytes(self, slots: int, aim: Aim = WHOLE) -> int:
        if aim.scheme != "sum":
            return 80_000_000
        return 2_400_000 + 1_000_000 * math.ceil(slots / RING)

    def longest_part(self, slots: int, aim: Aim = WHOLE) -> int:
        """Two ciphertexts for as many numbers as one holds, but one where they are added only."""
        each = MOST_SUMMAND if aim.scheme == "sum" else 2 * MOST_CIPHERTEXT
        return each * math.ceil(slots / RING) + FRAME

    @staticmethod
    def _fits(joint: Joint, parties: Sequence[str], aim: Aim) -> bool:
        known = joint.process == _coordinators_agent().pid
        return known and set(parties) <= set(joint.holders) and aim.least in (0, joint.scheme.least)

    def _deal(self, exchange: Exchange, parties: Sequence[str], scheme: agent.Scheme) -> Joint:
        """Joint key generation; the joint public key is the sum of the parties' parts."""
        session = secrets.token_hex(12)
        lead, *others = parties
        first = exchange.ask({lead: Deal(session, scheme)})
        if not first:
            raise Again
        deal = Deal(session, scheme, _made(first, lead))
        told = first | exchange.ask(dict.fromkeys(others, deal))
        check_enough(told, FEWEST, exchange.failures)
        joint = Joint(session, scheme, tuple(told), _coordinators_agent().pid)
        self._ask(agent.Open(session, scheme))
        try:
            public = self._ask(agent.JoinKeys(session, tuple(_made(told, p) for p in told))).made
            if scheme.name != "sum":
                self._relinearise(exchange, joint)
            self._needed(exchange, joint, Adopt(session, public))
        except BaseException:
            self._ask(agent.Close(session))
            raise
        return joint

    def _relinearise(self, exchange: Exchange, joint: Joint) -> None:
        """A key with which ciphertexts can be multiplied, in two rounds."""
        lead, *others = joint.holders
        first = exchange.ask({lead: Switch(joint.session)})
        if not first:
            raise Again
        switch = Switch(joint.session, _made(first, lead))
        told = first | exchange.ask(dict.fromkeys(others, switch))
        if told.keys() != set(joint.holders):
            raise Again
        parts = tuple(_made(told, party) for party in joint.holders)
        joined = self._ask(agent.JoinSwitches(joint.session, parts)).made
        told = self._needed(exchange, joint, Relinearise(joint.session, joined))
        parts = tuple(_made(told, party) for party in joint.holders)
        self._ask(agent.JoinRelinearisations(joint.session, parts))

    def check(self, part: Any, slots: int, aim: Aim = WHOLE) -> None:
        joint = self._joint[aim.scheme]
        if aim.scheme == "sum" and len(part) != math.ceil(slots / RING):
            raise Malformed("the reply has another number of ciphertexts than was asked for")
        try:
            for ciphertext in part:
                joint.seal.open(ciphertext, Kind.SUMMAND)
        except Refused as error:
            raise Malformed(f"the reply has a ciphertext that is none: {error}") from error

    def total(
        self, exchange: Exchange, keyed: Keyed, told: Mapping[str, Any], slots: int
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        check_enough(told, keyed.fewest, exchange.failures)
        joint, aim = self._joint[keyed.aim.scheme], keyed.aim
        results = self._results(exchange, joint, aim, list(told.values()))
        replies = self._needed(exchange, joint, Decrypt(joint.session, results))
        shares = tuple(cast(Sealed, replies[party]).made for party in joint.holders)
        fused = self._ask(agent.Fuse(joint.session, shares, slots)).values
        kind = "<i8" if aim.scheme in ("sum", "mask") else "<f8"
        return np.frombuffer(fused, dtype=kind), tuple(told)

    def _results(
        self, exchange: Exchange, joint: Joint, aim: Aim, told: Sequence[tuple[bytes, ...]]
    ) -> tuple[bytes, ...]:
        """What is to be decrypted: the totals, or what is computed from them under encryption."""
        session = joint.session
        if aim.scheme == "mean":
            half = len(told[0]) // 2
            sums = self._ask(agent.Add(session, tuple(part[:half] for part in told))).made
            counts = self._ask(agent.Add(session, tuple(part[half:] for part in told))).made
            made = self._ask(agent.Divide(session, sums, counts, aim.low, aim.high))
        else:
            made = self._ask(agent.Add(session, tuple(told)))
            if aim.least:
                made = self._ask(agent.Reaching(session, made.made, aim.least))
        while isinstance(made, agent.Wanting):
            refresh = Refresh(session, made.asked, made.common)
            replies = self._needed(exchange, joint, refresh)
            parts = tuple(cast(Sealed, replies[party]).made for party in joint.holders)
            made = self._ask(agent.Refreshed(session, parts))
        results: tuple[bytes, ...] = made.made
        return results

    def _needed(self, exchange: Exchange, joint: Joint, task: Task) -> dict[str, Reply]:
        """The replies of all that have a share: without one of them nothing can be done."""
        replies = exchange.ask(dict.fromkeys(joint.holders, task))
        if replies.keys() != set(joint.holders):
            raise Again
        return replies

    def forget(self) -> None:
        for name in list(self._joint):
            self._close(name)

    def _close(self, name: str) -> None:
        joint = self._joint.pop(name, None)
        if joint is not None:
            with suppress(CotuneError, Again):  # the agent may have been restarted since
                self._ask(agent.Close(joint.session))

    def _ask(self, message: agent.SessionAsk) -> Any:
        from cotune.privacy.client import AgentError

        try:
            return _coordinators_agent().ask(message)
        except AgentError as error:
            raise Again from error
        except Malformed as error:
            raise FederationError(
                f"a private total did not come about ({error}): one of the parties sent a key, a "
                "ciphertext or a share that is none, and which one cannot be told; resume"
            ) from error


_started: list[Agent] = []
_starting = threading.Lock()


def _coordinators_agent() -> Agent:
    """One for all federations of this process; it has no share of any key."""
    from cotune.privacy.client import Agent

    with _starting:
        if _started and not _started[0].alive:
            _started.pop().close()
        if not _started:
            _started.append(Agent())
        return _started[0]


def _made(told: Mapping[str, Reply], party: str) -> bytes:
    """The one thing that the party's key agent made."""
    return cast(Sealed, told[party]).made[0]


def private(mode: Privacy) -> Private | None:
    """How totals are made in this mode; None is in the clear."""
    if mode == "plain":
        return None
    return Masked() if mode == "masked" else Encrypted()


def ready(mode: Privacy) -> None:
    """Refuse, before any work is done, a mode for which something is not installed."""
    if mode == "masked" and find_spec("cryptography") is None:
        raise UsageError("masked sums need the package cryptography: pip install 'cotune[privacy]'")
    if mode == "encrypted":
        from cotune.privacy.doctor import interpreter

        interpreter()


def check_parties(mode: Privacy, parties: int) -> None:
    """Refuse federations that are too small or too large for the mode."""
    if mode != "plain" and parties < FEWEST:
        raise UsageError(f"a private total needs {FEWEST} parties, and there is {parties}")
    if mode == "encrypted" and parties > MOST_PARTIES:
        raise UsageError(
            f"encrypted sums are for at most {MOST_PARTIES} parties, and there are {parties}: use "
            "privacy='masked'"
        )


def missing(failures: Mapping[str, Refusal], sentence: str) -> FederationError:
    """The error that says why parties are missing."""
    if failures and all(no.code == "data" for no in failures.values()):
        return Unusable(sentence, reason=next(iter(failures.values())).sentence)
    return FederationError(sentence)


def check_enough(
    parties: Collection[str], fewest: int, failures: Mapping[str, Refusal] = {}
) -> None:
    """A total is opened for the quorum only, and never for one party: it would tell its figures."""
    if len(parties) < fewest:
        first = [*failures.items()][:1]
        why = "".join(f"; {party}: {no.sentence}" for party, no in first)
        refused = any(no.code == "refused" for _, no in first)  # which says what to ask for instead
        raise missing(
            failures,
            f"{len(parties)} of the parties can be added up, {fewest} are needed for a private "
            f"total{why}{'' if refused else '. Mend it and resume'}",
        )
