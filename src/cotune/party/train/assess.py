"""A party's judgement of the trained model, beside one of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from cotune.errors import DataError, Malformed
from cotune.party.task import Configuration, Reply, Task, Term, most_summed_bytes

if TYPE_CHECKING:
    from cotune.party.fit import Job
    from cotune.party.party import Party
    from cotune.problem import Problem


class Assessed(Reply, frozen=True):
    """Losses on the party's held-out rows; NaN where they do not define the metric."""

    rows: int
    joint: float
    own: float

    @property
    def sums(self) -> list[float]:
        """What adds up to means over all parties' rows: rows, and for both losses sum and rows."""
        told = [float(self.rows)]
        for loss in (self.joint, self.own):
            told += [0.0, 0.0] if np.isnan(loss) else [loss * self.rows, float(self.rows)]
        return told


class Assess(Task, frozen=True):
    """Judge a model, and the same configuration fitted on the party's own rows alone."""

    discloses = (
        "how many rows it set aside, and two losses on these: of the federation's model, and of a "
        "model that it fitted on its own rows alone"
    )
    reply = Assessed
    instead = "only the mean over all parties can be told"

    learner: str
    params: dict[str, bool | int | float | str | None]
    model: bytes

    def perform(self, party: Party) -> Assessed:
        from cotune.data.encode import encode_target
        from cotune.learners import learner
        from cotune.model import Model
        from cotune.party.fit import Job
        from cotune.party.score import score

        if party.held_out.empty:
            raise DataError("no row is set aside: the holdout is too small for this party")
        party.require(self.learner)
        model = Model.unpacked(self.model)
        problem = party.problem
        mine = (problem.schema, problem.scaling, learner(self.learner).features)
        if (model.schema, model.scaling, model.features) != mine:
            raise Malformed("the model is not one of this run's problem")
        X, y = model.encoded(party.held_out), encode_target(party.held_out, problem.schema)
        classes = np.arange(len(problem.schema.classes))
        began = time.thread_time()
        joint = score(problem, model.on_codes, classes, X, y)
        seconds = time.thread_time() - began
        configuration = Configuration(self.learner, self.params)
        job = Job(party.folder(model.features), learner(self.learner), configuration, ())
        own, fitting = party.compute(own_loss, job, X, y)
        party.bill(1, seconds + fitting)
        return Assessed(len(y), joint, own)

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        assert problem is not None
        metric, schema = problem.metric, problem.schema
        most = max(1.0, metric.worst(schema)) * 2.0**31
        return {"sums": Term(5, 0.0, most, min(1.0, metric.resolution(schema)))}

    def most_fits(self, problem: Problem) -> int:
        return 1

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))

    def check(self, reply: Assessed, problem: Problem | None) -> None:
        assert problem is not None
        worst = problem.metric.worst(problem.schema)
        for loss in (reply.joint, reply.own):
            if not (np.isnan(loss) or 0.0 <= loss <= worst):
                raise Malformed("the reply has a loss that is not within its bounds")
        if not 0 < reply.rows < 2**31:
            raise Malformed("the reply's number of rows is not within its bounds")


def own_loss(job: Job, X: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The loss on rows X, y of a fit on all of the party's other rows, and its CPU seconds."""
    from cotune.party.fit import as_asked, fitted
    from cotune.party.rows import open_rows
    from cotune.party.score import score

    began = time.thread_time()
    with as_asked():
        estimator, present = fitted(job)
    loss = score(open_rows(job.folder).problem, estimator, present, X, y)
    return loss, time.thread_time() - began


TASKS: tuple[type[Task], ...] = (Assess,)
