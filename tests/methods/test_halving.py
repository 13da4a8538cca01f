"""Schedules against the paper's arithmetic and the published commands."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cotune.errors import UsageError
from cotune.methods.halving import WRAPPERS, best, rungs


def played(name, total, most, score=lambda arm: arm, **how):
    """The jobs of a schedule that is told `score(arm)`."""
    schedule, jobs = WRAPPERS[name](total, most, **how), []
    try:
        job = next(schedule)
        while True:
            jobs.append(job)
            job = schedule.send(score(job.arm))
    except StopIteration:
        return jobs


def cost(jobs):
    """Rounds of training: an arm goes on where it was left."""
    reached, spent = {}, 0
    for job in jobs:
        assert job.until > reached.get(job.arm, 0)
        spent += job.until - reached.get(job.arm, 0)
        reached[job.arm] = job.until
    return spent


@pytest.mark.parametrize(
    ("total", "most", "published"), [(4000, 800, [89, 177, 268]), (450, 50, [11, 22, 35])]
)
def test_the_rungs_are_those_of_the_published_runs(total, most, published):
    assert rungs(total, most, eta=3, eliminations=3) == published


def test_without_a_rest_the_rungs_are_those_of_appendix_d1():
    total, most, eta, n = 800 + 36 * 20, 800, 3, 3
    step = (total - most) / ((eta ** (n + 1) - 1) / (eta - 1) - n - 1)
    assert rungs(total, most, eta, n) == [step, 2 * step, 3 * step]


@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 60), st.integers(2, 400))
def test_successive_halving_keeps_the_budget_and_uses_it_up(eta, n, each, most):
    arms = [eta ** (n - r) for r in range(n)]
    total = most + each * (sum(arms) - n)
    assume(each * n < most)
    jobs = played("sha", total, most, eta=eta, eliminations=n)
    assert len({job.arm for job in jobs}) == eta**n
    assert total - eta < cost(jobs) <= total
    assert jobs[-1].until == most


def test_successive_halving_keeps_the_best_of_each_rung():
    scores = {arm: (arm * 7) % 27 for arm in range(27)}
    jobs = played("sha", 450, 50, scores.get)
    order = sorted(scores, key=scores.get)
    assert [job.arm for job in jobs[:27]] == list(range(27))
    assert [job.arm for job in jobs[27:36]] == order[:9]
    assert [job.arm for job in jobs[36:39]] == order[:3]
    assert [(job.arm, job.until) for job in jobs[39:]] == [(order[0], 50)]


def test_random_search_trains_each_arm_to_its_end():
    jobs = played("rs", 450, 50)
    assert [(job.arm, job.until) for job in jobs] == [(arm, 50) for arm in range(9)]


def test_hyperband_has_the_brackets_of_its_paper():
    """Li et al., table 1, with R = 81 and eta = 3: n = 81, 34, 15, 8, 5."""
    jobs = played("hyperband", 10**6, 81, eliminations=4)
    firsts = [job.until for job in jobs if job.arm in (0, 81, 115, 130, 138)]
    assert firsts[0] == 1
    assert {job.arm for job in jobs} == set(range(81 + 34 + 15 + 8 + 5))
    assert sum(job.until == 81 for job in jobs) == 1 + 1 + 1 + 2 + 5


@given(st.integers(30, 500), st.integers(3, 30))
def test_hyperband_keeps_the_budget(total, most):
    jobs = played("hyperband", total, most)
    assert 0 < cost(jobs) <= total
    assert jobs[-1].until == most


@given(st.integers(60, 500), st.integers(9, 60))
def test_asynchronous_halving_keeps_the_budget_and_promotes_the_best(total, most):
    jobs = played("asha", total, most)
    assert 0 < cost(jobs) <= total
    by_end = {}
    for job in jobs:
        by_end.setdefault(job.until, []).append(job.arm)
    ends = sorted(by_end)
    for low, high in pairwise(ends):
        assert set(by_end[high]) <= set(by_end[low])
        assert 3 * len(by_end[high]) <= len(by_end[low])


def test_asynchronous_halving_does_not_wait_for_a_full_rung():
    jobs = played("asha", 450, 27)
    promoted = next(n for n, job in enumerate(jobs) if job.until > 1)
    assert promoted == 3  # as soon as three arms are at the first rung


@pytest.mark.parametrize("name", WRAPPERS)
def test_too_small_a_budget_is_refused(name):
    with pytest.raises(UsageError, match=r"5 rounds are too few for .*--max-rounds"):
        played(name, 5, 50)


def test_a_last_arm_that_could_not_go_on_is_refused():
    with pytest.raises(UsageError, match="give more for one"):
        rungs(4000, 100, 3, 3)


def test_of_equal_scores_the_earliest_arm_is_the_best():
    assert best({4: 0.5, 2: 0.5, 1: 0.7}, 2) == [2, 4]
