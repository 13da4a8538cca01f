"""The lead's session with NVFlare's server: who is connected, and the job that passes bytes on."""

from __future__ import annotations

import io
import json
import logging
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cotune.engines.nvflare.connection import BEAT, reachable
from cotune.engines.nvflare.kits import Kit, expires, open_kit
from cotune.errors import FederationError
from cotune.site.door import TOPIC

log = logging.getLogger(__name__)

#: Seconds within which the server answers a command.
COMMAND = 15.0
#: Seconds that logging in may take.
LOGIN = 10.0
#: Seconds for which an unreachable server is tried again, and then its sites are awaited.
RECONNECT = 60.0
#: Seconds without a beat after which a site counts as gone.
SILENCE = 5 * BEAT


class Broken(Exception):
    """The server or the relay job does not answer any more; the text says which."""


class Gone(Broken):
    """The server could not be reached for so long that it is not tried any more."""


class Refused(Broken):
    """The server answers, but has not done what it was asked."""


class Server:
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
        """Raise `Broken` if the job has ended, or the server has forgotten it."""
        status = self._do("get_job_status", job)
        if _ended(status):
            raise Broken("the relay job has ended")

    def command(self, job: str, data: dict[str, Any], patience: float) -> dict[str, Any] | None:
        """What the relay answers; None if it does not, because it is not up yet, or has ended."""
        try:
            self._patience = patience
            answer: dict[str, Any] = self._do("do_app_command", job, TOPIC, data)
            return answer
        except Refused:
            return None
        finally:
            self._patience = COMMAND

    @property
    def is_open(self) -> bool:
        return self._session is not None

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
                raise Refused(f"the server has refused {command} ({error})") from error
        raise Broken(f"the server at {self._place} does not answer")

    @property
    def _place(self) -> str:
        return f"{self._kit.host}:{self._kit.port}"

    def _connect(self) -> None:
        """Log in; a server that cannot be reached is tried again for a while."""
        from nvflare.fuel.flare_api.flare_api import new_secure_session
        from nvflare.fuel.utils.config_service import ConfigService

        ConfigService.initialize({}, [str(self._folder / "local")])  # only its servers do by itself
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
                raise Gone(str(why)) from why
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
            "workflows": [
                {"id": "relay", "path": "cotune.engines.nvflare.relay.Relay", "args": {}}
            ],
            "components": [],
            "server": {"task_request_interval": 1.0},
        }
        executor = {"path": "cotune.engines.nvflare.relay.Site", "args": {}}
        site = {
            "format_version": 2,
            "executors": [{"tasks": [TOPIC], "executor": executor}],
            "components": [],
        }
        (folder / "meta.json").write_text(json.dumps(meta))
        (config / "config_fed_server.json").write_text(json.dumps(server))
        (config / "config_fed_client.json").write_text(json.dumps(site))
        yield folder


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
    reachable(folder, own)
    server = Server(folder, own)
    server.reconnect = 0.0
    try:
        connected = server.connected()
        jobs = [job for job in server.jobs() if not _ended(job.get("status"))]
        since = server.since()
    except Broken as error:
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
