"""How often a test repeats itself: a sample in `make test`, the long form in `make soak`."""

from __future__ import annotations

import os


def times(sample: int, soak: int) -> int:
    """The number of repetitions; a test that uses it is marked `pytest.mark.soak`."""
    return soak if os.environ.get("COTUNE_SOAK") else sample
