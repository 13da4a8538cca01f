"""A party's judgement of the trained model, beside one of its own."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cotune.errors import Malformed
from cotune.party.rows import second_half
from cotune.party.task import OPERATOR, Configuration, Reply, Task, Term, most_summed_bytes
from cotune.protocol import tally

if TYPE_CHECKING:
    from pathlib import Path

    from cotune.party.fit import Job
    from cotune.party.party import Party
    from cotune.problem import Problem

operator = logging.getLogger(OPERATOR)

#: What a model predicts; None if that is not finite.
Predicted = np.ndarray | None
#: Into which `Score` cuts the rows.
HALVES = 2


class Assessed(Reply, frozen=True):
    """Tallies of the party's held-out rows: the federation's model comes first, then its own."""

    counts: tuple[int, ...]
    wholes: tuple[float, ...] = ()
    rests: tuple[float, ...] = ()
    gained: tuple[int, ...] = (0,)
    asked: tuple[int, ...] = (0,)


class Assess(Task, frozen=True):
    """Judge a model, and the same configuration fitted on the party's own rows alone.

    `asked` is 1 if the party has rows that define the metric, `gained` if the model is better on
    these: by what the tallies disclose, so that rows which they leave out have no say. How both did
    here is logged for the party's own operator.
    """

    discloses = (
        "how many rows it set aside, and how the federation's model and one that it fitted on its "
        "own rows alone predict these: which of them is better and, as the metric needs it, how "
        "many rows of each class are predicted right or as which other class, histograms of "
        "scores, or sums of errors and of their powers"
    )
    reply = Assessed
    instead = "only the figures over all parties can be told"

    learner: str
    params: dict[str, bool | int | float | str | None]
    model: bytes

    def perform(self, party: Party) -> Assessed:
        from cotune.learners import learner
        from cotune.party.fit import Job

        if party.held_out.empty:
            nothing = tally.Tally({}, (0.0,) * tally.statistic(party.problem).amounts)
            found = tally.vectors(party.problem, [nothing, nothing])
            return Assessed(**found)
        X, y, folder = _rows(party, self.learner, self.model)
        configuration = Configuration(self.learner, self.params)
        job = Job(folder, learner(self.learner), configuration, ())
        joint, seconds = party.compute(joint_predictions, folder, self.model, X)
        own, fitting = party.compute(own_predictions, job, X)
        party.bill(1, seconds + fitting)
        operator.info("%s: %s", party.name, compared(party.problem, y, joint, own))
        return assessed(party.problem, y, joint, own, party.smallest_cell)

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        assert problem is not None
        count = Term(1, 0.0, 1.0, 1.0, exact=True)
        return tally.terms(problem, 2) | {"gained": count, "asked": count}

    def rows(self, problem: Problem | None, vectors: Mapping[str, np.ndarray]) -> float:
        assert problem is not None
        return tally.rows(problem, vectors)

    def most_fits(self, problem: Problem) -> int:
        return 1

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))

    def check(self, reply: Assessed, problem: Problem | None) -> None:
        assert problem is not None
        nothing = dict.fromkeys(("wholes", "rests"), Term(0, 0.0, 0.0, 1.0))
        for name, term in (nothing | self.terms(problem)).items():
            values = np.asarray(getattr(reply, name), dtype=float)
            if values.shape != (term.length,) or not term.holds(values, 1.0):
                raise Malformed(f"the reply's {name} are not {term.length} within their bounds")


class Scored(Reply, frozen=True):
    """The tallies of either half of the party's held-out rows; zeros if it has none."""

    counts: tuple[int, ...]
    wholes: tuple[float, ...] = ()
    rests: tuple[float, ...] = ()


class Score(Task, frozen=True):
    """Judge a model by either half of the rows that the party set aside.

    What the rows of one half choose among models can then be judged by the other half.
    """

    discloses = (
        "how many rows it set aside, or has in a fold that the model was trained without, and how "
        "the federation's model predicts either half of these: as the metric needs it, how many "
        "rows of each class are predicted right or as which other class, histograms of scores, or "
        "sums of errors and of their powers"
    )
    reply = Scored

    learner: str
    model: bytes

    def perform(self, party: Party) -> Scored:
        problem = party.problem
        if party.held_out.empty:
            nothing = tally.Tally({}, (0.0,) * tally.statistic(problem).amounts)
            return Scored(**tally.vectors(problem, [nothing] * HALVES))
        X, y, folder = _rows(party, self.learner, self.model)
        predicted, seconds = party.compute(joint_predictions, folder, self.model, X)
        party.bill(0, seconds)
        classes = problem.task == "classification"
        second = second_half(y, classes, party.smallest_cell, party.key, party.name)
        halves = [(predicted, ~second), (predicted, second)]
        return Scored(**_tallies(problem, y, halves, party.smallest_cell))

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        assert problem is not None
        return tally.terms(problem, HALVES)

    def rows(self, problem: Problem | None, vectors: Mapping[str, np.ndarray]) -> float:
        assert problem is not None
        return sum(one.rows + one.left_out for one in tally.figures(problem, vectors))

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))


