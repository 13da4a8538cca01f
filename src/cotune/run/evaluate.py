"""How good a trained model is on the rows that the parties set aside."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from cotune.coordinator.journal import Journal
from cotune.errors import FederationError, UsageError
from cotune.methods.evaluate import added_up
from cotune.model.model import Model
from cotune.party.train.assess import Assess, Assessed, Score
from cotune.problem import Budget, Problem
from cotune.protocol.tally import figures
from cotune.run.differences import may_be_shown
from cotune.run.folder import read_record
from cotune.run.joined import Assessment, Judged
from cotune.run.outcome import Outcome
from cotune.training.folds import Scores, scores_of

if TYPE_CHECKING:
    from cotune.coordinator.federation import Federation


log = logging.getLogger(__name__)


def evaluate(run: str | Path | Outcome, federation: Federation | None = None) -> Assessment:
    """Judge a run's model by the rows that each party set aside (`holdout`).

    If the run's sums were private, so are these: there are figures over all parties, and no more.

    The federation is made anew if it was a simulation on files or named data sets; otherwise pass
    the one that the run was made with.

    Examples
    --------
    >>> import cotune
    >>> with cotune.simulate("sklearn:iris", parties=3, processes=1) as federation:
    ...     outcome = cotune.tune(
    ...         federation, learners=["logistic_regression"], trials=2, folds=3, holdout=0.3
    ...     )
    ...     cotune.evaluate(outcome, federation).total.joint > 0.8
    True
    """
    outcome = run if isinstance(run, Outcome) else Outcome.load(run)
    if outcome.noises:
        raise UsageError(
            "the run's sums were noised, and what judges its model would not be: look at the "
            "losses of its trials instead"
        )
    if not outcome.problem.holdout:
        raise UsageError(
            "no rows were set aside when the run was made: tune with --holdout 0.2, say"
        )
    if outcome.run is None:
        if federation is None:
            raise UsageError("the run has no folder: pass the federation that it was made with")
        return _assess(outcome, federation)
    from cotune.run.simulate import again

    folder = Path(outcome.run)
    record = read_record(folder)
    if federation is not None:
        from cotune.run.tune import check_same

        check_same(record, federation)
        return _assess(outcome, federation)
    with again(record.origin, state=folder / "parties") as federation:
        return _assess(outcome, federation)


def held_out(federation: Federation, problem: Problem, model: Model) -> Scores | None:
    """How a model fares on all rows that were set aside: one sum, private if the run's sums are.

    None if no party could say. A model that is trained is not lost for that.
    """
    task = Score(model.learner, model.packed())
    try:
        sums = federation.sum(task)
    except FederationError as error:
        log.warning("the model could not be judged by the rows that were set aside: %s", error)
        return None
    totals = {name: sums.sum(name) for name in task.terms(problem)}
    return scores_of(problem, totals, sums.parties)


def joining(federation: Federation, problem: Problem, model: Model) -> Assessment | None:
    """What joining gained by this model: one round, and one fit at each party.

    None if the parties could not say. A model that is trained is not lost for that.
    """
    try:
        return _assessed(federation, problem, model)
    except FederationError as error:
        log.warning("what joining gained could not be found out: %s", error)
        return None


def _assess(outcome: Outcome, federation: Federation) -> Assessment:
    bound = federation.for_run(secrets.token_hex(8), Journal(), Budget(), outcome.privacy)
    bound.problem = outcome.problem
    return _assessed(bound, outcome.problem, outcome.model)


def _assessed(federation: Federation, problem: Problem, model: Model) -> Assessment:
    task = Assess(model.learner, model.params, model.packed())
    terms = task.terms(problem)
    if federation.privacy != "plain":  # no party discloses its own figures
        sums = federation.sum(task)
        total = _judged("all", problem, {name: sums.sum(name) for name in terms})
        gained, asked = (int(sums.sum(name)[0]) for name in ("gained", "asked"))
        if not may_be_shown(asked, sums.parties):
            return Assessment(problem.metric_name, (), total)
        shown = gained if may_be_shown(gained, asked) else None
        return Assessment(problem.metric_name, (), total, shown, asked)
    replies = {party: cast(Assessed, reply) for party, reply in federation.gather(task).items()}
    totals = added_up(terms, list(replies.values()), [1.0] * len(replies))
    parties = [
        _judged(party, problem, added_up(terms, [one], [1.0])) for party, one in replies.items()
    ]
    gained, asked = (int(totals[name][0]) for name in ("gained", "asked"))
    return Assessment(
        problem.metric_name,
        tuple(one for one in parties if one.rows),
        _judged("all", problem, totals),
        gained,
        asked,
    )


def _judged(party: str, problem: Problem, totals: Mapping[str, np.ndarray]) -> Judged:
    joint, own = figures(problem, totals)
    value = problem.metric.value
    return Judged(
        party,
        joint.rows + joint.left_out,
        value(joint.loss) if joint.defined else None,
        value(own.loss) if own.defined else None,
        joint.error,
        own.error,
        joint.left_out,
    )
