"""The step that methods share: all parties judge configurations, the mean loss comes back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from cotune.federation.federation import Federation
from cotune.party.task import Configuration
from cotune.party.tasks import REASONS, Evaluate, Evaluations
from cotune.trial import Trial


def evaluate(federation: Federation, configurations: Sequence[Configuration]) -> tuple[Trial, ...]:
    """One round for all configurations; only totals over the parties are learnt.

    The loss is DASH's l(k) = sum_i alpha_i l_i(k), alpha_i by rows or equal (`problem.weights`).
    """
    sums = federation.sum(Evaluate(tuple(configurations)))
    totals = {name: sums.sum(name) for name in ("fits", "cpu_seconds", "failed")}
    means = {name: sums.mean(name) for name in ("losses", "variances")}
    return _trials(federation, configurations, means, totals, sums.parties, sums.weight)


def evaluate_openly(
    federation: Federation, configurations: Sequence[Configuration]
) -> tuple[tuple[Trial, ...], dict[str, list[float]]]:
    """The same trials, and every party's own losses by its name: all replies are gathered."""
    task = Evaluate(tuple(configurations))
    replies = cast("dict[str, Evaluations]", federation.gather(task))
    assert federation.problem is not None
    weight = sum(reply.weight for reply in replies.values())
    means = {}
    for name in ("losses", "variances"):
        term = task.terms(federation.problem)[name]
        told = [r.weight * term.rounded(np.array(getattr(r, name)), name) for r in replies.values()]
        means[name] = np.sum(told, axis=0) / weight
    totals = {
        name: np.sum([getattr(reply, name) for reply in replies.values()], axis=0)
        for name in ("fits", "cpu_seconds", "failed")
    }
    own = {party: reply.losses for party, reply in replies.items()}
    return _trials(federation, configurations, means, totals, len(replies), weight), own


def _trials(
    federation: Federation,
    configurations: Sequence[Configuration],
    means: dict[str, np.ndarray],
    totals: dict[str, np.ndarray],
    parties: int,
    weight: float,
) -> tuple[Trial, ...]:
    assert federation.problem is not None
    unit = federation.problem.metric.unit(federation.problem.schema)
    failed = totals["failed"].reshape(len(configurations), len(REASONS))
    return tuple(
        Trial(
            learner=configuration.learner,
            params=configuration.params,
            loss=float(means["losses"][i]),
            parties=parties,
            weight=weight,
            fits=int(totals["fits"][i]),
            cpu_seconds=float(totals["cpu_seconds"][i]),
            reasons={r: int(n) for r, n in zip(REASONS, failed[i], strict=True) if n},
            fraction=configuration.fraction,
            error=unit * math.sqrt(means["variances"][i] / parties),
        )
        for i, configuration in enumerate(configurations)
    )
