"""A party's part in growing trees: counts of its values, and histograms of its gradients."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from cotune.errors import Malformed
from cotune.party.task import Reply, Task, Term, most_summed_bytes
from cotune.party.train.bins import counts_between, single
from cotune.party.train.grow import (
    LARGEST_LOSS,
    LOSS_STEP,
    MOST_ROWS,
    SQUARES_STEP,
    STEPS,
    Split,
    Start,
    digest_of,
)

if TYPE_CHECKING:
    from cotune.party.party import Party
    from cotune.party.train.grow_rows import Growing
    from cotune.problem import Problem

Count = Annotated[int, msgspec.Meta(ge=0, le=2**26)]


class Crowds(Reply, frozen=True):
    """How many values lie in each cell, column after column."""

    counts: list[int]


class Crowd(Task, frozen=True):
    """Count the values of numeric columns between boundaries (packed float32, ascending)."""

    discloses = (
        "how many of its rows have a value in each cell of a grid over each numeric column; cells "
        "with many rows are divided further, down to single values where a column has few"
    )
    reply = Crowds

    columns: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    boundaries: tuple[bytes, ...]

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        cells = sum(len(packed) // 4 + 1 for packed in self.boundaries)
        return {"counts": Term(cells, 0.0, MOST_ROWS, 1.0)}

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))

    def perform(self, party: Party) -> Crowds:
        began = time.thread_time()
        self._check(len(party.problem.schema.columns))
        known = party.training.setdefault("sorted", {})
        counts: list[int] = []
        for column, packed in zip(self.columns, self.boundaries, strict=True):
            if column not in known:
                values = party.arrays("codes")[0][:, column]
                known[column] = np.sort(single(values[~np.isnan(values)]))
            boundaries = np.frombuffer(packed, dtype="<f4")
            counts += counts_between(known[column], boundaries).tolist()
        party.bill(0, time.thread_time() - began)
        return Crowds(counts)

    def _check(self, columns: int) -> None:
        if max(self.columns, default=0) >= columns:
            raise Malformed("a column is named that the schema does not have")
        if len(self.columns) != len(self.boundaries) or any(len(b) % 4 for b in self.boundaries):
            raise Malformed("there are not boundaries for each column")
        for packed in self.boundaries:
            if not (np.diff(np.frombuffer(packed, dtype="<f4"), append=np.inf) >= 0).all():
                raise Malformed("boundaries are not numbers in ascending order")


class Histograms(Reply, frozen=True):
    """Sums over the rows of each bin, as `Grow` asks for them (arrays: they are summed only)."""

    gradients: Any = ()
    hessians: Any = ()
    counts: Any = ()
    squares: Any = ()
    loss: Any = ()


class Grow(Task, frozen=True, omit_defaults=True):
    """Take the splits decided last, and add up gradients over the bins of nodes.

    Parameters
    ----------
    after
        The digest of what was asked before. A party that was not there refuses.
    gradients, hessians, counts
        How many of each are to be told; 0 is none.
    splits
        Decided since the last message.
    leaves
        Given once a round's trees are finished: what their nodes predict.
    wanted
        The nodes to add up; once trees are finished, those of the next.
    columns
        That are used; none is all.
    mask
        Packed bits: the bins to tell, of all nodes wanted; none is all. The others are empty.
    squares
        The nodes of which to tell the sum of the target's squares.
    loss
        Whether to add up the loss of the finished rounds over all rows, and their number.
    start
        Given at the beginning, and to a party that was not there: what to start from.
    """

    discloses = (
        "for groups of rows that fall into the same bins of a few columns (the nodes of a tree), "
        "how many rows of each bin of each column it has there, and the sum of what the model "
        "still gets wrong on them and of its curvature; the model's loss summed over all of its "
        "rows, and how many these are; where a group has one row, of this party "
        "or of all whose counts are added up, that gives the row's bin in every column (its very "
        "value where a column has few) and its target"
    )
    reply = Histograms
    gathered = False

    after: str
    gradients: Count = 0
    hessians: Count = 0
    counts: Count = 0
    splits: tuple[Split, ...] = ()
    leaves: tuple[tuple[int, float], ...] = ()
    wanted: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    mask: bytes = b""
    squares: tuple[int, ...] = ()
    loss: bool = False
    start: Start | None = None

    @property
    def digest(self) -> str:
        return digest_of(self)

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        assert problem is not None
        step, _ = STEPS[problem.task]
        terms = {
            "gradients": Term(self.gradients, -MOST_ROWS, MOST_ROWS, step, exact=True),
            "hessians": Term(self.hessians, 0.0, MOST_ROWS, step, exact=True),
            "counts": Term(self.counts, 0.0, MOST_ROWS, 1.0, exact=True),
            "squares": Term(len(self.squares), 0.0, MOST_ROWS, SQUARES_STEP, exact=True),
            "loss": Term(2 * self.loss, 0.0, MOST_ROWS * LARGEST_LOSS, LOSS_STEP, exact=True),
        }
        return {name: term for name, term in terms.items() if term.length}

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))

    def perform(self, party: Party) -> Histograms:
        from cotune.party.train.grow_rows import followed

        columns = len(party.problem.schema.columns)
        return followed(party, self, lambda growing: self._answer(growing, columns))

    def _answer(self, growing: Growing, columns: int) -> Histograms:
        growing.divide(self.splits)
        if self.leaves:
            growing.finish(self.leaves)
        told: dict[str, Any] = {}
        if self.wanted:
            sizes = {"gradients": self.gradients, "hessians": self.hessians, "counts": self.counts}
            names = [name for name, size in sizes.items() if size]
            used = self.columns or tuple(range(columns))
            found = growing.histograms(self.wanted, used, self.mask, names, max(sizes.values()))
            told = dict(zip(names, found, strict=True))
            if [len(values) for values in found] != [sizes[name] for name in names]:
                raise Malformed("the nodes and columns wanted have another number of sums")
        loss = growing.loss() if self.loss else ()
        return Histograms(**told, squares=growing.squares(self.squares), loss=loss)


TASKS: tuple[type[Task], ...] = (Crowd, Grow)
