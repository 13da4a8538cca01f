"""FLASH: more rows round by round, for the learners whose projected loss is good."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, takewhile
from typing import Any, cast

import numpy as np
from msgspec.structs import replace

from cotune.coordinator.federation import Federation
from cotune.errors import UsageError, choices
from cotune.methods.evaluate import evaluate
from cotune.methods.privtuna import costs_of
from cotune.party.propose import Ballot, Propose
from cotune.party.task import Configuration
from cotune.party.tasks import Found, Search, Searches
from cotune.problem import Problem, seed_of
from cotune.space import Params, Space
from cotune.space.surrogate import Surrogate
from cotune.trial import Step, Trial

INNER = ("lbm", "lkbm", "rm")
#: The first rounds, in which every learner is trained: projections are too noisy to choose by.
OPEN = 4
#: a_0 of the paper, and how many rows of a class each fold of a party judges in the mean, at least.
FIRST, ENOUGH = 0.0375, 10
#: The "large number" of random configurations among which RM looks for the best predicted ones.
DRAWN = 2000


def flash(
    federation: Federation,
    problem: Problem,
    *,
    trials: int = 50,
    inner: str = "lkbm",
    tolerance: float | None = None,
    sampler: str = "tpe",
    first: float | None = None,
    growth: float = 1.5,
    keep: int = 3,
    candidates: int = 10,
    free_pairs: bool = True,
    pruning: bool = True,
) -> Iterator[Step]:
    """Growing shares of the rows, for the learners that look best when projected to all rows.

    Alam, Kar, Salonidis, Samulowitz: FLASH: Automating Federated Learning using CASH, UAI 2023,
    Algorithm 1; the numbers at the right are its lines, in `fl_hpo` those of Algorithm 2.

    The learners of a round travel in one message. One that is left out keeps its last projection,
    and may return when the others' rise; line 11 takes the slope between its own last two
    fractions. The last fraction is exactly 1, however far the progression overshoots.

    Line 15, the best of the last round, is what `tune` makes of the trials. The report tells
    `algorithms` (who was trained on which fraction), `projections` (each learner's last LP) and
    `data_wasted` on those that did not win, in units of all rows: sums of a_m over the rounds, and
    the `largest` a_m from round 4 on, which Theorem 3 bounds; `data_wasted_share` is their part of
    all that was spent.

    Parameters
    ----------
    trials
        HPO_iter: configurations per learner and round, at each party.
    inner
        What becomes of the parties' searches: `lbm` takes the mean of their best, unjudged; all
        judge their K best in `lkbm`, and the best by a forest over all they tried in `rm`, which
        wants many trials.
    tolerance
        Delta, in units of the loss: how much worse than the best a projected loss may be. By
        default as much as the standard error of their difference, as far as it is known: on few
        rows a projection is mostly noise, and by Lemma 1 the best learner is safe only if Delta
        is above that; and whoever has the least loss goes on whatever it is projected to. The
        paper's experiments have 0, which is enough for large parties.
    sampler
        Of the parties' searches: `tpe`, `random`, `gp`, `cmaes` or `grid`.
    first, growth
        a_0 and r of the fractions a_m = a_0 r^m; the first is a share of the rows in (0, 1]. By
        default it is 0.0375, as published; but where the federation's figures are compared
        (`compare_by`), rounds are left out in which parties have too few rows, see `enough`.
    keep
        K of `lkbm`: configurations that each party tells, per learner.
    candidates
        Configurations of `rm` that all parties judge, per learner and round.
    free_pairs, pruning
        What the parties' searches save, see `cotune.party.tasks.Search`; off as published.
    """
    _check(
        inner,
        tolerance,
        FIRST if first is None else first,
        growth,
        keep=keep,
        candidates=candidates,
    )
    for learner in problem.learners:  # a sampler that cannot be is refused here, with a reason
        problem.search(learner, sampler, trials)
    told = {"lbm": 1, "lkbm": keep, "rm": None}[inner]
    fractions = fractions_of(FIRST if first is None else first, growth)
    if first is None and problem.compare_by == "federation":
        fractions = [a for a in fractions if a >= enough(problem, len(federation.parties))] or [1.0]
    curves: dict[str, dict[float, float]] = {learner: {} for learner in problem.learners}
    errors: dict[str, dict[float, float]] = {learner: {} for learner in problem.learners}
    LP, noise = dict.fromkeys(problem.learners, 0.0), dict.fromkeys(problem.learners, 0.0)
    for m, a in enumerate(fractions):  # line 2
        chosen = problem.learners if m < OPEN else going_on(curves, LP, noise, tolerance)  # 3-6
        search = Search(chosen, trials, sampler, a, told, free_pairs, pruning)
        judged = fl_hpo(federation, problem, search, inner, candidates)  # lines 8-9
        for learner in chosen:
            best = min((t for t in judged if t.learner == learner), key=lambda t: t.loss)
            curves[learner][a], errors[learner][a] = best.loss, best.error  # line 10
            LP[learner] = projected(curves[learner])  # line 11
            noise[learner] = projection_error(errors[learner])
        yield Step(judged, m + 1, len(fractions), report(curves, LP, fractions[: m + 1]))


def fractions_of(first: float, growth: float) -> list[float]:
    """a_0, a_0 r, a_0 r^2, ... while below 1, then 1; rounding must not add a fraction beside it.

    >>> fractions_of(0.25, 1.5)
    [0.25, 0.375, 0.5625, 0.84375, 1.0]
    """
    progression = (first * growth**m for m in count())
    return [*takewhile(lambda a: a < 1 - 1e-9, progression), 1.0]


def enough(problem: Problem, parties: int) -> float:
    """The least fraction at which a fold of a party judges `ENOUGH` rows of a class in the mean.

    Below, losses say little about those at all rows. At five parties with 400 rows each of
    Electricity (iid, two classes, three folds: 60 rows are enough) the rank correlation between the
    losses of 24 configurations of three learners on a fraction and on all rows was -.16 to .24 with
    15 to 51 rows, .40 with 76 and .50 with 171. The boosters' defaults split no node of fewer than
    40 rows. The paper's parties have thousands. Only the total of the rows is used, which is known.
    """
    rows = ENOUGH * problem.folds * max(2, len(problem.schema.classes))
    return rows * parties / max(1.0, (1.0 - problem.holdout) * problem.schema.rows)


def projected(curve: Mapping[float, float]) -> float:
    """Line 11: the loss at all rows, on the line through the last two (fraction, loss).

    >>> projected({0.25: 0.5, 0.5: 0.25})
    -0.25
    """
    *earlier, (a, loss) = curve.items()
    if not earlier:
        return loss
    a_before, loss_before = earlier[-1]
    return loss + (1 - a) * (loss - loss_before) / (a - a_before)


def projection_error(errors: Mapping[float, float]) -> float:
    """The standard error of `projected`, by those of the last two losses.

    >>> round(projection_error({0.25: 0.02, 0.5: 0.01}), 6)
    0.05
    """
    *earlier, (a, error) = errors.items()
    if not earlier:
        return error
    a_before, error_before = earlier[-1]
    factor = (1 - a) / (a - a_before)
    return math.hypot((1 + factor) * error, factor * error_before)


def going_on(
    curves: Mapping[str, Mapping[float, float]],
    LP: Mapping[str, float],
    noise: Mapping[str, float],
    tolerance: float | None,
) -> tuple[str, ...]:
    """Line 6: the learners whose projected loss is near enough to the least, line 13's LP*.

    Without a tolerance, whoever has the least loss is one of them. Losses fall ever more slowly, so
    that a line through two of them ends too low, the more so the earlier they are: the projections
    of learners that were left out long ago can outbid one that is all but at all rows.
    """
    leader = min(LP, key=lambda j: LP[j])
    if tolerance is not None:
        return tuple(j for j in LP if LP[j] - LP[leader] <= tolerance)
    best = min(curves, key=lambda j: list(curves[j].values())[-1])
    return tuple(
        j for j in LP if j == best or LP[j] - LP[leader] <= math.hypot(noise[j], noise[leader])
    )


def fl_hpo(
    federation: Federation, problem: Problem, search: Search, inner: str, candidates: int
) -> tuple[Trial, ...]:
    """Algorithm 2 on a fraction of the rows, for all the learners of a round together.

    Its line 4 averages configurations; as in the paper's text, losses are averaged here, and the
    caller takes the least. What the searches cost is added to each learner's first trial. On all
    rows the parties also judge a default that lies outside of its space, where no search can be.
    """
    seeds = {j: seed_of(problem.seed, "flash", j, search.fraction) for j in search.learners}
    if inner == "lbm":  # lines 1-2
        return tuple(local_bests(federation, problem, search, seeds))
    replies = cast(dict[str, Searches], federation.gather(search))  # line 1
    ordered = [replies[party] for party in sorted(replies)]
    found = {j: [reply.found[i] for reply in ordered] for i, j in enumerate(search.learners)}
    proposed = {
        j: promising(problem.space(j), found[j], candidates, seeds[j])
        if inner == "rm"
        else _distinct(pair.params for one in found[j] for pair in one.pairs)
        for j in found
    }
    if search.fraction == 1.0:
        for j in found:
            proposed[j] += [d for d in (problem.beside(j),) if d is not None]
    asked = [Configuration(j, params, search.fraction) for j in found for params in proposed[j]]
    judged = evaluate(federation, asked)  # lines 3-4
    return tuple(replace(t, fraction=search.fraction) for t in _with_costs(judged, found))


def local_bests(
    federation: Federation, problem: Problem, search: Search, seeds: Mapping[str, int]
) -> Iterator[Trial]:
    """LBM: the parties' best configurations combined, with the mean of their own best losses.

    The paper averages the coordinates as they are; here that is done in the scale of the search,
    as `cotune.party.propose.Ballot` says, all parties counting equally. No party judged the
    combination itself, so its loss is marked as predicted.
    """
    sums = federation.sum(Propose(search, "best", anew=True))
    costs, ballots = costs_of(search, sums), sums.sum("sums")
    for i, learner in enumerate(search.learners):
        ballot = Ballot(problem.space(learner))
        own, ballots = np.split(ballots, [ballot.width])
        elected = ballot.elected(own, np.random.default_rng(seeds[learner]))
        assert elected is not None
        fits, cpu_seconds = costs[learner]
        yield Trial(
            learner=learner,
            params=elected[0],
            loss=float(sums.mean("losses")[i]),
            parties=sums.parties,
            weight=sums.weight,
            fits=fits,
            cpu_seconds=cpu_seconds,
            predicted=True,
            fraction=search.fraction,
        )


def private(inner: str = "lkbm", **_: Any) -> None:
    """Which inner methods private sums allow."""
    if inner in INNER and inner != "lbm":
        raise UsageError(
            f"for inner={inner!r} every party tells its best configurations, which private sums "
            "rule out: use lbm (--inner lbm)"
        )


def promising(space: Space, found: Sequence[Found], candidates: int, seed: int) -> list[Params]:
    """RM: the best predicted of many random configurations, by a forest over all pairs."""
    pairs = [pair for one in found for pair in one.pairs]
    surrogate = Surrogate(space, "forest", seed)
    surrogate.fit(
        [pair.params for pair in pairs],
        [pair.loss for pair in pairs],
        [pair.doubt for pair in pairs],
    )
    rng = np.random.default_rng(seed)
    drawn = _distinct(space.sample(rng) for _ in range(DRAWN))
    order = np.argsort(surrogate.predict(drawn)[0], kind="stable")
    return [drawn[i] for i in order[:candidates]]


def report(
    curves: Mapping[str, Mapping[float, float]], LP: Mapping[str, float], fractions: Sequence[float]
) -> dict[str, Any]:
    """The figures of `Outcome.report` after the rounds of these fractions."""
    trained = {a: [j for j, curve in curves.items() if a in curve] for a in fractions}
    winner = min(trained[fractions[-1]], key=lambda j: curves[j][fractions[-1]])
    wasted = {j: _spent(curve, fractions[OPEN:]) for j, curve in curves.items() if j != winner}
    total = sum(map(sum, curves.values()))
    return {
        "algorithms": [{"fraction": a, "learners": names} for a, names in trained.items()],
        "projections": dict(LP),
        "data_wasted": wasted,
        "data_wasted_share": sum(spent["all_rounds"] for spent in wasted.values()) / total,
    }


def _spent(curve: Mapping[float, float], late: Sequence[float]) -> dict[str, float]:
    used = [a for a in late if a in curve] or [0.0]
    return {"from_round_4": sum(used), "largest": max(used), "all_rounds": sum(curve)}


def _check(inner: str, tolerance: float | None, first: float, growth: float, **counts: int) -> None:
    if inner not in INNER:
        raise UsageError(choices(inner, "inner method of flash", INNER))
    if tolerance is not None and not tolerance >= 0:
        raise UsageError(f"the tolerance is {tolerance}: give a difference of losses, 0 or more")
    if not 0 < first <= 1:
        raise UsageError(f"the first fraction is {first}: give a share of the rows in (0, 1]")
    if not growth > 1:
        raise UsageError(f"the growth is {growth}: give a factor above 1")
    for name, number in counts.items():
        if not isinstance(number, int) or number < 1:
            raise UsageError(f"{name} is {number!r}: give a whole number of 1 or more")


def _distinct(configurations: Iterable[Params]) -> list[Params]:
    return list({frozenset(params.items()): params for params in configurations}.values())


def _with_costs(trials: Sequence[Trial], found: Mapping[str, Sequence[Found]]) -> Iterator[Trial]:
    """The trials, the first of each learner with the fits and CPU seconds of its searches."""
    unpaid = dict(found)
    for trial in trials:
        searches = unpaid.pop(trial.learner, ())
        yield replace(
            trial,
            fits=trial.fits + sum(one.fits for one in searches),
            cpu_seconds=trial.cpu_seconds + sum(one.cpu_seconds for one in searches),
        )
