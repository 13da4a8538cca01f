"""How good a trained model is on the rows that the parties set aside."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from cotune.errors import FederationError, UsageError
from cotune.federation.journal import Journal
from cotune.folds import Scores, scores_of
from cotune.methods.evaluate import added_up
from cotune.model import Model
from cotune.outcome import Outcome
from cotune.party.train.assess import Assess, Assessed, Score
from cotune.problem import Budget, Problem, metric
from cotune.run import read_record
from cotune.tally import figures

if TYPE_CHECKING:
    import pandas as pd

    from cotune.federation.federation import Federation


log = logging.getLogger(__name__)


class Judged(msgspec.Struct, frozen=True):
    """One party's held-out rows, or all of them: their number, and two models' figures there.

    `joint` is the federation's model, `own` the same configuration fitted on the party's rows
    alone; both in the metric's own direction, with their standard errors. Of all parties together
    the figures are those over all rows, each predicted by its own party's model for `own`, but for
    rows that were `left_out`: of classes of which their party has too few to say how they fared.
    """

    party: str
    rows: int
    joint: float
    own: float
    joint_error: float
    own_error: float
    left_out: int = 0


class Assessment(msgspec.Struct, frozen=True):
    """What `evaluate` returns: a judgement by party, and over all held-out rows."""

    metric: str
    parties: tuple[Judged, ...]
    total: Judged

    def gain(self, judged: Judged) -> float:
        """By how much the joint model is better than the party's own; above 0 is better."""
        higher = metric(self.metric).shown == "higher"
        return judged.joint - judged.own if higher else judged.own - judged.joint

    def dataframe(self) -> pd.DataFrame:
        """One row per party, the total last."""
        import pandas as pd

        rows = [*self.parties, self.total]
        return pd.DataFrame([msgspec.to_builtins(r) | {"gained": self.gain(r)} for r in rows])

    def summary(self) -> dict[str, Any]:
        """The figures of one JSON object, as `cotune evaluate --json` prints it."""
        *parties, total = self.dataframe().to_dict("records")
        return {"metric": self.metric, "parties": parties, "total": total}


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
    from cotune.simulation import again

    folder = Path(outcome.run)
    record = read_record(folder)
    if federation is not None:
        from cotune.tuning import check_same

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


def _assess(outcome: Outcome, federation: Federation) -> Assessment:
    problem = outcome.problem
    bound = federation.for_run(secrets.token_hex(8), Journal(), Budget(), outcome.privacy)
    bound.problem = problem
    model: Model = outcome.model
    task = Assess(model.learner, model.params, model.packed())
    terms = task.terms(problem)
    if outcome.privacy != "plain":  # no party tells its own figures
        sums = bound.sum(task)
        total = _judged("all", problem, {name: sums.sum(name) for name in terms})
        return Assessment(problem.metric_name, (), total)
    told = {party: cast(Assessed, reply) for party, reply in bound.gather(task).items()}
    total = _judged("all", problem, added_up(terms, list(told.values()), [1.0] * len(told)))
    value = problem.metric.value
    parties = tuple(
        msgspec.structs.replace(
            _judged(party, problem, added_up(terms, [one], [1.0])),
            rows=one.rows,
            joint=value(one.joint),  # the party's own words: exact, and of all of its rows
            own=value(one.own),
        )
        for party, one in told.items()
    )
    return Assessment(problem.metric_name, parties, total)


def _judged(party: str, problem: Problem, totals: Mapping[str, np.ndarray]) -> Judged:
    joint, own = figures(problem, totals)
    value = problem.metric.value
    return Judged(
        party,
        joint.rows + joint.left_out,
        value(joint.loss),
        value(own.loss),
        joint.error,
        own.error,
        joint.left_out,
    )
