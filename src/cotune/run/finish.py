"""The end of a run: its best configurations, trained by the federation and compared there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from cotune.coordinator.federation import Federation
from cotune.coordinator.ledger import Ledger
from cotune.errors import DataError, Diverged, UsageError
from cotune.model.model import Model
from cotune.problem import Problem
from cotune.run.evaluate import held_out
from cotune.training.blind import sees_nothing
from cotune.training.folds import Scores, cross_validated, crossed
from cotune.trial import Finalist, Trial, best_of


def contenders(
    problem: Problem, answer: Trial, trials: Sequence[Trial], count: int
) -> list[Finalist]:
    """What is trained for certain: the search's answer, then the other learners' best.

    What suits models of single parties need not suit the one that the federation trains. One place
    of `count` is kept for default settings.
    """
    found = _bests(answer, trials)[: max(1, count - 1)]
    return [_finalist(problem, trial.learner, trial.params, trials) for trial in found]


def _bests(answer: Trial, trials: Sequence[Trial]) -> list[Trial]:
    """The answer, and the best of every other learner."""
    others = [
        best_of([trial for trial in trials if trial.learner == learner])
        for learner in dict.fromkeys(trial.learner for trial in trials)
        if learner != answer.learner
    ]
    return [answer, *sorted(others, key=lambda trial: trial.loss)]


class _Entered(NamedTuple):
    """A finalist after its training; a model that was trained on folds only is not there yet."""

    finalist: Finalist
    trained: bool
    model: Model | None = None
    scores: Scores | None = None

    @property
    def rank(self) -> tuple[bool, float]:
        """The lower the better; a model that was given up comes after all others."""
        found = self.finalist.held_out
        return bool(self.finalist.failed), float("inf") if found is None else found.loss


def finish(
    federation: Federation,
    problem: Problem,
    trials: Sequence[Trial],
    answer: Trial,
    count: int,
    training: Callable[[Finalist, Problem], Model],
    given_up: Callable[[Finalist], None] = lambda _: None,
    replaced: bool = True,
) -> tuple[Model, Finalist, tuple[Finalist, ...]]:
    """Train the contenders, then the default settings of the best one's learner; the best of all.

    Each model is judged by the rows set aside (with a `count` of 0 there are none), and the best is
    shipped as it was judged. Several configurations without such rows are judged by
    cross-validation of models that the federation trains, and the best is then trained on all rows.
    What the best one's figure is without the luck in having been chosen is said, too (`crossed`).

    One whose training fails, or whose model is no better there than the class shares, is
    `given_up`, and its learner's default settings take its place, or if these are trained already
    the best configuration of the search that is not (unless none is to be `replaced`); without rows
    set aside the next learner's best does, where the training diverged. If no model is better than
    that, the best of them is returned all the same; if there is none, the first error is raised.
    Where nobody could judge, the first is the answer.
    """
    entered: list[_Entered] = []
    errors: list[Exception] = []
    by_folds = count > 1 and not problem.holdout

    def enter(one: Finalist) -> bool:
        """Whether it is trained, and its model good for something."""
        begun = federation.ledger.rounds
        model, scores, failed, trained = None, None, "", True
        try:
            if by_folds:
                scores = cross_validated(federation, problem, partial(training, one))
            else:
                model = training(one, problem)
        except (UsageError, DataError) as error:
            errors.append(error)
            failed, trained = str(error), False
        if model is not None and count:
            scores = held_out(federation, problem, model)
        if scores is not None:
            failed = sees_nothing(problem, scores.held_out)
        cost = Ledger(list(federation.ledger)[begun:])
        done = msgspec.structs.replace(
            one,
            held_out=None if scores is None else scores.held_out,
            failed=failed,
            rounds=cost.rounds,
            bytes_up=cost.bytes_up,
            bytes_down=cost.bytes_down,
        )
        entered.append(_Entered(done, trained, model, scores))
        if failed:
            given_up(done)
        return not failed

    certain = contenders(problem, answer, trials, count)
    for one in certain:
        if enter(one) or not replaced or not (count or isinstance(errors[0], Diverged)):
            continue
        known = [*certain, *(other.finalist for other in entered)]
        safe = _finalist(problem, one.learner, problem.default(one.learner), trials)
        left = trials if count else _bests(answer, trials)[1:]
        left = [
            trial for trial in left if not any(_alike(problem, trial, other) for other in known)
        ]
        if count and not any(_alike(problem, safe, other) for other in known):
            enter(safe)
        elif left:
            best = best_of(left)
            enter(_finalist(problem, best.learner, best.params, trials))
    if count > 1:
        able = any(other.trained for other in entered)
        learner = _best(entered, errors).finalist.learner if able else answer.learner
        default = _finalist(problem, learner, problem.default(learner), trials)
        if not any(_alike(problem, default, other.finalist) for other in entered):
            enter(default)
    chosen = _best(entered, errors)
    model = chosen.model or training(chosen.finalist, problem)
    finalists = tuple(other.finalist for other in entered)
    return model, _corrected(problem, chosen, entered), finalists


def _best(entered: Sequence[_Entered], errors: Sequence[Exception]) -> _Entered:
    trained = [one for one in entered if one.trained]
    if not trained:
        raise errors[0]
    return min(trained, key=lambda one: one.rank)


def _corrected(problem: Problem, best: _Entered, entered: Sequence[_Entered]) -> Finalist:
    """The best finalist with its figure as it is without the luck in having been chosen."""
    could = [one for one in entered if one.scores is not None and one.rank[0] == best.rank[0]]
    halves = [one.scores.halves for one in could if one.scores is not None]
    if best.finalist.held_out is None or len(halves) < 2:
        return best.finalist
    loss = crossed(problem, halves, could.index(best))
    found = msgspec.structs.replace(best.finalist.held_out, crossed=loss)
    return msgspec.structs.replace(best.finalist, held_out=found)


def _finalist(
    problem: Problem, learner: str, params: dict[str, Any], trials: Sequence[Trial]
) -> Finalist:
    seen = [trial for trial in trials if (trial.learner, trial.params) == (learner, params)]
    searched = best_of(seen).loss if seen else None
    default = problem.alike(learner, params, problem.default(learner))
    return Finalist(learner, params, searched, default)


def _alike(problem: Problem, one: Finalist | Trial, other: Finalist) -> bool:
    same = one.learner == other.learner
    return same and problem.alike(one.learner, one.params, other.params)
