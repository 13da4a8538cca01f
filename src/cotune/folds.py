"""How a configuration fares on folds of the rows, trained by the federation on the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from cotune.party.train.assess import Score
from cotune.tally import figures
from cotune.trial import HeldOut

if TYPE_CHECKING:
    from cotune.federation.federation import Federation
    from cotune.model import Model
    from cotune.problem import Problem

#: Trains a model for the problem that it is given.
Training = Callable[["Problem"], "Model"]


def cross_validated(federation: Federation, problem: Problem, training: Training) -> HeldOut | None:
    """The loss over all rows, each predicted by the model that was trained without its fold."""
    return _found(federation, problem, training, range(problem.folds))


def validated(federation: Federation, problem: Problem, training: Training) -> HeldOut | None:
    """The loss over the rows of the first fold, predicted by a model trained without it."""
    return _found(federation, problem, training, range(1))


def _found(
    federation: Federation, problem: Problem, training: Training, folds: range
) -> HeldOut | None:
    """From the totals of the folds, added up; None if no party has enough rows to part."""
    totals: dict[str, np.ndarray] = {}
    parties = len(federation.parties)
    for fold in folds:
        outside = msgspec.structs.replace(problem, fold=fold)
        with federation.about(outside):
            model = training(outside)
            task = Score(model.learner, model.packed())
            sums = federation.sum(task)
        parties = min(parties, sums.parties)
        for name in task.terms(outside):
            totals[name] = totals.get(name, 0.0) + sums.sum(name)
    (found,) = figures(problem, totals)
    if not found.rows:
        return None
    rows = found.rows + found.left_out
    return HeldOut(
        found.loss, rows, parties, error=found.error, left_out=found.left_out, folds=len(folds)
    )
