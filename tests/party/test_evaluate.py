from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from cotune.learners import learner, register_learner
from cotune.party.evaluate import SIGNIFICANCE, Entrant, Evaluator, clearly_worse
from cotune.party.fit import RAISED, Job, run_job
from cotune.party.key import RunKey
from cotune.party.memory import Memory
from cotune.party.rows import Rows
from cotune.party.task import Configuration
from cotune.party.workers import Workers
from tests.parts import Counting, Raising, iris, people, problem_of, threads, wine


def evaluator_of(tmp_path, frame, problem, memory=None):
    rows = Rows(tmp_path / "rows", frame, problem, RunKey(problem.seed))
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


losses_of = st.lists(st.floats(0.0, 1.0), min_size=3, max_size=9)


@given(losses_of, st.data())
def test_a_configuration_that_is_no_worse_on_average_is_never_stopped(incumbent, data):
    losses = data.draw(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=len(incumbent)))
    differences = np.array(losses) - np.array(incumbent[: len(losses)])
    if differences.mean() <= 0:
        assert not clearly_worse(tuple(losses), tuple(incumbent))
    assert not clearly_worse(tuple(incumbent), tuple(incumbent))


@given(losses_of, st.lists(st.booleans(), min_size=9, max_size=9), st.integers(0, 2**32 - 1))
def test_folds_in_which_the_metric_is_undefined_do_not_count(losses, undefined, seed):
    incumbent = np.random.default_rng(seed).random(len(losses)).tolist()
    both = list(zip(losses, incumbent, undefined, strict=False))
    gaps = tuple(None if gap else loss for loss, _, gap in both)
    kept = [(loss, other) for loss, other, gap in both if not gap]
    only = tuple(loss for loss, _ in kept), tuple(other for _, other in kept)
    assert clearly_worse(gaps, tuple(incumbent)) == clearly_worse(*only)


@given(losses_of, st.integers(0, 2**32 - 1))
def test_the_stopping_rule_is_scipys_paired_t_test(losses, seed):
    incumbent = np.random.default_rng(seed).random(len(losses))
    p = ttest_rel(losses, incumbent, alternative="greater").pvalue
    if abs(p - SIGNIFICANCE) > 1e-9:
        assert clearly_worse(tuple(losses), tuple(incumbent)) == (p < SIGNIFICANCE)


def test_two_differences_of_a_spread_that_is_usually_small_tell_more_than_alone():
    apart, incumbent = (0.30, 0.36), (0.25, 0.25)  # 0.05 and 0.11 worse
    assert clearly_worse(apart, incumbent, usual_spread=0.01)
    assert not clearly_worse(apart, incumbent, usual_spread=0.5)
    assert not clearly_worse(incumbent, apart, usual_spread=0.01)


def test_one_fold_says_nothing_and_equal_differences_all():
    assert not clearly_worse((0.9,), (0.0,))
    assert clearly_worse((0.5, 0.75, 1.0), (0.25, 0.5, 0.75))
    assert not clearly_worse((0.25, 0.5, 0.75), (0.5, 0.75, 1.0))


DEEP, SHALLOW = (Configuration("counting", {"depth": depth}) for depth in (5, 1))


@pytest.fixture
def racing(tmp_path, counting):
    """An evaluator with ten folds, and an incumbent that a shallow tree does not beat."""
    problem = problem_of(iris(), learners=("counting",), folds=10)
    evaluator = evaluator_of(tmp_path, iris(), problem, Memory(tmp_path / "memory.jsonl"))
    begin(evaluator, 1)
    (incumbent,) = evaluator.evaluate([DEEP])
    counting.fits.clear()
    return evaluator, incumbent


