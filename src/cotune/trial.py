"""What methods yield: trials, and how far they have come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec


class Trial(msgspec.Struct, frozen=True):
    """A configuration that the parties judged together.

    `loss` is the weighted mean over the `parties` that answered, whose weights add up to `weight`;
    `fits` and `cpu_seconds` are totals over them; `reasons` says where fits failed, with the number
    of parties.
    """

    learner: str
    params: dict[str, Any]
    loss: float
    parties: int
    weight: float
    fits: int
    cpu_seconds: float
    reasons: dict[str, int] = {}


def best_of(trials: Sequence[Trial]) -> Trial:
    """The trial of least loss among those that can be compared; the earliest of equals.

    A loss over fewer parties is a loss over other rows: a trial must not win because a difficult
    party was late. So only those count that were judged with the most usual total weight (of
    equally usual ones, the larger).
    """
    usual = Counter(trial.weight for trial in trials)
    weight = max(usual, key=lambda weight: (usual[weight], weight))
    return min((t for t in trials if t.weight == weight), key=lambda trial: trial.loss)


class Step(msgspec.Struct, frozen=True):
    """One step of a method: the trials it finished, and that it is at `done` of `of` steps."""

    trials: tuple[Trial, ...]
    done: int
    of: int
