"""The multi-shot baseline: a full training of the federation for every configuration tried."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from cotune.coordinator.federation import Federation
from cotune.errors import UsageError
from cotune.methods.central import central
from cotune.problem import Problem
from cotune.trial import Step


def multishot(
    federation: Federation,
    problem: Problem,
    *,
    trials: int = 50,
    sampler: str = "tpe",
    until: float | None = None,
) -> Iterator[Step]:
    """Every configuration costs one federated training, which is what FLoRA saves.

    The baseline of FLoRA's figures 1, 2 and 5-7 (appendix D.4). As there (section 3), a federated
    training is emulated by one on the pooled rows, judged by cross-validation; so it is a
    simulation's. `trainings` in the report counts them, `reached` says whether `until` was met.

    Parameters
    ----------
    trials
        The most configurations per learner.
    sampler
        `tpe`, `random`, `gp`, `cmaes` or `grid`.
    until
        Stop at this loss on the pooled rows: that of another method's answer, say.
    """
    if until is not None and not math.isfinite(until):
        raise UsageError(f"until is {until}: give the loss to stop at")
    trainings = 0
    for step in central(federation, problem, trials=trials, sampler=sampler):
        trainings += len(step.trials)
        reached = until is not None and min(trial.loss for trial in step.trials) <= until
        yield msgspec.structs.replace(
            step, report={"trainings": trainings, "reached": reached if until is not None else None}
        )
        if reached:
            return


def private(**_: object) -> None:
    """It judges by all rows in one place, too."""
    raise UsageError("multishot is a reference for simulations in the clear: leave privacy out")
