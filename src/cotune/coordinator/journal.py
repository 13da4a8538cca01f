"""The journal: every finished round of a run in a SQLite file, so that a killed run resumes."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from cotune.coordinator.ledger import Round
from cotune.errors import FederationError
from cotune.files import UNREADABLE, private
from cotune.protocol.wire import encode

#: Raised whenever what rounds and checkpoints hold is no longer read as it was.
FORMAT = 6
#: `link` is the digest of the row and of what it continues: of a round the one before, of a
#: checkpoint its last round and its parts. It comes before what is long, to be read without that.
_TABLES = (
    """CREATE TABLE IF NOT EXISTS rounds (
    number INTEGER PRIMARY KEY, request TEXT NOT NULL, link BLOB NOT NULL, round BLOB NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS checkpoints (
    since INTEGER PRIMARY KEY, last INTEGER NOT NULL, link BLOB NOT NULL, state BLOB NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS parts (
    since INTEGER, name TEXT, link BLOB NOT NULL, part BLOB NOT NULL,
    PRIMARY KEY (since, name))""",
    """CREATE TABLE IF NOT EXISTS noises (
    number INTEGER PRIMARY KEY, link BLOB NOT NULL, noise REAL NOT NULL)""",
)
#: The disk or the folder is the reason, not what is in the file.
_OF_THE_DISK = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY,
}  # fmt: skip


class Journal:
    """Rounds by number, each with the digest of what was asked.

    Running a method again over a journal gives back the recorded rounds for as long as the
    method asks what it asked before; methods are deterministic, so that is to the end.

    All that a journal holds is checked when it is opened; opening one writes nothing. One whose
    last rounds are missing is not damaged: it is that of a run which was stopped earlier.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._last, self._link = 0, b""  # the last round and its link
        self._noises: list[float] = []
        self._noise_link = b""
        if path is not None:
            with suppress(OSError):  # it exists, or SQLite says it better
                os.close(private(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        with self._plain_errors():
            # without a path a file of SQLite's own, which is gone with the connection
            self._database = sqlite3.connect(path or "", check_same_thread=False)
            try:
                self._open()
            except BaseException:
                self._database.close()
                raise

    def _open(self) -> None:
        if self._database.execute("PRAGMA page_count").fetchone()[0]:
            self._check()
            return
        self._database.execute("BEGIN")  # all tables or none, should the disk be full
        for table in _TABLES:
            self._database.execute(table)
        self._database.execute(f"PRAGMA user_version={FORMAT}")
        self._database.commit()

    def _check(self) -> None:
        """Compare all rows with their links; `FederationError` at the first that does not fit."""
        found = self._database.execute("PRAGMA user_version").fetchone()[0]
        if found != FORMAT:
            raise FederationError(
                f"the journal {self._path} was made by another version of cotune: start a new run"
            )
        self._database.execute("BEGIN")  # one state, should another process be writing
        if self._database.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
            raise self._damaged("the journal")
        links = self._check_rounds()
        self._check_noises()
        for since, last, link, state in self._rows("since, last, link, state", "checkpoints"):
            parts = self._check_parts(since)
            if last not in links or link != _linked(links[last], since, last, state, *parts):
                raise self._damaged(f"the checkpoint after round {since} of the journal")
        self._database.rollback()

    def _check_rounds(self) -> dict[int, bytes]:
        """The link of every round; 0 is before the first."""
        links = {0: b""}
        for number, request, link, content in self._rows("number, request, link, round", "rounds"):
            if link != _linked(self._link, number, request, content):
                raise self._damaged(f"round {number} of the journal")
            self._last, self._link = number, link
            links[number] = link
        return links

    def _check_noises(self) -> None:
        for number, link, noise in self._rows("number, link, noise", "noises"):
            if link != _linked(self._noise_link, number, noise):
                raise self._damaged(f"noise {number} of the journal")
            self._noises.append(noise)
            self._noise_link = link

    def _check_parts(self, since: int) -> list[bytes]:
        """The links of a computation's parts, by the order of their names."""
        links = []
        for name, link, part in self._database.execute(
            "SELECT name, link, part FROM parts WHERE since = ? ORDER BY name", (since,)
        ):
            if link != _linked(b"", since, name, part):
                raise self._damaged(f"a part of the checkpoint after round {since} of the journal")
            links.append(link)
        return links

    def _rows(self, columns: str, table: str) -> Iterable[tuple[Any, ...]]:
        """Of a table, in the order in which they were written."""
        return self._database.execute(f"SELECT {columns} FROM {table} ORDER BY 1")

    def _damaged(self, what: str) -> FederationError:
        return FederationError(
            f"{what} was changed or damaged ({self._path}): restore the folder from a copy, or "
            "start a new run"
        )

    @property
    def lasts(self) -> bool:
        """Whether it outlives the process."""
        return self._path is not None

    def recorded(self, number: int, request: str) -> Round | None:
        """The round of that number, if it was finished before."""
        with self._plain_errors():
            row = self._database.execute(
                "SELECT request, round FROM rounds WHERE number = ?", (number,)
            ).fetchone()
        if row is None:
            return None
        if row[0] != request:
            raise FederationError(
                f"round {number} of the journal {self._path} was recorded for another question: "
                "the run was made by another version of cotune or of the method; start a new one"
            )
        return self._decoded(number, row[1])

    def rounds(self, after: int = 0) -> list[Round]:
        """Those with a larger number, in their order."""
        with self._plain_errors():
            found = self._database.execute(
                "SELECT number, round FROM rounds WHERE number > ? ORDER BY number", (after,)
            ).fetchall()
        return [self._decoded(number, content) for number, content in found]

    def _decoded(self, number: int, content: bytes) -> Round:
        try:
            return msgspec.msgpack.decode(content, type=Round)
        except UNREADABLE as error:
            raise self._damaged(f"round {number} of the journal") from error

    def record(self, entry: Round, request: str) -> None:
        """Write the round to disk before anyone builds on it."""
        with self._plain_errors(), self._database:
            link = self._append(self._link, entry, request)
        self._last, self._link = entry.number, link

    def _append(self, before: bytes, entry: Round, request: str) -> bytes:
        """The link of the round, which continues the one before."""
        content = encode(entry)
        link = _linked(before, entry.number, request, content)
        self._database.execute(
            "INSERT INTO rounds VALUES (?, ?, ?, ?)", (entry.number, request, link, content)
        )
        return link

    def checkpoint(
        self, since: int, rounds: Sequence[Round], state: bytes, parts: Mapping[str, bytes] = {}
    ) -> None:
        """Keep what a computation that began after round `since` has come to by these rounds.

        Of its `parts` those that are given replace earlier ones, the others stay as they are.
        """
        last, link = self._last, self._link
        with self._plain_errors(), self._database:
            for entry in rounds:
                last, link = entry.number, self._append(link, entry, "checkpoint")
            self._database.executemany(
                "REPLACE INTO parts VALUES (?, ?, ?, ?)",
                [(since, n, _linked(b"", since, n, part), part) for n, part in parts.items()],
            )
            links = self._database.execute(
                "SELECT link FROM parts WHERE since = ? ORDER BY name", (since,)
            ).fetchall()
            whole = _linked(link, since, last, state, *(one for (one,) in links))
            self._database.execute(
                "REPLACE INTO checkpoints VALUES (?, ?, ?, ?)", (since, last, whole, state)
            )
        self._last, self._link = last, link

    def part(self, since: int, name: str) -> bytes | None:
        """A part of the last checkpoint, if it was ever given."""
        with self._plain_errors():
            row = self._database.execute(
                "SELECT part FROM parts WHERE since = ? AND name = ?", (since, name)
            ).fetchone()
        return None if row is None else row[0]

    def note_noise(self, noise: float) -> None:
        """Write down that a noised total is about to be opened, whatever becomes of its round."""
        number, noise = len(self._noises) + 1, float(noise)
        link = _linked(self._noise_link, number, noise)
        with self._plain_errors(), self._database:
            self._database.execute("INSERT INTO noises VALUES (?, ?, ?)", (number, link, noise))
        self._noises.append(noise)
        self._noise_link = link

    def noises(self) -> tuple[float, ...]:
        """Of every noised total of the run that was opened."""
        return tuple(self._noises)

    def computed(self, since: int) -> bool:
        """Whether a computation that began after that round has a checkpoint."""
        with self._plain_errors():
            row = self._database.execute(
                "SELECT 1 FROM checkpoints WHERE since = ?", (since,)
            ).fetchone()
        return row is not None

    def restored(self, since: int) -> tuple[list[Round], bytes] | None:
        """The last checkpoint of a computation that began after that round, and its rounds."""
        with self._plain_errors():
            row = self._database.execute(
                "SELECT last, state FROM checkpoints WHERE since = ?", (since,)
            ).fetchone()
        if row is None:
            return None
        last, state = row
        return [entry for entry in self.rounds(since) if entry.number <= last], state

    def __len__(self) -> int:
        with self._plain_errors():
            count: int = self._database.execute("SELECT COUNT(*) FROM rounds").fetchone()[0]
        return count

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeError) as error:  # a damaged schema is quoted as it is
            # the lower byte; Python's own errors have none
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_THE_DISK:
                folder = self._path.parent if self._path else ""
                fix = f"free disk space or make the folder writable, then `cotune resume {folder}`"
            else:
                fix = "it was damaged: restore the folder from a copy, or start a new run"
            raise FederationError(
                f"the journal {self._path} cannot be used ({error}): {fix}"
            ) from error


def _linked(before: bytes, *row: Any) -> bytes:
    return hashlib.blake2b(encode((before, row)), digest_size=16).digest()
