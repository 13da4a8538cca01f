"""What methods yield: trials, and how far they have come."""

from __future__ import annotations

from typing import Any

import msgspec


class Trial(msgspec.Struct, frozen=True):
    """A configuration that the parties judged together.

    `loss` is the weighted mean over the `parties` that answered; `fits` and `cpu_seconds` are
    totals over them; `reasons` says where fits failed, with the number of parties.
    """

    learner: str
    params: dict[str, Any]
    loss: float
    parties: int
    fits: int
    cpu_seconds: float
    reasons: dict[str, int] = {}


class Step(msgspec.Struct, frozen=True):
    """One step of a method: the trials it finished, and that it is at `done` of `of` steps."""

    trials: tuple[Trial, ...]
    done: int
    of: int
