"""A party's own search of a learner's space, on its own rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cotune import search as optuna_search
from cotune.party.tasks import Configuration, Pair, Pairs, Search
from cotune.problem import seed_of

if TYPE_CHECKING:
    from cotune.party.party import Party


def search(party: Party, task: Search) -> Pairs:
    """Ask, evaluate, tell, for `task.trials` trials; the first is the learner's default.

    Every party seeds its sampler by its own name, so that the parties' trials differ.
    """
    party.require(task.learner)
    problem = party.problem
    asking = optuna_search.Search(
        problem.space(task.learner),
        sampler=task.sampler,
        seed=seed_of(problem.seed, task.learner, party.name),
        first=problem.defaults(task.learner),
        trials=task.trials,
    )
    pairs = []
    for _ in range(task.trials):
        asked = asking.ask()
        if asked is None:  # a grid has been walked to its end
            break
        configuration = Configuration(task.learner, asked.params, task.fraction)
        (evaluation,) = party.evaluate((configuration,))
        asking.tell(asked, evaluation.loss)
        pairs.append(Pair(asked.params, evaluation.loss))
    return Pairs(tuple(pairs), party.weight)
