"""Whether a training goes wrong, by its loss over the parties' rows, stage by stage."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cotune.errors import Diverged

#: A loss is clearly above where it began if it is so many times as large.
RISEN = 1.5
#: So many stages without a new least loss are long, if they are also half of all stages.
PATIENCE = 6


def check_loss(losses: Sequence[float], start: float = 0.0, *, ended: bool = False) -> None:
    """Raise `Diverged` if the last loss is no number, or if losses have risen clearly and for long.

    They are means over the same rows, stage after stage; `start` is the loss of predictions that
    use no column, if that is known. A stochastic training may rise for a while and fall again: so
    half of all stages must have passed without a new least loss, and the loss must not be falling,
    unless the training has `ended`.

    >>> check_loss([0.9, 0.6, 0.5, 0.8, 1.2, 0.7])
    >>> check_loss([0.9, 0.6, 1.3, 1.9, 4.0, 9.0, 12.0, 16.0])
    Traceback (most recent call last):
        ...
    cotune.errors.Diverged: its training diverged: ...
    """
    last, least = losses[-1], int(np.argmin(losses))
    if not math.isfinite(last):
        raise Diverged(
            f"its training diverged: the loss over the parties' rows was no number after "
            f"{len(losses) - 1} stages; a lower learning rate may help"
        )
    since = len(losses) - 1 - least
    falls = last < np.median(losses[least + 1 :] or [last])
    long = since >= PATIENCE and (ended or (2 * since >= len(losses) and not falls))
    if long and last > RISEN * max(losses[0], start):
        raise Diverged(
            f"its training diverged: the loss over the parties' rows began at {losses[0]:.3g}, was "
            f"{losses[least]:.3g} after {least} stages and {last:.3g} after {len(losses) - 1}; a "
            "lower learning rate or more regularisation may help"
        )
