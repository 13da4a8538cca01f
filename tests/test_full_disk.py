"""A run whose disk is full, or that fails otherwise, at each of its writes and rounds."""

from __future__ import annotations

import errno
import os
import sqlite3

import msgspec
import pytest

import cotune
from cotune.cli.comparison import Plan, discarded_if_refused
from cotune.coordinator.federation import Federation
from cotune.errors import CotuneError, FederationError, UsageError
from cotune.protocol.engine import Engine
from tests.parts import iris, threads

QUICK = {"learners": ("decision_tree",), "trials": 2, "folds": 2}
FRAME = iris(60)


class Disk:
    """Fails from its n-th write on, until somebody frees space."""

    def __init__(self) -> None:
        self.writes = 0
        self.fails_at: int | None = None

    @property
    def full(self) -> bool:
        self.writes += 1
        return self.fails_at is not None and self.writes >= self.fails_at

    def opened(self, folder, opens):
        """In place of `os.open`: what is written to a file of the run does not fit."""

        def instead(path, flags, *mode, **options):
            mine = str(path).startswith(str(folder)) and flags & (os.O_WRONLY | os.O_RDWR)
            if mine and self.full:
                return opens("/dev/full", os.O_WRONLY)
            return opens(path, flags, *mode, **options)

        return instead

    def connection(self):
        """What SQLite writes does not fit either."""
        disk = self

        class Connection(sqlite3.Connection):
            def execute(self, sql, *rest):
                if not sql.startswith(("SELECT", "PRAGMA")):
                    disk.check()
                return super().execute(sql, *rest)

            def executemany(self, sql, rows):
                disk.check()
                return super().executemany(sql, rows)

            def commit(self):
                disk.check()
                super().commit()

            def __exit__(self, *error):
                try:
                    if error[0] is None:
                        disk.check()
                except sqlite3.Error:
                    self.rollback()
                    raise
                return super().__exit__(*error)

        return Connection

    def check(self) -> None:
        if self.full:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A disk that can be full, under all that is written to `tmp_path`."""
    disk, connect = Disk(), sqlite3.connect

    def connected(path, **options):
        kind = {"factory": disk.connection()} if path else {}  # without a path it is in memory
        return connect(path, **options, **kind)

    monkeypatch.setattr(os, "open", disk.opened(tmp_path, os.open))
    monkeypatch.setattr(sqlite3, "connect", connected)
    return disk


def simulated(folder, engine=lambda engine: engine):
    made = cotune.simulate(FRAME, executor=threads(), state=folder / "parties")
    return Federation(engine(made.engine), origin=made.origin)


def start(folder, engine=lambda engine: engine):
    """What `cotune tune` does: a run that is removed if it was refused."""
    with discarded_if_refused(folder), simulated(folder, engine) as federation:
        return cotune.tune(federation, run=folder, **QUICK)


def resume(folder):
    with simulated(folder) as federation:
        return cotune.resume(folder, federation)


def figures(outcome):
    """All that must be the same, however often the run was stopped."""
    rounds = [
        (r.number, r.task, r.asked, r.bytes_up, r.bytes_down, r.cost.fits, dict(r.failures))
        for r in outcome.rounds
    ]
    trials = [msgspec.structs.replace(t, cpu_seconds=0.0) for t in outcome.trials]
    return trials, rounds, outcome.model.predict_proba(FRAME).to_numpy().tobytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return figures(start(tmp_path_factory.mktemp("whole") / "run"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_disk_that_is_full_at_any_write_costs_nothing_that_was_finished(disk, tmp_path, whole):
    outcome, number = None, 0
    while outcome is None:
        number += 1
        folder = tmp_path / f"run-{number}"
        disk.writes, disk.fails_at = 0, number
        try:
            outcome = start(folder)
        except CotuneError as error:
            said = str(error)
            disk.fails_at = None
            if (folder / "run.json").exists():
                assert "resume" in said, f"write {number}"
                assert figures(resume(folder)) == whole, f"write {number}"
            else:
                assert "free space" in said, f"write {number}"
                assert not folder.exists(), f"write {number}"
    assert figures(outcome) == whole
    assert number > 30


class Refusing(Engine):
    """Raises at its n-th call what a key agent that has gone raises."""

    def __init__(self, engine, call):
        self._engine, self._left = engine, call
        self.pooled = engine.pooled

    def parties(self):
        return self._engine.parties()

    def call(self, messages, timeout):
        self._left -= 1
        if not self._left:
            raise UsageError("the key agent has ended: see `cotune agent doctor`")
        return self._engine.call(messages, timeout)

    def close(self):
        self._engine.close()


@pytest.mark.parametrize("call", [5, 6, 9])
def test_an_error_of_usage_amid_the_rounds_keeps_the_run(tmp_path, whole, call):
    folder = tmp_path / "run"
    with pytest.raises((UsageError, FederationError), match=r"key agent has ended.*resume"):
        start(folder, lambda engine: Refusing(engine, call))
    assert figures(resume(folder)) == whole


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_an_error_of_usage_before_anything_was_evaluated_leaves_no_folder(tmp_path, call):
    with pytest.raises(UsageError, match=r"see `cotune agent doctor`$"):
        start(tmp_path / "run", lambda engine: Refusing(engine, call))
    assert not (tmp_path / "run").exists()


def test_a_refused_method_removes_nothing_of_a_comparison_in_a_folder_of_the_users(
    tmp_path, monkeypatch
):
    begin = Plan.start

    def refuse(plan, method, folder, quiet):
        if method == "dash":
            raise UsageError("not like this")
        return begin(plan, method, folder, quiet)

    monkeypatch.setattr(Plan, "start", refuse)
    monkeypatch.setattr(Plan, "_opened", lambda plan, state: simulated(state.parent))
    plan = Plan(["sklearn:iris"], ["defaults", "dash"], {}, QUICK | {"train": False}, {})
    plan.save(tmp_path)
    with pytest.raises(UsageError, match="not like this"), discarded_if_refused(tmp_path):
        plan.compare(tmp_path, quiet=True)
    assert (tmp_path / "defaults/outcome.json").exists()
    assert (tmp_path / "compare.json").exists()


def test_a_full_disk_at_the_end_is_said_with_what_to_do(tmp_path, monkeypatch, whole):
    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patched:
        kept = cotune.run.folder.write

        def last(path, content):
            (full if path.name == "outcome.json" else kept)(path, content)

        patched.setattr("cotune.run.folder.write", last)
        with pytest.raises(FederationError, match=r"run is finished, but .*free disk space"):
            start(tmp_path / "run")
    assert figures(resume(tmp_path / "run")) == whole
