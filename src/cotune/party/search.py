"""A party's own searches of the learners' spaces, on its own rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cotune.learners import learner as learner_of
from cotune.party.evaluate import Entrant, Evaluation, spread
from cotune.party.task import Configuration
from cotune.party.tasks import MOST_FREE, Found, Pair, Search
from cotune.problem import seed_of
from cotune.space import Space
from cotune.space import search as optuna_search
from cotune.space.domain import Integer

if TYPE_CHECKING:
    from cotune.party.party import Party


def search(party: Party, task: Search) -> list[Found]:
    """Ask, evaluate, tell, for `task.trials` trials; the first is the learner's default.

    The learners' searches go step by step together, so that the workers have more than one
    configuration to fit at a time. Every party seeds its samplers by its own name, so that the
    parties' trials differ.
    """
    searches = [_OneSearch(party, task, learner) for learner in task.learners]
    for _ in range(task.trials):
        asking = [one for one in searches if one.ask()]
        evaluations = party.race([one.entrant for one in asking])
        for one, evaluation in zip(asking, evaluations, strict=True):
            one.tell(evaluation)
    return [one.found() for one in searches]


class _OneSearch:
    """The search of one learner's space."""

    entrant: Entrant

    def __init__(self, party: Party, task: Search, learner: str) -> None:
        party.require(learner)
        problem = party.problem
        self._task, self._learner = task, learner
        self._space, self._folds = problem.space(learner), problem.folds
        self._iterations = learner_of(learner).iterations if task.free_pairs else None
        self._search = optuna_search.Search(
            self._space,
            sampler=task.sampler,
            seed=seed_of(problem.seed, learner, party.name),
            first=problem.defaults(learner),
            trials=task.trials,
        )
        self._incumbent: Evaluation | None = None
        self._spreads: list[float] = []
        self._pairs: list[Pair] = []
        self._evaluations: list[Evaluation] = []

    def ask(self) -> bool:
        """Whether there is a configuration to judge: a grid is walked to its end."""
        asked = self._search.ask()
        if asked is None:
            return False
        self._asked = asked
        self.entrant = Entrant(
            Configuration(self._learner, asked.params, self._task.fraction, self._shuffle(asked)),
            free=free_counts(self._space, asked.params, self._iterations),
            incumbent=self._incumbent.losses if self._incumbent else None,
            usual_spread=float(np.median(self._spreads)) if self._spreads else None,
        )
        return True

    def _shuffle(self, asked: optuna_search.Asked) -> int:
        """Which way of sharing rows out to folds: one for all trials, or one that is its own.

        Those of trials are below 0: above it are those on which methods have candidates judged.
        """
        return -1 - asked.number if self._task.reshuffle else 0

    def tell(self, evaluation: Evaluation) -> None:
        self._evaluations.append(evaluation)
        self._search.tell(self._asked, evaluation.loss)
        free = evaluation.free if evaluation.whole else {}  # of few folds, the luckiest would shine
        spared = self._folds / max(1, len(evaluation.losses)) if not evaluation.reason else 1.0
        doubt = spared * (1 + len(free))
        self._pairs.append(Pair(self._asked.params, evaluation.loss, doubt=doubt))
        if self.entrant.incumbent and (seen := spread(evaluation.losses, self.entrant.incumbent)):
            self._spreads.append(seen)
        self._challenge(evaluation)
        for count, judged in free.items():
            self._pairs.append(Pair(self._with(count), judged.loss, free=True, doubt=doubt))
            self._challenge(judged)
        self._learn_best(evaluation)

    def _learn_best(self, evaluation: Evaluation) -> None:
        """Tell the sampler where the asked number of iterations was too many.

        Only the best number: all of them would crowd out the trials that it asked for.
        """
        losses = {c: judged.loss for c, judged in evaluation.free.items() if evaluation.whole}
        best = min(losses, key=losses.__getitem__, default=None)
        if best is not None and losses[best] < evaluation.loss:
            self._search.learn(self._with(best), losses[best])

    def _with(self, count: int) -> dict[str, Any]:
        return self._asked.params | {str(self._iterations): count}

    def _challenge(self, judged: Evaluation) -> None:
        """The best that was judged on all folds is the incumbent, of equals the first."""
        if not self._task.pruning or not judged.whole:
            return
        if self._incumbent is None or judged.loss < self._incumbent.loss:
            self._incumbent = judged

    def found(self) -> Found:
        return Found(
            tuple(self._pairs),
            sum(evaluation.fits for evaluation in self._evaluations),
            sum(evaluation.cpu_seconds for evaluation in self._evaluations),
        )


def free_counts(space: Space, params: dict[str, Any], iterations: str | None) -> tuple[int, ...]:
    """Smaller values of the parameter `iterations` than the configuration's own, at most MOST_FREE.

    Evenly spread in their logarithm, from the low end of the space.
    """
    if iterations is None or iterations not in params:
        return ()
    domain, own = space[iterations], params[iterations]
    if not isinstance(domain, Integer) or own <= max(1, domain.low):
        return ()
    ladder = np.geomspace(max(1, domain.low), own, MOST_FREE + 1)[:-1]
    counts = sorted({int(domain.nearest(step)) for step in ladder})

    def is_configuration(count: int) -> bool:
        """Whether no other parameter comes or goes with this number."""
        return space.active(params | {iterations: count}) == space.active(params)

    return tuple(count for count in counts if 0 < count < own and is_configuration(count))
