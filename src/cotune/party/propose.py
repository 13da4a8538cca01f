"""What a party puts forward of its own search: counts in cells, and sums of good configurations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np

from cotune.errors import Malformed
from cotune.party.cells import Cells
from cotune.party.task import (
    RESOLUTION,
    Configuration,
    Reply,
    Task,
    Term,
    cost_terms,
    most_summed_bytes,
)
from cotune.party.tasks import Found, Pair, Search, loss_term
from cotune.space import Params, Space
from cotune.space.domain import Category, Fixed

if TYPE_CHECKING:
    from cotune.party.party import Party
    from cotune.problem import Problem

#: Which of its configurations a party puts forward: its best one, its best 5 %, all good ones.
Which = Literal["best", "best-share", "good"]
#: Of one party, at most.
MOST_POINTS = 2**20


class Explored(Reply, frozen=True):
    """What the party's searches cost, by learner."""

    fits: list[int]
    cpu_seconds: list[float]


class Explore(Task, frozen=True):
    """Search the learners' spaces alone, and keep what was found: the LHO of PrivTuna."""

    discloses = "how many fits and CPU seconds its own search took, for each learner"
    reply = Explored

    search: Search

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        count = len(self.search.learners)
        return {
            **cost_terms(count),
        }

    def perform(self, party: Party) -> Explored:
        found = party.searched(self.search)
        return Explored([one.fits for one in found], [one.cpu_seconds for one in found])

    def most_fits(self, problem: Problem) -> int:
        return self.search.most_fits(problem)

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))


class Counts(Reply, frozen=True):
    """How many of the party's good configurations lie in each cell, learner after learner."""

    counts: list[int]


class Count(Task, frozen=True):
    """Count good configurations in the cells of the grid: lines 2 to 4 of Algorithm 3."""

    discloses = "how many of the good configurations of its own search lie in each cell of a grid"
    reply = Counts

    search: Search

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        assert problem is not None
        cells = sum(Cells(problem.space(learner)).count for learner in self.search.learners)
        return {"counts": Term(cells, 0.0, float(MOST_POINTS), 1.0)}

    def perform(self, party: Party) -> Counts:
        counts: list[int] = []
        for learner, chosen in zip(
            self.search.learners, put_forward(party.searched(self.search), "good"), strict=True
        ):
            cells = Cells(party.problem.space(learner))
            placed = [cells.of(pair.params) for pair in chosen]
            counts += np.bincount(np.array(placed, dtype=int), minlength=cells.count).tolist()
        return Counts(counts)

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))


class Ballots(Reply, frozen=True):
    """Sums over the configurations put forward, by learner and cluster: see `Ballot`.

    `losses` are their means, by learner and cluster (0 of none); costs are by learner.
    """

    sums: list[float]
    losses: list[float]
    fits: list[int]
    cpu_seconds: list[float]


