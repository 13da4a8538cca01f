"""A party's predictions of losses, by surrogates of its own searches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from cotune.errors import Malformed
from cotune.party.memory import key
from cotune.party.task import Configuration
from cotune.party.tasks import Candidates, Pair, Predict, Predictions
from cotune.problem import Problem, seed_of
from cotune.surrogate import Surrogate

if TYPE_CHECKING:
    from cotune.party.party import Party
    from cotune.space import Space


def predict(party: Party, task: Predict) -> Predictions:
    """FLoRA's f^(i) at every learner's candidates."""
    found = party.searched(task.search)
    judged = [one for one in task.judged if party.remembers(one)]
    told = [evaluation.loss for evaluation in party.evaluate(judged)]
    losses = []
    for learner, searched, candidates in zip(
        task.search.learners, found, task.candidates, strict=True
    ):
        pairs = [*searched.pairs, *judged_pairs(learner, zip(judged, told, strict=True))]
        surrogate = _fitted(party, learner, task.surrogate, pairs)
        drawn = _drawn(party.problem.space(learner), candidates)
        losses.append(bounded(party.problem, surrogate.predict(drawn)[0]))
    return Predictions(
        np.concatenate(losses).tolist(),
        [searched.fits for searched in found],
        [searched.cpu_seconds for searched in found],
    )


def judged_pairs(learner: str, judged: Iterable[tuple[Configuration, float]]) -> list[Pair]:
    """One pair for each of the learner's configurations: the mean over shuffles of the folds."""
    shuffles: dict[str, dict[int, float]] = {}
    params = {}
    for one, loss in judged:
        if one.learner == learner:
            name = key(msgspec.structs.replace(one, shuffle=0))
            params[name] = one.params
            shuffles.setdefault(name, {})[one.shuffle] = loss
    return [
        Pair(params[name], float(np.mean(list(losses.values()))), doubt=1.0 / len(losses))
        for name, losses in shuffles.items()
    ]


def _drawn(space: Space, candidates: Candidates) -> list[dict[str, Any]]:
    drawn = candidates.drawn(space)
    if candidates.digest != candidates.digest_of(space, drawn):
        raise Malformed("the party draws other candidates: do the versions of NumPy differ?")
    return drawn


def _fitted(party: Party, learner: str, kind: str, pairs: Sequence[Pair]) -> Surrogate:
    """The party's surrogate of a learner; kept, because zooming in asks it again."""
    name = learner, kind, msgspec.msgpack.encode(pairs)
    if name not in party.surrogates:
        space, seed = party.problem.space(learner), surrogate_seed(party.problem, learner)
        party.surrogates[name] = Surrogate(space, kind, seed).fit(
            [pair.params for pair in pairs],
            [pair.loss for pair in pairs],
            [pair.doubt for pair in pairs],
        )
    return party.surrogates[name]


def surrogate_seed(problem: Problem, learner: str) -> int:
    """One for all parties: the same pairs give the same surrogate, wherever it is fitted."""
    return seed_of(problem.seed, "surrogate", learner)


def bounded(problem: Problem, predicted: np.ndarray) -> np.ndarray:
    """Predicted losses as a sum over the parties has them: within bounds, to the resolution."""
    resolution = problem.metric.resolution(problem.schema)
    clipped = np.clip(predicted, 0.0, problem.metric.worst(problem.schema))
    rounded: np.ndarray = np.round(clipped / resolution) * resolution
    return rounded
