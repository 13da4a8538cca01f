"""Real searches at the parties, and what FLoRA's four surfaces make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pandas as pd
from common import Params

import cotune
from cotune.coordinator.agree import agree
from cotune.coordinator.journal import Journal
from cotune.methods.bound import gamma_p
from cotune.methods.surfaces import SURFACES, Evidence, minimise, surface
from cotune.party.tasks import Search, Searches
from cotune.problem import Budget, Problem
from cotune.run.settings import Settings

#: cotune's names of the paper's learners.
NAMES = {"HGB": "hgb", "SVM": "svm", "MLP": "mlp"}


def searched(
    tables: Mapping[str, pd.DataFrame],
    learner: str,
    *,
    trials: int,
    folds: int,
    seed: int,
    processes: int,
) -> tuple[Problem, list[Evidence]]:
    """Every party's pairs (lines 2-5 of Algorithm 1), without any of cotune's savings."""
    settings = Settings(
        method="flora",
        learners=(NAMES[learner],),
        metric="balanced_accuracy",
        compare_by="parties",
        folds=folds,
        space="paper",
        scaling="none",
        seed=seed,
    )
    with cotune.simulate(dict(tables), processes=processes) as base:
        federation = base.for_run("run", Journal(), Budget())
        schema = agree(federation, folds=folds, task="classification")
        problem = federation.problem = settings.problem(schema)
        replies = cast("dict[str, Searches]", federation.gather(Search(problem.learners, trials)))
    evidence = [
        Evidence([pair.params for pair in found.pairs], [pair.loss for pair in found.pairs])
        for _, reply in sorted(replies.items())
        for found in reply.found
    ]
    return problem, evidence


def recommended(problem: Problem, evidence: list[Evidence], seed: int) -> dict[str, Params]:
    """The minimiser of every surface, on forests, all parties counting the same."""
    space = problem.space(problem.learners[0])
    return {
        name: searched_only(
            problem, minimise(surface(name, space, evidence, seed=seed), space)[0][0]
        )
        for name in SURFACES
    }


def heterogeneity(evidence: list[Evidence]) -> float:
    measured = gamma_p(evidence)
    return float("nan") if measured is None else measured


def flora(
    tables: Mapping[str, pd.DataFrame], learner: str, *, processes: int, **options: Any
) -> dict[str, Any]:
    """What `cotune.tune(..., "flora")` settles on, and what it cost."""
    with cotune.simulate(dict(tables), processes=processes) as federation:
        outcome = cotune.tune(
            federation,
            "flora",
            learners=[NAMES[learner]],
            space="paper",
            scaling="none",
            metric="balanced_accuracy",
            compare_by="parties",
            progress=False,
            **options,
            train=False,
            holdout=0,
        )
    ledger = outcome.ledger
    return {
        "params": searched_only(outcome.problem, outcome.best_params),
        "loss": outcome.best_loss,
        "rounds": ledger.rounds,
        "bytes": ledger.bytes_up + ledger.bytes_down,
        "fits": ledger.fits,
        "cpu_seconds": ledger.cpu_seconds,
    }


def searched_only(problem: Problem, params: Params) -> Params:
    """The parameters that were searched; the fixed ones are the estimator's own business."""
    (learner,) = problem.learners
    described = problem.space(learner).to_json()
    return {name: value for name, value in params.items() if described[name]["type"] != "fixed"}