def test_a_configuration_that_is_clearly_worse_is_spared_its_remaining_folds(racing, counting):
    evaluator, incumbent = racing
    (judged,) = evaluator.race([Entrant(SHALLOW, incumbent=incumbent.losses)])
    assert not judged.whole
    assert judged.fits == len(counting.fits) == len(judged.losses) == 2
    differences = np.array(judged.losses) - np.array(incumbent.losses[:2])
    assert judged.loss == pytest.approx(incumbent.loss + differences.mean())
    assert judged.loss > incumbent.loss


def test_a_configuration_that_is_not_worse_gets_all_folds(racing, counting):
    evaluator, _ = racing
    (judged,) = evaluator.race([Entrant(SHALLOW, incumbent=(1.0,) * 10)])
    assert judged.whole
    assert judged.fits == len(counting.fits) == 10
    begin(evaluator, 1)
    assert evaluator.evaluate([SHALLOW])[0].loss == judged.loss


def test_a_stopped_configuration_is_completed_at_the_cost_of_the_missing_folds(
    racing, counting, tmp_path
):
    evaluator, incumbent = racing
    evaluator.race([Entrant(SHALLOW, incumbent=incumbent.losses)])
    begin(evaluator, 2)
    (whole,) = evaluator.evaluate([SHALLOW])
    assert whole.fits == 8
    assert len(counting.fits) == 10
    fresh = evaluator_of(tmp_path / "fresh", iris(), evaluator._problem)
    assert fresh.evaluate([SHALLOW])[0].loss == whole.loss


def test_a_repeated_race_is_the_same_even_after_its_missing_folds_were_fitted(
    racing, counting, tmp_path
):
    evaluator, incumbent = racing
    entrant = Entrant(SHALLOW, incumbent=incumbent.losses)
    (before,) = evaluator.race([entrant])
    begin(evaluator, 2)
    evaluator.evaluate([SHALLOW])
    memory = Memory(tmp_path / "memory.jsonl")
    restarted = evaluator_of(tmp_path, iris(), evaluator._problem, memory)
    begin(restarted, 1)
    assert restarted.race([entrant]) == [before]
    assert len(counting.fits) == 10


def test_each_stage_is_billed_to_the_trial_that_paid_for_it_when_a_round_is_repeated(racing):
    evaluator, incumbent = racing
    raced = Entrant(SHALLOW, incumbent=incumbent.losses), Entrant(SHALLOW, incumbent=(1.0,) * 10)
    first = [evaluator.race([entrant])[0] for entrant in raced]
    assert [judged.fits for judged in first] == [2, 8]
    begin(evaluator, 1)
    assert [evaluator.race([entrant])[0] for entrant in raced] == first


def test_a_failed_fold_ends_the_race(tmp_path, registry):
    register_learner(Raising())
    problem = problem_of(iris(), learners=("raising",), folds=10)
    evaluator = evaluator_of(tmp_path, iris(), problem)
    failing = Configuration("raising", {"depth": 2})
    (judged,) = evaluator.race([Entrant(failing, incumbent=(1.0,) * 10)])
    assert (judged.loss, judged.reason, judged.fits, judged.whole) == (1.0, RAISED, 2, False)
    assert evaluator.evaluate([failing])[0].loss == 1.0


@pytest.mark.parametrize("name", ["hgb", "random_forest"])
def test_free_counts_are_judged_like_configurations_of_their_own(tmp_path, name):
    iterations = learner(name).iterations
    problem = problem_of(iris(), learners=(name,), folds=4, metric="log_loss")
    evaluator = evaluator_of(tmp_path, iris(), problem)
    asked = [Configuration(name, {iterations: count}) for count in (12, 3, 7)]
    (judged,) = evaluator.race([Entrant(asked[0], free=(3, 7))])
    recalled = evaluator.evaluate(asked[1:])
    assert [one.fits for one in recalled] == [0, 0]
    fitted = evaluator_of(tmp_path / "fresh", iris(), problem).evaluate(asked)
    assert [one.fits for one in fitted] == [4, 4, 4]
    losses = [one.loss for one in fitted]
    assert [judged.loss, judged.free[3].loss, judged.free[7].loss] == losses
    assert [judged.loss, *(one.loss for one in recalled)] == losses


