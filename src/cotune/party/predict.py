"""A party's predictions of losses, by surrogates of its own searches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from cotune.errors import Malformed
from cotune.party.memory import key
from cotune.party.task import Configuration
from cotune.party.tasks import Candidates, Found, Pair, Predict, Predictions, Search
from cotune.problem import Problem, seed_of
from cotune.space.surrogate import Surrogate

if TYPE_CHECKING:
    from cotune.party.party import Party
    from cotune.space import Space

#: How far apart a loss of 0 and one at the ceiling are for a soft maximum: see `Predict`.
SHARPNESS = 25.0


def predict(party: Party, task: Predict) -> Predictions:
    """FLoRA's f^(i) at every learner's candidates."""
    found, learnt = learnt_from(party, task.search, task.judged)
    ceilings = task.ceilings or (None,) * len(found)
    losses = []
    for learner, pairs, candidates, ceiling in zip(
        task.search.learners, learnt, task.candidates, ceilings, strict=True
    ):
        surrogate = _fitted(party, learner, task.surrogate, pairs)
        drawn = _drawn(party.problem.space(learner), candidates)
        predicted = bounded(party.problem, surrogate.predict(drawn)[0])
        losses.append(predicted if ceiling is None else raised(predicted, ceiling))
    return Predictions(
        np.concatenate(losses).tolist(),
        [searched.fits for searched in found],
        [searched.cpu_seconds for searched in found],
    )


def learnt_from(
    party: Party, search: Search, judged: Sequence[Configuration]
) -> tuple[Sequence[Found], list[list[Pair]]]:
    """The party's searches; and by learner their pairs, with those of what all parties judged."""
    found = party.searched(search)
    remembered = [one for one in judged if party.remembers(one)]
    losses = [evaluation.loss for evaluation in party.evaluate(remembered)]
    told = list(zip(remembered, losses, strict=True))
    return found, [
        [*searched.pairs, *judged_pairs(learner, told)]
        for learner, searched in zip(search.learners, found, strict=True)
    ]


def raised(losses: np.ndarray, ceiling: float) -> np.ndarray:
    """A party's part in a soft maximum."""
    part: np.ndarray = np.exp(SHARPNESS * (np.minimum(losses, ceiling) / ceiling - 1.0))
    return part


def soft_maximum(total: np.ndarray, ceiling: float) -> np.ndarray:
    """The soft maximum of losses, from the total of all parties' parts."""
    height: np.ndarray = ceiling * (1.0 + np.log(total) / SHARPNESS)
    return height


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
    try:
        drawn = candidates.drawn(space)
        digest = candidates.digest_of(space, drawn)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise Malformed("what candidates are to be drawn around does not fit the space") from error
    if candidates.digest != digest:
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
