"""A party's part in merging trees: it grows some on its own rows, from what all have merged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from cotune.errors import Malformed
from cotune.party.task import FRAME, MOST_UNKNOWN, Configuration, Reply, Task
from cotune.party.train.bins import MOST_BINS, Bins
from cotune.party.train.grow import (
    MOST_ROWS,
    MOST_SPLITS,
    Split,
    Start,
    Tree,
    channels,
    check_tree,
    digest_of,
    trees_per_round,
)
from cotune.problem import seed_of

if TYPE_CHECKING:
    from cotune.growth.grow import Answered, Finished
    from cotune.growth.layout import Layout
    from cotune.party.party import Party
    from cotune.party.train.grow_rows import Growing
    from cotune.problem import Problem

#: The rounds of trees that a message may ask for.
MOST_ROUNDS = 2**16


#: Bytes of a split with its leaf, gain and cover, at most, without categories.
SPLIT_BYTES = 64


class Boosted(Reply, frozen=True):
    """A party's trees, round after round, each with one per class; and what the party counts."""

    trees: tuple[tuple[Tree, ...], ...]
    weight: float = 1.0


class Boost(Task, frozen=True, omit_defaults=True):
    """Add the merged trees to what is predicted, and boost that further on the own rows alone.

    Parameters
    ----------
    after
        The digest of what was asked before. A party that was not there refuses.
    configuration
        The learner and all of its parameters.
    number, rounds
        The first round of boosting to do, and how many.
    bins
        Of the columns.
    merged
        The trees that came of what the parties answered last.
    start
        Given at the beginning, and to a party that was not there: what to start from.
    """

    discloses = (
        "its number of rows (unless all parties count equally) and the trees that it grows on its "
        "own rows: by which columns and shared bins they divide them, by how much that reduces the "
        "loss and how much curvature (roughly: how many rows) it divides, and the values of the "
        "leaves, each a mean over the rows that come to it; a leaf of one row tells that row's "
        "target"
    )
    reply = Boosted

    after: str
    configuration: Configuration
    number: Annotated[int, msgspec.Meta(ge=0)]
    rounds: Annotated[int, msgspec.Meta(ge=1, le=MOST_ROUNDS)]
    bins: Bins
    merged: tuple[tuple[Tree, ...], ...] = ()
    start: Start | None = None

    @property
    def digest(self) -> str:
        return digest_of(self)

    def perform(self, party: Party) -> Boosted:
        from cotune.party.fit import as_asked
        from cotune.party.train.grow_rows import followed

        def boosted(growing: Growing) -> Boosted:
            growing.add(self.merged, self.number)
            with as_asked():
                return Boosted(tuple(self._boosted(growing.fork(), party)), party.weight)

        return followed(party, self, boosted, fits=1)

    def _boosted(self, growing: Growing, party: Party) -> Iterator[tuple[Tree, ...]]:
        from cotune.growth.grow import grow_rounds
        from cotune.growth.rules import rules_of

        problem = party.problem
        rules = rules_of(self.configuration.learner, self.configuration.params, problem.schema)
        seed = seed_of(problem.seed, "merging", self.configuration.learner)
        numbers = range(self.number, self.number + self.rounds)
        source = _Own(growing, channels(problem.schema, rules.counted))
        roots = trees_per_round(problem.schema)
        for finished in grow_rounds(source, rules, self.bins, roots, seed, numbers):
            party.check_given_up()
            yield finished.trees

    def most_fits(self, problem: Problem) -> int:
        return 1

    def longest_reply(self, problem: Problem | None) -> int:
        """By the limits of leaves and depth, as far as the configuration has any."""
        from cotune.growth.rules import rules_of

        assert problem is not None
        rules = rules_of(self.configuration.learner, self.configuration.params, problem.schema)
        splits = min(
            MOST_SPLITS,
            rules.leaves or MOST_SPLITS,
            2 ** min(rules.depth or 0, 16) if rules.depth else MOST_SPLITS,
        )
        right = MOST_BINS if None in self.bins.packed else 0  # of a split by categories
        trees = self.rounds * trees_per_round(problem.schema)
        return FRAME + min(MOST_UNKNOWN, trees * (64 + splits * (SPLIT_BYTES + right)))

    def check(self, reply: Boosted, problem: Problem | None) -> None:
        assert problem is not None
        if not (math.isfinite(reply.weight) and 0 < reply.weight <= MOST_ROWS):
            raise Malformed("the reply's weight is not a number of rows")
        if len(reply.trees) != self.rounds:
            raise Malformed(f"the reply has not the trees of {self.rounds} rounds")
        for trees in reply.trees:
            if len(trees) != trees_per_round(problem.schema):
                raise Malformed("a round of the reply has not one tree for each class")
            for tree in trees:
                check_tree(tree, self.bins)


class _Own:
    """Sums over the party's own rows, for trees that it grows by itself."""

    def __init__(self, growing: Growing, names: Sequence[str]) -> None:
        self._growing = growing
        self._names = names

    def ask(
        self,
        layout: Layout,
        wanted: Sequence[int],
        *,
        splits: Sequence[Split] = (),
        finished: Finished | None = None,
        within: Sequence[np.ndarray] = (),
    ) -> tuple[np.ndarray, list[Answered]]:
        self._growing.divide((*(finished.splits if finished else ()), *splits))
        if finished is not None:
            self._growing.finish(finished.leaves)
        told = self._growing.histograms(wanted, layout.columns, b"", self._names)
        return layout.unmasked(told, len(wanted)), [()] * len(wanted)


TASKS: tuple[type[Task], ...] = (Boost,)
