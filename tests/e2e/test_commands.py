"""Commands as users run them: real processes that are killed, starved and interrupted."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.privacy.agents import ready
from tests.soak import times

COTUNE = (sys.executable, "-m", "cotune.cli")
TUNING = ("sklearn:iris", "--learner", "decision_tree", "--trials", "30", "--folds", "3")
#: Keys that may differ between two runs of the same seed.
OWN = {"run", "model", "seconds", "cpu_seconds"}
PATIENCE = 60.0


def _as_from_a_terminal() -> None:
    """What a parent ignores its children ignore too: Ctrl-C where the tests run in background."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _as_with_nohup() -> None:
    """What `nohup cotune ... &` starts in a script."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


class Workplace:
    """A folder to work in, with temporary files and processes that can be told from others'."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = folder / "scratch"
        self.scratch.mkdir(parents=True)
        self.environment = os.environ | {
            "TMPDIR": str(self.scratch),
            "COTUNE_TEST": str(folder),
            "COTUNE_DEBUG": "",
        }

    def start(
        self, *arguments: str, preexec_fn=_as_from_a_terminal, **options
    ) -> subprocess.Popen[str]:
        """Start cotune in a process group of its own, as a terminal does."""
        return subprocess.Popen(
            [*COTUNE, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=preexec_fn,
            **options,
        )

    def run(self, *arguments: str, code: int = 0, **options) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **options)
        stdout, stderr = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, stderr
        return subprocess.CompletedProcess(arguments, code, stdout, stderr)

    def json(self, *arguments: str) -> dict:
        stdout = self.run(*arguments, "--json", "--quiet").stdout
        assert stdout.count("\n") == 1
        return json.loads(stdout)

    def start_and_wait(
        self, *arguments: str, run: str, rounds: int, **options
    ) -> subprocess.Popen[str]:
        """Start cotune and return once its run has finished that many rounds."""
        process = self.start(*arguments, **options)
        until(lambda: process.poll() is not None or self.rounds(run) >= rounds)
        assert process.poll() is None, process.communicate()
        return process

    def rounds(self, run: str) -> int:
        path = self.folder / run / "journal.sqlite"
        if not path.exists():
            return 0
        try:
            with sqlite3.connect(path, timeout=0.1) as journal:
                return journal.execute("SELECT COUNT(*) FROM rounds").fetchone()[0]
        except sqlite3.Error:
            return 0

    def left_behind(self) -> list[str]:
        """Processes and folders of this test that still exist."""
        folders = [str(path) for path in self.scratch.glob("cotune-*")]
        return folders + [str(pid) for pid in self._processes()]

    def _processes(self) -> Iterator[int]:
        mark = f"COTUNE_TEST={self.folder}".encode()
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in environ.read_bytes().split(b"\0"):
                    yield int(environ.parent.name)
            except OSError:  # ended meanwhile, or another user's
                continue


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def comparable(summary: dict) -> dict:
    return {key: value for key, value in summary.items() if key not in OWN}


@pytest.fixture
def place(tmp_path) -> Workplace:
    return Workplace(tmp_path / "place")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Workplace, dict]:
    """A run that nothing disturbed, in the folder `whole`."""
    place = Workplace(tmp_path_factory.mktemp("whole") / "place")
    return place, place.json("tune", *TUNING, "--run", "whole")


def test_help_answers_at_once(place):
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        place.run("--help")
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.5


def test_tune_prints_one_json_object_with_all_that_was_promised(whole):
    _, summary = whole
    promised = """method learner params loss metric value parties rounds bytes_up bytes_down fits
        cpu_seconds seconds disclosed run model"""
    assert set(promised.split()) <= set(summary)
    assert summary["parties"] == 3
    assert summary["rounds"] > 32  # 2 to agree, 30 trials, and the training
    assert summary["value"] == pytest.approx(1 - summary["loss"])


def test_a_run_leaves_no_process_and_no_scratch(whole):
    place, _ = whole
    until(lambda: not place.left_behind(), 10)


def test_runs_and_show_tell_of_the_run(whole):
    place, summary = whole
    (listed,) = json.loads(place.run("runs", ".", "--json").stdout)
    assert (listed["run"], listed["state"], listed["value"]) == (
        "whole",
        "finished",
        summary["value"],
    )
    assert json.loads(place.run("show", "whole", "--json").stdout) == summary
    assert "decision_tree" in place.run("show", "whole").stdout


def test_a_reader_that_leaves_early_is_no_error(whole):
    place, _ = whole
    process = place.start("show", "whole", "--trials")
    process.stdout.close()
    assert process.stderr.read() == ""
    process.wait(PATIENCE)


