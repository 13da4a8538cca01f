"""A party's judgement of the trained model, beside one of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from cotune.errors import DataError, Malformed
from cotune.party.task import Configuration, Reply, Task, Term, most_summed_bytes

if TYPE_CHECKING:
    from pathlib import Path

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
        from cotune.learners import learner
        from cotune.party.fit import Job

        if party.held_out.empty:
            raise DataError("no row is set aside: the holdout is too small for this party")
        X, y, folder = _rows(party, self.learner, self.model)
        configuration = Configuration(self.learner, self.params)
        job = Job(folder, learner(self.learner), configuration, ())
        joint, seconds = party.compute(joint_loss, folder, self.model, X, y)
        own, fitting = party.compute(own_loss, job, X, y)
        party.bill(1, seconds + fitting)
        return Assessed(len(y), joint, own)

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        return {"sums": _sums_term(problem, 5)}

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


class Scored(Reply, frozen=True):
    """The loss times its rows, the rows that define it, and all that the party set aside."""

    sums: list[float]


class Score(Task, frozen=True):
    """Judge a model by the rows that the party set aside."""

    discloses = "how many rows it set aside, and the loss of the federation's model on these"
    reply = Scored

    learner: str
    model: bytes

    def perform(self, party: Party) -> Scored:
        if party.held_out.empty:
            return Scored([0.0, 0.0, 0.0])
        X, y, folder = _rows(party, self.learner, self.model)
        loss, seconds = party.compute(joint_loss, folder, self.model, X, y)
        party.bill(0, seconds)
        rows = float(len(y))
        return Scored([0.0, 0.0, rows] if np.isnan(loss) else [loss * rows, rows, rows])

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        return {"sums": _sums_term(problem, 3)}

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))


def _rows(party: Party, name: str, packed: bytes) -> tuple[np.ndarray, np.ndarray, Path]:
    """The rows that were set aside, as the model takes them, and where the others lie."""
    from cotune.data.encode import encode, encode_target
    from cotune.learners import learner
    from cotune.packing import Packed

    party.require(name)
    problem, manifest = party.problem, Packed.unpacked(packed).manifest
    mine = (problem.schema, problem.scaling, learner(name).features)
    if (manifest.schema, manifest.scaling, manifest.features) != mine:
        raise Malformed("the model is not one of this run's problem")
    X = encode(party.held_out, problem.schema, manifest.features, problem.scaling)
    y = encode_target(party.held_out, problem.schema)
    return X, y, party.folder(manifest.features)


def _sums_term(problem: Problem | None, length: int) -> Term:
    assert problem is not None
    metric, schema = problem.metric, problem.schema
    most = max(1.0, metric.worst(schema)) * 2.0**31
    return Term(length, 0.0, most, min(1.0, metric.resolution(schema)))


def joint_loss(folder: Path, model: bytes, X: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The loss of a model on rows X, y, and its CPU seconds.

    On a worker: the model comes from outside, and the party's own process does not read it.
    """
    from cotune.model import Model
    from cotune.party.rows import open_rows
    from cotune.party.score import NotFinite, score

    began = time.thread_time()
    problem = open_rows(folder).problem
    try:
        classes = np.arange(len(problem.schema.classes))
        loss = score(problem, Model.unpacked(model).on_codes, classes, X, y)
    except NotFinite:
        loss = problem.metric.worst(problem.schema)
    return loss, time.thread_time() - began


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


TASKS: tuple[type[Task], ...] = (Assess, Score)
