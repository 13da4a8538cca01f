"""The engine of real federations: NVIDIA FLARE, over mutual TLS.

Methods, journal and ledger stay in this process. It submits a small job (of the module `relay`)
that passes bytes to the sites and back; nothing of the user's is shipped. The job fails as a whole
when a site's part of it dies, and does not take in a site that comes later: then another one is
submitted, while the parties' own processes keep what they know.
"""

from __future__ import annotations

import base64
import gc
import logging
import math
import secrets
import time
import weakref
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from cotune import __version__
from cotune.coordinator.federation import Federation
from cotune.engines.nvflare.connection import BEAT, reachable
from cotune.engines.nvflare.kits import in_use, open_kit
from cotune.engines.nvflare.session import (
    COMMAND,
    RECONNECT,
    Broken,
    Gone,
    Server,
)
from cotune.engines.nvflare.signature import Signer
from cotune.errors import FederationError
from cotune.protocol.engine import Engine
from cotune.protocol.wire import Refusal, encode, too_long

log = logging.getLogger(__name__)

#: Seconds that the relay waits for replies before it answers that parties are still at work.
LONG_POLL = 3.0
#: Bytes of large replies, after which memory is tidied up.
LARGE = 1_000_000
#: Bytes that are sent in a second at least: large messages are given more time.
SLOWEST = 1e6
#: Seconds for which sites are awaited when a run begins; after the server was away, longer.
GATHERING = 10.0
#: Seconds after which a site that connects, but does not answer, is tried again; doubled each time.
AGAIN = 10.0
#: Seconds within which a submitted job must have started at the sites.
STARTING = 60.0
#: Commands in a row that a running relay may leave unanswered.
MISSES = 3
#: Seconds that the others are awaited once the job has started at one site.
JOINING = 10.0
#: How often a call is made anew because the relay broke under it.
ATTEMPTS = 4


