"""The party's own record of what it was asked and what it told."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import msgspec

from cotune.errors import FederationError, UsageError
from cotune.protocol.wire import Request

#: Of the text, in columns; lines that end in a sentence may be a little longer.
WIDTH, LONGEST = 100, 120


class Entry(msgspec.Struct, frozen=True):
    """One message to the party. `outcome` begins with told, refused, repeated or given up.

    `time` is when the outcome was there, by the party's clock. `discloses` is empty where nothing
    was told. The task of bytes that are no request is `?`.
    """

    time: str
    asker: str
    run: str
    round: int
    task: str
    way: str
    discloses: str
    outcome: str
    bytes_in: int
    bytes_out: int
    seconds: float
    fits: int

    @property
    def told(self) -> bool:
        return self.outcome in ("told", "repeated")

    @property
    def line(self) -> str:
        """For a display while the party runs."""
        when = self.time[:19].replace("T", " ")
        asked = f"{self.asker} asked for {self.task} ({self.way}, round {self.round})"
        return _printable(f"{when}  {asked}: {_outcome(self)}")


def entry_of(
    request: Request | None,
    asker: str,
    outcome: str,
    *,
    bytes_in: int,
    bytes_out: int,
    seconds: float = 0.0,
    fits: int = 0,
) -> Entry:
    """An entry of this moment."""
    told = request is not None and outcome in ("told", "repeated")
    return Entry(
        time=datetime.now().astimezone().isoformat(timespec="seconds"),
        asker=asker,
        run=request.run if request else "",
        round=request.round if request else 0,
        task=request.task.name if request else "?",
        way=request.verb if request else "",
        discloses=disclosed(request) if request and told else "",
        outcome=outcome,
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        seconds=round(seconds, 3),
        fits=fits,
    )


def disclosed(request: Request) -> str:
    """What the reply tells, in the words of the run's own ledger."""
    discloses: str = request.task.discloses
    if request.keyed is None or request.verb in ("gather", "sum"):
        return discloses
    aim = request.keyed.aim
    if request.verb == "encrypted" and aim.high:
        return f"only quotients of totals over the parties (encrypted) are told of {discloses}"
    if request.verb == "encrypted" and aim.least:
        return f"only where the total over the parties reaches {aim.least} is told of {discloses}"
    noise = request.protection
    noised = (
        ""
        if noise is None
        else (
            f", noised: this party adds a deviation of {noise.share:.3g} clipping norms, as one of "
            f"{noise.parties} that make {noise.noise:g}"
        )
    )
    return f"only the total over the parties ({request.verb}{noised}) is told of {discloses}"


class Audit:
    """Appends to the record; one process at a time.

    Every line carries a hash of itself and of the line before it (`link`). Who may write the file
    can make up a whole new one, or cut off its end: keep copies where that matters.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab", buffering=0, opener=_privately)  # noqa: SIM115
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            before = path.read_bytes()
            if not before.startswith(_BEGINS[: len(before)]):
                raise UsageError(f"{path} is no record of a party: give another file")
            os.fchmod(self._file.fileno(), 0o600)
        except BlockingIOError as error:
            raise UsageError(f"another party's process writes to {path}: end that first") from error
        except OSError as error:
            raise FederationError(f"{path} cannot be written: {error.strerror}") from error
        read = (_parsed(line) for line in reversed(before.split(b"\n")))
        self._link = next((line.link for line in read if line is not None), "")
        self._torn = not before.endswith(b"\n") and before != b""
        self._lock = threading.Lock()

    def write(self, entry: Entry) -> None:
        """`OSError` if it cannot be written; then the party must not tell it either."""
        with self._lock:
            body = msgspec.json.encode(entry)[:-1]
            link = _linked(self._link, body)
            line = body + b',"link":"' + link.encode() + b'"}\n'
            before = b"\n" if self._torn else b""
            self._torn = True  # should it break off on the way
            if self._file.write(before + line) != len(before + line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._link, self._torn = link, False

    def close(self) -> None:
        self._file.close()


#: How every record begins.
_BEGINS = b'{"time":'
#: Bytes of a line's link: ,"link":"32 digits"}
_TAIL = 9 + 32 + 2


def _privately(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class _Parsed(NamedTuple):
    entry: Entry
    body: bytes
    link: str


class _Line(NamedTuple):
    number: int
    entry: Entry | None
    #: Whether it is the one that was written after the last that can be read.
    follows: bool


def _linked(before: str, body: bytes) -> str:
    return hashlib.blake2b(before.encode() + body, digest_size=16).hexdigest()


def _parsed(line: bytes) -> _Parsed | None:
    body, tail = line[:-_TAIL], line[-_TAIL:]
    if not (tail.startswith(b',"link":"') and tail.endswith(b'"}')):
        return None
    try:
        return _Parsed(_entries.decode(body + b"}"), body, tail[9:-2].decode())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


_entries = msgspec.json.Decoder(Entry)


def _lines(path: Path) -> Iterator[_Line]:
    """All lines but a last one that was torn off."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FederationError(f"{path} cannot be read: {error.strerror}") from error
    *whole, last = content.split(b"\n")
    if _parsed(last) is not None:
        whole.append(last)
    link = ""
    for number, line in enumerate(whole, 1):
        parsed = _parsed(line)
        if parsed is None:
            yield _Line(number, None, False)
            continue
        yield _Line(number, parsed.entry, parsed.link == _linked(link, parsed.body))
        link = parsed.link