class Propose(Task, frozen=True):
    """Add up the configurations that the party puts forward, for each learner or cluster.

    Parameters
    ----------
    which
        Which of them.
    dense
        For every learner which cells are dense (packed bits): configurations are added up by the
        clusters of these, lines 13 to 17 of Algorithm 3. Without it all are one cluster.
    anew
        Whether the party is to search first; otherwise one that would have to refuses.
    """

    discloses = (
        "the sum of its best configurations (numbers in the search's scale, categories as votes), "
        "the sum and mean of their losses and how many they are, for each cluster; and how many "
        "fits and CPU seconds its search took"
    )
    reply = Ballots
    of_losses = True

    search: Search
    which: Which
    dense: tuple[Annotated[bytes, msgspec.Meta(max_length=2**16)], ...] = ()
    anew: bool = False

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        assert problem is not None
        clusters = self.clusters(problem)
        length = sum(
            len(own) * Ballot(problem.space(learner)).width
            for learner, own in zip(self.search.learners, clusters, strict=True)
        )
        most = max(1.0, problem.metric.worst(problem.schema)) * MOST_POINTS
        learners = len(self.search.learners)
        return {
            "sums": Term(length, 0.0, most, RESOLUTION),
            "losses": loss_term(problem, sum(map(len, clusters))),
            **cost_terms(learners),
        }

    def clusters(self, problem: Problem) -> list[range]:
        """The clusters of each learner."""
        if not self.dense:
            return [range(1) for _ in self.search.learners]
        labels = (self.labels(problem, i) for i in range(len(self.search.learners)))
        return [range(int(found.max(initial=-1)) + 1) for found in labels]

    def labels(self, problem: Problem, i: int) -> np.ndarray:
        """For every cell of the i-th learner's grid the number of its cluster."""
        cells = Cells(problem.space(self.search.learners[i]))
        if len(self.dense) != len(self.search.learners) or len(self.dense[i]) * 8 < cells.count:
            raise Malformed("the dense cells are not those of the learners' grids")
        bits = np.unpackbits(np.frombuffer(self.dense[i], dtype=np.uint8))[: cells.count]
        return cells.clusters(bits.astype(bool))

    def perform(self, party: Party) -> Ballots:
        problem, sums, losses = party.problem, [], []
        found = party.searched(self.search)
        chosen = put_forward(found, self.which)
        for i, (learner, clusters) in enumerate(
            zip(self.search.learners, self.clusters(problem), strict=True)
        ):
            ballot = Ballot(problem.space(learner))
            members: list[list[Pair]] = [[] for _ in clusters]
            for pair in chosen[i]:
                cluster = self._cluster(problem, i, pair)
                if cluster is not None:
                    members[cluster].append(pair)
            sums += [ballot.sums(pairs) for pairs in members]
            losses += [fmean(pair.loss for pair in own) if own else 0.0 for own in members]
        return Ballots(
            np.concatenate([np.empty(0), *sums]).tolist(),
            losses,
            [one.fits for one in found],
            [one.cpu_seconds for one in found],
        )

    def _cluster(self, problem: Problem, i: int, pair: Pair) -> int | None:
        """Of the configuration's cell, or (line 14) of the closest one if that is dense."""
        if not self.dense:
            return 0
        labels, cells = self.labels(problem, i), Cells(problem.space(self.search.learners[i]))
        for cell in (cells.of(pair.params), cells.closest(pair.params)):
            if cell is not None and labels[cell] >= 0:
                return int(labels[cell])
        return None

    def fractions(
        self, problem: Problem, vectors: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The ballots' sums, losses as shares of the worst one, over the members of the cluster."""
        sums, counts, begin = vectors["sums"], [np.empty(0)], 0
        for ballot in self._ballots(problem):
            begin += ballot.width
            counts.append(np.full(ballot.width, sums[begin - 1]))
        return sums / self._units(problem), np.concatenate(counts)

    def divided(self, problem: Problem, quotients: np.ndarray) -> dict[str, np.ndarray]:
        """The same ballots as if one configuration had been put forward for each cluster."""
        return {"sums": quotients * self._units(problem)}

    def _ballots(self, problem: Problem) -> Iterator[Ballot]:
        """One for each cluster of each learner."""
        for learner, clusters in zip(self.search.learners, self.clusters(problem), strict=True):
            ballot = Ballot(problem.space(learner))
            for _ in clusters:
                yield ballot

    def _units(self, problem: Problem) -> np.ndarray:
        """Of every position of the sums, so that a member's share is between 0 and 1."""
        worst = problem.metric.worst(problem.schema)
        units = [
            np.append(np.ones(ballot.width - 2), [worst, 1.0]) for ballot in self._ballots(problem)
        ]
        return np.concatenate([np.empty(0), *units])

    def most_fits(self, problem: Problem) -> int:
        return self.search.most_fits(problem) if self.anew else 0

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))