def test_a_killed_run_leaves_nothing_behind_and_resumes_to_the_same_outcome(place, whole):
    process = place.start_and_wait("tune", *TUNING, "--run", "killed", run="killed", rounds=5)
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert not (place.folder / "killed/outcome.json").exists()
    until(lambda: not place.left_behind(), 15)
    assert "cotune resume killed" in place.run("show", "killed").stdout
    assert comparable(place.json("resume", "killed")) == comparable(whole[1])


def test_ctrl_c_says_how_to_go_on_and_the_run_can(place, whole):
    # After two rounds the workers are starting.
    process = place.start_and_wait("tune", *TUNING, "--run", "stopped", run="stopped", rounds=2)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stdout) == (130, ""), stderr
    _, last = stderr.splitlines()
    assert "`cotune resume stopped`" in last
    until(lambda: not place.left_behind(), 10)
    assert comparable(place.json("resume", "stopped")) == comparable(whole[1])


def test_a_run_in_the_background_is_not_ended_by_anothers_ctrl_c_nor_by_a_logout(place, whole):
    arguments = ("tune", *TUNING, "--run", "background", "--json", "--quiet")
    process = place.start_and_wait(
        *arguments, run="background", rounds=2, preexec_fn=_as_with_nohup
    )
    for number in (signal.SIGINT, signal.SIGHUP):
        os.killpg(process.pid, number)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stderr) == (0, "")
    assert comparable(json.loads(stdout)) == comparable(whole[1])


def test_sigterm_ends_a_run_like_ctrl_c(place):
    arguments = ("tune", *TUNING, "--run", "ended", "--quiet")
    process = place.start_and_wait(*arguments, run="ended", rounds=3)
    process.terminate()
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert stderr.count("\n") == 1
    assert "`cotune resume ended`" in stderr


def test_a_killed_comparison_resumes_and_its_methods_know_nothing_of_each_other(place, whole):
    methods = ("--method", "defaults", "--method", "dash")
    process = place.start("compare", *TUNING, *methods, "--train", "--run", "both")
    until((place.folder / "both/defaults/outcome.json").exists)
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert "did not end yet" in place.run("show", "both").stderr
    result = place.json("resume", "both")
    assert (result["data"], result["run"]) == (["sklearn:iris"], "both")
    defaults, dash = result["methods"]
    assert defaults["method"] == "defaults"
    assert comparable(dash) == comparable(whole[1])


def _limited_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (32_000, 32_000))


@contextmanager
def _small_disk(folder: Path, kilobytes: int = 40) -> Iterator[bool]:
    """A file system of that size in `folder`, where mounting is permitted."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "cotune-test", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, timeout=10).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=10)


def test_a_full_disk_is_one_line_that_names_the_fix(place):
    """A real small disk where that is permitted, a limit on the size of files elsewhere."""
    (place.folder / "disk").mkdir()
    with _small_disk(place.folder / "disk") as mounted:
        limit = {} if mounted else {"preexec_fn": _limited_files}
        arguments = ("tune", *TUNING, "--trials", "400", "--run", "disk/run", "--quiet")
        stderr = place.run(*arguments, code=4, **limit).stderr
    assert stderr.count("\n") == 1
    assert "free disk space" in stderr
    assert "cotune resume disk/run" in stderr


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_disk_that_was_full_at_any_moment_of_a_run_costs_nothing(place, whole):
    """Disks of growing size: they are full at the journal, the parties' memory, the model, ..."""
    disk = place.folder / "disk"
    disk.mkdir()
    sizes = [76] if times(1, 2) == 1 else range(4, 160, 4)
    kept = 0
    for size in sizes:
        with _small_disk(disk, size) as mounted:
            if not mounted:
                pytest.skip("mounting is not permitted here")
            process = place.start("tune", *TUNING, "--run", "disk/run", "--quiet")
            _, stderr = process.communicate(timeout=PATIENCE)
            larger = ["mount", "-o", "remount,size=20m", str(disk)]
            subprocess.run(larger, check=True, timeout=10)
            assert process.returncode in (0, 2, 4), (size, stderr)
            assert "Traceback" not in stderr, size
            if (disk / "run" / "run.json").exists():
                kept += 1
                assert comparable(place.json("resume", "disk/run")) == comparable(whole[1]), size
            else:
                assert not (disk / "run").exists(), size
    assert kept


