"""How good a trained model is on the rows that the parties set aside."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from cotune.errors import FederationError, UsageError
from cotune.federation.journal import Journal
from cotune.model import Model
from cotune.outcome import Outcome
from cotune.party.train.assess import Assess, Assessed, Score
from cotune.problem import Budget, Problem, metric
from cotune.run import read_record
from cotune.trial import HeldOut

if TYPE_CHECKING:
    import pandas as pd

    from cotune.federation.federation import Federation


log = logging.getLogger(__name__)


class Judged(msgspec.Struct, frozen=True):
    """One party's held-out rows, or all of them: their number, and two models' figures there.

    `joint` is the federation's model, `own` the same configuration fitted on the party's rows
    alone; both in the metric's own direction. Of all parties together it is the mean by rows.
    """

    party: str
    rows: int
    joint: float
    own: float


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

    If the run's sums were private, so are these: there is the mean over all parties, and no more.

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


def held_out(federation: Federation, problem: Problem, model: Model) -> HeldOut | None:
    """The loss of a model on all rows that were set aside: one sum, private if the run's sums are.

    None if no party could say. A model that is trained is not lost for that.
    """
    try:
        sums = federation.sum(Score(model.learner, model.packed()))
    except FederationError as error:
        log.warning("the model could not be judged by the rows that were set aside: %s", error)
        return None
    total, rows, _ = sums.sum("sums").tolist()
    return HeldOut(total / rows, int(rows), sums.parties) if rows else None


def _assess(outcome: Outcome, federation: Federation) -> Assessment:
    problem = outcome.problem
    bound = federation.for_run(secrets.token_hex(8), Journal(), Budget(), outcome.privacy)
    bound.problem = problem
    model: Model = outcome.model
    task, value = Assess(model.learner, model.params, model.packed()), problem.metric.value
    if outcome.privacy != "plain":  # no party tells its own figures
        rows, *losses = bound.sum(task).sum("sums").tolist()
        joint, own = (value(losses[i] / (losses[i + 1] or np.nan)) for i in (0, 2))
        return Assessment(problem.metric_name, (), Judged("all", int(rows), joint, own))
    replies = bound.gather(task)
    told = {party: cast(Assessed, reply) for party, reply in replies.items()}
    weights = [one.rows for one in told.values()]

    def mean(values: list[float]) -> float:
        defined = ~np.isnan(values)
        total = float(np.sum(weights, where=defined))
        return float(np.sum(np.multiply(values, weights), where=defined)) / (total or np.nan)

    parties = tuple(
        Judged(party, one.rows, value(one.joint), value(one.own)) for party, one in told.items()
    )
    total = Judged(
        "all",
        sum(weights),
        mean([judged.joint for judged in parties]),
        mean([judged.own for judged in parties]),
    )
    return Assessment(problem.metric_name, parties, total)
