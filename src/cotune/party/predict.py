"""A party's predictions of losses, by surrogates of its own searches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from cotune.errors import Malformed
from cotune.party.tasks import Candidates, Configuration, Predict, Predictions
from cotune.problem import Problem, seed_of
from cotune.surrogate import Surrogate

if TYPE_CHECKING:
    from cotune.party.party import Party
    from cotune.space import Space

#: How many times a party's own rows its surrogate is asked about at most.
FARTHEST = 3.0


def predict(party: Party, task: Predict) -> Predictions:
    """FLoRA's f^(i) at every learner's candidates."""
    found = party.searched(task.search, anew=task.anew)
    judged = list(zip(task.judged, party.evaluate(task.judged), strict=True))
    size = 0.0 if task.total is None else larger_size(task.total, party.weight)
    losses = []
    for learner, searched, candidates in zip(
        task.search.learners, found, task.candidates, strict=True
    ):
        points = [Point(pair.params, pair.loss) for pair in searched.pairs]
        points += [point_of(c, e.loss) for c, e in judged if c.learner == learner]
        surrogate = _fitted(party, learner, task.surrogate, points)
        drawn = _drawn(party.problem.space(learner), candidates)
        losses.append(bounded(party.problem, surrogate.predict(drawn, size)[0]))
    return Predictions(
        np.concatenate(losses).tolist(),
        [searched.fits for searched in found],
        [searched.cpu_seconds for searched in found],
    )


def _drawn(space: Space, candidates: Candidates) -> list[dict[str, Any]]:
    drawn = candidates.drawn(space)
    if candidates.digest != candidates.digest_of(space, drawn):
        raise Malformed("the party draws other candidates: do the versions of NumPy differ?")
    return drawn


def _fitted(party: Party, learner: str, kind: str, points: Sequence[Point]) -> Surrogate:
    """The party's surrogate of a learner; kept, because zooming in asks it again."""
    name = learner, kind, msgspec.msgpack.encode(points)
    if name not in party.surrogates:
        party.surrogates[name] = own_surrogate(party.problem, learner, kind, points)
    return party.surrogates[name]


class Point(NamedTuple):
    """What a surrogate learns from: a configuration, its loss, and the size it was trained at."""

    params: dict[str, Any]
    loss: float
    size: float = 0.0


def point_of(configuration: Configuration, loss: float) -> Point:
    return Point(configuration.params, loss, math.log(configuration.training))


def own_surrogate(problem: Problem, learner: str, kind: str, points: Sequence[Point]) -> Surrogate:
    """One party's f^(i). The same points give the same one, wherever it is fitted."""
    surrogate = Surrogate(problem.space(learner), kind, surrogate_seed(problem, learner))
    return surrogate.fit(*map(list, zip(*points, strict=True)))


def larger_size(total: float, own: float) -> float:
    """Log of how many times its own rows all parties have; no farther than slopes can be trusted.

    Slopes are seen over a threefold change of the training rows, and so extrapolated by as much.
    """
    return math.log(min(total / own, FARTHEST))


def surrogate_seed(problem: Problem, learner: str) -> int:
    """One for all parties: the same pairs give the same surrogate, wherever it is fitted."""
    return seed_of(problem.seed, "surrogate", learner)


def bounded(problem: Problem, predicted: np.ndarray) -> np.ndarray:
    """Predicted losses as a sum over the parties has them: within bounds, to the resolution."""
    resolution = problem.metric.resolution(problem.schema)
    clipped = np.clip(predicted, 0.0, problem.metric.worst(problem.schema))
    rounded: np.ndarray = np.round(clipped / resolution) * resolution
    return rounded