def test_free_counts_of_a_stopped_configuration_get_a_paired_estimate(tmp_path):
    problem = problem_of(iris(), learners=("hgb",), folds=10, metric="log_loss")
    evaluator = evaluator_of(tmp_path, iris(), problem)
    good, bad = (
        Configuration("hgb", {"max_iter": 10, "learning_rate": rate}) for rate in (0.1, 1e-3)
    )
    (incumbent,) = evaluator.evaluate([good])
    (judged,) = evaluator.race([Entrant(bad, free=(5,), incumbent=incumbent.losses)])
    assert judged.fits == 2
    free = judged.free[5]
    differences = np.array(free.losses) - np.array(incumbent.losses[:2])
    assert not free.whole
    assert free.loss == pytest.approx(incumbent.loss + differences.mean())
    smaller = Configuration("hgb", {"max_iter": 5, "learning_rate": 1e-3})
    begin(evaluator, 2)
    assert evaluator.evaluate([smaller])[0].fits == 8


def test_a_configuration_is_not_stopped_while_one_of_its_free_counts_is_ahead(tmp_path):
    """Forty rash steps overfit; the incumbent lies between them and the first three."""
    problem = problem_of(iris(), learners=("hgb",), folds=10, metric="log_loss")
    many, few = (
        Configuration("hgb", {"max_iter": count, "learning_rate": 1.0}) for count in (40, 3)
    )
    known = evaluator_of(tmp_path / "known", iris(), problem).evaluate([many, few])
    between = tuple(
        (one + other) / 2 for one, other in zip(*(e.losses for e in known), strict=True)
    )
    assert known[1].loss < np.mean(between) < known[0].loss
    (alone,) = evaluator_of(tmp_path / "alone", iris(), problem).race(
        [Entrant(many, incumbent=between)]
    )
    (raced,) = evaluator_of(tmp_path / "raced", iris(), problem).race(
        [Entrant(many, free=(3,), incumbent=between)]
    )
    assert not alone.whole
    assert raced.whole
    assert raced.free[3].loss == known[1].loss


def test_undefined_folds_survive_a_restart(tmp_path):
    alone = people(labels="x")
    problem = problem_of(alone, people(labels="xy"), metric="roc_auc")
    tree = Configuration("decision_tree", {})
    memory = Memory(tmp_path / "memory.jsonl")
    (before,) = evaluator_of(tmp_path, alone, problem, memory).evaluate([tree])
    again = evaluator_of(tmp_path, alone, problem, Memory(tmp_path / "memory.jsonl"))
    assert again.evaluate([tree]) == [before]
    assert before.losses == (None,) * 3


@pytest.mark.parametrize("metric", ["balanced_accuracy", "roc_auc", "log_loss"])
def test_a_restarted_party_has_its_tallies_without_a_fit(tmp_path, metric):
    """Also those of smaller numbers of iterations that came with the fits."""
    frame = wine()
    problem = problem_of(frame, learners=("hgb",), metric=metric)
    params = problem.defaults("hgb")
    whole = Configuration("hgb", params | {"max_iter": 6})
    fewer = Configuration("hgb", params | {"max_iter": 3})
    file = tmp_path / "memory.jsonl"
    first = evaluator_of(tmp_path / "a", frame, problem, Memory(file))
    (judged,) = first.race([Entrant(whole, free=(3,))])
    again = evaluator_of(tmp_path / "b", frame, problem, Memory(file))
    begin(again, 1)
    recalled, free = again.evaluate([whole, fewer])
    assert (recalled.fits, free.fits) == (0, 0)
    assert recalled.tally == judged.tally
    (fitted,) = evaluator_of(tmp_path / "c", frame, problem).evaluate([fewer])
    assert free.tally == fitted.tally
    assert sum(fitted.tally.counts.values()) >= len(frame)
