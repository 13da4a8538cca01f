"""The end of a run: its best configurations, trained by the federation and compared there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cotune.assessment import held_out
from cotune.blind import sees_nothing
from cotune.errors import DataError, Diverged, UsageError
from cotune.federation.federation import Federation
from cotune.federation.ledger import Ledger
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


def finish(
    federation: Federation,
    problem: Problem,
    trials: Sequence[Trial],
    answer: Trial,
    count: int,
    training: Callable[[Finalist], Model],
    given_up: Callable[[Finalist], None] = lambda _: None,
    replaced: bool = True,
) -> tuple[Model, Finalist, tuple[Finalist, ...]]:
    """Train the contenders, then the default settings of the best one's learner; the best of all.

    Each model is judged by the rows set aside (with a `count` of 0 there are none), and the best is
    shipped as it was judged. One whose training fails, or whose model is no better there than the
    class shares, is `given_up`, and the best configuration of the search that is not trained yet
    takes its place, once (unless none is to be `replaced`); without rows set aside the next
    learner's best, where the training diverged. If no model is better than that, the best of them
    is returned all the same; if there is none, the first error is raised. Where nobody could judge,
    the first is the answer.
    """
    judged: list[tuple[Finalist, Model | None]] = []
    errors: list[Exception] = []

    def enter(one: Finalist) -> bool:
        """Whether it is trained, and its model good for something."""
        begun = federation.ledger.rounds
        model, found, failed = None, None, ""
        try:
            model = training(one)
        except (UsageError, DataError) as error:
            errors.append(error)
            failed = str(error)
        else:
            found = held_out(federation, problem, model) if count else None
            failed = sees_nothing(problem, found) if found else ""
        cost = Ledger(list(federation.ledger)[begun:])
        done = msgspec.structs.replace(
            one,
            held_out=found,
            failed=failed,
            rounds=cost.rounds,
            bytes_up=cost.bytes_up,
            bytes_down=cost.bytes_down,
        )
        judged.append((done, model))
        if failed:
            given_up(done)
        return not failed

    certain = contenders(problem, answer, trials, count)
    for one in certain:
        if enter(one) or not replaced or not (count or isinstance(errors[0], Diverged)):
            continue
        left = trials if count else _bests(answer, trials)[1:]
        known = [*certain, *(entered for entered, _ in judged)]
        left = [trial for trial in left if not any(_alike(trial, other) for other in known)]
        if left:
            best = best_of(left)
            enter(_finalist(problem, best.learner, best.params, trials))
    if count > 1:
        able = any(model for _, model in judged)
        learner = _best(judged, errors)[0].learner if able else answer.learner
        default = _finalist(problem, learner, problem.default(learner), trials)
        if not any(_alike(default, one) for one, _ in judged):
            enter(default)
    best_one, model = _best(judged, errors)
    return model, best_one, tuple(one for one, _ in judged)


def _best(
    judged: Sequence[tuple[Finalist, Model | None]], errors: Sequence[Exception]
) -> tuple[Finalist, Model]:
    trained = [(one, model) for one, model in judged if model is not None]
    if not trained:
        raise errors[0]
    return min(trained, key=lambda pair: (bool(pair[0].failed), _loss(pair[0])))


def _finalist(
    problem: Problem, learner: str, params: dict[str, Any], trials: Sequence[Trial]
) -> Finalist:
    seen = [trial for trial in trials if (trial.learner, trial.params) == (learner, params)]
    searched = best_of(seen).loss if seen else None
    return Finalist(learner, params, searched, params == problem.default(learner))


def _loss(finalist: Finalist) -> float:
    return float("inf") if finalist.held_out is None else finalist.held_out.loss


def _alike(one: Finalist | Trial, other: Finalist) -> bool:
    return (one.learner, one.params) == (other.learner, other.params)
