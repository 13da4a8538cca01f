"""The reference that no federation has: a search on all parties' rows in one place."""

from __future__ import annotations

from collections.abc import Iterator

from cotune.coordinator.federation import Federation
from cotune.errors import UsageError
from cotune.methods.dash import dash
from cotune.problem import Problem
from cotune.trial import Step


def central(
    federation: Federation, problem: Problem, *, trials: int = 50, sampler: str = "tpe"
) -> Iterator[Step]:
    """Search every learner's space on the pooled rows of a simulation.

    CASH-C of DASH (section 5), CASH-O of FLASH (section 6), the centralised search behind FLoRA's
    regrets (section 3). DASH with a single party is just that.

    Parameters
    ----------
    trials
        Configurations per learner.
    sampler
        `tpe`, `random`, `gp`, `cmaes` or `grid`.
    """
    yield from dash(federation.pooled(), problem, trials=trials, sampler=sampler)


def private(**_: object) -> None:
    """All rows in one place are the opposite of private sums."""
    raise UsageError("central is a reference on all rows in one place: leave privacy out")