def read(path: Path) -> list[Entry]:
    """All entries. A line that was torn off, because the process was killed, is passed over."""
    entries: list[Entry] = []
    unreadable = 0
    for line in _lines(path):
        if line.entry is None:
            unreadable = unreadable or line.number
            continue
        if unreadable and not line.follows:
            break
        entries.append(line.entry)
        unreadable = 0
    if unreadable:
        raise FederationError(f"{path}, line {unreadable} is no entry of a party's record")
    return entries


def check(path: Path) -> str | None:
    """Which line does not follow from the one before it, in a sentence; None if all do."""
    unreadable = 0
    for line in _lines(path):
        if line.entry is None:
            unreadable = unreadable or line.number
        elif not line.follows:
            number = unreadable or line.number
            return f"line {number} does not follow from those before: some were changed or removed"
        else:
            unreadable = 0
    return f"line {unreadable} was changed: it is no entry" if unreadable else None


class Summary(msgspec.Struct, frozen=True):
    """What was told of one task in one way. `refused` counts what was asked in vain."""

    task: str
    way: str
    told: int
    refused: int
    bytes_out: int
    discloses: str


def summary(entries: Iterable[Entry]) -> list[Summary]:
    """By task and way, in the order in which they were first asked."""
    kinds: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        kinds.setdefault((entry.task, entry.way), []).append(entry)
    return [
        Summary(
            task=task,
            way=way,
            told=sum(entry.told for entry in of_kind),
            refused=sum(not entry.told for entry in of_kind),
            bytes_out=sum(entry.bytes_out for entry in of_kind if entry.told),
            discloses="; ".join(dict.fromkeys(entry.discloses for entry in of_kind if entry.told)),
        )
        for (task, way), of_kind in kinds.items()
    ]


def as_text(entries: Iterable[Entry]) -> str:
    """One line for each entry; what the tasks disclose is said at the end, once."""
    entries = list(entries)
    asker = max((len(entry.asker) for entry in entries), default=0)
    task = max((len(entry.task) for entry in entries), default=0)
    lines: list[str] = []
    run = ""
    for entry in entries:
        if entry.run != run:
            run = entry.run
            lines.append(f"run {run}")
        when = entry.time[:19].replace("T", " ")
        asked = f"{entry.asker:<{asker}}  {entry.task:<{task}}  round {entry.round:<4}"
        line = f"{when}  {asked}  {entry.way:<9}  {_outcome(entry)}"
        lines.append(_printable(line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."))
    for kind in summary(entries):
        if kind.told:
            often = "once" if kind.told == 1 else f"{kind.told} times"
            lines += ["", f"{kind.task} ({kind.way}) was told {often}, {kind.bytes_out:,} bytes:"]
            lines.append(fill(kind.discloses, WIDTH, initial_indent="  ", subsequent_indent="  "))
    return "\n".join(lines)


def _printable(line: str) -> str:
    """An asker's name is not ours: it could hold commands to the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def _outcome(entry: Entry) -> str:
    if not entry.told:
        return entry.outcome
    fits = f", {entry.fits} fits" if entry.fits else ""
    return f"{entry.outcome} {entry.bytes_out:,} bytes in {entry.seconds:.1f} s{fits}"
