from __future__ import annotations

import os
import resource
import sys
import threading
import time
from concurrent.futures import Executor, Future

import numpy as np
import pytest

from cotune.learners import learner
from cotune.party.fit import DIED, Job
from cotune.party.key import RunKey
from cotune.party.ration import size_of
from cotune.party.rows import Rows
from cotune.party.task import Configuration
from cotune.party.workers import Cancelled, Workers
from tests.parts import Exiting, Hanging, OwnLearner, iris, problem_of, threads


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    frame = iris()
    rows = Rows(tmp_path_factory.mktemp("workers") / "rows", frame, problem_of(frame), RunKey(0))
    rows.prepare("codes")
    return rows.folder


@pytest.fixture
def workers():
    made = Workers(processes=1)
    yield made
    made.cancel()


def job_of(folder, chosen, depth, folds=(0,)):
    return Job(folder, chosen, Configuration(chosen.name, {"depth": depth}), folds)


def trees(folder, depths):
    tree = learner("decision_tree")
    return [
        Job(folder, tree, Configuration(tree.name, {"max_depth": depth}), (0, 1))
        for depth in depths
    ]


def in_background(function, *arguments):
    """A thread, and a list that holds what the function raised or returned once it is done."""
    ended = []

    def call():
        try:
            ended.append(function(*arguments))
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread, ended


def test_work_that_was_given_up_starts_no_processes(workers):
    given_up = workers.given_up
    workers.cancel()
    workers.prepare(None, given_up)
    assert workers._own is None


def test_every_process_is_ready_once_prepared_and_a_new_pool_is_prepared_again():
    workers, problem = Workers(processes=2), problem_of(iris())
    try:
        assert not workers.ready(problem)
        workers.prepare(problem, workers.given_up)
        assert workers.ready(problem)
        pids = set(workers._own._processes)
        modules = [workers.call(_modules) for _ in range(20)]
        assert {pid for pid, _ in modules} <= pids
        assert all("sklearn.tree" in names for _, names in modules)
        workers.cancel()
        assert not workers.ready(problem)
    finally:
        workers.cancel()


def test_a_given_executor_is_its_owners_to_start():
    assert Workers(threads()).ready(problem_of(iris()))


def _modules():
    return os.getpid(), set(sys.modules)


def test_results_come_in_the_order_of_the_jobs_and_are_counted(folder, pool):
    processes, thread = Workers(pool), Workers(threads())
    one, other = (w.run(trees(folder, range(1, 6))) for w in (processes, thread))
    assert [result.losses for result in one] == [result.losses for result in other]
    assert len({result.losses for result in one}) > 1
    assert processes.done == thread.done == 10


class Foreign(Executor):
    """Loses its workers, and says so in an error of its own."""

    def __init__(self, error):
        self._error = error

    def submit(self, function, *arguments):
        future = Future()
        future.set_exception(self._error)
        return future


def test_a_job_that_a_foreign_executor_lost_is_run_here(folder):
    class KilledWorker(Exception):
        pass

    jobs = trees(folder, [1, 2])
    assert [r.losses for r in Workers(Foreign(KilledWorker())).run(jobs)] == [
        r.losses for r in Workers(threads()).run(jobs)
    ]


def test_rows_that_a_foreign_executor_cannot_see_are_an_error(folder):
    with pytest.raises(FileNotFoundError):
        Workers(Foreign(FileNotFoundError())).run(trees(folder, [1]))


class Mine(OwnLearner):
    name = "mine"


def test_a_learner_of_the_users_own_reaches_the_workers(folder, pool):
    (result,) = Workers(pool).run([job_of(folder, Mine(), 2)])
    assert result.reason is None


def test_a_fit_that_ends_its_process_fails_and_the_others_go_on(folder, workers):
    died, other = workers.run([job_of(folder, Exiting(), depth) for depth in (1, 2)])
    assert (died.reason, died.losses) == (DIED, ())
    assert other.reason is None


def test_a_hung_fit_that_is_tried_alone_is_ended_too(folder, workers):
    """Another fit broke the pool, so that the hung one got a process of its own."""
    jobs = [job_of(folder, Exiting(), 1), job_of(folder, Hanging(), 1)]
    thread, ended = in_background(workers.run, jobs)
    time.sleep(4)
    assert thread.is_alive()
    workers.cancel()
    thread.join(10)
    assert isinstance(ended[0], Cancelled)


def test_a_callers_executor_is_left_running_but_not_waited_for(folder):
    executor = threads()
    release = threading.Event()
    executor.submit(release.wait)
    workers = Workers(executor)
    thread, ended = in_background(workers.run, trees(folder, [1, 2]))
    time.sleep(0.1)
    workers.cancel()
    thread.join(10)
    assert isinstance(ended[0], Cancelled)
    release.set()
    assert workers.run(trees(folder, [1]))[0].reason is None
    executor.shutdown()


def test_work_that_was_begun_before_it_was_given_up_stays_given_up(folder):
    """A local search calls `run` once per trial: none may start after the round has ended."""
    workers = Workers(threads())
    given_up = workers.given_up
    workers.cancel()
    with pytest.raises(Cancelled):
        workers.run(trees(folder, [1]), given_up)
    assert workers.run(trees(folder, [1]))


class Greedy(OwnLearner):
    """Takes more memory than its rows call for at depth 1."""

    name = "greedy"

    def estimator(self, params, *, task, seed, schema):
        if params["depth"] == 1:
            np.ones(6 * 2**30, dtype=np.uint8)
        return super().estimator(params, task=task, seed=seed, schema=schema)


def greedy(size):
    return len(np.zeros(size, dtype=np.uint8))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no such bound")
def test_a_fit_that_takes_all_memory_fails_and_the_others_go_on(folder, workers):
    failed, other = workers.run([job_of(folder, Greedy(), depth) for depth in (1, 2)])
    assert (failed.reason, failed.losses) == (DIED, ())
    assert other.reason is None
    with pytest.raises(MemoryError):
        workers.call(greedy, 6 * 2**30)
    assert workers.call(greedy, 2**30) == 2**30


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no such bound")
def test_the_memory_that_a_worker_may_take_grows_with_its_rows(tmp_path, workers):
    with open(tmp_path / "dense.npy", "wb") as file:
        file.truncate(2**28)  # of which nothing is written
    assert workers.call(rows_and_memory, tmp_path, 6 * 2**30) == 2**28
    job = job_of(tmp_path, Greedy(), 2)
    assert size_of((tmp_path, job, np.zeros(10), 7)) == 2 * 2**28 + 80


def rows_and_memory(folder, size):
    rows = np.memmap(folder / "dense.npy", mode="r")
    np.zeros(size, dtype=np.uint8)
    return len(rows)


def test_an_executor_of_the_callers_keeps_its_own_bounds(folder):
    before = resource.getrlimit(resource.RLIMIT_DATA)
    assert Workers(threads()).run([job_of(folder, Mine(), 2)])[0].reason is None
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
