"""DASH: the coordinator searches, the parties judge, one search per learner."""

from __future__ import annotations

from collections.abc import Iterator

from cotune.federation.federation import Federation
from cotune.methods.evaluate import evaluate
from cotune.party.task import Configuration
from cotune.problem import Problem
from cotune.trial import Step


def dash(
    federation: Federation, problem: Problem, *, trials: int = 50, sampler: str = "tpe"
) -> Iterator[Step]:
    """Decentralised search: the coordinator asks, all parties judge, the mean loss is told.

    Alam, Kar, Salonidis, Samulowitz: DASH: Decentralized CASH for Federated Learning,
    Algorithm 1; the numbers at the right are its lines. Three things differ, the first in form
    only:

    - The algorithms' searches are independent of each other (line 3), so their k-th steps
      travel in one message: a run is HPO_iter rounds instead of J x HPO_iter.
    - Any Optuna sampler takes the place of hyperopt (line 9). Its TPE is not hyperopt's: Optuna 5.0
      samples all parameters jointly (multivariate), and counts running trials as bad ones.
    - A default that lies outside of its space is evaluated in the first round, too, beside the
      search, which is not told of it.

    Lines 11 and 13, the best of all trials, are what `tune` makes of the trials that are yielded;
    line 14 is the federated training that follows.

    Parameters
    ----------
    trials
        HPO_iter: configurations per learner, a default beside the search not counted.
    sampler
        `tpe`, `random`, `gp`, `cmaes` or `grid`.
    """
    searches = {
        learner: problem.search(learner, sampler, trials)  # lines 1-4: first the defaults, put in Λ
        for learner in problem.learners
    }
    beside = [
        Configuration(learner, default)
        for learner in problem.learners
        if (default := problem.beside(learner)) is not None
    ]
    for k in range(1, trials + 1):  # line 5
        asked = {
            learner: asked
            for learner, search in searches.items()
            if (asked := search.ask()) is not None  # a grid may have come to its end
        }
        if not asked:
            return
        evaluated = evaluate(  # lines 6-8
            federation,
            [*beside, *(Configuration(learner, a.params) for learner, a in asked.items())],
        )
        for trial in evaluated[len(beside) :]:
            searches[trial.learner].tell(asked[trial.learner], trial.loss)  # line 9
        beside = []
        yield Step(evaluated, k, trials)
