"""The step that methods share: the federation judges configurations, a loss of each comes back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
import numpy as np

from cotune.coordinator.federation import Federation
from cotune.coordinator.ledger import Ledger
from cotune.errors import DataError, UsageError
from cotune.party.task import Configuration, Reply, Term
from cotune.party.tasks import REASONS, Evaluate, Evaluations
from cotune.problem import Problem
from cotune.protocol import tally
from cotune.protocol.tally import Figure
from cotune.trial import Trial

#: Why a configuration that was trained has no loss.
UNTRAINED = "no party has enough rows to evaluate the model on a fold"


def evaluate(federation: Federation, configurations: Sequence[Configuration]) -> tuple[Trial, ...]:
    """One round for all configurations; only totals over the parties are learnt.

    If the run judges by what the federation trains (`problem.judge`), there is one training for
    each instead, on the rows outside of a fold, and a round for its loss on those of the fold.

    The loss is that over all parties' rows, from totals (`cotune.protocol.tally`). Where parties
    are compared (`problem.compare_by`) it is DASH's l(k) = sum_i alpha_i l_i(k), alpha_i by rows or
    equal (`problem.weights`).
    """
    if federation.problem is not None and federation.problem.judge == "federated":
        return tuple(_as_trained(federation, one) for one in configurations)
    task = Evaluate(tuple(configurations))
    sums = federation.sum(task)
    totals = {name: sums.sum(name) for name in task.terms(federation.problem)}
    return _trials(federation, configurations, totals, sums.parties, sums.weight)


def evaluate_openly(
    federation: Federation, configurations: Sequence[Configuration]
) -> tuple[tuple[Trial, ...], dict[str, list[float]]]:
    """The same trials, and every party's own losses by its name: all replies are gathered."""
    task = Evaluate(tuple(configurations))
    replies = cast("dict[str, Evaluations]", federation.gather(task))
    assert federation.problem is not None
    weight = sum(reply.weight for reply in replies.values())
    weights = [reply.weight for reply in replies.values()]
    totals = added_up(task.terms(federation.problem), list(replies.values()), weights)
    own = {party: reply.losses for party, reply in replies.items()}
    return _trials(federation, configurations, totals, len(replies), weight), own


def added_up(
    terms: Mapping[str, Term], replies: Sequence[Reply], weights: Sequence[float]
) -> dict[str, np.ndarray]:
    """The totals of gathered replies: those that a sum would have given."""
    return {
        name: np.sum(
            [
                term.rounded(np.array(getattr(reply, name), dtype=float), name, weight)
                for reply, weight in zip(replies, weights, strict=True)
            ],
            axis=0,
        )
        for name, term in terms.items()
    }


def _as_trained(federation: Federation, configuration: Configuration) -> Trial:
    """The loss of the model that the federation trains; the worst if it cannot."""
    from cotune.training import train
    from cotune.training.folds import validated

    problem, begun = federation.problem, federation.ledger.rounds
    assert problem is not None
    found, reason = None, UNTRAINED
    try:
        scores = validated(
            federation, problem, lambda outside: train(federation, outside, configuration)
        )
        found = None if scores is None else scores.held_out
    except (DataError, UsageError) as error:
        reason = str(error)
    cost = Ledger(list(federation.ledger)[begun:])
    trial = Trial(
        learner=configuration.learner,
        params=configuration.params,
        loss=problem.metric.worst(problem.schema),
        parties=len(federation.parties),
        weight=0.0,
        fits=cost.fits,
        cpu_seconds=cost.cpu_seconds,
        validation=0,
    )
    if found is None:
        return msgspec.structs.replace(trial, reasons={reason: len(federation.parties)})
    return msgspec.structs.replace(
        trial,
        loss=found.loss,
        parties=found.parties,
        weight=float(found.rows),
        error=found.error,
        left_out=found.left_out,
        validation=found.rows,
    )


def _trials(
    federation: Federation,
    configurations: Sequence[Configuration],
    totals: dict[str, np.ndarray],
    parties: int,
    weight: float,
) -> tuple[Trial, ...]:
    assert federation.problem is not None
    figures = _figures(federation.problem, totals, parties, weight)
    failed = totals["failed"].reshape(len(configurations), len(REASONS))
    return tuple(
        Trial(
            learner=configuration.learner,
            params=configuration.params,
            loss=figures[i].loss,
            parties=parties,
            weight=weight,
            fits=int(totals["fits"][i]),
            cpu_seconds=float(totals["cpu_seconds"][i]),
            reasons={r: int(n) for r, n in zip(REASONS, failed[i], strict=True) if n},
            fraction=configuration.fraction,
            error=figures[i].error,
            left_out=figures[i].left_out,
        )
        for i, configuration in enumerate(configurations)
    )


def _figures(
    problem: Problem, totals: dict[str, np.ndarray], parties: int, weight: float
) -> list[Figure]:
    if problem.compare_by == "federation":
        return tally.figures(problem, totals)
    unit = problem.metric.unit(problem.schema)
    means = zip(totals["losses"] / weight, totals["variances"] / weight, strict=True)
    return [
        Figure(float(loss), unit * math.sqrt(variance / parties), 0, 0) for loss, variance in means
    ]
