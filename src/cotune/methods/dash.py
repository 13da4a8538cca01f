"""DASH: the coordinator searches, the parties judge, one search per learner."""

from __future__ import annotations

from collections.abc import Iterator

from cotune.coordinator.federation import Federation
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
    - A default that lies outside of its space is the first trial, of which the search is not told;
      it begins one later.

    Lines 11 and 13, the best of all trials, are what `tune` makes of the trials that are yielded;
    line 14 is the federated training that follows.

    Parameters
    ----------
    trials
        HPO_iter: configurations per learner.
    sampler
        `tpe`, `random`, `gp`, `cmaes` or `grid`.
    """
    outside = {j: default for j in problem.learners if (default := problem.beside(j)) is not None}
    searches = {
        j: problem.search(j, sampler, trials - (j in outside))  # lines 1-4: first the defaults
        for j in problem.learners
    }
    for k in range(1, trials + 1):  # line 5
        chosen = dict(outside) if k == 1 else {}
        asked = {
            j: asked
            for j, search in searches.items()
            if j not in chosen and (asked := search.ask()) is not None  # a grid may have an end
        }
        chosen |= {j: a.params for j, a in asked.items()}
        if not chosen:
            return
        evaluated = evaluate(  # lines 6-8
            federation, [Configuration(j, chosen[j]) for j in problem.learners if j in chosen]
        )
        for trial in evaluated:
            if trial.learner in asked:
                searches[trial.learner].tell(asked[trial.learner], trial.loss)  # line 9
        yield Step(evaluated, k, trials)
