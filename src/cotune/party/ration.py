"""How much memory a worker may take: what its rows call for, so that no fit takes all there is."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from cotune.party.fit import Job

T = TypeVar("T")

#: Bytes for libraries and models, and for each byte of encoded rows: learners copy them some times.
BASE, PER_BYTE = 4 * 2**30, 16


def bounded(function: Callable[..., T], *arguments: Any) -> T:
    """What the function returns; runs on a worker that is all its own.

    The kernel refuses memory beyond the bound, for any library and whether or not Python gets
    to look, and what asked fails: NumPy by a `MemoryError`, other libraries by an error of theirs
    or with the process. Mapped rows do not count (as address space would), nor does what PyTorch
    and OpenMP set aside without writing to it.
    """
    if sys.platform == "linux":
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = BASE + PER_BYTE * size_of(arguments)
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
    return function(*arguments)


def size_of(arguments: Iterable[Any]) -> int:
    """Bytes of the rows that a call is about: files in its folders, and arrays."""
    total = 0
    for argument in arguments:
        folder = argument.folder if isinstance(argument, Job) else argument
        if isinstance(folder, Path):
            total += sum(file.stat().st_size for file in folder.glob("*.npy"))
        total += int(getattr(argument, "nbytes", 0))
    return total
