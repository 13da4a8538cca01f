"""A party's judgement of the trained model, beside one of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from cotune import tally
from cotune.errors import DataError, Malformed
from cotune.party.task import Configuration, Reply, Task, Term

if TYPE_CHECKING:
    from cotune.party.fit import Job
    from cotune.party.party import Party
    from cotune.problem import Problem


class Assessed(Reply, frozen=True):
    """Losses on the party's held-out rows, NaN where they do not define the metric; and tallies.

    Of both the federation's model comes first, then the party's own.
    """

    rows: int
    joint: float
    own: float
    counts: tuple[int, ...]
    wholes: tuple[float, ...] = ()
    rests: tuple[float, ...] = ()


class Assess(Task, frozen=True):
    """Judge a model, and the same configuration fitted on the party's own rows alone."""

    discloses = (
        "how many rows it set aside, and how the federation's model and one that it fitted on its "
        "own rows alone predict these: two losses and, as the metric needs it, how many rows of "
        "each class are predicted right or as which other class, histograms of scores, or sums of "
        "errors and of their powers"
    )
    reply = Assessed
    instead = "only the figures over all parties can be told"

    learner: str
    params: dict[str, bool | int | float | str | None]
    model: bytes

    def perform(self, party: Party) -> Assessed:
        from cotune.data.encode import encode_target
        from cotune.learners import learner
        from cotune.model import Model
        from cotune.party.fit import Job
        from cotune.party.score import predictions

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
        joint = predictions(problem, model.on_codes, classes, X)
        seconds = time.thread_time() - began
        configuration = Configuration(self.learner, self.params)
        job = Job(party.folder(model.features), learner(self.learner), configuration, ())
        own, fitting = party.compute(own_predictions, job, X)
        party.bill(1, seconds + fitting)
        return assessed(problem, y, joint, own, party.smallest_cell)

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        assert problem is not None
        return tally.terms(problem, 2)

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
        nothing = dict.fromkeys(("wholes", "rests"), Term(0, 0.0, 0.0, 1.0))
        for name, term in (nothing | self.terms(problem)).items():
            values = np.asarray(getattr(reply, name), dtype=float)
            if values.shape != (term.length,) or not term.holds(values, 1.0):
                raise Malformed(f"the reply's {name} are not {term.length} within their bounds")


def assessed(
    problem: Problem, y: np.ndarray, joint: np.ndarray, own: np.ndarray, smallest: int
) -> Assessed:
    """The reply that two models' predictions of the same rows make."""
    from cotune.party.score import loss

    kept = None
    if problem.task == "classification":
        kept = np.bincount(y, minlength=len(problem.schema.classes)) >= smallest
    summed = tally.statistic(problem)
    tallies = [
        summed.disclosed(summed.tally(y, predicted, kept), smallest) for predicted in (joint, own)
    ]
    return Assessed(
        len(y), loss(problem, y, joint), loss(problem, y, own), **tally.vectors(problem, tallies)
    )


def own_predictions(job: Job, X: np.ndarray) -> tuple[np.ndarray, float]:
    """What a fit on all of the party's other rows predicts of these, and its CPU seconds."""
    from cotune.party.fit import fitted
    from cotune.party.rows import open_rows
    from cotune.party.score import predictions

    began = time.thread_time()
    estimator, present = fitted(job)
    predicted = predictions(open_rows(job.folder).problem, estimator, present, X)
    return predicted, time.thread_time() - began


TASKS: tuple[type[Task], ...] = (Assess,)
