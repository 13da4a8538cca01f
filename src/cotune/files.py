"""The files of a run: for their owner alone, written whole, and with a digest if they are JSON."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cotune.errors import Malformed

T = TypeVar("T")

#: What decoding can raise: wrong bytes, wrong text, numbers out of range, endless nesting.
UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError)

#: The field of a sealed object that holds the digest of all the others.
DIGEST = "digest"


def make_folder(folder: Path) -> None:
    """Make the folder, and those above it that are missing, for the owner alone."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(exist_ok=True)  # an error if it is a file


def private(path: str, flags: int) -> int:
    """An opener: a file that it creates can be read by the owner alone."""
    return os.open(path, flags, 0o600)


def write(path: Path, content: bytes) -> None:
    """Write whole or not at all."""
    draft = path.with_name(path.name + ".part")
    try:
        with open(draft, "wb", opener=private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # some disks say only here that they are full
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise


def sealed(value: Any) -> bytes:
    """An object as JSON, with the digest of all its other fields as the last one."""
    fields = msgspec.json.decode(msgspec.json.encode(value))
    return msgspec.json.format(msgspec.json.encode(fields | {DIGEST: _digest(fields)}))


def unsealed(content: bytes, kind: type[T], *, must: bool = True) -> T:
    """The object that was sealed; `Malformed` if anything in it was changed since.

    Unless it `must` have a digest, an object without one is taken as it is.
    """
    try:
        fields = msgspec.json.decode(content, type=dict[str, Any])
        digest = fields.pop(DIGEST, None)
        if digest is None and must:
            raise Malformed("it has no digest: it is damaged, or of an older cotune")
        if digest not in (None, _digest(fields)):
            raise Malformed("it was changed or damaged")
        return msgspec.convert(fields, kind, str_keys=True)
    except UNREADABLE as error:
        raise Malformed("it was damaged, or another version of cotune made it") from error


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()
