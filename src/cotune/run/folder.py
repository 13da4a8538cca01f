"""A run's folder: what was asked, the journal, the outcome; enough to resume it."""

from __future__ import annotations

import fcntl
import secrets
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import msgspec

from cotune.coordinator.journal import Journal
from cotune.errors import CotuneError, FederationError, Malformed, UsageError
from cotune.files import make_folder, private, sealed, unsealed, write
from cotune.party.closed_list import TASKS
from cotune.party.differ import Differ
from cotune.run.settings import Settings

#: Where runs are kept when the user names no folder, under the working directory.
RUNS = Path("runs")


class Record(msgspec.Struct, frozen=True):
    """`run.json`: everything that is needed to run the method again."""

    id: str
    began: str
    settings: Settings
    origin: dict[str, Any]
    version: str


class Run:
    """A run that is kept in a folder, or (without one) in memory only."""

    def __init__(self, record: Record, journal: Journal, folder: Path | None) -> None:
        self.record = record
        self.journal = journal
        self.folder = folder
        self._lock: IO[str] | None = None
        if folder is not None:
            self._lock = _lock(folder)

    @classmethod
    def create(cls, settings: Settings, origin: dict[str, Any], folder: Path | None) -> Run:
        """Start a run; its folder must not hold another one."""
        from cotune import __version__

        began = datetime.now().astimezone().isoformat(timespec="seconds")
        record = Record(secrets.token_hex(8), began, settings, origin, __version__)
        if folder is None:
            return cls(record, Journal(), None)
        if (folder / "run.json").exists():
            raise UsageError(
                f"{folder} holds a run already: `cotune resume {folder}` goes on with it, "
                "another --run starts a new one"
            )
        try:
            make_folder(folder)
            write(folder / "run.json", sealed(record))
        except OSError as error:
            raise unwritable(folder, error) from error
        return cls(record, Journal(folder / "journal.sqlite"), folder)

    @classmethod
    def open(cls, folder: Path) -> Run:
        """A run that was started before."""
        return cls(read_record(folder), Journal(folder / "journal.sqlite"), folder)

    def finish(self, outcome: bytes) -> None:
        if self.folder is not None:
            try:
                write(self.folder / "outcome.json", outcome)
            except OSError as error:  # not of the kind after which a run is discarded
                raise FederationError(
                    f"the run is finished, but its outcome cannot be written ({error.strerror}): "
                    "free disk space or make the folder writable, then "
                    f"`cotune resume {self.folder}`"
                ) from error

    def close(self) -> None:
        self.journal.close()
        if self._lock is not None:
            self._lock.close()


def read_record(folder: Path) -> Record:
    path = folder / "run.json"
    try:
        return unsealed(path.read_bytes(), Record)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"there is no run in {folder}: `cotune runs` lists the runs of this folder"
        ) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except Malformed as error:
        raise UsageError(
            f"{path} cannot be read, {error}: restore the folder from a copy, or start a new run"
        ) from error


def has_begun(folder: Path) -> bool:
    """Whether a run in the folder or below has a finished round or an outcome, or is damaged.

    Rounds by which parties agree on a schema, and say how far they differ, do not count: after
    these, the data or the settings are refused, and would be again.
    """
    in_front = {t.__name__.lower() for t in TASKS if t is Differ or not t.needs_problem}
    for path in folder.glob("**/journal.sqlite"):
        try:
            with closing(Journal(path)) as journal:
                if any(entry.task not in in_front for entry in journal.rounds()):
                    return True
        except FederationError:
            return True
    return any(folder.glob("**/outcome.json"))


def new_folder(name: str, runs: Path = RUNS) -> Path:
    """A readable name that is not taken: the date, what is tuned, how."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    taken = (runs / stem, *(runs / f"{stem}-{n}" for n in range(2, 1000)))
    return next(folder for folder in taken if not folder.exists())


def run_folders(runs: Path = RUNS) -> Iterator[Path]:
    """The folders of all runs below `runs`, the oldest first; those of a comparison too."""
    yield from sorted(record.parent for record in runs.glob("**/run.json"))


def state_of(folder: Path) -> dict[str, Any]:
    """What `cotune runs` says of a run: finished, interrupted, running, or unreadable."""
    row = _blank(folder)
    try:
        row |= _begun(folder)
        return row | _standing(folder)
    except CotuneError:
        return row


def unfinished(folder: Path) -> dict[str, Any]:
    """What `state_of` says of a run without an outcome; an error if it cannot be read."""
    return _blank(folder) | _begun(folder) | _standing(folder)


def _blank(folder: Path) -> dict[str, Any]:
    figures = ("method", "data", "rounds", "metric", "value", "of", "learner", "began")
    return dict.fromkeys(figures) | {"run": str(folder), "state": "unreadable"}


def _begun(folder: Path) -> dict[str, Any]:
    record = read_record(folder)
    return {
        "method": record.settings.method,
        "data": _named(record.origin.get("source")),
        "began": record.began,
    }


def _standing(folder: Path) -> dict[str, Any]:
    """How far the run is, or how it ended."""
    from cotune.run.outcome import Outcome

    if not (folder / "outcome.json").exists():
        state = "running" if _is_locked(folder) else "interrupted"
        return {"state": state, "rounds": _finished_rounds(folder)}
    outcome = Outcome.load(folder)
    return {
        "state": "finished",
        "rounds": outcome.ledger.rounds,
        "metric": outcome.problem.metric_name,
        "value": outcome.headline.value,
        "of": outcome.headline.of,
        "learner": outcome.best_learner,
    }


def _named(source: Any) -> str | None:
    """The data of a run in a few letters."""
    if source is None or isinstance(source, str):
        return source and Path(source).name
    first, *others = source
    return f"{Path(first).name} +{len(others)}"


def _is_locked(folder: Path) -> bool:
    """Whether a process works on the run."""
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _finished_rounds(folder: Path) -> int:
    path = folder / "journal.sqlite"
    if not path.exists():
        return 0
    with closing(Journal(path)) as journal:
        return len(journal)


def unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"the run folder {folder} cannot be written ({error.strerror}): give another with --run, "
        "or see to the rights and the free space there"
    )


def _lock(folder: Path) -> IO[str]:
    """Two processes on one run would write over each other; the second is told so."""
    try:
        lock = open(folder / "lock", "a", opener=private)  # noqa: SIM115
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise UsageError(f"the run in {folder} is being worked on by another process") from error
    return lock
