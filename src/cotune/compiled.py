"""Loops over rows and bins that Python would be slow at, compiled to machine code by Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function of numbers and arrays when it is first called; other threads go on.

    What is compiled is kept for the next process, beside the source or in the user's cache folder,
    if either can be written to.
    """
    from numba import njit

    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}  # x / 0 is no error
    try:
        loop: Any = njit(cache=True, **options)(function)
    except RuntimeError:  # nowhere to keep it
        loop = njit(**options)(function)
    return cast(F, loop)
