"""The end of a run: its best configurations, trained by the federation and compared there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from cotune.assessment import held_out
from cotune.errors import DataError, UsageError
from cotune.federation.federation import Federation
from cotune.federation.ledger import Ledger
from cotune.model import Model
from cotune.party.task import Configuration
from cotune.problem import Problem
from cotune.training import Stage, train
from cotune.trial import Finalist, Trial, best_of


def contenders(
    problem: Problem, answer: Trial, trials: Sequence[Trial], count: int
) -> list[Finalist]:
    """What is worth a training: the answer, another learner's best, and the answer's default.

    What suits models of single parties need not suit the one that the federation trains. After
    these three come the other learners' best, by their losses in the search.
    """
    others = [
        best_of([trial for trial in trials if trial.learner == learner])
        for learner in dict.fromkeys(trial.learner for trial in trials)
        if learner != answer.learner
    ]
    others.sort(key=lambda trial: trial.loss)
    default = problem.default(answer.learner)
    seen = [trial for trial in trials if _is(trial, answer.learner, default)]
    best = [Finalist(trial.learner, trial.params, trial.loss) for trial in (answer, *others)]
    best.insert(2, Finalist(answer.learner, default, best_of(seen).loss if seen else None))
    named = [
        msgspec.structs.replace(one, default=one.params == problem.default(one.learner))
        for one in best
    ]
    found: list[Finalist] = []
    for one in named:
        if not any(one.learner == f.learner and one.params == f.params for f in found):
            found.append(one)
    return found[: max(1, count)]


def finish(
    federation: Federation,
    problem: Problem,
    entered: Sequence[Finalist],
    merge_every: int | None,
    watch: Callable[[Stage, Finalist], None],
    *,
    judged: bool,
) -> tuple[Model, int, tuple[Finalist, ...]]:
    """Train each, and judge it by the rows set aside; the best one's model, and which it is.

    A training that fails leaves the others; if all do, the first one's error is raised. The model
    is shipped as it was judged. Where nobody could judge, the first is the answer.
    """
    models: dict[int, Model] = {}
    finalists = list(entered)
    errors: list[Exception] = []
    for number, one in enumerate(entered):
        begun = federation.ledger.rounds
        try:
            models[number] = train(
                federation,
                problem,
                Configuration(one.learner, one.params),
                lambda stage, one=one: watch(stage, one),  # type: ignore[misc]
                merge_every,
            )
        except (UsageError, DataError) as error:
            errors.append(error)
            finalists[number] = msgspec.structs.replace(one, failed=str(error))
            continue
        found = held_out(federation, problem, models[number]) if judged else None
        cost = Ledger(list(federation.ledger)[begun:])
        finalists[number] = msgspec.structs.replace(
            one,
            held_out=found,
            rounds=cost.rounds,
            bytes_up=cost.bytes_up,
            bytes_down=cost.bytes_down,
        )
    if not models:
        raise errors[0]
    best = min(models, key=lambda number: _loss(finalists[number]))
    return models[best], best, tuple(finalists)


def _loss(finalist: Finalist) -> float:
    return float("inf") if finalist.held_out is None else finalist.held_out.loss


def _is(trial: Trial, learner: str, params: dict[str, object]) -> bool:
    return (trial.learner, trial.params) == (learner, params)
