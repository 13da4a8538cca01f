"""Voting: every party names the best of a list of configurations, the most named one wins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cotune.coordinator.federation import Federation
from cotune.errors import UsageError
from cotune.methods.evaluate import evaluate
from cotune.party.propose import Vote
from cotune.party.task import Configuration
from cotune.problem import Problem, seed_of
from cotune.trial import Step


def vote(
    federation: Federation, problem: Problem, *, trials: int = 50, top: int = 3
) -> Iterator[Step]:
    """All parties judge the same configurations and vote for their best; one sum decides.

    In the manner of DP-HYPE: a party's part in the sum is a few ones among zeros, so that little
    noise (`noise`, in units of the root of `top`) hides it, however many configurations there are.
    The winner is then judged by all, in a second sum, to have a loss to show.

    Parameters
    ----------
    trials
        Configurations per learner: the default one and random draws.
    top
        How many of all configurations a party votes for.
    """
    candidates = [
        Configuration(learner, params)
        for learner in problem.learners
        for params in _drawn(problem, learner, trials)
    ]
    if not 1 <= top <= len(candidates):
        raise UsageError(f"top is {top}: give a number from 1 to {len(candidates)}, the candidates")
    votes = federation.sum(Vote(tuple(candidates), top)).sum("votes")
    winner = int(np.argmax(votes))
    told = [
        {"learner": one.learner, "params": one.params, "votes": float(votes[i])}
        for i, one in enumerate(candidates)
    ]
    (trial,) = evaluate(federation, [candidates[winner]])
    yield Step((trial,), 1, 1, {"votes": told}, chosen=trial)


def _drawn(problem: Problem, learner: str, trials: int) -> list[dict[str, Any]]:
    """The default configuration, and draws that differ from it and from each other."""
    space = problem.space(learner)
    rng = np.random.default_rng(seed_of(problem.seed, "vote", learner))
    drawn = [problem.default(learner), *(space.sample(rng) for _ in range(trials - 1))]
    return list({frozenset(params.items()): params for params in drawn}.values())
