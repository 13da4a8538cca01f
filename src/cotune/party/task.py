"""What every task is made of: its reply, the terms of a sum, and what it discloses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np

from cotune.errors import Malformed

if TYPE_CHECKING:
    from cotune.party.party import Party
    from cotune.problem import Problem

#: Part of a file name at the parties, so it may hold no path.
Label = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z")]

#: A power of two, so that a value rounded to it times a number of rows is exact in floating point:
#: totals then do not depend on the order of the parties, nor on how they were added up.
RESOLUTION = 2.0**-30

#: Where what concerns a party's own operator alone is logged: `cotune party start` shows it.
OPERATOR = "cotune.party.operator"
#: Bytes of a reply of which nothing better is known, at most.
MOST_UNKNOWN = 64 * 2**20
#: Bytes that a reply may have beside what its task asked for: names of fields, or a refusal.
FRAME = 4096


class Term(msgspec.Struct, frozen=True):
    """One vector of a sum: how long, within which bounds, to which resolution, weighted or not.

    The bounds and the resolution make exact fixed-point arithmetic possible, which the private
    ways of adding need; the plain way rounds and checks just the same, so all give one result.
    Values that are `exact` are multiples of the resolution already, and not rounded once more. What
    is `spare` (costs, say) is left out where noise protects the parties: it would need noise, too.
    `norm` is the largest Euclidean norm of one party's vector in units of its largest magnitude,
    where it is less than the length allows.
    """

    length: int
    low: float
    high: float
    resolution: float
    weighted: bool = False
    exact: bool = False
    spare: bool = False
    norm: float | None = None

    def rounded(self, values: np.ndarray, name: str, weight: float = 1.0) -> np.ndarray:
        """The values as they are added up: to the resolution, times the weight if weighted."""
        if values.shape != (self.length,) or not self.holds(values, 1.0):
            raise Malformed(f"the party's own term {name} is out of its bounds in this task")
        factor = weight if self.weighted else 1.0
        if self.exact:
            return values * factor if self.weighted else values
        rounded: np.ndarray = values * (1.0 / self.resolution)  # a power of two: nothing is lost
        np.rint(rounded, out=rounded)
        rounded *= self.resolution * factor
        return rounded

    def holds(self, values: np.ndarray, factor: float) -> bool:
        slack = self.resolution * factor
        low, high = self.low * factor - slack, self.high * factor + slack
        if len(values) < 8:  # NumPy takes longer for these
            return all(low <= value <= high for value in values.tolist())
        return bool(np.minimum.reduce(values) >= low and np.maximum.reduce(values) <= high)


class Reply(msgspec.Struct, frozen=True):
    """What a task returns. Gathered it travels whole; summed, only its terms do."""


class Task(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """A message that a party performs."""

    #: What the coordinator learns from one party's reply, in words for a privacy officer.
    discloses: ClassVar[str]
    reply: ClassVar[type[Reply]]
    #: What to do where sums are private, and this cannot be gathered because it tells what one
    #: party has. Empty if it may be gathered all the same.
    instead: ClassVar[str] = "ask for the total (sum)"
    #: Whether the party must have been told the problem before.
    needs_problem: ClassVar[bool] = True
    #: Whether its reply can be gathered: some are arrays, made to be added up.
    gathered: ClassVar[bool] = True
    #: Whether a party weighs in it as in a mean of losses: see `Party.loss_weight`.
    of_losses: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @abstractmethod
    def perform(self, party: Party) -> Reply:
        """What the party does, on its own rows."""

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        """The fields of the reply that can be summed; none by default."""
        raise Malformed(f"the task {self.name} has no terms to sum: use gather")

    def fractions(
        self, problem: Problem, vectors: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """What of its terms can be divided under encryption, and by which counts, by positions."""
        raise Malformed(f"the task {self.name} has nothing to divide")

    def divided(self, problem: Problem, quotients: np.ndarray) -> dict[str, np.ndarray]:
        """The terms that quotients of `fractions` stand for; others are not told."""
        raise Malformed(f"the task {self.name} has nothing to divide")

    def weight(self, party: Party) -> float:
        """The party's share in a mean of weighted terms."""
        return party.loss_weight if self.of_losses else party.weight

    def rows(self, problem: Problem | None, vectors: Mapping[str, np.ndarray]) -> float:
        """How many rows sums are over, of one party or of several; 0 if they do not say it."""
        return 0.0

    def most_fits(self, problem: Problem) -> int:
        """An upper bound of the fits at one party, known before the round is begun."""
        return 0

    def most_bytes(self, problem: Problem | None) -> int:
        """An upper bound of the size of one party's reply, where it can be known; else 0."""
        return 0

    def longest_reply(self, problem: Problem | None) -> int:
        """Bytes that no party's reply has: longer ones are refused before they are decoded."""
        most = self.most_bytes(problem)
        return (most + most // 10 if most else MOST_UNKNOWN) + FRAME

    def check(self, reply: Any, problem: Problem | None) -> None:
        """Raise `Malformed` if a gathered reply does not answer this task."""


class Configuration(msgspec.Struct, frozen=True):
    """A learner and its parameters, to be judged on a fraction of each party's rows.

    `shuffle` is which way of sharing the rows out to the folds is meant; 0 is the usual one, below
    0 are those of single trials of a search.
    """

    learner: str
    params: dict[str, bool | int | float | str | None]
    fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    shuffle: int = 0


def cost_terms(count: int, most_fits: float = 2.0**31) -> dict[str, Term]:
    """The terms of what `count` things cost a party: their fits, and CPU seconds."""
    return {
        "fits": Term(count, 0.0, most_fits, 1.0, spare=True),
        "cpu_seconds": Term(count, 0.0, 2.0**31, 2.0**-20, spare=True),
    }


def check_weight(weight: float) -> None:
    """Refuse a reply whose weight in a mean is none."""
    if not 0 < weight < 2.0**31:
        raise Malformed("the reply's weight is not a number above 0 and below 2**31")


def most_summed_bytes(terms: dict[str, Term]) -> int:
    """The size of one party's part of a sum, at most."""
    return 128 + 9 * sum(term.length for term in terms.values())
