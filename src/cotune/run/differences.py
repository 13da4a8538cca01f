"""How far the parties' rows differ, and what that means for the figures."""

from __future__ import annotations

import msgspec
import numpy as np

from cotune.coordinator.federation import Federation
from cotune.party.differ import Differ
from cotune.party.keys import FEWEST
from cotune.problem import Problem

#: From this distance of the class shares on, or this share of a variance between parties, models of
#: single parties and the joint one may be two things.
MUCH, MUCH_OF_VARIANCE = 0.2, 0.1
#: Columns that are named, and the share of their variance below which none is worth it.
MOST_NAMED, LITTLE = 3, 0.05


class Differing(msgspec.Struct, frozen=True):
    """From totals over the parties.

    `one_class` and `lacking` are how many parties have one class, and lack at least one; None for a
    regression, and under private sums where a count would be about fewer parties than a total may
    be of. `target` is the mean over all rows of the total variation distance between their party's
    class shares and the federation's, or for numbers the share of the target's variance that lies
    between parties; `columns` has that share by name, of categories the share for their indicators.
    """

    parties: int
    one_class: int | None
    lacking: int | None
    target: float
    columns: dict[str, float]

    def much(self, problem: Problem) -> bool:
        """Whether models of single parties and the joint one may be two things."""
        limit = MUCH if problem.task == "classification" else MUCH_OF_VARIANCE
        return bool(self.one_class) or self.target >= limit

    def sentences(self, problem: Problem, by_folds: bool = False) -> list[str]:
        """What is said to the user, in one or two sentences.

        `by_folds` is whether finalists are compared by cross-validation.
        """
        found = []
        if self.one_class:
            found.append(f"{self.one_class} of {self.parties} parties have one class")
        elif self.lacking:
            found.append(f"{self.lacking} of {self.parties} parties lack some class")
        if problem.task == "classification":
            found.append(f"class shares differ by {100.0 * self.target:.0f} % in the mean")
        else:
            share = 100.0 * self.target
            found.append(f"{share:.0f} % of the target's variance lies between parties")
        meaning = ""
        if problem.judge == "local" and self.much(problem):
            judged = "which rows set aside would show (--holdout 0.2)"
            if problem.holdout:
                judged = "which is judged on rows set aside"
            elif by_folds:
                judged = "which is judged by cross-validation over all parties"
            meaning = f": figures of local models say little about the joint model, {judged}"
        said = ["; ".join(found) + meaning]
        ranked = sorted(self.columns.items(), key=lambda item: -item[1])
        named = [f"{name} ({100.0 * x:.0f} %)" for name, x in ranked[:MOST_NAMED] if x >= LITTLE]
        if named:
            said.append("columns of whose variance most lies between parties: " + ", ".join(named))
        return said


def differ(federation: Federation, problem: Problem) -> Differing:
    """Ask for the totals: one round."""
    schema, task = problem.schema, Differ()
    sums = federation.sum(task)
    categories = iter(sums.sum("categories"))
    columns = {}
    for column, apart, present in zip(
        schema.columns, sums.sum("columns"), sums.sum("present"), strict=True
    ):
        rows = np.array([next(categories) for _ in column.categories])
        if present and column.kind == "numeric":
            columns[column.name] = min(1.0, float(apart / present))
        elif present and column.kind == "categorical":
            columns[column.name] = _between(float(apart / present), rows / present)
    one_class = lacking = None
    if schema.classes:
        private = federation.privacy != "plain"
        one_class, lacking = (
            _shown(int(count), sums.parties, private) for count in sums.sum("parties")
        )
    target = float(sums.sum("target")[0] / max(1.0, sums.sum("rows")[0]))
    return Differing(sums.parties, one_class, lacking, min(1.0, target), columns)


def _between(within: float, shares: np.ndarray) -> float:
    """The share of the variance of a column's indicators that lies between parties."""
    alike = float(np.square(shares).sum())
    return min(1.0, max(0.0, (within - alike) / (1.0 - alike))) if alike < 1.0 else 0.0


def _shown(count: int, parties: int, private: bool) -> int | None:
    return count if not private or may_be_shown(count, parties) else None


def may_be_shown(count: int, parties: int) -> bool:
    """Whether a count of parties, of a private sum, is about enough of them on either side.

    >>> [may_be_shown(count, 5) for count in range(6)]
    [True, False, True, True, False, True]
    """
    return all(few == 0 or few >= FEWEST for few in (count, parties - count))
