from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cotune.party import scratch
from cotune.party.scratch import LONGEST_NAME, private_folder, remove, sweep

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")

#: A simulation that has encoded its rows and started its workers, and waits.
SIMULATION = """
import sys
import cotune
from cotune.party.task import Configuration
from cotune.party.tasks import Evaluate
from cotune.protocol.wire import Request, encode
from tests.parts import iris, parts, problem_of

tables = parts(iris())
federation = cotune.simulate(tables, processes=2)
problem = problem_of(*tables.values())
task = Evaluate((Configuration("decision_tree", {"max_depth": 2}),))
message = encode(Request("run", 1, "sum", task, problem.digest, problem))
federation.engine.call({"party-1": message}, None)
print("ready", flush=True)
sys.stdin.read()
"""
#: A party that is ready to be asked, by its door.
PARTY = """
import sys
from pathlib import Path
from cotune.site.audit import Audit
from cotune.site.host import Host
from cotune.site.policy import Policy
from cotune.party.workers import Workers
from tests.parts import iris, party_of, threads

workers = Workers(threads())
party = party_of(iris(), Path(sys.argv[1]) / "rows", workers=workers)
host = Host(party, workers, Policy(), Audit(Path(sys.argv[1]) / "audit.jsonl"), lambda ask: "anna")
host.start()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary():
    """A folder whose path leaves room for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def start(temporary):
    """Starts a program with a process group and a folder for temporary files of its own."""
    started = []

    def run(program: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(temporary)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
        )
        started.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("cotune-*")}


def semaphores(pid: int) -> list[Path]:
    return list(Path("/dev/shm").glob(f"sem.loky-{pid}-*"))


def test_rows_of_a_process_group_that_was_killed_at_once_are_gone_at_the_next_start(
    start, temporary
):
    killed = start(SIMULATION)
    os.killpg(killed.pid, signal.SIGKILL)  # loky's tracker too
    killed.wait()
    assert list(temporary.glob("cotune-*/**/y.npy")), "nothing was left, so nothing is proven"
    assert semaphores(killed.pid)
    living = start(SIMULATION)
    assert not [name for name in left(temporary) if f"-{killed.pid}-" in name]
    assert not semaphores(killed.pid)
    assert list(temporary.glob(f"cotune-{living.pid}-*/**/y.npy"))
    start(PARTY)
    assert list(temporary.glob(f"cotune-{living.pid}-*/**/y.npy")), "it was in use"
    assert semaphores(living.pid)


def test_a_party_sweeps_too_when_it_is_started(start, temporary):
    killed = start(PARTY)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    before = left(temporary)
    assert before
    start(PARTY)
    assert before.isdisjoint(left(temporary))


def test_what_no_ended_process_of_ours_has_left_stays(tmp_path):
    own = private_folder(tmp_path)
    pid, start, boot, place = own.name.split("-")[1:5]
    ended = f"cotune-{pid}-{int(start) - 1}-{boot}-{place}-abcdefgh"  # the number was used before
    booted = f"cotune-1-1-{'0' * 8}-{place}-abcdefgh"
    elsewhere = f"cotune-{pid}-1-{boot}-{'0' * 8}-abcdefgh"
    others = {elsewhere, "cotune-abcdefgh", f"{ended}.txt", f"my-{ended}"}
    for name in (ended, booted, *others):
        (tmp_path / name).mkdir()
    (tmp_path / "kept").mkdir()
    link = f"cotune-1-1-{boot}-{place}-abcdefgh"
    (tmp_path / link).symlink_to(tmp_path / "kept")
    file = f"cotune-1-2-{boot}-{place}-abcdefgh"
    (tmp_path / file).touch()
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*others, own.name, "kept", link, file}
    remove(own)
    assert not own.exists()


def test_a_folder_of_another_user_stays(tmp_path, monkeypatch):
    folder = private_folder(tmp_path)
    ended = tmp_path / folder.name.replace(f"-{os.getpid()}-", "-999999999-")
    ended.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    sweep(tmp_path)
    assert ended.exists()
    monkeypatch.undo()
    sweep(tmp_path)
    assert not ended.exists()
    remove(folder)


def test_a_folder_is_for_its_user_alone_and_its_name_leaves_room_for_a_socket(tmp_path):
    folder = private_folder(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(folder.name) <= LONGEST_NAME
    remove(folder)


def test_where_processes_cannot_be_looked_up_nothing_is_swept(tmp_path, monkeypatch):
    ended = tmp_path / private_folder(tmp_path).name.replace(f"-{os.getpid()}-", "-999999999-")
    ended.mkdir()
    monkeypatch.setattr(scratch, "_place", lambda: None)
    remove(private_folder(tmp_path))
    assert ended.exists()


def test_the_usual_folder_is_that_for_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = private_folder()
    assert folder.parent == tmp_path
    remove(folder)
