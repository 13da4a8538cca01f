"""The untuned baseline of the papers: every learner as it comes."""

from __future__ import annotations

from collections.abc import Iterator

from cotune.coordinator.federation import Federation
from cotune.methods.evaluate import evaluate
from cotune.party.task import Configuration
from cotune.problem import Problem
from cotune.trial import Step


def defaults(federation: Federation, problem: Problem) -> Iterator[Step]:
    """Every learner at its default configuration, in one round.

    The baseline "Default" of DASH (section 5), CASH-D of FLASH, the single-shot baseline of
    FLoRA (appendix D.2).
    """
    configurations = [
        Configuration(learner, problem.defaults(learner)) for learner in problem.learners
    ]
    yield Step(evaluate(federation, configurations), 1, 1)
