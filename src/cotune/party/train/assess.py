"""A party's judgement of the trained model, beside one of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from cotune.errors import DataError, Malformed
from cotune.party.task import Configuration, Reply, Task, Term

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
        from cotune.data.encode import encode, encode_target
        from cotune.learners import learner
        from cotune.packing import Packed
        from cotune.party.fit import Job

        if party.held_out.empty:
            raise DataError("no row is set aside: the holdout is too small for this party")
        party.require(self.learner)
        problem, manifest = party.problem, Packed.unpacked(self.model).manifest
        mine = (problem.schema, problem.scaling, learner(self.learner).features)
        if (manifest.schema, manifest.scaling, manifest.features) != mine:
            raise Malformed("the model is not one of this run's problem")
        X = encode(party.held_out, problem.schema, manifest.features, problem.scaling)
        y = encode_target(party.held_out, problem.schema)
        configuration = Configuration(self.learner, self.params)
        job = Job(party.folder(manifest.features), learner(self.learner), configuration, ())
        joint, own, seconds = party.compute(losses, self.model, job, X, y)
        party.bill(1, seconds)
        return Assessed(len(y), joint, own)

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        assert problem is not None
        metric, schema = problem.metric, problem.schema
        most = max(1.0, metric.worst(schema)) * 2.0**31
        return {"sums": Term(5, 0.0, most, min(1.0, metric.resolution(schema)))}

    def most_fits(self, problem: Problem) -> int:
        return 1

    def check(self, reply: Assessed, problem: Problem | None) -> None:
        assert problem is not None
        worst = problem.metric.worst(problem.schema)
        for loss in (reply.joint, reply.own):
            if not (np.isnan(loss) or 0.0 <= loss <= worst):
                raise Malformed("the reply has a loss that is not within its bounds")
        if not 0 < reply.rows < 2**31:
            raise Malformed("the reply's number of rows is not within its bounds")


def losses(model: bytes, job: Job, X: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """The losses on rows X, y of a model and of a fit on all other rows, and the CPU seconds.

    On a worker: the model comes from outside, and the party's own process does not read it.
    """
    from cotune.model import Model
    from cotune.party.fit import fitted
    from cotune.party.rows import open_rows
    from cotune.party.score import NotFinite, score

    began = time.thread_time()
    problem = open_rows(job.folder).problem
    classes = np.arange(len(problem.schema.classes))
    try:
        joint = score(problem, Model.unpacked(model).on_codes, classes, X, y)
    except NotFinite as error:
        raise Malformed("the model predicts numbers that are not finite") from error
    estimator, present = fitted(job)
    own = score(problem, estimator, present, X, y)
    return joint, own, time.thread_time() - began


TASKS: tuple[type[Task], ...] = (Assess,)