def test_a_finished_run_on_a_read_only_disk_is_shown_and_resumed(place, whole):
    run = place.folder / "whole"
    shutil.copytree(whole[0].folder / "whole", run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with _read_only(run) as protected:
        if not protected:
            pytest.skip("this user can neither be kept from writing nor mount")
        assert comparable(place.json("resume", "whole")) == comparable(whole[1])
        assert json.loads(place.run("show", "whole", "--json").stdout)["value"]
        code = "import cotune, sys; print(cotune.resume(sys.argv[1]).best_value)"
        command = [sys.executable, "-c", code, str(run)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert float(done.stdout) == whole[1]["value"]
        code = (
            "import sys; from pathlib import Path; from cotune.coordinator.journal import Journal; "
            "print(len(Journal(Path(sys.argv[1]))))"
        )
        command = [sys.executable, "-c", code, str(run / "journal.sqlite")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert int(done.stdout) > 0
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@contextmanager
def _read_only(folder: Path) -> Iterator[bool]:
    """Nothing in `folder` can be written, also not by root: he gets a mount where permitted."""
    if os.geteuid() != 0:
        modes = {path: path.stat().st_mode for path in (folder, *folder.rglob("*"))}
        for path, mode in modes.items():
            path.chmod(mode & ~0o222)
        try:
            yield True
        finally:
            for path, mode in modes.items():
                path.chmod(mode)
        return
    try:
        bind = ["mount", "--bind", str(folder), str(folder)]
        mounted = subprocess.run(bind, capture_output=True, timeout=10).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        locked = ["mount", "-o", "remount,ro,bind", str(folder)]
        yield mounted and subprocess.run(locked, timeout=10).returncode == 0
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=10)


def test_a_run_that_met_a_limit_goes_on_once_it_is_lifted(place, whole):
    arguments = ("tune", *TUNING, "--run", "full", "--quiet")
    stderr = place.run(*arguments, code=4, preexec_fn=_limited_files).stderr
    assert "Traceback" not in stderr
    assert comparable(place.json("resume", "full")) == comparable(whole[1])


def test_a_killed_fedex_run_on_images_resumes_to_the_same_model(place):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 120)
    images = (rng.integers(0, 80, (120, 8, 8)) + 60 * labels[:, None, None]).astype(np.uint8)
    np.savez(place.folder / "images.npz", X=images, y=labels)
    arguments = (
        "tune", "images.npz", "--method", "fedex", "--learner", "cnn", "--parties", "6",
        "--fix", "cnn.channels=2", "--fix", "cnn.hidden=4", "--wrapper", "sha", "--rounds", "60",
        "--max-rounds", "24", "--clients-per-round", "3", "--objective", "personalized",
        "--arms", "3",
    )  # fmt: skip
    whole = place.json(*arguments, "--run", "whole")
    process = place.start_and_wait(*arguments, "--run", "killed", run="killed", rounds=15)
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert comparable(place.json("resume", "killed")) == comparable(whole)
    weights = "model/weights.npy"
    expected = (place.folder / "whole" / weights).read_bytes()
    assert (place.folder / "killed" / weights).read_bytes() == expected
    assert "test loss against rounds" in place.run("show", "whole").stdout
    place.run("show", "whole", "--plot", "curve.png")
    assert (place.folder / "curve.png").exists()
    place.run("predict", "whole", "images.npz", "--out", "predicted.csv")
    assert (place.folder / "predicted.csv").read_text().count("\n") == 121
    judged = place.json("evaluate", "whole")
    assert judged["parties"]


# Private sums


@pytest.mark.parametrize("privacy", ["masked", pytest.param("encrypted", marks=ready)])
def test_a_private_run_is_killed_resumed_and_ends_like_the_plain_one(place, whole, privacy):
    arguments = ("tune", *TUNING, "--privacy", privacy, "--run", "private")
    process = place.start_and_wait(*arguments, run="private", rounds=6)
    process.kill()
    process.communicate(timeout=PATIENCE)
    until(lambda: not place.left_behind(), 15)
    summary, plain = place.json("resume", "private"), whole[1]
    for figure in ("learner", "params", "loss", "value", "rounds", "fits"):
        assert summary[figure] == plain[figure]
    shown = place.run("show", "private", "--disclosures").stdout
    assert "evaluate (as a total" in shown
    until(lambda: not place.left_behind(), 15)


@ready
def test_the_doctor_says_that_the_agent_is_ready(place):
    assert "the key agent is ready" in place.run("agent", "doctor").stdout


def test_without_an_interpreter_encryption_is_refused_before_any_work(place):
    place.environment |= {
        "COTUNE_AGENT_HOME": str(place.folder / "nowhere"),
        "COTUNE_AGENT_PYTHON": "/bin/false",
    }
    refused = place.run("tune", *TUNING, "--privacy", "encrypted", "--run", "no", code=2)
    assert "cotune agent doctor --setup" in refused.stderr
    assert not (place.folder / "no").exists()
