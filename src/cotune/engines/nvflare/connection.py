"""Runs NVFlare's own processes for a kit, and ends them.

Between us and NVFlare stands a keeper: a small process that adopts NVFlare's job processes, which
leave NVFlare's session and would outlive it. It ends all of them when it is told to, when NVFlare
ends, and when we are gone, however that happened.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import IO, TYPE_CHECKING, Self

from cotune.errors import FederationError, UsageError

if TYPE_CHECKING:
    import ssl

    from cotune.engines.nvflare.kits import Kit

#: Seconds in which processes may end by themselves before they are killed.
GRACE = 5.0
#: Seconds between two beats of a site, by which the server knows that it is there.
BEAT = 2.0
#: Seconds between two looks of the keeper: is NVFlare alive, are we?
_LOOK = 0.2

#: What `cotune.engines.nvflare.guard` is told to run.
_PROGRAMS = {"server": ("server", "fed_server.json"), "site": ("client", "fed_client.json")}
_NOTHING: Mapping[str, str] = MappingProxyType({})


class Connection:
    """NVFlare's process for a server or a site, with all that it has started."""

    def __init__(self, keeper: subprocess.Popen[bytes]) -> None:
        self._keeper = keeper

    @classmethod
    def started(cls, folder: Path, kit: Kit, env: Mapping[str, str] = _NOTHING) -> Self:
        """Start NVFlare with the kit in `folder`; what it prints goes to `console.log` there.

        Job processes inherit `env`. Modules are not looked for in the working directory.
        """
        from cotune.engines.nvflare.kits import prepare, require_nvflare

        require_nvflare()
        if kit.kind not in _PROGRAMS:
            raise UsageError(f"the lead {kit.name} needs no connection that stays: only sites do")
        workspace = folder.resolve()
        for path in (str(workspace), sys.executable):
            if not _plain(path):
                raise UsageError(
                    f"NVIDIA FLARE cannot use the path {path!r}: move it to a plain one"
                )
        prepare(folder, kit)
        command = [
            sys.executable,
            "-P",
            "-m",
            "cotune.engines.nvflare.connection",
            str(os.getpid()),
        ]
        command += [sys.executable, "-P", "-u", "-m", *_arguments(workspace, kit)]
        given = {
            "OMP_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "4",
            "PYTHONSAFEPATH": "1",
        }
        with _console(workspace) as console:
            keeper = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                cwd=workspace,
                env={**os.environ, **given, **env},
                start_new_session=True,
                umask=0o077,
            )
        return cls(keeper)

    @property
    def pid(self) -> int:
        """The keeper's process."""
        return self._keeper.pid

    @property
    def alive(self) -> bool:
        return self._keeper.poll() is None

    def reaches(self, port: int) -> bool:
        """Whether one of the processes has a connection to that port."""
        import psutil

        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.pid).children(recursive=True):
                for link in process.net_connections("tcp"):
                    if link.status == psutil.CONN_ESTABLISHED and link.raddr.port == port:
                        return True
        return False

    def wait(self, timeout: float | None = None) -> int | None:
        """How NVFlare ended; None if it has not within `timeout` seconds."""
        try:
            return self._keeper.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """End NVFlare and its jobs; no process is left behind."""
        if not self.alive:
            return
        self._keeper.terminate()
        if self.wait(2 * GRACE) is None:
            _end(self._keeper.pid, 0.0)
            self._keeper.kill()
            self._keeper.wait()


