"""The step that methods share: all parties judge configurations, the mean loss comes back."""

from __future__ import annotations

from collections.abc import Sequence

from cotune.federation.federation import Federation
from cotune.party.tasks import REASONS, Configuration, Evaluate
from cotune.trial import Trial


def evaluate(federation: Federation, configurations: Sequence[Configuration]) -> tuple[Trial, ...]:
    """One round for all configurations; only totals over the parties are learnt.

    The loss is DASH's l(k) = sum_i alpha_i l_i(k), alpha_i by rows or equal (`problem.weights`).
    """
    sums = federation.sum(Evaluate(tuple(configurations)))
    losses, fits, cpu_seconds = sums.mean("losses"), sums.sum("fits"), sums.sum("cpu_seconds")
    failed = sums.sum("failed").reshape(len(configurations), len(REASONS))
    return tuple(
        Trial(
            learner=configuration.learner,
            params=configuration.params,
            loss=float(losses[i]),
            parties=sums.parties,
            weight=sums.weight,
            fits=int(fits[i]),
            cpu_seconds=float(cpu_seconds[i]),
            reasons={r: int(n) for r, n in zip(REASONS, failed[i], strict=True) if n},
        )
        for i, configuration in enumerate(configurations)
    )
