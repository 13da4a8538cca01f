"""What the coordinator does with keys and ciphertexts; it needs no secret."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from .approximate import Divisor, Refreshing, Wanted, refreshed, want
from .envelope import Kind, Opened, Refused, Seal, name_of
from .library import library
from .messages import (
    Add,
    Close,
    Divide,
    Done,
    Fuse,
    JoinKeys,
    JoinRelinearisations,
    JoinSwitches,
    Made,
    Open,
    Reaching,
    Refreshed,
    Reply,
    Scheme,
    SessionAsk,
    Several,
    Values,
    Wanting,
)
from .schemes import Kit, dumped, kit, loaded


@dataclass(frozen=True)
class Running:
    """A computation that waits for refreshes, by the digests of their common elements."""

    refreshing: Refreshing
    wanted: dict[bytes, Wanted]


@dataclass
class Session:
    """The coordinator's side of a session, and the digests of what was added and computed with."""

    scheme: Scheme
    seal: Seal
    kit: Kit
    members: int = 0
    tag: str = ""
    public: Any = None
    relinearisation: Any = None
    running: Running | None = None
    added: set[bytes] = field(default_factory=set)
    used: set[bytes] = field(default_factory=set)


class Evaluator:
    """All sessions of this process."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    @property
    def members(self) -> int:
        """Of all sessions together, at most."""
        return sum(session.scheme.parties for session in self._sessions.values())

    def answer(self, ask: SessionAsk) -> Reply:
        if isinstance(ask, Open):
            return self._open(ask)
        if ask.session not in self._sessions:
            raise Refused(f"no session {ask.session!r}: open it first")
        session = self._sessions[ask.session]
        if isinstance(ask, JoinKeys):
            return _join_keys(session, ask)
        if isinstance(ask, JoinSwitches):
            return _join_switches(session, ask)
        if isinstance(ask, JoinRelinearisations):
            return _join_relinearisations(session, ask)
        if isinstance(ask, Add):
            return _add(session, ask)
        if isinstance(ask, Reaching):
            return _reaching(session, ask)
        if isinstance(ask, Divide):
            return _divide(session, ask)
        if isinstance(ask, Refreshed):
            return _refreshed(session, ask)
        if isinstance(ask, Fuse):
            return _fuse(session, ask)
        return self._close(ask)

    def _open(self, ask: Open) -> Done:
        if ask.session in self._sessions:
            raise Refused(f"the session {ask.session!r} is open: close it first")
        self._sessions[ask.session] = Session(
            ask.scheme, Seal(ask.session, ask.scheme), kit(ask.scheme)
        )
        return Done()

    def _close(self, ask: Close) -> Done:
        del self._sessions[ask.session]
        return Done()


def _join_keys(session: Session, ask: JoinKeys) -> Made:
    if session.tag:
        raise Refused("this session's keys were joined before: begin a new session")
    if not 2 <= len(ask.shares) <= session.scheme.parties:
        raise Refused(
            f"2 to {session.scheme.parties} public key shares are joined, {len(ask.shares)} came"
        )
    opened = _from_each(session, ask.shares, Kind.LEAD_KEY, Kind.KEY)
    # The tag marks the key's ciphertexts, and tells them from those of any other key.
    tag = os.urandom(16).hex()
    joint = _joined(session, session.kit.context.MultiAddPubKeys, opened, tag)
    session.members, session.tag, session.public = len(opened), tag, joint
    return Made(session.seal.close(Kind.JOINT_KEY, dumped(joint)))


def _join_switches(session: Session, ask: JoinSwitches) -> Made:
    _check_members(session, ask.shares)
    opened = _from_each(session, ask.shares, Kind.LEAD_SWITCH, Kind.SWITCH)
    joint = _joined(session, session.kit.context.MultiAddEvalKeys, opened, session.tag)
    return Made(session.seal.close(Kind.JOINT_SWITCH, dumped(joint)))


def _join_relinearisations(session: Session, ask: JoinRelinearisations) -> Done:
    _check_members(session, ask.shares)
    opened = _from_each(session, ask.shares, Kind.RELINEARISATION, Kind.RELINEARISATION)
    session.relinearisation = _joined(
        session, session.kit.context.MultiAddEvalMultKeys, opened, session.tag
    )
    return Done()


def _add(session: Session, ask: Add) -> Several:
    """The totals. A replayed summand would count a party twice."""
    if not 2 <= len(ask.summands) <= session.scheme.parties:
        raise Refused(
            f"2 to {session.scheme.parties} parties are added up, {len(ask.summands)} came"
        )
    if len(set(map(len, ask.summands))) > 1 or not ask.summands[0]:
        raise Refused("the parties sent different numbers of ciphertexts, or none")
    opened = [[session.seal.open(one, Kind.SUMMAND) for one in party] for party in ask.summands]
    digests = [one.digest for party in opened for one in party]
    if session.added.intersection(digests) or len(set(digests)) < len(digests):
        raise Refused("a ciphertext came twice: each is added once only")
    if any(len({one.subject for one in position}) > 1 for position in zip(*opened, strict=True)):
        raise Refused("the parties encrypted different numbers of values, or the order is mixed up")
    totals = []
    for position in zip(*opened, strict=True):
        total = _ciphertext(session, position[0])
        for one in position[1:]:
            session.kit.context.EvalAddInPlace(total, _ciphertext(session, one))
        totals.append(session.seal.close(Kind.TOTAL, dumped(total), position[0].subject))
    session.added.update(digests)
    return Several(tuple(totals))


def _reaching(session: Session, ask: Reaching) -> Several | Wanting:
    """Each total once: the ratio of two products with the same random numbers tells the count."""
    opened = _unused(session, ask.totals)
    totals = [_ciphertext(session, one) for one in opened]
    return _begun(session, session.kit.reaching(totals, ask.least), opened)


def _divide(session: Session, ask: Divide) -> Several | Wanting:
    """Each total once: with another range it would give another number, and tell more."""
    opened = _unused(session, ask.sums + ask.counts)
    sums, counts = opened[: len(ask.sums)], opened[len(ask.sums) :]
    if [one.subject for one in sums] != [one.subject for one in counts]:
        raise Refused("the totals have different numbers of values: encrypt a count for each sum")
    divided = session.kit.divide(
        [_ciphertext(session, one) for one in sums],
        [_ciphertext(session, one) for one in counts],
        Divisor(ask.low, ask.high),
    )
    return _begun(session, divided, opened)


def _unused(session: Session, totals: Sequence[bytes]) -> list[Opened]:
    if session.relinearisation is None:
        raise Refused("there is no relinearisation key: join the parties' relinearisations first")
    if session.running is not None:
        raise Refused("the last computation waits for a refresh: send it, or begin a new session")
    opened = [session.seal.open(total, Kind.TOTAL) for total in totals]
    digests = [one.digest for one in opened]
    if session.used.intersection(digests) or len(set(digests)) < len(digests):
        raise Refused("a total came twice: each is used once only")
    if not opened:
        raise Refused("no totals came")
    return opened


def _begun(session: Session, refreshing: Refreshing, totals: Sequence[Opened]) -> Several | Wanting:
    answer = _advanced(session, refreshing, None)
    session.used.update(one.digest for one in totals)
    return answer


def _refreshed(session: Session, ask: Refreshed) -> Several | Wanting:
    if session.running is None:
        raise Refused("nothing waits for a refresh: ask for a comparison or a division first")
    _check_members(session, ask.parts)
    wanted = session.running.wanted
    if any(len(party) != 2 * len(wanted) for party in ask.parts):
        raise Refused(f"{len(wanted)} ciphertexts are refreshed, with two parts of each party")
    fresh = [
        _whole(session, name, one, [party[2 * i : 2 * i + 2] for party in ask.parts])
        for i, (name, one) in enumerate(wanted.items())
    ]
    return _advanced(session, session.running.refreshing, fresh)


def _advanced(
    session: Session, refreshing: Refreshing, fresh: list[Any] | None
) -> Several | Wanting:
    """Compute to the end, or to where the levels run out."""
    session.running = None
    # OpenFHE looks relinearisation keys up in a table of the whole process.
    library().ClearEvalMultKeys()
    session.kit.context.InsertEvalMultKey([session.relinearisation])
    try:
        asked = next(refreshing) if fresh is None else refreshing.send(fresh)
    except StopIteration as ended:
        results = map(session.kit.reduced, ended.value)
        return Several(tuple(session.seal.close(Kind.RESULT, dumped(one)) for one in results))
    finally:
        library().ClearEvalMultKeys()
    return _wanting(session, refreshing, asked)


def _wanting(session: Session, refreshing: Refreshing, asked: Sequence[Any]) -> Wanting:
    close = session.seal.close
    wanted = [want(session.kit.context, session.public, one) for one in asked]
    common = tuple(close(Kind.COMMON_ELEMENT, dumped(one.common)) for one in wanted)
    named = dict(zip(map(name_of, common), wanted, strict=True))
    session.running = Running(refreshing, named)
    told = (close(Kind.TO_REFRESH, dumped(one.asked), name) for name, one in named.items())
    return Wanting(tuple(told), common)


def _whole(
    session: Session, name: bytes, wanted: Wanted, parts: Sequence[tuple[bytes, ...]]
) -> Any:
    """The ciphertext with all its levels, of every party's masked part and mask."""
    masked = _from_each(session, [one for one, _ in parts], Kind.MASKED_PART, Kind.MASKED_PART)
    masks = _from_each(session, [one for _, one in parts], Kind.MASK, Kind.MASK)
    if any(one.subject != name for one in masked + masks):
        raise Refused("the parts are of another refresh")
    pairs = [
        (loaded(one, session.kit), loaded(other, session.kit))
        for one, other in zip(masked, masks, strict=True)
    ]
    return refreshed(session.kit.context, session.public, wanted, pairs)