def reachable(folder: Path, kit: Kit, timeout: float = 5.0, host: str = "") -> None:
    """Return if the federation's server answers and accepts this kit; else say why it does not.

    It is looked for at `host`, if that is another than the one by which the sites reach it.
    """
    import socket
    import ssl

    place = f"{kit.host}:{kit.port}"
    try:
        plain = socket.create_connection((host or kit.host, kit.port), timeout)
    except socket.gaierror:
        raise FederationError(
            f"the host {kit.host} is not known: check this machine's network and name service"
        ) from None
    except TimeoutError:
        raise FederationError(
            f"{place} does not answer: is the machine up, and does a firewall let you through?"
        ) from None
    except OSError as error:
        raise FederationError(
            f"nobody listens at {place} ({error.strerror}): "
            "is `cotune federation serve` running there?"
        ) from None
    context = _context(folder, kit)
    with plain:
        try:
            with context.wrap_socket(plain, server_hostname=kit.host) as secure:
                _greeted(secure, min(timeout, 1.0))
        except ssl.SSLCertVerificationError as error:
            raise FederationError(
                f"the server at {place} is not of this federation, or its certificate has expired "
                f"({error.verify_message}): use kits of the same `cotune federation create`"
            ) from None
        except (ssl.SSLError, ConnectionError) as error:
            reason = getattr(error, "reason", None) or ""
            if "ALERT" in reason or isinstance(error, ConnectionError | ssl.SSLEOFError):
                raise FederationError(
                    f"the server at {place} refuses this kit's certificate: "
                    "use kits of the same `cotune federation create`, and check the clocks"
                ) from None
            raise FederationError(
                f"what listens at {place} is no cotune server: check the port"
            ) from None
        except TimeoutError:
            raise FederationError(
                f"what listens at {place} does not answer as a cotune server: check the port"
            ) from None


def _context(folder: Path, kit: Kit) -> ssl.SSLContext:
    import ssl

    startup = folder / "startup"
    own = "server" if kit.kind == "server" else "client"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(startup / "rootCA.pem")
        context.load_cert_chain(startup / f"{own}.crt", startup / f"{own}.key")
    except OSError:
        raise UsageError(
            f"the certificates in {startup} are damaged: unpack the kit's zip again"
        ) from None
    return context


def _greeted(secure: ssl.SSLSocket, patience: float) -> None:
    """Wait for the first bytes: in TLS 1.3 a refused certificate shows here, not in the handshake.

    A server of HTTP/2 speaks first. One that takes its time is busy, but has not refused us.
    """
    secure.settimeout(patience)
    with contextlib.suppress(TimeoutError):
        if not secure.recv(1):
            raise ConnectionResetError


def _plain(path: str) -> bool:
    """Whether the path survives in the command line that NVFlare writes for a job, unquoted."""
    try:
        return shlex.split(path, comments=True) == [path]
    except ValueError:
        return False


def _arguments(workspace: Path, kit: Kit) -> list[str]:
    """NVFlare's command line, as in the start script that it would write."""
    from cotune.engines.nvflare.kits import ORGANISATION

    program, settings = _PROGRAMS[kit.kind]
    who = [f"uid={kit.name}", f"heart_beat_interval={BEAT}"] if kit.kind == "site" else []
    options = ["secure_train=true", *who, f"org={ORGANISATION}", "config_folder=config"]
    nvflare = ["-m", str(workspace), "-s", settings, "--set", *options]
    return ["cotune.engines.nvflare.guard", program, *nvflare]


def _console(workspace: Path) -> IO[bytes]:
    """A fresh `console.log`; the one before is kept as `console.log.1`."""
    path = workspace / "console.log"
    with contextlib.suppress(FileNotFoundError):
        path.replace(path.with_name("console.log.1"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def keep(parent: int, command: list[str]) -> int:
    """Run `command` while the process `parent` lives; leave nothing of it behind."""
    told: list[int] = []

    def tell(number: int, frame: FrameType | None) -> None:
        told.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, tell)
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans of our children become our children
    child = subprocess.Popen(command, preexec_fn=_die_with_the_keeper)
    while not told and child.poll() is None and os.getppid() == parent:
        time.sleep(_LOOK)
    _end(os.getpid(), GRACE)
    code = child.wait()
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    return 0 if told else code


def _die_with_the_keeper() -> None:
    _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _prctl(option: int, value: int) -> None:
    """Linux only; elsewhere NVFlare's jobs look for themselves whether their parent lives."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _end(pid: int, grace: float) -> None:
    """End all descendants of the process `pid`: those that start meanwhile, too."""
    import psutil

    begin = time.monotonic()
    asked: set[int] = set()
    while True:
        try:
            family = psutil.Process(pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        living = []
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    living.append(process)
        if not living:
            return
        late = time.monotonic() - begin >= grace
        for process in living:
            with contextlib.suppress(psutil.NoSuchProcess):
                if late:
                    process.kill()
                elif process.pid not in asked:
                    asked.add(process.pid)
                    process.terminate()
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), sys.argv[2:]))
