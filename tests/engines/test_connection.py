"""NVFlare's processes start, end and leave nothing; a server that cannot be used says why."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import msgspec
import psutil
import pytest

from cotune.engines.nvflare import kits
from cotune.engines.nvflare.connection import Connection, reachable
from cotune.errors import FederationError, UsageError


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def federation(folder: Path, host: str, port: int) -> Path:
    """The unpacked kits of server, north and anna."""
    for packed in kits.create(folder / "kits", f"{host}:{port}", ["north"], "anna"):
        with zipfile.ZipFile(packed) as archive:
            archive.extractall(folder)
    for key in folder.glob("*/startup/*.key"):
        key.chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return federation(tmp_path_factory.mktemp("ours"), "127.0.0.1", free_port())


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    return federation(tmp_path_factory.mktemp("foreign"), "127.0.0.1", free_port())


@contextlib.contextmanager
def listening(kit: kits.Kit, startup: Path | None, roots: Path | None = None):
    """A server at the kit's address that greets whom it accepts; without `startup`, not by TLS."""
    context = None
    if startup is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(startup / "server.crt", startup / "server.key")
        context.load_verify_locations((roots or startup) / "rootCA.pem")
        context.verify_mode = ssl.CERT_REQUIRED

    def serve(server: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            client = stack.enter_context(server.accept()[0])
            if context is not None:
                client = stack.enter_context(context.wrap_socket(client, server_side=True))
            client.sendall(b"hello, hello, hello")
            client.recv(1)

    with socket.create_server(("127.0.0.1", kit.port)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        yield
        thread.join(5)


def test_a_server_of_the_same_federation_is_reachable(ours):
    for name, kind in (("north", "site"), ("anna", "lead")):
        kit = kits.open_kit(ours / name, kind)
        with listening(kit, ours / "server/startup"):
            reachable(ours / name, kit)


def test_a_host_name_is_checked_against_the_certificate(tmp_path):
    folder = federation(tmp_path, "localhost", free_port())
    kit = kits.open_kit(folder / "north", "site")
    with listening(kit, folder / "server/startup"):
        reachable(folder / "north", kit)
    moved = msgspec.structs.replace(kit, host="127.0.0.1")
    with (
        listening(kit, folder / "server/startup"),
        pytest.raises(FederationError, match="not of this federation"),
    ):
        reachable(folder / "north", moved)


def test_nobody_listens(ours):
    kit = kits.open_kit(ours / "north", "site")
    with pytest.raises(FederationError, match=r"nobody listens at 127\.0\.0\.1.*federation serve"):
        reachable(ours / "north", kit)


def test_a_host_that_nobody_knows(ours):
    kit = msgspec.structs.replace(kits.open_kit(ours / "north", "site"), host="no-such.invalid")
    with pytest.raises(FederationError, match=r"no-such\.invalid is not known"):
        reachable(ours / "north", kit)


def test_a_server_of_another_federation(ours, foreign):
    kit = kits.open_kit(ours / "north", "site")
    with (
        listening(kit, foreign / "server/startup"),
        pytest.raises(FederationError, match="not of this federation"),
    ):
        reachable(ours / "north", kit)


def test_a_certificate_that_the_server_refuses(ours, foreign):
    kit = kits.open_kit(ours / "north", "site")
    with (
        listening(kit, ours / "server/startup", roots=foreign / "server/startup"),
        pytest.raises(FederationError, match="refuses this kit's certificate"),
    ):
        reachable(ours / "north", kit)


def test_something_else_listens_there(ours):
    kit = kits.open_kit(ours / "north", "site")
    with listening(kit, None), pytest.raises(FederationError, match="no cotune server"):
        reachable(ours / "north", kit)


def test_something_that_says_nothing_is_given_up(ours):
    kit = kits.open_kit(ours / "north", "site")
    with socket.create_server(("127.0.0.1", kit.port)):
        begin = time.monotonic()
        with pytest.raises(FederationError, match="does not answer as a cotune server"):
            reachable(ours / "north", kit, timeout=0.3)
        assert time.monotonic() - begin < 2


def wait_until(condition, seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return False


def dead(pid: int) -> bool:
    """Gone, or a zombie that its new parent has not yet seen."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_real_server_starts_accepts_a_site_and_leaves_no_process(ours, tmp_path, monkeypatch):
    """The working directory holds a module that must not be taken for NVFlare."""
    (tmp_path / "nvflare.py").write_text("raise SystemExit('foreign code')")
    monkeypatch.chdir(tmp_path)
    lead = kits.open_kit(ours / "anna", "lead")

    def answers() -> bool:
        with contextlib.suppress(FederationError):
            reachable(ours / "anna", lead)
            return True
        return not server.alive

    server = Connection.started(ours / "server", kits.open_kit(ours / "server", "server"))
    site = None
    try:
        assert wait_until(answers)
        assert server.alive, (ours / "server/console.log").read_text()
        site = Connection.started(ours / "north", kits.open_kit(ours / "north", "site"))

        def joined() -> bool:
            return any(
                link.raddr and link.raddr.port == lead.port and link.status == "ESTABLISHED"
                for process in psutil.Process(site.pid).children(recursive=True)
                for link in process.net_connections()
            )

        assert wait_until(joined)
        assert site.wait(0.1) is None
        keepers = [psutil.Process(each.pid) for each in (server, site)]
        family = keepers + [child for keeper in keepers for child in keeper.children(True)]
        assert len(family) >= 4
    finally:
        for process in (site, server):
            if process is not None:
                process.stop()
    assert not server.alive
    assert not [process for process in family if process.is_running()]
    for name in ("console.log", "log.txt"):
        assert (ours / "server" / name).stat().st_mode & 0o077 == 0
    server.stop()  # once more does no harm


#: Stands for NVFlare: a job in a session of its own, which does not end when it is asked to.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
wait = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
job = subprocess.Popen([sys.executable, "-c", wait], start_new_session=True)
time.sleep(0.5)
print(os.getpid(), job.pid, flush=True)
if sys.argv[1:] == ["end"]:
    os._exit(3)
time.sleep(60)
"""
KEEP = "import os, sys; from cotune.engines.nvflare import connection; connection.GRACE = 0.5; "
KEEP += "sys.exit(connection.keep(int(sys.argv[1]), [sys.executable, '-c', *sys.argv[2:]]))"


def kept(parent: int, *arguments: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A keeper, and the processes of NVFlare and its job."""
    command = [sys.executable, "-c", KEEP, str(parent), STUBBORN, *arguments]
    keeper = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return keeper, [int(pid) for pid in keeper.stdout.readline().split()]


def test_the_keeper_ends_all_when_it_is_told_to():
    keeper, pids = kept(os.getpid())
    with keeper:
        keeper.terminate()
        assert keeper.wait(10) == 0
    assert len(pids) == 2
    assert all(dead(pid) for pid in pids)


def test_the_keeper_ends_the_jobs_when_nvflare_ends():
    keeper, pids = kept(os.getpid(), "end")
    with keeper:
        assert keeper.wait(10) == 3
    assert all(dead(pid) for pid in pids)


def test_the_keeper_ends_all_when_our_process_is_killed():
    ours = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"]
    keep = KEEP.replace("int(sys.argv[1])", "os.getppid()")
    command = [*ours, sys.executable, "-c", keep, "-", STUBBORN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    assert len(pids) == 2
    assert wait_until(lambda: all(dead(pid) for pid in pids), 5)


def test_nvflare_ends_when_the_keeper_is_killed():
    keeper, (nvflare, job) = kept(os.getpid())
    with keeper:
        keeper.kill()
    assert wait_until(lambda: dead(nvflare), 5)
    os.kill(job, signal.SIGKILL)  # a job of NVFlare looks for its parent, and ends by itself


def test_a_lead_has_no_connection(ours):
    with pytest.raises(UsageError, match="the lead anna"):
        Connection.started(ours / "anna", kits.open_kit(ours / "anna", "lead"))


@pytest.mark.parametrize("name", ["my kits", "a#b #c", "it's"])
def test_a_path_that_nvflare_cannot_quote_is_refused(ours, tmp_path, name):
    folder = Path(shutil.copytree(ours / "north", tmp_path / name))
    with pytest.raises(UsageError, match="move it"):
        Connection.started(folder, kits.open_kit(folder, "site"))


def test_the_keeper_is_small():
    code = "import sys; import cotune.engines.nvflare.connection; "
    code += "sys.exit(bool({'ssl', 'msgspec', 'psutil', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
