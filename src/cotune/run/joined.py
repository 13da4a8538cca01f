"""What joining gained: the federation's model beside one that each party fits on its own rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from cotune.problem import metric

if TYPE_CHECKING:
    import pandas as pd


class Judged(msgspec.Struct, frozen=True):
    """One party's held-out rows, or all of them: their number, and two models' figures there.

    `joint` is the federation's model, `own` the same configuration fitted on the party's rows
    alone; both in the metric's own direction, with their standard errors. Of all parties together
    the figures are those over all rows, each predicted by its own party's model for `own`, but for
    rows that were `left_out`: of classes of which their party has too few to say how they fared.
    They are None where the rows do not define the metric: of one class only there is no ROC curve.
    """

    party: str
    rows: int
    joint: float | None
    own: float | None
    joint_error: float
    own_error: float
    left_out: int = 0


class Assessment(msgspec.Struct, frozen=True):
    """What `evaluate` returns: a judgement by party, and over all held-out rows.

    `gained` of `asked` parties have a better figure from the joint model than from their own; the
    others have no rows that define the metric. Under private sums `parties` is empty, and a count
    that is about fewer parties than a total may be of is None.
    """

    metric: str
    parties: tuple[Judged, ...]
    total: Judged
    gained: int | None = None
    asked: int | None = None

    def gain(self, judged: Judged) -> float | None:
        """By how much the joint model is better than the party's own; above 0 is better."""
        if judged.joint is None or judged.own is None:
            return None
        higher = metric(self.metric).shown == "higher"
        return judged.joint - judged.own if higher else judged.own - judged.joint

    @property
    def better_alone(self) -> tuple[Judged, ...]:
        """The parties whose own model is better there than the joint one, the largest first."""
        alone = [judged for judged in self.parties if (self.gain(judged) or 0.0) < 0.0]
        return tuple(sorted(alone, key=lambda judged: -judged.rows))

    def dataframe(self) -> pd.DataFrame:
        """One row per party, the total last."""
        import pandas as pd

        return pd.DataFrame([self._row(judged) for judged in (*self.parties, self.total)])

    def summary(self) -> dict[str, Any]:
        """The figures of one JSON object, as `cotune evaluate --json` prints it."""
        return {
            "metric": self.metric,
            "parties": [self._row(judged) for judged in self.parties],
            "total": self._row(self.total),
            "gained": self.gained,
            "asked": self.asked,
        }

    def _row(self, judged: Judged) -> dict[str, Any]:
        row: dict[str, Any] = msgspec.to_builtins(judged)
        return row | {"gained": self.gain(judged)}
