from __future__ import annotations

import numpy as np
import pytest

from cotune.learners import learner, register_learner
from cotune.party.evaluate import Evaluator
from cotune.party.fit import RAISED, Job, run_job
from cotune.party.memory import Memory
from cotune.party.rows import Rows
from cotune.party.tasks import Configuration
from cotune.party.workers import Workers
from tests.parts import Counting, Raising, iris, people, problem_of, threads


def evaluator_of(tmp_path, frame, problem, memory=None):
    rows = Rows(tmp_path / "rows", frame, problem)
    return Evaluator(problem, rows, Workers(threads()), memory or Memory(None))


def begin(evaluator, number):
    evaluator.begin(number, evaluator._workers.given_up)


@pytest.fixture
def counting(registry):
    chosen = Counting()
    register_learner(chosen)
    return chosen


def test_a_loss_is_the_mean_over_the_folds(tmp_path):
    frame = iris()
    problem = problem_of(frame)
    configuration = Configuration("decision_tree", {"max_depth": 2})
    (judged,) = evaluator_of(tmp_path, frame, problem).evaluate([configuration])
    job = Job(tmp_path / "rows", learner("decision_tree"), configuration, (0, 1, 2))
    assert judged.loss == np.mean(run_job(job).losses)
    assert judged.fits == 3
    assert judged.cpu_seconds > 0


def test_no_configuration_is_fitted_twice(tmp_path, counting):
    frame = iris()
    evaluator = evaluator_of(tmp_path, frame, problem_of(frame, learners=("counting",)))
    two, three = (Configuration("counting", {"depth": depth}) for depth in (2, 3))
    evaluator.evaluate([two, two, three])
    evaluator.evaluate([three, two])
    assert sorted(counting.fits) == [2] * 3 + [3] * 3


def test_another_fraction_is_another_evaluation(tmp_path, counting):
    frame = iris()
    evaluator = evaluator_of(tmp_path, frame, problem_of(frame, learners=("counting",)))
    params = {"depth": 2}
    half, full = evaluator.evaluate(
        [Configuration("counting", params, 0.5), Configuration("counting", params)]
    )
    assert len(counting.fits) == 6
    assert half.loss != full.loss


def test_the_cost_is_told_once_in_the_round_that_paid(tmp_path, counting):
    frame = iris()
    evaluator = evaluator_of(tmp_path, frame, problem_of(frame, learners=("counting",)))
    configuration = Configuration("counting", {"depth": 2})
    begin(evaluator, 1)
    first, second = evaluator.evaluate([configuration, configuration])
    assert (first.fits, second.fits, second.cpu_seconds) == (3, 0, 0.0)
    begin(evaluator, 2)
    (later,) = evaluator.evaluate([configuration])
    assert (later.fits, later.cpu_seconds, later.loss) == (0, 0.0, first.loss)


def test_the_round_that_paid_is_told_its_cost_again_when_it_is_repeated(tmp_path, counting):
    frame = iris()
    memory = Memory(tmp_path / "memory.jsonl")
    problem = problem_of(frame, learners=("counting",))
    configuration = Configuration("counting", {"depth": 2})
    evaluator = evaluator_of(tmp_path, frame, problem, memory)
    begin(evaluator, 4)
    (before,) = evaluator.evaluate([configuration])
    restarted = evaluator_of(tmp_path, frame, problem, Memory(tmp_path / "memory.jsonl"))
    begin(restarted, 4)
    assert restarted.evaluate([configuration]) == [before]
    assert len(counting.fits) == 3


def test_a_failed_fit_is_the_worst_loss_with_its_reason(tmp_path, registry):
    register_learner(Raising())
    frame = iris()
    evaluator = evaluator_of(tmp_path, frame, problem_of(frame, metric="log_loss"))
    failed, fine = evaluator.evaluate(
        [Configuration("raising", {"depth": 1}), Configuration("decision_tree", {"max_depth": 1})]
    )
    assert (failed.loss, failed.reason) == (37.0, RAISED)
    assert fine.reason is None


def test_a_metric_that_no_fold_defines_counts_as_chance(tmp_path):
    alone = people(labels="x")
    problem = problem_of(alone, people(labels="xy"), metric="roc_auc")
    (judged,) = evaluator_of(tmp_path, alone, problem).evaluate(
        [Configuration("decision_tree", {})]
    )
    assert judged.loss == 0.5


def test_the_grouping_of_folds_into_jobs_does_not_change_the_losses(tmp_path):
    frame = iris()
    problem = problem_of(frame, folds=5)
    configurations = [Configuration("decision_tree", {"max_depth": d}) for d in (1, 2, 3)]
    together = evaluator_of(tmp_path / "a", frame, problem).evaluate(configurations)
    one_by_one = evaluator_of(tmp_path / "b", frame, problem)
    apart = [one_by_one.evaluate([configuration])[0] for configuration in configurations]
    assert [e.loss for e in apart] == [e.loss for e in together]
    assert [e.fits for e in apart] == [5, 5, 5]
