"""OpenFHE. Imported late: cotune's interpreter imports this package, and mostly has no OpenFHE."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def library() -> Any:
    """The library, set up for parties that have the context already.

    Whatever it reads brings the context's parameters along, and by default the context's tables
    are computed again for each. Ours exist before anything is read (`schemes.kit`).
    """
    fhe = import_module("openfhe")
    fhe.DisablePrecomputeCRTTablesAfterDeserializaton()
    return fhe