def _rows(party: Party, name: str, packed: bytes) -> tuple[np.ndarray, np.ndarray, Path]:
    """The rows that were set aside, as the model takes them, and where the others lie."""
    from cotune.data.encode import encode, encode_target
    from cotune.learners import learner
    from cotune.model.files import Packed

    party.require(name)
    problem, manifest = party.problem, Packed.unpacked(packed).manifest
    mine = (problem.schema, problem.scaling, learner(name).features)
    if (manifest.schema, manifest.scaling, manifest.features) != mine:
        raise Malformed("the model is not one of this run's problem")
    X = encode(party.held_out, problem.schema, manifest.features, problem.scaling)
    y = encode_target(party.held_out, problem.schema)
    return X, y, party.folder(manifest.features)


def assessed(
    problem: Problem, y: np.ndarray, joint: Predicted, own: Predicted, smallest: int
) -> Assessed:
    """The reply that two models' predictions of the same rows make."""
    every = np.ones(len(y), dtype=bool)
    tallies = _tallies(problem, y, [(joint, every), (own, every)], smallest)
    joined, alone = _figures(problem, tallies)
    gained, asked = int(joined.loss < alone.loss), int(joined.defined and alone.defined)
    return Assessed(**tallies, gained=(gained,), asked=(asked,))


def compared(problem: Problem, y: np.ndarray, joint: Predicted, own: Predicted) -> str:
    """For the party's own operator, in plain words: whether it does better alone."""
    summed = tally.statistic(problem)
    tallies = [
        summed.worst(y) if predicted is None else summed.tally(y, predicted)
        for predicted in (joint, own)
    ]
    joined, alone = _figures(problem, tally.vectors(problem, tallies))
    name = problem.metric_name.replace("_", " ")
    if not joined.defined:
        return f"{name} on the {len(y)} rows set aside: they have one class only, or are too few"
    value, gain = problem.metric.value, alone.loss - joined.loss
    clearly = abs(gain) > math.hypot(joined.error, alone.error)
    verdict = "here joining makes no difference"
    if gain:
        verdict = "here joining gains" if gain > 0 else "here you do better alone"
        verdict += ", clearly" if clearly else ", within the noise"
    return (
        f"{name} on the {len(y)} rows set aside: a model of your "
        f"own rows alone has {value(alone.loss):.4g}, the federation's {value(joined.loss):.4g}: "
        f"{verdict}"
    )


def _figures(problem: Problem, vectors: Mapping[str, Any]) -> list[tally.Figure]:
    return tally.figures(problem, {name: np.array(values) for name, values in vectors.items()})


def _tallies(
    problem: Problem, y: np.ndarray, models: Sequence[tuple[Predicted, np.ndarray]], smallest: int
) -> dict[str, Any]:
    """The terms of what each model predicts of some rows; all are wrong where it is not finite."""
    kept = None
    if problem.task == "classification":
        kept = np.bincount(y, minlength=len(problem.schema.classes)) >= smallest
    summed = tally.statistic(problem)
    tallies = [
        summed.worst(y[rows], kept)
        if predicted is None
        else summed.tally(y[rows], predicted[rows], kept)
        for predicted, rows in models
    ]
    return tally.vectors(problem, [summed.disclosed(one, smallest) for one in tallies])


def joint_predictions(folder: Path, model: bytes, X: np.ndarray) -> tuple[Predicted, float]:
    """What a model predicts of rows X, and its CPU seconds.

    On a worker: the model comes from outside, and the party's own process does not read it.
    """
    from cotune.model.model import Model
    from cotune.party.rows import open_rows

    began = time.thread_time()
    problem = open_rows(folder).problem
    classes = np.arange(len(problem.schema.classes))
    predicted = _predictions(problem, Model.unpacked(model).on_codes, classes, X)
    return predicted, time.thread_time() - began


def own_predictions(job: Job, X: np.ndarray) -> tuple[Predicted, float]:
    """What a fit on all of the party's other rows predicts of rows X, and its CPU seconds."""
    from cotune.party.fit import as_asked, fitted
    from cotune.party.rows import open_rows

    began = time.thread_time()
    with as_asked():
        estimator, present = fitted(job)
    predicted = _predictions(open_rows(job.folder).problem, estimator, present, X)
    return predicted, time.thread_time() - began


def _predictions(problem: Problem, estimator: Any, present: np.ndarray, X: np.ndarray) -> Predicted:
    from cotune.party.score import NotFinite, predictions

    try:
        return predictions(problem, estimator, present, X)
    except NotFinite:
        return None


TASKS: tuple[type[Task], ...] = (Assess, Score)
