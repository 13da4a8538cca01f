"""How much parties can weigh, by what they said of their rows when the schema was agreed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from cotune.problem import Problem, most_rows


class Weights:
    """Bounds of weights: without them one party could decide every mean by claiming 2**30 rows.

    Parameters
    ----------
    counted
        The parties that took part when rows were counted.
    rows
        How many each of them has; empty where only their total is known, because sums are private
        or the round was read from the journal, which keeps totals only.
    """

    def __init__(self, counted: Collection[str] = (), rows: Mapping[str, float] = {}) -> None:
        self._counted = frozenset(counted)
        self._rows = dict(rows)

    def most(
        self, problem: Problem | None, parties: Collection[str], of_losses: bool = False
    ) -> float:
        """What these parties' weights add up to, at most.

        In means of losses rows of a rare class may weigh more, and only the weight of all parties
        together is known: that of their rows (`Party.loss_weight`).
        """
        if problem is not None and problem.weights == "equal":
            return float(len(parties))
        if of_losses and problem is not None and problem.weighs_classes:
            return Weights(self._counted).most_rows(problem, parties)
        return self.most_rows(problem, parties)

    def most_rows(self, problem: Problem | None, parties: Collection[str]) -> float:
        """The rows that these parties have together, at most.

        Rows that are set aside may not have been counted. A party that was not there when rows were
        counted may have many.
        """
        if problem is None:
            return math.inf
        strangers = set(parties) - self._counted
        known = set(parties) - strangers
        rows = float(problem.schema.rows) if known else 0.0
        if known <= self._rows.keys():
            rows = sum(self._rows[party] for party in known)
        counted = (rows + len(known)) / (1.0 - problem.holdout)
        return counted + len(strangers) * most_rows(problem)
