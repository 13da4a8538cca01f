"""Wrappers of a training: which configuration is to be trained how far, as the scores come in.

A schedule is a generator of `Job`s. After each it is sent the score of the arm it asked for: the
lower the better. The arm's training goes on where it was left.
"""

from __future__ import annotations

import math
from collections.abc import Generator

import msgspec

from cotune.errors import UsageError


class Job(msgspec.Struct, frozen=True):
    """Train arm number `arm` (0, 1, ... in the order of their beginning) up to round `until`."""

    arm: int
    until: int


Schedule = Generator[Job, float, None]


def random_search(total: int, most: int, eta: int = 3, eliminations: int = 3) -> Schedule:
    """As many arms as the budget allows, each to its end: Algorithm 1 with eta = N and R = 1."""
    for arm in range(_affordable(total // most, total, most)):
        yield Job(arm, most)


def successive_halving(total: int, most: int, eta: int = 3, eliminations: int = 3) -> Schedule:
    """FedEx, Algorithm 1: eta^R arms; after each rung the best 1/eta of them go on.

    The last one is trained to round `most`.
    """
    ends = rungs(total, most, eta, eliminations)
    alive = list(range(eta**eliminations))
    for rung in ends:
        scores = {}
        for arm in alive:
            scores[arm] = yield Job(arm, rung)
        alive = best(scores, len(alive) // eta)
    for arm in alive:
        yield Job(arm, most)


def rungs(total: int, most: int, eta: int, eliminations: int) -> list[int]:
    """tau_1, ..., tau_R of FedEx's appendix D.1, with whatever remains assigned as well.

    Between two rungs lie (T - M) / ((eta^(R+1) - 1) / (eta - 1) - R - 1) rounds, rounded down. A
    round more before rung r costs one for each arm that is trained there, less the one that the
    last arm is then spared at its end; the earliest rungs are given as many as the rest allows.

    >>> rungs(4000, 800, 3, 3), rungs(450, 50, 3, 3)
    ([89, 177, 268], [11, 22, 35])
    """
    arms = [eta ** (eliminations - r) for r in range(eliminations)]
    each = (total - most) // ((eta ** (eliminations + 1) - 1) // (eta - 1) - eliminations - 1)
    if each < 1:
        raise UsageError(
            f"{total} rounds are too few for {arms[0]} configurations of up to {most}: give more "
            "(--rounds), or fewer for one configuration (--max-rounds)"
        )
    if each * eliminations >= most:
        raise UsageError(
            f"with {total} rounds in all, {most} for one configuration are fewer than it would "
            "have before the last elimination: give more for one (--max-rounds), or fewer in all"
        )
    rest = total - most - each * (sum(arms) - eliminations)
    steps: list[int] = []
    for count in arms:
        more = min(rest // (count - 1), most - 1 - each * eliminations - sum(steps))
        steps.append(more)
        rest -= more * (count - 1)
    return [each * (r + 1) + sum(steps[: r + 1]) for r in range(eliminations)]


def hyperband(total: int, most: int, eta: int = 3, eliminations: int = 3) -> Schedule:
    """Li et al., Hyperband (2018), algorithm 1: brackets from the most to the least eliminations.

    As many of them as the budget and `most` allow; `eliminations` is the most of one bracket.
    """
    for bracket in _brackets(total, most, eta, eliminations):
        first, sizes, ends = bracket
        alive = list(range(first, first + sizes[0]))
        for size, end in zip(sizes, ends, strict=True):
            scores = {}
            for arm in alive[:size]:
                scores[arm] = yield Job(arm, end)
            alive = best(scores, len(scores))


def _brackets(
    total: int, most: int, eta: int, eliminations: int
) -> list[tuple[int, list[int], list[int]]]:
    """Of each bracket the number of its first arm, and of each of its rungs the arms and the end.

    `s` is s_max of the paper: the largest for which all brackets together fit the budget.
    """
    for s in range(min(eliminations, int(math.log(most, eta) + 1e-9)), -1, -1):
        brackets, first, cost = [], 0, 0
        for left in range(s, -1, -1):
            arms = math.ceil((s + 1) / (left + 1) * eta**left)
            sizes = [arms // eta**i for i in range(left + 1)]
            ends = [max(1, round(most * float(eta) ** (i - left))) for i in range(left + 1)]
            begins = [0, *ends[:-1]]
            cost += sum(n * (e - b) for n, e, b in zip(sizes, ends, begins, strict=True))
            brackets.append((first, sizes, ends))
            first += arms
        if cost <= total:
            return brackets
    raise _too_few(total, most)


def asynchronous_halving(total: int, most: int, eta: int = 3, eliminations: int = 3) -> Schedule:
    """Li et al., A System for Massively Parallel Hyperparameter Tuning (2020): ASHA.

    No rung waits to be full: an arm goes on as soon as it is among the best 1/eta of those that
    came as far, and a new one is begun if there is none.
    """
    if total < most:
        raise _too_few(total, most)
    ends = [max(1, round(most * float(eta) ** (i - eliminations))) for i in range(eliminations + 1)]
    ends = sorted(set(ends))
    scores: list[dict[int, float]] = [{} for _ in ends]
    left, begun = total, 0
    while True:
        arm, rung = _promoted(scores, eta)
        if arm is None:
            arm, rung, begun = begun, 0, begun + 1
        cost = ends[rung] - (ends[rung - 1] if rung else 0)
        if cost > left:
            break
        left -= cost
        scores[rung][arm] = yield Job(arm, ends[rung])


def _promoted(scores: list[dict[int, float]], eta: int) -> tuple[int | None, int]:
    """An arm that may go on, and to which rung; the highest first."""
    for rung in range(len(scores) - 2, -1, -1):
        for arm in best(scores[rung], len(scores[rung]) // eta):
            if arm not in scores[rung + 1]:
                return arm, rung + 1
    return None, 0


def best(scores: dict[int, float], count: int) -> list[int]:
    """The arms of the lowest scores, the best first; of equal ones the earliest."""
    return sorted(scores, key=lambda arm: (scores[arm], arm))[:count]


def _affordable(count: int, total: int, most: int) -> int:
    if count < 1:
        raise _too_few(total, most)
    return count


def _too_few(total: int, most: int) -> UsageError:
    return UsageError(
        f"{total} rounds are too few for configurations of up to {most}: give more (--rounds), or "
        "fewer for one configuration (--max-rounds)"
    )


WRAPPERS = {
    "rs": random_search,
    "sha": successive_halving,
    "hyperband": hyperband,
    "asha": asynchronous_halving,
    "grid": random_search,
}