class Votes(Reply, frozen=True):
    """1 for the configurations that are the party's best, 0 for the others."""

    votes: list[int]


class Vote(Task, frozen=True):
    """Judge configurations, and vote for the best of them."""

    discloses = "which of the configurations that all parties judged are the best ones at it"
    reply = Votes

    configurations: tuple[Configuration, ...]
    top: Annotated[int, msgspec.Meta(ge=1)]

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        count = len(self.configurations)
        return {"votes": Term(count, 0.0, 1.0, 1.0, norm=math.sqrt(self.top))}

    def perform(self, party: Party) -> Votes:
        losses = [evaluation.loss for evaluation in party.evaluate(self.configurations)]
        best = np.argsort(losses, kind="stable")[: self.top]
        votes = np.zeros(len(losses), dtype=int)
        votes[best] = 1
        return Votes(votes.tolist())

    def most_fits(self, problem: Problem) -> int:
        return len(self.configurations) * problem.folds

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))


def put_forward(found: Sequence[Found], which: Which) -> list[list[Pair]]:
    """The configurations of the party's searches that count, for each learner."""
    from cotune.methods.combine import best, good

    tried = [one.pairs for one in found]
    if which == "good":
        return [good(pairs) or best(pairs, 1) for pairs in tried]
    return [best(pairs, len(pairs) // 20 if which == "best-share" else 1) for pairs in tried]


class Ballot:
    """Configurations as vectors whose sum tells what `cotune.methods.combine.merged` needs.

    A number has two places (its value in the unit interval, and 1 for being active), a category
    one for each choice; then follow the loss and 1 for the configuration itself.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._free = [name for name in space if not isinstance(space[name], Fixed)]
        self.width = sum(self._width(name) for name in self._free) + 2

    def _width(self, name: str) -> int:
        domain = self._space[name]
        return len(domain.choices) if isinstance(domain, Category) else 2

    def sums(self, pairs: Sequence[Pair]) -> np.ndarray:
        total = np.zeros(self.width)
        for pair in pairs:
            total += np.concatenate([self._written(pair.params), [pair.loss, 1.0]])
        return total

    def _written(self, params: Mapping[str, Any]) -> np.ndarray:
        blocks = [np.empty(0)]
        for name in self._free:
            domain = self._space[name]
            if name not in params:
                blocks.append(np.zeros(self._width(name)))
            elif isinstance(domain, Category):
                blocks.append(np.eye(self._width(name))[domain.position(params[name])])
            else:
                blocks.append(np.array([domain.encode([params[name]])[0, 0], 1.0]))
        return np.concatenate(blocks)

    def elected(
        self, total: np.ndarray, rng: np.random.Generator | None = None
    ) -> tuple[Params, float, int] | None:
        """The combined configuration, the members' mean loss and their number; None of none.

        Numbers by their mean, categories by majority; ties are broken at random, or without `rng`
        in favour of the first choice.
        """
        members = round(float(total[-1]))
        if members < 1:
            return None
        blocks, begin = {}, 0
        for name in self._free:
            blocks[name] = total[begin : begin + self._width(name)]
            begin += self._width(name)
        chosen: Params = {}
        for name in self._space:
            if name in self._space.active(chosen):
                chosen[name] = self._elected(name, blocks.get(name), rng)
        return self._space.validate(chosen), float(total[-2] / total[-1]), members

    def _elected(self, name: str, block: np.ndarray | None, rng: np.random.Generator | None) -> Any:
        domain = self._space[name]
        if block is None or not block.any():
            return domain.default
        if isinstance(domain, Category):
            tied = np.flatnonzero(block >= block.max() - 0.5 * RESOLUTION)
            return domain.choices[int(tied[rng.integers(len(tied)) if rng else 0])]
        return domain.decode(block[:1] / block[1]) if block[1] > 0 else domain.default


TASKS: tuple[type[Task], ...] = (Explore, Count, Propose, Vote)
