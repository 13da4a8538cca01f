"""How a trained model fares on rows that it has not seen: set aside, or those of a fold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from cotune.party.train.assess import HALVES, Score
from cotune.protocol.tally import figures, statistic
from cotune.training.blind import blind_loss
from cotune.trial import HeldOut

if TYPE_CHECKING:
    from cotune.coordinator.federation import Federation
    from cotune.model.model import Model
    from cotune.problem import Problem

#: Trains a model for the problem that it is given.
Training = Callable[["Problem"], "Model"]
#: The totals of `Score`, by the names of their terms: of the first half of the rows, then of the
#: second.
Halves = dict[str, np.ndarray]


class Scores(msgspec.Struct, frozen=True):
    """A model's loss, and the totals of either half of the rows, from which it follows."""

    held_out: HeldOut
    halves: Halves


def cross_validated(federation: Federation, problem: Problem, training: Training) -> Scores | None:
    """On all rows, each predicted by the model that was trained without its fold."""
    return _found(federation, problem, training, range(problem.folds))


def validated(federation: Federation, problem: Problem, training: Training) -> Scores | None:
    """On the rows of the first fold, predicted by a model trained without it."""
    return _found(federation, problem, training, range(1))


def _found(
    federation: Federation, problem: Problem, training: Training, folds: range
) -> Scores | None:
    """From the totals of the folds, added up; None if no party has enough rows to part."""
    totals: Halves = {}
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
    return scores_of(problem, totals, parties, len(folds))


def scores_of(problem: Problem, halves: Halves, parties: int, folds: int = 0) -> Scores | None:
    """What totals come to; None if they are of no row."""
    totals = _together(halves)
    (found,) = figures(problem, totals)
    if not found.rows:
        return None
    rows = found.rows + found.left_out
    held_out = HeldOut(
        found.loss,
        rows,
        parties,
        error=found.error,
        left_out=found.left_out,
        folds=folds,
        blind=blind_loss(problem, statistic(problem).class_rows(totals["counts"])),
    )
    return Scores(held_out, halves)


def crossed(problem: Problem, models: Sequence[Halves], best: int) -> float:
    """The loss of the best of several models without the luck in having been chosen.

    On either half of the rows that model counts which is best on the other half (two-fold
    cross-fitting), so the rows that choose are not those that judge. By how much these are worse
    than the `best` of all, in the mean over the rows, is added to its loss: so the same model for
    both halves is not corrected, whatever classes a half lacks. No model is worse than the worst.
    """
    whole = [figures(problem, _together(halves))[0].loss for halves in models]
    parts = [[figures(problem, _half(halves, n))[0] for halves in models] for n in range(HALVES)]
    rows = [part[best].rows for part in parts]
    if not all(rows):
        return whole[best]
    luck = 0.0
    for half, other in ((0, 1), (1, 0)):
        chosen = int(np.argmin([figure.loss for figure in parts[other]]))
        luck += rows[half] * (parts[half][chosen].loss - parts[half][best].loss) / sum(rows)
    return min(max(whole), whole[best] + luck)


def _together(halves: Halves) -> Halves:
    return {name: values.reshape(HALVES, -1).sum(axis=0) for name, values in halves.items()}


def _half(halves: Halves, number: int) -> Halves:
    return {name: np.split(values, HALVES)[number] for name, values in halves.items()}
