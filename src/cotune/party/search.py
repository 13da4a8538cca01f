"""A party's own searches of the learners' spaces, on its own rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cotune import search as optuna_search
from cotune.party.memory import Evaluation
from cotune.party.tasks import Configuration, Found, Pair, Search
from cotune.problem import seed_of

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
        evaluations = party.evaluate([one.configuration for one in asking])
        for one, evaluation in zip(asking, evaluations, strict=True):
            one.tell(evaluation)
    return [one.found() for one in searches]


class _OneSearch:
    """The search of one learner's space."""

    configuration: Configuration

    def __init__(self, party: Party, task: Search, learner: str) -> None:
        party.require(learner)
        problem = party.problem
        self._task, self._learner = task, learner
        self._search = optuna_search.Search(
            problem.space(learner),
            sampler=task.sampler,
            seed=seed_of(problem.seed, learner, party.name),
            first=problem.defaults(learner),
            trials=task.trials,
        )
        self._pairs: list[Pair] = []
        self._evaluations: list[Evaluation] = []

    def ask(self) -> bool:
        """Whether there is a configuration to judge: a grid is walked to its end."""
        asked = self._search.ask()
        if asked is None:
            return False
        self._asked = asked
        self.configuration = Configuration(self._learner, asked.params, self._task.fraction)
        return True

    def tell(self, evaluation: Evaluation) -> None:
        self._search.tell(self._asked, evaluation.loss)
        self._evaluations.append(evaluation)
        self._pairs.append(Pair(self._asked.params, evaluation.loss))

    def found(self) -> Found:
        return Found(
            tuple(self._pairs),
            sum(evaluation.fits for evaluation in self._evaluations),
            sum(evaluation.cpu_seconds for evaluation in self._evaluations),
        )
