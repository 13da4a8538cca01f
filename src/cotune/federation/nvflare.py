"""The engine of real federations: NVIDIA FLARE, over mutual TLS.

Methods, journal and ledger stay in this process. It submits a small job (`cotune.federation.relay`)
that passes bytes to the sites and back; nothing of the user's is shipped. The job fails as a whole
when a site's part of it dies, and does not take in a site that comes later: then another one is
submitted, while the parties' own processes keep what they know.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import math
import secrets
import tempfile
import time
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cotune import __version__
from cotune.errors import FederationError, UsageError
from cotune.federation.connection import BEAT, reachable
from cotune.federation.engine import Engine
from cotune.federation.federation import Federation
from cotune.federation.kits import Kit, expires, in_use, open_kit
from cotune.federation.wire import Refusal
from cotune.party.door import TOPIC

log = logging.getLogger(__name__)

#: Seconds that the relay waits for replies before it answers that parties are still at work.
LONG_POLL = 3.0
#: Seconds within which the server answers a command; three times as many if it is repeated.
COMMAND = 15.0
#: Bytes that are sent in a second at least: large messages are given more time.
SLOWEST = 1e6
#: Seconds for which an unreachable server is tried again, and then its sites are awaited.
RECONNECT = 60.0
#: Seconds for which sites are awaited otherwise, when a run begins, say.
GATHERING = 10.0
#: Seconds after which a site that connects, but does not answer, is tried again; doubled each time.
AGAIN = 10.0
#: Seconds within which a submitted job must have started at the sites.
STARTING = 60.0
#: Seconds that logging in may take.
LOGIN = 10.0
#: Seconds without a beat after which a site counts as gone.
SILENCE = 5 * BEAT
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
        _check_installed()
        stack = ExitStack()
        stack.enter_context(in_use(folder))
        self._server = _Server(folder, self._kit)
        stack.callback(self._server.close)
        self._close = weakref.finalize(self, stack.close)
        try:
            reachable(folder, self._kit)
        except FederationError:
            self.close()
            raise
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
                except _Gone as error:
                    refusal = Refusal("lost", str(error))
                    break
                except _Broken as error:
                    self._relay = None
                    refusal = Refusal("lost", str(error))
                    log.warning("%s; connecting anew", error)
        except BaseException:  # Ctrl-C: nothing goes on in the background
            self._give_up(messages)
            raise
        late = [party for party in messages if party not in replies]
        if late and refusal.code == "timeout":
            self._give_up(late)
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
        told = relay.call(name, asked, until)
        replies |= told.replies
        self._fits |= told.fits
        for party, why in told.lost.items():
            replies[party] = Refusal("lost", why)
            relay.versions.pop(party)  # until another relay finds it
            self._there.discard(party)
        if told.lost:
            relay.lost |= {p: self._server.heard().get(p) for p in told.lost}

    def _absent(self, party: str) -> Refusal:
        if self._tries.get(party, (0, 0.0))[0] >= 2:
            return Refusal(
                "lost",
                f"the site {party} connects but does not answer: is its kit used on two machines? "
                "The file log.txt in its kit says more",
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
        self._relay = relay = _Relay.started(self._server, sites)
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
        patient = time.monotonic() + (RECONNECT if self._server.was_away else GATHERING)
        while True:
            found = self._server.connected()
            if self._there <= found or time.monotonic() > patient:
                self._server.was_away = False
                return found
            time.sleep(0.5)

    def _give_up(self, parties: Iterable[str]) -> None:
        if self._relay is not None:
            with suppress(_Broken):
                self._relay.cancel(parties)


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


@dataclass(frozen=True)
class Status:
    """How a federation is, as `cotune federation status` tells."""

    server: str
    since: str
    sites: dict[str, str]
    run: str
    until: datetime

    @property
    def days_left(self) -> int:
        return (self.until - datetime.now(UTC)).days

    def summary(self) -> dict[str, Any]:
        until = self.until.isoformat(timespec="seconds")
        return asdict(self) | {"until": until, "days_left": self.days_left}


def status(kit: str | Path) -> Status:
    """Ask the server who is there; a run that is under way is not disturbed."""
    folder = Path(kit).absolute()
    own = open_kit(folder, "lead")
    _check_installed()
    reachable(folder, own)
    server = _Server(folder, own)
    server.reconnect = 0.0
    try:
        connected = server.connected()
        jobs = [job for job in server.jobs() if not _ended(job.get("status"))]
        since = server.since()
    except _Broken as error:
        raise FederationError(str(error)) from error
    finally:
        server.close()
    absent = "not connected: `cotune party start` runs it"
    return Status(
        server=f"{own.host}:{own.port}",
        since=f"{since:%Y-%m-%d %H:%M}",
        sites={site: "connected" if site in connected else absent for site in own.sites},
        run=f"under way since {jobs[0].get('submit_time', '')[:16]}" if jobs else "none",
        until=expires(folder),
    )


class _Broken(Exception):
    """The server or the relay job does not answer any more; the text says which."""


class _Gone(_Broken):
    """The server could not be reached for so long that it is not tried any more."""


class _Refused(_Broken):
    """The server answers, but has not done what it was asked."""


class _Told:
    """What came of a call."""

    def __init__(self) -> None:
        self.replies: dict[str, bytes] = {}
        self.lost: dict[str, str] = {}
        self.fits: dict[str, int] = {}


class _Relay:
    """A running relay job."""

    def __init__(self, server: _Server, job: str) -> None:
        self._server = server
        self._job = job
        #: What runs at the sites that answer.
        self.versions: dict[str, str] = {}
        #: Sites that it does not reach, and when the server had last heard of them.
        self.lost: dict[str, float | None] = {}

    @classmethod
    def started(cls, server: _Server, sites: set[str]) -> _Relay:
        """A new relay job at these sites; those that are slow to start it are not awaited long."""
        if not sites:
            raise _Broken("no site is connected to the server")
        relay = cls(server, server.submit(sites))
        patient = time.monotonic() + STARTING
        while time.monotonic() < patient and relay.versions.keys() < sites:
            server.check_running(relay._job)
            told = relay._command({"op": "hello", "sites": sorted(sites), "wait": LONG_POLL})
            if told is None:
                time.sleep(0.2)
                continue
            if told["sites"] and not relay.versions:
                patient = time.monotonic() + JOINING
            relay.versions = told["sites"]
        if not relay.versions:
            raise _Broken("the relay job did not start at any site")
        heard = server.heard()
        relay.lost = {site: heard.get(site) for site in sites - relay.versions.keys()}
        return relay

    def call(self, name: str, messages: Mapping[str, bytes], until: float) -> _Told:
        told, misses = _Told(), 0
        size = sum(map(len, set(messages.values())))
        if not messages:
            return told
        data: dict[str, Any] = {"op": "call", "id": name, "groups": _grouped(messages)}
        while len(told.replies) + len(told.lost) < len(messages):
            wait = max(0.0, min(LONG_POLL, until - time.monotonic()))
            patience = (COMMAND + size / SLOWEST) * 3**misses
            answer = self._command(data | {"have": list(told.replies), "wait": wait}, patience)
            if answer is None or "unknown" in answer:
                misses += 1
                self._server.check_running(self._job)
                if misses == MISSES:
                    raise _Broken("the relay job does not answer")
                time.sleep(0.5)
                continue
            misses = 0
            for party, text in answer["replies"].items():
                told.replies[party] = base64.b64decode(text)
            told.lost, told.fits = answer["lost"], answer["fits"]
            data = {"op": "collect", "id": name}
            if time.monotonic() > until:
                break
        return told

    def cancel(self, parties: Iterable[str]) -> None:
        self._command({"op": "cancel", "sites": sorted(parties)})

    def end(self) -> None:
        self._command({"op": "end"})

    def _command(self, data: dict[str, Any], patience: float = COMMAND) -> dict[str, Any] | None:
        return self._server.command(self._job, data, patience)


def _grouped(messages: Mapping[str, bytes]) -> list[tuple[list[str], str]]:
    """Parties by the message they get: mostly all get the same, which then travels once."""
    groups: dict[bytes, list[str]] = defaultdict(list)
    for party, message in messages.items():
        groups[message].append(party)
    return [(parties, base64.b64encode(m).decode()) for m, parties in groups.items()]


class _Server:
    """A session with NVFlare's server: opened when it is needed, and again if it was lost."""

    def __init__(self, folder: Path, kit: Kit) -> None:
        self._folder, self._kit = folder, kit
        self._session: Any = None
        self._job = ""
        self._patience = COMMAND
        #: Seconds for which a server that cannot be reached is tried again.
        self.reconnect = RECONNECT
        #: Whether it could not be reached for a time, so that its sites may still be on their way.
        self.was_away = False

    def heard(self) -> dict[str, float]:
        """When the server has last heard of each site, by its own clock."""
        info = self._do("get_system_info")
        return {
            client.name: client.last_connect_time
            for client in info.client_info
            if client.name in self._kit.sites
        }

    def connected(self) -> set[str]:
        """Sites that beat; the server remembers others for a while."""
        heard = self.heard()
        latest = max(heard.values(), default=0.0)
        return {site for site, when in heard.items() if latest - when < SILENCE}

    def since(self) -> datetime:
        """When the server was started, in this machine's time zone."""
        return datetime.fromtimestamp(self._do("get_system_info").server_info.start_time)

    def jobs(self) -> list[dict[str, Any]]:
        """All that the server knows of, ended or not."""
        return list(self._do("list_jobs"))

    def submit(self, sites: set[str]) -> str:
        """Start a relay job at these sites; what an earlier process left running is ended first."""
        for job in self.jobs():
            if not _ended(job.get("status")):
                self._abort(job["job_id"])
        with _job(sites) as folder:
            self._job = str(self._do("submit_job", str(folder)))
        return self._job

    def check_running(self, job: str) -> None:
        """Raise `_Broken` if the job has ended, or the server has forgotten it."""
        status = self._do("get_job_status", job)
        if _ended(status):
            raise _Broken("the relay job has ended")

    def command(self, job: str, data: dict[str, Any], patience: float) -> dict[str, Any] | None:
        """What the relay answers; None if it does not, because it is not up yet, or has ended."""
        try:
            self._patience = patience
            answer: dict[str, Any] = self._do("do_app_command", job, TOPIC, data)
            return answer
        except _Refused:
            return None
        finally:
            self._patience = COMMAND

    def close(self) -> None:
        session = self._session
        if session is not None and self._job:
            with suppress(Exception):
                session.do_app_command(self._job, TOPIC, {"op": "end"})
        self._forget()

    def _abort(self, job: str) -> None:
        with suppress(Exception):  # it may have ended meanwhile
            self._do("abort_job", job)

    def _do(self, command: str, *arguments: Any) -> Any:
        """One command; a session that has ended is opened again, and the command repeated once."""
        from nvflare.fuel.flare_api.api_spec import (
            AuthenticationError,
            NoConnection,
            SessionClosed,
            SessionExpired,
        )

        for _ in range(2):
            if self._session is None:
                self._connect()
            try:
                self._session.set_timeout(self._patience)
                return getattr(self._session, command)(*arguments)
            except (NoConnection, SessionClosed, SessionExpired, AuthenticationError):
                self._forget()
            except Exception as error:  # NVFlare has many
                raise _Refused(f"the server has refused {command} ({error})") from error
        raise _Broken(f"the server at {self._place} does not answer")

    @property
    def _place(self) -> str:
        return f"{self._kit.host}:{self._kit.port}"

    def _connect(self) -> None:
        """Log in; a server that cannot be reached is tried again for a while."""
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        patient, waiting = time.monotonic() + self.reconnect, False
        while True:
            try:
                reachable(self._folder, self._kit)
                with _silently():
                    self._session = new_secure_session(
                        self._kit.user, str(self._folder), timeout=LOGIN
                    )
                return
            except FederationError as error:
                why: Exception = error
            except Exception as error:  # NVFlare has many
                why = FederationError(f"the server at {self._place} does not let the lead in")
                why.__cause__ = error
            if time.monotonic() > patient:
                raise _Gone(str(why)) from why
            if not waiting:
                log.warning("%s; trying again for %.0f s", why, self.reconnect)
                self.was_away = waiting = True
            time.sleep(1.0)

    def _forget(self) -> None:
        """End the session; its threads would keep this process alive."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception), _silently():
                session.close()


def _ended(status: object) -> bool:
    """Whether a job of this status will not run any more."""
    return str(status).startswith(("FINISHED", "FAILED", "ABANDONED"))


@contextmanager
def _silently() -> Iterator[None]:
    """NVFlare speaks to its user, on standard output and through loggers without a handler."""
    logging.getLogger("nvflare").addHandler(logging.NullHandler())
    logging.getLogger("nvflare").propagate = False
    with redirect_stdout(io.StringIO()):
        yield


@contextmanager
def _job(sites: Iterable[str]) -> Iterator[Path]:
    """The relay job's folder: three files, no code."""
    with tempfile.TemporaryDirectory(prefix="cotune-") as parent:
        folder = Path(parent) / "cotune-relay"
        config = folder / "app" / "config"
        config.mkdir(parents=True)
        meta = {
            "name": "cotune-relay",
            "resource_spec": {},
            "min_clients": 1,
            "deploy_map": {"app": ["server", *sorted(sites)]},
        }
        server = {
            "format_version": 2,
            "workflows": [{"id": "relay", "path": "cotune.federation.relay.Relay", "args": {}}],
            "components": [],
            "server": {"task_request_interval": 1.0},
        }
        executor = {"path": "cotune.federation.relay.Site", "args": {}}
        site = {
            "format_version": 2,
            "executors": [{"tasks": [TOPIC], "executor": executor}],
            "components": [],
        }
        (folder / "meta.json").write_text(json.dumps(meta))
        (config / "config_fed_server.json").write_text(json.dumps(server))
        (config / "config_fed_client.json").write_text(json.dumps(site))
        yield folder


def _check_installed() -> None:
    if find_spec("nvflare") is None:
        raise UsageError("NVIDIA FLARE is missing: install cotune[nvflare]")