def _fuse(session: Session, ask: Fuse) -> Values:
    _check_members(session, ask.shares)
    positions = session.kit.positions(ask.count)
    if ask.count < 1 or any(len(party) != positions for party in ask.shares):
        raise Refused(f"{ask.count} numbers are in {positions} ciphertexts, others were decrypted")
    plaintexts = []
    for position in zip(*ask.shares, strict=True):
        opened = _from_each(session, position, Kind.LEAD_SHARE, Kind.SHARE)
        if len({one.subject for one in opened}) > 1:
            raise Refused("the decryption shares are of different ciphertexts")
        shares = [loaded(one, session.kit) for one in opened]
        plaintexts.append(session.kit.context.MultipartyDecryptFusion(shares))
    return Values(session.kit.values(plaintexts, ask.count))


def _ciphertext(session: Session, opened: Opened) -> Any:
    """Loaded, if it is of this session's key."""
    ciphertext = loaded(opened, session.kit)
    if ciphertext.GetKeyTag() != session.tag:
        raise Refused("a ciphertext was encrypted under another joint public key")
    return ciphertext


def _from_each(session: Session, shares: Sequence[bytes], lead: Kind, other: Kind) -> list[Opened]:
    """One part of the lead, which comes first, and one of each other party."""
    opened = [session.seal.open(share, lead if i == 0 else other) for i, share in enumerate(shares)]
    if len({one.digest for one in opened}) < len(opened):
        raise Refused("one party's part came twice")
    return opened


def _joined(
    session: Session, join: Callable[[Any, Any, str], Any], opened: Sequence[Opened], tag: str
) -> Any:
    parts = (loaded(one, session.kit) for one in opened)
    return reduce(lambda one, other: join(one, other, tag), parts)


def _check_members(session: Session, shares: Sequence[object]) -> None:
    if not session.tag:
        raise Refused("the session has no joint public key: join the parties' keys first")
    if len(shares) != session.members:
        raise Refused(
            f"all {session.members} parties of the session must take part, {len(shares)} did"
        )