class NvflareEngine(Engine):
    """Calls the parties of a federation that `cotune federation create` made.

    Parameters
    ----------
    kit
        The folder with the lead's start-up kit. One process can use it at a time.
    """

    def __init__(self, kit: str | Path) -> None:
        folder = Path(kit).absolute()
        self._kit = open_kit(folder, "lead")
        stack = ExitStack()
        stack.enter_context(in_use(folder))
        self._server = Server(folder, self._kit)
        stack.callback(self._server.close)
        self._close = weakref.finalize(self, stack.close)
        try:
            reachable(folder, self._kit)
        except FederationError:
            self.close()
            raise
        self._signer = Signer(folder, self._kit)
        self._relay: _Relay | None = None
        self._there: set[str] = set(self._kit.sites)  # sites that are expected to be connected
        self._tries: dict[str, tuple[int, float]] = {}  # in vain, and when the next is due
        self._fits: dict[str, int] = {}

    def parties(self) -> list[str]:
        return list(self._kit.sites)

    def call(
        self, messages: Mapping[str, bytes], timeout: float | None
    ) -> dict[str, bytes | Refusal]:
        """As every engine does; the time that connecting takes is not the parties'."""
        replies: dict[str, bytes | Refusal] = {}
        name = secrets.token_hex(8)
        refusal = Refusal("lost", "no reply came")
        try:
            for _ in range(ATTEMPTS):
                missing = {p: m for p, m in messages.items() if p not in replies}
                try:
                    relay = self._relay_to(missing)
                    until = time.monotonic() + (math.inf if timeout is None else timeout)
                    self._ask(relay, name, missing, replies, until)
                    refusal = Refusal("timeout", f"no reply within {timeout} seconds")
                    break
                except Gone as error:
                    refusal = Refusal("lost", str(error))
                    break
                except Broken as error:
                    self._relay = None
                    refusal = Refusal("lost", str(error))
                    log.warning("%s; connecting anew", error)
        except BaseException:  # Ctrl-C: nothing goes on in the background
            self._give_up(name)
            raise
        if refusal.code == "timeout" and messages.keys() > replies.keys():
            self._give_up(name)
        return {party: replies.get(party, refusal) for party in messages}

    def progress(self) -> int:
        return sum(self._fits.values())

    def close(self) -> None:
        self._close()

    def _ask(
        self,
        relay: _Relay,
        name: str,
        messages: Mapping[str, bytes],
        replies: dict[str, bytes | Refusal],
        until: float,
    ) -> None:
        """Fill in the replies as they come, until none is missing or the time is over."""
        for party in messages:
            if party not in relay.versions:
                replies[party] = self._absent(party)
            elif relay.versions[party] != __version__:
                replies[party] = Refusal(
                    "version",
                    f"cotune {relay.versions[party]} runs there, {__version__} here: install the "
                    "same version",
                )
        asked = {p: m for p, m in messages.items() if p not in replies}
        told = relay.call(name, asked, until, self.longest_reply)
        replies |= told.replies
        self._fits |= told.fits
        for party, why in told.lost.items():
            replies[party] = Refusal("lost", why)
            relay.versions.pop(party)  # until another relay finds it
            self._there.discard(party)
        if told.lost:
            relay.lost |= {p: self._server.heard().get(p) for p in told.lost}

    def _absent(self, party: str) -> Refusal:
        if party in self._tries and party in self._server.connected():
            return Refusal(
                "lost",
                f"the site {party} is connected, but its party does not answer: restart it there, "
                "and see that its kit is not used on two machines",
            )
        return Refusal(
            "lost",
            f"the site {party} is not connected: see that `cotune party start` runs there and "
            f"reaches {self._kit.host}:{self._kit.port}",
        )

    def _relay_to(self, parties: Iterable[str]) -> _Relay:
        """A relay that reaches these parties, as far as they are connected."""
        relay = self._relay
        if relay is not None:
            missing = [p for p in parties if p not in relay.versions]
            heard = self._server.heard() if missing else {}
            back = [p for p in missing if p in heard and self._is_back(p, relay.lost, heard[p])]
            if not back:
                return relay
            log.warning("connected again: %s", ", ".join(back))
            relay.end()
        self._relay = None
        sites = self._sites()
        self._relay = relay = _Relay.started(self._server, sites, self._signer)
        self._there = set(relay.versions)
        for party in sites - self._there:
            tries = self._tries.get(party, (0, 0.0))[0] + 1
            self._tries[party] = tries, time.monotonic() + AGAIN * 2**tries
        for party in self._there:
            self._tries.pop(party, None)
        return relay

    def _is_back(self, party: str, lost: Mapping[str, float | None], heard: float) -> bool:
        """Whether it has beaten since it was lost, and more than once: it may have been ending.

        A site that connects, but does not answer, is tried more and more rarely.
        """
        due = time.monotonic() >= self._tries.get(party, (0, 0.0))[1]
        last = lost.get(party)
        return due and (last is None or heard > last + 1.5 * BEAT)

    def _sites(self) -> set[str]:
        """The sites that are connected, after a while for those that may be on their way."""
        patient, waited = time.monotonic() + GATHERING, False
        if self._server.was_away:
            patient += RECONNECT
        while True:
            found = self._server.connected()
            if self._there <= found or time.monotonic() > patient:
                self._server.was_away = False
                return found
            if not waited:
                log.warning("waiting for %s", ", ".join(sorted(self._there - found)))
                waited = True
            time.sleep(0.5)

    def _give_up(self, name: str) -> None:
        """Tell the parties that nobody waits any more, if they can be told now."""
        if self._relay is not None and self._server.is_open:
            with suppress(Broken):
                self._relay.cancel(name)


def connect(kit: str | Path, *, quorum: float = 0.5, timeout: float | None = None) -> Federation:
    """The federation of real parties that a lead's start-up kit belongs to.

    Parameters
    ----------
    kit
        The folder into which the lead's zip of `cotune federation create` was unpacked.
    quorum, timeout
        See `Federation`.

    Examples
    --------
    >>> import cotune
    >>> with cotune.connect("anna") as federation:  # doctest: +SKIP
    ...     outcome = cotune.tune(federation, "flora", run="runs/first")
    """
    engine = NvflareEngine(kit)
    origin = {"kit": str(Path(kit).absolute()), "quorum": quorum, "timeout": timeout}
    return Federation(engine, quorum=quorum, timeout=timeout, origin=origin)


