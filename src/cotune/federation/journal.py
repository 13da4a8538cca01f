"""The journal: every finished round of a run in a SQLite file, so that a killed run resumes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from cotune.errors import FederationError
from cotune.federation.ledger import Round
from cotune.federation.wire import encode

#: Raised whenever what rounds and checkpoints hold is no longer read as it was.
FORMAT = 3
_TABLES = (
    """CREATE TABLE IF NOT EXISTS rounds (
    number INTEGER PRIMARY KEY, request TEXT NOT NULL, round BLOB NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS checkpoints (
    since INTEGER PRIMARY KEY, state BLOB NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS parts (
    since INTEGER, name TEXT, part BLOB NOT NULL, PRIMARY KEY (since, name))""",
    "CREATE TABLE IF NOT EXISTS noises (noise REAL NOT NULL)",
)


class Journal:
    """Rounds by number, each with the digest of what was asked.

    Running a method again over a journal gives back the recorded rounds for as long as the
    method asks what it asked before; methods are deterministic, so that is to the end.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        with self._plain_errors():
            # without a path a file of SQLite's own, which is gone with the connection
            self._database = sqlite3.connect(path or "", check_same_thread=False)
            try:
                self._open()
            except BaseException:
                self._database.close()
                raise

    def _open(self) -> None:
        self._database.execute("PRAGMA journal_mode=DELETE")
        self._check_format()
        self._database.execute("BEGIN")  # all tables or none, should the disk be full
        for table in _TABLES:
            self._database.execute(table)
        self._database.execute(f"PRAGMA user_version={FORMAT}")
        self._database.commit()

    def _check_format(self) -> None:
        found = self._database.execute("PRAGMA user_version").fetchone()[0]
        tables = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and found != FORMAT:
            raise FederationError(
                f"the journal {self._path} was made by another version of cotune: start a new run"
            )

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
        return msgspec.msgpack.decode(row[1], type=Round)

    def record(self, entry: Round, request: str) -> None:
        """Write the round to disk before anyone builds on it."""
        with self._plain_errors(), self._database:
            self._database.execute(
                "INSERT INTO rounds VALUES (?, ?, ?)", (entry.number, request, encode(entry))
            )

    def checkpoint(
        self, since: int, rounds: Sequence[Round], state: bytes, parts: Mapping[str, bytes] = {}
    ) -> None:
        """Keep what a computation that began after round `since` has come to by these rounds.

        Of its `parts` those that are given replace earlier ones, the others stay as they are.
        """
        with self._plain_errors(), self._database:
            self._database.executemany(
                "INSERT INTO rounds VALUES (?, ?, ?)",
                [(entry.number, "checkpoint", encode(entry)) for entry in rounds],
            )
            self._database.execute("REPLACE INTO checkpoints VALUES (?, ?)", (since, state))
            self._database.executemany(
                "REPLACE INTO parts VALUES (?, ?, ?)",
                [(since, name, part) for name, part in parts.items()],
            )

    def part(self, since: int, name: str) -> bytes | None:
        """A part of the last checkpoint, if it was ever given."""
        with self._plain_errors():
            row = self._database.execute(
                "SELECT part FROM parts WHERE since = ? AND name = ?", (since, name)
            ).fetchone()
        return None if row is None else row[0]

    def note_noise(self, noise: float) -> None:
        """Write down that a noised total is about to be opened, whatever becomes of its round."""
        with self._plain_errors(), self._database:
            self._database.execute("INSERT INTO noises VALUES (?)", (noise,))

    def noises(self) -> tuple[float, ...]:
        """Of every noised total of the run that was opened."""
        with self._plain_errors():
            rows = self._database.execute("SELECT noise FROM noises").fetchall()
        return tuple(noise for (noise,) in rows)

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
                "SELECT state FROM checkpoints WHERE since = ?", (since,)
            ).fetchone()
            rounds = self._database.execute(
                "SELECT round FROM rounds WHERE number > ? ORDER BY number", (since,)
            ).fetchall()
        if row is None:
            return None
        return [msgspec.msgpack.decode(encoded, type=Round) for (encoded,) in rounds], row[0]

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
        except sqlite3.Error as error:
            raise FederationError(
                f"the journal {self._path} cannot be used ({error}): free disk space or make the "
                f"folder writable, then `cotune resume {self._path.parent if self._path else ''}`"
            ) from error
