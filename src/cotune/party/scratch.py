"""Private folders of a process, which the next one removes if it could not do so itself."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from loky.backend import resource_tracker

_PREFIX = "cotune-"
_NAME = re.compile(
    _PREFIX + r"(?P<pid>\d+)-(?P<start>\d+)-(?P<boot>[0-9a-f]{8})-(?P<place>[0-9a-f]{8})-\w+"
)
#: Bytes that the name of such a folder has at most: a socket's address must not be long.
LONGEST_NAME = len(_PREFIX) + 7 + 1 + 12 + 1 + 8 + 1 + 8 + 1 + 8


class _Owner(NamedTuple):
    """A process, named so that no other one has the same name.

    `start` is when it was started, in ticks since the `boot`; `place` is the machine and the
    namespace in which its number counts: those of another place cannot be looked up from here.
    """

    pid: int
    start: int
    boot: str
    place: str


def private_folder(parent: Path | None = None) -> Path:
    """A new folder for this user alone, gone even after a kill: rows may lie in it.

    It lies in `parent`, the folder for temporary files by default. Ended cotune processes of this
    user may have left folders there: they are removed first.
    """
    where = Path(tempfile.gettempdir()) if parent is None else parent
    sweep(where)
    own = _owner()
    mark = "" if own is None else "-".join(map(str, own)) + "-"
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX + mark, dir=where))
    resource_tracker.register(str(folder), "folder")
    return folder


def remove(folder: Path) -> None:
    """Remove a folder that `private_folder` made."""
    shutil.rmtree(folder, ignore_errors=True)
    resource_tracker.unregister(str(folder), "folder")


def sweep(parent: Path) -> None:
    """Remove what ended processes of this user have left in `parent`, and nothing else.

    loky's tracker removes a killed process's folders, unless it was killed in the same moment.
    """
    here = _owner()
    if here is None:
        return
    with suppress(OSError):
        for entry in os.scandir(parent):
            found = _NAME.fullmatch(entry.name)
            if found is None or not _is_own_folder(entry):
                continue
            owner = _Owner(int(found["pid"]), int(found["start"]), found["boot"], found["place"])
            if owner.place == here.place and _has_ended(owner, here):
                shutil.rmtree(entry.path, ignore_errors=True)
                _sweep_semaphores(owner, here)


def _sweep_semaphores(owner: _Owner, here: _Owner) -> None:
    """Those that loky made in that process. Their names have its number, but not its start."""
    if owner.boot != here.boot or _started(owner.pid) is not None:
        return  # they went with the memory; or another process has the number now
    for semaphore in Path("/dev/shm").glob(f"sem.loky-{owner.pid}-*"):
        with suppress(OSError):
            if semaphore.lstat().st_uid == os.getuid():
                semaphore.unlink()


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _has_ended(owner: _Owner, here: _Owner) -> bool:
    return owner.boot != here.boot or _started(owner.pid) != owner.start


def _owner() -> _Owner | None:
    """This process; None where the system does not say enough of it."""
    place, start = _place(), _started(os.getpid())
    return None if place is None or start is None else _Owner(os.getpid(), start, *place)


@cache
def _place() -> tuple[str, str] | None:
    """The boot, and the machine and namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
    return _short(boot), _short(f"{socket.gethostname()} {namespace}")


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _started(pid: int) -> int | None:
    """When the process was started; None if there is none, or only its exit status is left."""
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = line[line.rindex(b")") + 2 :].split()  # the program's name may hold anything
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