class _Told:
    """What came of a call."""

    def __init__(self) -> None:
        self.replies: dict[str, bytes] = {}
        self.lost: dict[str, str] = {}
        self.fits: dict[str, int] = {}


class _Relay:
    """A running relay job."""

    def __init__(self, server: Server, job: str, signer: Signer) -> None:
        self._server = server
        self._job = job
        self._signer = signer
        #: What runs at the sites that answer.
        self.versions: dict[str, str] = {}
        #: Sites that it does not reach, and when the server had last heard of them.
        self.lost: dict[str, float | None] = {}

    @classmethod
    def started(cls, server: Server, sites: set[str], signer: Signer) -> _Relay:
        """A new relay job at these sites; those that are slow to start it are not awaited long."""
        if not sites:
            raise Gone("no site is connected to the server: start them with `cotune party start`")
        relay = cls(server, server.submit(sites), signer)
        patient = time.monotonic() + STARTING
        while time.monotonic() < patient and relay.versions.keys() < sites:
            server.check_running(relay._job)
            told = relay._command({"op": "hello", "sites": sorted(sites), "wait": LONG_POLL})
            if told is None:
                time.sleep(0.2)
                continue
            versions = {site: str(told["sites"][site]) for site in sites & told["sites"].keys()}
            if versions and not relay.versions:
                patient = time.monotonic() + JOINING
            relay.versions = versions
        if not relay.versions:
            raise Broken("the relay job did not start at any site")
        heard = server.heard()
        relay.lost = {site: heard.get(site) for site in sites - relay.versions.keys()}
        return relay

    def call(self, name: str, messages: Mapping[str, bytes], until: float, longest: int) -> _Told:
        told, misses = _Told(), 0
        size = sum(map(len, set(messages.values())))
        if not messages:
            return told
        groups = _grouped(messages, self._signer)
        data: dict[str, Any] = {"op": "call", "id": name, "groups": groups}
        data["certificate"] = self._signer.certificate
        data["longest"] = longest
        data["too_long"] = base64.b64encode(
            encode(Refusal("malformed", too_long(longest)))
        ).decode()
        while len(told.replies) + len(told.lost) < len(messages):
            wait = max(0.0, min(LONG_POLL, until - time.monotonic()))
            patience = (COMMAND + size / SLOWEST) * 3**misses
            answer = self._command(data | {"have": list(told.replies), "wait": wait}, patience)
            if answer is None or not answer.keys() >= {"replies", "lost", "fits"}:
                misses += 1
                self._server.check_running(self._job)
                if misses == MISSES:
                    raise Broken("the relay job does not answer")
                time.sleep(0.5)
                continue
            misses = 0
            for party in messages.keys() & answer["replies"].keys():
                told.replies[party] = base64.b64decode(answer["replies"][party])
            if sum(map(len, answer["replies"].values())) > LARGE:
                gc.collect()  # NVFlare keeps what it received in cycles
            told.lost = {p: str(why) for p, why in answer["lost"].items() if p in messages}
            told.fits = {p: int(fits) for p, fits in answer["fits"].items() if p in messages}
            data = {"op": "collect", "id": name}
            if time.monotonic() > until:
                break
        return told

    def cancel(self, name: str) -> None:
        self._command({"op": "cancel", "id": name})

    def end(self) -> None:
        self._command({"op": "end"})

    def _command(self, data: dict[str, Any], patience: float = COMMAND) -> dict[str, Any] | None:
        return self._server.command(self._job, data, patience)


def _grouped(messages: Mapping[str, bytes], signer: Signer) -> list[tuple[list[str], str, str]]:
    """Parties by the message they get, with its signature: what is the same travels once."""
    groups: dict[bytes, list[str]] = defaultdict(list)
    for party, message in messages.items():
        groups[message].append(party)
    return [
        (parties, base64.b64encode(m).decode(), base64.b64encode(signer.sign(m)).decode())
        for m, parties in groups.items()
    ]
