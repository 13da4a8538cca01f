"""The end of a run: its best configurations, trained by the federation and compared there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from cotune.assessment import held_out
from cotune.errors import DataError, UsageError
from cotune.federation.federation import Federation
from cotune.federation.ledger import Ledger
from cotune.folds import Scores, cross_validated, crossed
from cotune.model import Model
from cotune.problem import Problem
from cotune.trial import Finalist, Trial, best_of


def contenders(
    problem: Problem, answer: Trial, trials: Sequence[Trial], count: int
) -> list[Finalist]:
    """What is trained for certain: the search's answer, then the other learners' best.

    What suits models of single parties need not suit the one that the federation trains. One place
    of `count` is kept for default settings.
    """
    others = [
        best_of([trial for trial in trials if trial.learner == learner])
        for learner in dict.fromkeys(trial.learner for trial in trials)
        if learner != answer.learner
    ]
    others.sort(key=lambda trial: trial.loss)
    return [
        _finalist(problem, trial.learner, trial.params, trials)
        for trial in (answer, *others)[: max(1, count - 1)]
    ]


def finish(
    federation: Federation,
    problem: Problem,
    trials: Sequence[Trial],
    answer: Trial,
    count: int,
    training: Callable[[Finalist, Problem], Model],
) -> tuple[Model, Finalist, tuple[Finalist, ...]]:
    """Train the contenders, then the default settings of the best one's learner; the best of all.

    Each model is judged by the rows set aside (with a `count` of 0 there are none), and the best is
    shipped as it was judged. Several configurations without such rows are judged by
    cross-validation of models that the federation trains, and the best is then trained on all rows.
    What the best one's figure is without the luck in having been chosen is said, too (`crossed`).
    A training that fails leaves the others; if all do, the first one's error is raised. Where
    nobody could judge, the first is the answer.
    """
    judged: list[tuple[Finalist, Model | None]] = []
    known: list[Scores] = []
    errors: list[Exception] = []
    by_folds = count > 1 and not problem.holdout

    def enter(one: Finalist) -> None:
        begun, model = federation.ledger.rounds, None
        scores: Scores | None = None
        try:
            if by_folds:
                scores = cross_validated(federation, problem, partial(training, one))
            else:
                model = training(one, problem)
                scores = held_out(federation, problem, model) if count else None
        except (UsageError, DataError) as error:
            errors.append(error)
            judged.append((msgspec.structs.replace(one, failed=str(error)), None))
            return
        if scores is not None:
            known.append(scores)
        cost = Ledger(list(federation.ledger)[begun:])
        done = msgspec.structs.replace(
            one,
            held_out=None if scores is None else scores.held_out,
            rounds=cost.rounds,
            bytes_up=cost.bytes_up,
            bytes_down=cost.bytes_down,
        )
        judged.append((done, model))

    for one in contenders(problem, answer, trials, count):
        enter(one)
    if count > 1:
        learner = _best(judged, errors)[0].learner
        default = _finalist(problem, learner, problem.default(learner), trials)
        if not any(_alike(default, one) for one, _ in judged):
            enter(default)
    best, model = _best(judged, errors)
    if best.held_out is not None and len(known) > 1:
        fair = msgspec.structs.replace(
            best.held_out, crossed=crossed(problem, [scores.halves for scores in known])
        )
        best = msgspec.structs.replace(best, held_out=fair)
    return model or training(best, problem), best, tuple(one for one, _ in judged)


def _best(
    judged: Sequence[tuple[Finalist, Model | None]], errors: Sequence[Exception]
) -> tuple[Finalist, Model | None]:
    trained = [(one, model) for one, model in judged if not one.failed]
    if not trained:
        raise errors[0]
    return min(trained, key=lambda pair: _loss(pair[0]))


def _finalist(
    problem: Problem, learner: str, params: dict[str, Any], trials: Sequence[Trial]
) -> Finalist:
    seen = [trial for trial in trials if (trial.learner, trial.params) == (learner, params)]
    searched = best_of(seen).loss if seen else None
    return Finalist(learner, params, searched, params == problem.default(learner))


def _loss(finalist: Finalist) -> float:
    return float("inf") if finalist.held_out is None else finalist.held_out.loss


def _alike(one: Finalist, other: Finalist) -> bool:
    return (one.learner, one.params) == (other.learner, other.params)
