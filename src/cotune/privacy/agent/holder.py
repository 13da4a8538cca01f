"""What is done with a secret key share. The share itself is in no answer."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from .envelope import Kind, Refused, Seal, name_of
from .messages import (
    Adopt,
    Decrypt,
    Done,
    Encrypt,
    Forget,
    Generate,
    HolderAsk,
    Made,
    OfHolder,
    Refresh,
    Relinearise,
    Reply,
    Several,
    Switch,
)
from .schemes import Kit, dumped, kit, loaded


@dataclass
class Share:
    """One holder's share in one session, and the digests of what it was used for.

    `refreshed` are those of common elements.
    """

    seal: Seal
    kit: Kit
    secret: Any
    lead: bool
    public: Any = None
    encrypted: set[bytes] = field(default_factory=set)
    refreshed: set[bytes] = field(default_factory=set)
    decrypted: set[bytes] = field(default_factory=set)


class Holders:
    """All shares of this process, by holder and session."""

    def __init__(self) -> None:
        self._shares: dict[tuple[str, str], Share] = {}

    @property
    def shares(self) -> int:
        return len(self._shares)

    def answer(self, ask: HolderAsk) -> Reply:
        if isinstance(ask, Generate):
            return self._generate(ask)
        share = self._share(ask)
        if isinstance(ask, Switch):
            return _switch(share, ask)
        if isinstance(ask, Relinearise):
            return _relinearise(share, ask)
        if isinstance(ask, Adopt):
            return _adopt(share, ask)
        if isinstance(ask, Encrypt):
            return _encrypt(share, ask)
        if isinstance(ask, Refresh):
            return _refresh(share, ask)
        if isinstance(ask, Decrypt):
            return _decrypt(share, ask)
        return self._forget(ask)

    def _share(self, ask: OfHolder) -> Share:
        try:
            return self._shares[ask.holder, ask.session]
        except KeyError:
            raise Refused(
                f"{ask.holder!r} has no key share in the session {ask.session!r}: generate one, or "
                "begin a new session if the agent was started again"
            ) from None

    def _generate(self, ask: Generate) -> Made:
        if (ask.holder, ask.session) in self._shares:
            raise Refused(f"{ask.holder!r} has a key share in {ask.session!r}: forget it first")
        tools, seal = kit(ask.scheme), Seal(ask.session, ask.scheme)
        if ask.lead is None:
            keys = tools.context.KeyGen()
        else:
            lead = loaded(seal.open(ask.lead, Kind.LEAD_KEY), tools)
            # Not a sparse key; fresh: only this party's part, the coordinator adds them up.
            keys = tools.context.MultipartyKeyGen(lead, False, True)
        is_lead = ask.lead is None
        made = seal.close(Kind.LEAD_KEY if is_lead else Kind.KEY, dumped(keys.publicKey))
        self._shares[ask.holder, ask.session] = Share(seal, tools, keys.secretKey, is_lead)
        return Made(made)

    def _forget(self, ask: Forget) -> Done:
        del self._shares[ask.holder, ask.session]
        return Done()


def _switch(share: Share, ask: Switch) -> Made:
    context, secret = share.kit.context, share.secret
    if share.lead and ask.lead is None:
        made = context.KeySwitchGen(secret, secret)
        return Made(share.seal.close(Kind.LEAD_SWITCH, dumped(made)))
    if share.lead or ask.lead is None:
        raise Refused("the lead begins the relinearisation key; the others need its part")
    lead = loaded(share.seal.open(ask.lead, Kind.LEAD_SWITCH), share.kit)
    made = context.MultiKeySwitchGen(secret, secret, lead)
    return Made(share.seal.close(Kind.SWITCH, dumped(made)))


def _relinearise(share: Share, ask: Relinearise) -> Made:
    joined = loaded(share.seal.open(ask.joined, Kind.JOINT_SWITCH), share.kit)
    made = share.kit.context.MultiMultEvalKey(share.secret, joined, joined.GetKeyTag())
    return Made(share.seal.close(Kind.RELINEARISATION, dumped(made)))


def _adopt(share: Share, ask: Adopt) -> Done:
    if share.public is not None:
        raise Refused("a joint public key was adopted before: begin a new session for another")
    share.public = loaded(share.seal.open(ask.public, Kind.JOINT_KEY), share.kit)
    return Done()


def _encrypt(share: Share, ask: Encrypt) -> Several:
    public, context = _joint(share), share.kit.context
    made = tuple(
        share.seal.close(
            Kind.SUMMAND,
            dumped(context.Encrypt(public, plaintext)),
            struct.pack(">QQ", len(ask.values), position),
        )
        for position, plaintext in enumerate(share.kit.plaintexts(ask.values))
    )
    share.encrypted.update(map(name_of, made))
    return Several(made)


def _refresh(share: Share, ask: Refresh) -> Several:
    """Parts that tell nothing about the numbers, as long as no common element comes twice."""
    public = _joint(share)
    if len(ask.asked) != len(ask.common):
        raise Refused("a refresh has a common element for each ciphertext")
    asked = [share.seal.open(sealed, Kind.TO_REFRESH) for sealed in ask.asked]
    common = [share.seal.open(sealed, Kind.COMMON_ELEMENT) for sealed in ask.common]
    names = [one.digest for one in common]
    if [one.subject for one in asked] != names:
        raise Refused("the common elements are not those of the ciphertexts")
    if share.refreshed.intersection(names) or len(set(names)) < len(names):
        raise Refused(
            "a common element is answered once only, and this one was: begin a new session if the "
            "answer was lost"
        )
    made: list[bytes] = []
    for one, other in zip(asked, common, strict=True):
        ciphertext, element = loaded(one, share.kit), loaded(other, share.kit)
        if ciphertext.GetKeyTag() != public.GetKeyTag():
            raise Refused("it was encrypted under another joint public key")
        masked, mask = share.kit.part(share.secret, ciphertext, element)
        made.append(share.seal.close(Kind.MASKED_PART, dumped(masked), other.digest))
        made.append(share.seal.close(Kind.MASK, dumped(mask), other.digest))
    share.refreshed.update(names)
    return Several(tuple(made))


def _decrypt(share: Share, ask: Decrypt) -> Several:
    """Flooded shares of totals.

    A second share of one ciphertext would let the flooding noise be averaged away.
    """
    public = _joint(share)
    wanted = (share.kit.decrypted, Kind.SUMMAND)
    opened = [share.seal.open(sealed, *wanted) for sealed in ask.ciphertexts]
    digests = [one.digest for one in opened]
    if share.encrypted.intersection(digests):
        raise Refused("this holder encrypted it itself: only totals are decrypted")
    if any(one.kind is Kind.SUMMAND for one in opened):
        raise Refused("it is one party's: only totals are decrypted")
    if share.decrypted.intersection(digests) or len(set(digests)) < len(digests):
        raise Refused("a ciphertext is decrypted once only, and this one was")
    ciphertexts = [loaded(one, share.kit) for one in opened]
    if any(one.GetKeyTag() != public.GetKeyTag() for one in ciphertexts):
        raise Refused("it was encrypted under another joint public key")
    context = share.kit.context
    decrypt = context.MultipartyDecryptLead if share.lead else context.MultipartyDecryptMain
    kind = Kind.LEAD_SHARE if share.lead else Kind.SHARE
    made = tuple(
        share.seal.close(
            kind, dumped(decrypt([share.kit.reduced(ciphertext)], share.secret)[0]), subject
        )
        for ciphertext, subject in zip(ciphertexts, digests, strict=True)
    )
    share.decrypted.update(digests)
    return Several(made)


def _joint(share: Share) -> Any:
    if share.public is None:
        raise Refused("there is no joint public key in this session: adopt it first")
    return share.public
