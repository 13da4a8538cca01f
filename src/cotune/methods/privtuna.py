"""PrivTuna: the parties search alone, and their best configurations become one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from cotune.coordinator.federation import Federation, Sums
from cotune.errors import UsageError, choices
from cotune.methods import combine as strategies
from cotune.methods.evaluate import evaluate
from cotune.party.cells import Cells
from cotune.party.keys import WHOLE, Aim
from cotune.party.propose import Ballot, Count, Explore, Propose, Which
from cotune.party.task import Configuration
from cotune.party.tasks import Search, Searches
from cotune.problem import Problem
from cotune.space import Params
from cotune.space.domain import Number
from cotune.trial import Step, Trial

#: What needs no more than totals over the parties, and which configurations it adds up.
BY_SUMS: dict[str, Which] = {"mean": "best", "best-mean": "best-share", "pf-dbscan": "good"}
COMBINE = (*BY_SUMS, *(name for name in strategies.STRATEGIES if name not in BY_SUMS))
EDITIONS = ("lean", "faithful")
#: The largest MinPts that can be compared with under encryption.
MOST_MIN_POINTS = 8
#: Good configurations of one party, at most: see `cotune.methods.combine.good`.
MOST_GOOD = 10
#: The widest range of counts that ciphertexts are divided by.
MOST_DIVIDED = 1000
#: Of the clusters, so many of the best are candidates, as in the authors' experiments.
CLUSTERS = 4


def privtuna(
    federation: Federation,
    problem: Problem,
    *,
    trials: int = 50,
    combine: str = "pf-dbscan",
    sampler: str = "tpe",
    min_points: int | None = None,
    edition: str = "lean",
    single_shot: bool = False,
    free_pairs: bool = False,
    pruning: bool = True,
) -> Iterator[Step]:
    """Local searches, combined into one configuration, by totals over the parties where possible.

    Mitic, Pyrgelis, Sav: How to Privately Tune Hyperparameters in Federated Learning? Insights from
    a Benchmark Study, 2024: Algorithm 2, with PF-Mean (section V-B2) and PF-DBSCAN (Algorithm 3)
    as sums over the federation, so that they are private if these are.

    As published nobody tries the result. Here all parties judge it in a last round, together with
    the next best clusters and the default configuration; `single_shot` leaves that out.

    Parameters
    ----------
    trials
        Configurations that each party tries, per learner: the LHO.
    combine
        By totals: `mean` of the parties' best configurations, `best-mean` of the best 5 % of each,
        or `pf-dbscan`: clusters of dense cells of a grid. From configurations that the parties
        tell (in the clear only): `median`, `trimmed`, `best-median`, `dbscan`.
    sampler
        Of the parties' searches; `grid` as published.
    min_points
        MinPts: how many good configurations make a cell dense, 1 to 8. Twice the number of the
        space's numbers by default, 8 at most.
    edition
        Under encryption: `lean` compares exactly, without telling counts, and divides totals in the
        clear; `faithful` is as published, by approximate comparison and division of ciphertexts
        (CKKS), so that not even how many configurations there were is told.
    single_shot
        As published: the combined configuration is not tried.
    free_pairs, pruning
        What the parties' searches save, see `cotune.party.tasks.Search`.
    """
    _check(combine, min_points, edition)
    for learner in problem.learners:  # a sampler that cannot be is refused here, with a reason
        problem.search(learner, sampler, trials)
        if combine == "pf-dbscan":
            Cells(problem.space(learner))
    if edition == "faithful" and len(federation.parties) * MOST_GOOD > MOST_DIVIDED:
        raise UsageError(
            f"the faithful edition divides counts up to {MOST_DIVIDED}: it is for "
            f"{MOST_DIVIDED // MOST_GOOD} parties at most; leave edition out"
        )
    search = Search(problem.learners, trials, sampler, 1.0, None, free_pairs, pruning)
    steps = 2 if single_shot else 3
    proposed, costs, parties, weight = _combined(
        federation, problem, search, combine, min_points, edition == "faithful"
    )
    predicted = [
        Trial(learner, params, loss, parties, weight, *costs[learner], predicted=True)
        for learner, found in proposed.items()
        for params, loss, _ in found[:1]
    ]
    report = {
        "clusters": {
            learner: [{"params": p, "loss": loss, "members": n} for p, loss, n in found]
            for learner, found in proposed.items()
        }
    }
    yield Step(tuple(predicted), 2, steps, report)
    if not single_shot:
        asked = [
            Configuration(learner, params)
            for learner, found in proposed.items()
            for params in [*(p for p, _, _ in found[:CLUSTERS]), problem.default(learner)]
        ]
        yield Step(evaluate(federation, asked), 3, steps)


def private(combine: str = "pf-dbscan", **_: Any) -> None:
    """Which strategies private sums allow."""
    if combine in COMBINE and combine not in BY_SUMS:
        raise UsageError(
            f"for combine={combine!r} every party tells its best configurations, which private "
            f"sums rule out: use {', '.join(BY_SUMS)}"
        )


#: A configuration, the mean loss of those it was made of, and how many they were.
Proposal = tuple[Params, float, int]
#: Fits and CPU seconds.
Costs = dict[str, tuple[int, float]]


def _combined(
    federation: Federation,
    problem: Problem,
    search: Search,
    combine: str,
    min_points: int | None,
    faithful: bool,
) -> tuple[dict[str, list[Proposal]], Costs, int, float]:
    """Algorithm 2: by learner the proposals, the best first; what the searches cost; of whom."""
    if combine not in BY_SUMS:
        return _gathered(federation, problem, search, combine)
    if combine != "pf-dbscan" and not faithful:
        sums = federation.sum(task := Propose(search, BY_SUMS[combine], anew=True))  # lines 1-5
        return proposals(problem, task, sums), costs_of(search, sums), sums.parties, sums.weight
    explored = federation.sum(Explore(search))  # lines 1-4
    dense: tuple[bytes, ...] = ()
    if combine == "pf-dbscan":
        dense = dense_cells(federation, problem, search, min_points, faithful)
    proposed = proposals(problem, *_added_up(federation, problem, search, combine, dense, faithful))
    if not all(proposed.values()):  # no cell is dense: the mean of all that was counted in them
        means = proposals(problem, *_added_up(federation, problem, search, combine, (), faithful))
        proposed = {j: found or means[j] for j, found in proposed.items()}
    return proposed, costs_of(search, explored), explored.parties, explored.weight


def _added_up(
    federation: Federation,
    problem: Problem,
    search: Search,
    combine: str,
    dense: tuple[bytes, ...],
    faithful: bool,
) -> tuple[Propose, Sums]:
    """Sums of configurations by cluster; as published, divided before they are decrypted."""
    task = Propose(search, BY_SUMS[combine], dense)
    aim = WHOLE
    if faithful and any(task.clusters(problem)):
        each = {"mean": 1, "best-mean": max(1, search.most_pairs // 20), "pf-dbscan": MOST_GOOD}
        aim = Aim(low=1.0, high=float(each[combine] * len(federation.parties)))
    return task, federation.sum(task, aim=aim)


def costs_of(search: Search, sums: Sums) -> Costs:
    """What the searches of each learner cost."""
    fits, seconds = (sums.sum(name).tolist() for name in ("fits", "cpu_seconds"))
    return {j: (int(fits[i]), seconds[i]) for i, j in enumerate(search.learners)}


def dense_cells(
    federation: Federation,
    problem: Problem,
    search: Search,
    min_points: int | None,
    faithful: bool = False,
) -> tuple[bytes, ...]:
    """Algorithm 3, lines 8-11: for each learner which cells have MinPts configurations or more."""
    spaces = [problem.space(learner) for learner in search.learners]
    numbers = max(sum(isinstance(space[name], Number) for name in space) for space in spaces)
    usual = min(MOST_MIN_POINTS, max(2, 2 * numbers))
    least = usual if min_points is None else min_points
    reached = federation.sum(Count(search), aim=Aim(least=least, approximate=faithful))
    ends = np.cumsum([Cells(space).count for space in spaces])
    masks = np.split(reached.sum("counts") > 0, ends[:-1])
    return tuple(np.packbits(mask).tobytes() for mask in masks)


def proposals(problem: Problem, task: Propose, sums: Sums) -> dict[str, list[Proposal]]:
    """Algorithm 3, lines 22-28: every cluster's mean configuration, by the clusters' losses."""
    left = sums.sum("sums")
    found: dict[str, list[Proposal]] = {}
    for learner, clusters in zip(task.search.learners, task.clusters(problem), strict=True):
        ballot = Ballot(problem.space(learner))
        own, left = np.split(left, [len(clusters) * ballot.width])
        elected = [ballot.elected(total) for total in own.reshape(-1, ballot.width)]
        found[learner] = sorted((one for one in elected if one), key=lambda one: one[1])
    return found


def _gathered(
    federation: Federation, problem: Problem, search: Search, combine: str
) -> tuple[dict[str, list[Proposal]], Costs, int, float]:
    """Section IV-A: the parties tell what they tried."""
    replies = cast("dict[str, Searches]", federation.gather(search))
    told: Sequence[Searches] = [replies[party] for party in sorted(replies)]
    proposed, costs = {}, {}
    for i, learner in enumerate(search.learners):
        found = [reply.found[i] for reply in told]
        made = strategies.combine(combine, problem.space(learner), [one.pairs for one in found])
        proposed[learner] = [(one.params, one.loss, one.members) for one in made]
        costs[learner] = sum(one.fits for one in found), sum(one.cpu_seconds for one in found)
    return proposed, costs, len(told), sum(reply.weight for reply in told)


def _check(combine: str, min_points: int | None, edition: str) -> None:
    if combine not in COMBINE:
        raise UsageError(choices(combine, "way to combine", COMBINE))
    if edition not in EDITIONS:
        raise UsageError(choices(edition, "edition of privtuna", EDITIONS))
    if min_points is not None and not 1 <= min_points <= MOST_MIN_POINTS:
        raise UsageError(f"min_points is {min_points}: give a number from 1 to {MOST_MIN_POINTS}")
