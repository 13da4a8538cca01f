from __future__ import annotations

import json

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cotune
from cotune.coordinator.federation import Sums
from cotune.coordinator.ledger import Total
from cotune.errors import UsageError
from cotune.methods import flash as flash_module
from cotune.methods.combine import merged as combine
from cotune.methods.flash import (
    enough,
    flash,
    fractions_of,
    going_on,
    projected,
    projection_error,
    promising,
)
from cotune.party.propose import Ballot
from cotune.party.tasks import Found, Pair, Search
from cotune.space import Space, surrogate, when
from cotune.testing import METHOD_CHECKS
from tests.parts import federation_of, iris, parts, problem_of
from tests.space.test_space import spaces

INNER = ["lbm", "lkbm", "rm"]
TREE, LINEAR, EXTRA = LEARNERS = ["decision_tree", "logistic_regression", "extra_tree"]
TABLES = parts(iris(100))  # 34, 33 and 33 rows: the parties' weights differ
ROUNDS = 5  # 0.1, 0.2, 0.4, 0.8, 1.0


@pytest.fixture(autouse=True, scope="module")
def small_regression():
    """Few candidates and few trees: these tests are not about how good the forest is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flash_module, "DRAWN", 100)
        patch.setattr(surrogate, "TREES", 5)
        yield


def tune(**options):
    usual = {"learners": [TREE, EXTRA], "folds": 2, "trials": 3, "seed": 3, "candidates": 4}
    with federation_of(TABLES) as federation:
        return cotune.tune(
            federation,
            "flash",
            **(usual | {"first": 0.1, "growth": 2.0, "keep": 2} | options),
            train=False,
        )


@pytest.fixture(scope="module", params=INNER)
def outcome(request):
    return request.param, tune(inner=request.param)


# Algorithm 1, by hand

#: Losses by learner in rounds 0-6, where a_m = 2**(m - 6).
LOSSES = {
    TREE: [0.5, 0.45, 0.40, 0.38, 0.37, 0.36, 0.35],
    LINEAR: [0.5, 0.40, 0.30, 0.29, 0.28, 0.26, 0.25],
    EXTRA: [0.3, 0.30, 0.30, 0.31, 0.31, 0.31, 0.31],
}
PROBLEM = problem_of(*TABLES.values(), learners=tuple(LEARNERS))


class Recorded:
    """A federation of two parties, of weights 1 and 3, whose mean losses are `LOSSES`."""

    def __init__(self):
        self.asked: list[Search] = []

    def sum(self, task):
        self.asked.append(task.search)
        m = round(np.log2(task.search.fraction)) + 6
        ballots, losses = [], []
        for learner in task.search.learners:
            space = PROBLEM.space(learner)
            loss = LOSSES[learner][m]
            pair = Pair(space.clip(PROBLEM.defaults(learner)), loss)
            ballots.append(2 * Ballot(space).sums([pair]))
            losses.append((loss - 0.03) * 1.0 + (loss + 0.01) * 3.0)
        searches = np.ones(len(losses))
        totals = {
            "sums": np.concatenate(ballots),
            "losses": np.array(losses),
            "fits": 12 * searches,
            "cpu_seconds": searches,
            "own": np.array([4.0, 12 * len(losses), len(losses)]),
        }
        return Sums(Total({name: v.astype("<f8").tobytes() for name, v in totals.items()}), 2)


def by_hand(tolerance=0.0, **options):
    """The rule as published, unless another tolerance is given."""
    options["tolerance"] = tolerance
    federation = Recorded()
    steps = list(flash(federation, PROBLEM, inner="lbm", first=1 / 64, growth=2.0, **options))
    return federation, steps


def test_the_learner_of_the_best_projection_goes_on_and_another_may_return():
    federation, steps = by_hand()
    asked = [list(task.learners) for task in federation.asked]
    assert asked == [LEARNERS] * 4 + [[TREE], [LINEAR], [LINEAR]]
    assert [task.fraction for task in federation.asked] == [2.0 ** (m - 6) for m in range(7)]
    assert [(step.done, step.of) for step in steps] == [(m + 1, 7) for m in range(7)]


def test_projections_follow_the_line_through_the_last_two_fractions():
    _, steps = by_hand()
    LP = [step.report["projections"] for step in steps]
    assert LP[0] == pytest.approx({TREE: 0.5, LINEAR: 0.5, EXTRA: 0.3})  # no slope yet
    third = {TREE: 0.38 - 14 * 0.02, LINEAR: 0.29 - 14 * 0.01, EXTRA: 0.31 + 14 * 0.01}
    assert LP[3] == pytest.approx(third)  # (1 - 1/8) / (1/8 - 1/16) = 14
    assert LP[4] == pytest.approx(third | {TREE: 0.37 - 6 * 0.01})
    # trained last on 1/8 of the rows, so the slope is over 1/2 - 1/8
    assert LP[5] == pytest.approx(LP[4] | {LINEAR: 0.26 - 0.5 * 0.03 / 0.375})
    assert LP[6] == pytest.approx(LP[5] | {LINEAR: 0.25})


def test_a_tolerance_keeps_those_that_are_nearly_as_good():
    federation, _ = by_hand(tolerance=0.06)
    assert [set(task.learners) for task in federation.asked[4:]] == [
        {TREE, LINEAR},  # 0.10 and 0.15
        {LINEAR},  # 0.22, and 0.31 of the tree
        {LINEAR},
    ]
    federation, _ = by_hand(tolerance=1.0)
    assert [list(task.learners) for task in federation.asked] == [LEARNERS] * 7


def test_without_a_tolerance_noise_decides_who_is_nearly_as_good():
    LP = {TREE: 0.10, LINEAR: 0.15, EXTRA: 0.45}
    quiet, noisy = dict.fromkeys(LEARNERS, 0.0), {TREE: 0.03, LINEAR: 0.04, EXTRA: 0.2}
    curves = {learner: {1.0: loss} for learner, loss in LP.items()}
    assert going_on(curves, LP, quiet, None) == (TREE,)
    assert going_on(curves, LP, noisy, None) == (TREE, LINEAR)  # 0.05 behind, as much is noise
    assert going_on(curves, LP, noisy, 0.0) == (TREE,)
    assert going_on(curves, LP, noisy, 0.35) == tuple(LEARNERS)


def test_without_a_tolerance_whoever_has_the_least_loss_goes_on():
    """Seen on Electricity: the best at 96 % of the rows was outbid by projections from 43 %."""
    federation, _ = by_hand(tolerance=None)  # searches that are only combined tell no error
    assert [set(task.learners) for task in federation.asked[4:]] == [
        {TREE, LINEAR},  # the least projection, and the least loss
        {LINEAR},
        {LINEAR},
    ]
    curves = {TREE: {0.6: 0.14, 0.9: 0.13}, LINEAR: {0.3: 0.18, 0.4: 0.17}, EXTRA: {0.4: 0.3}}
    LP = {learner: projected(curve) for learner, curve in curves.items()}
    assert LP[LINEAR] < LP[TREE]
    quiet = dict.fromkeys(LEARNERS, 0.0)
    assert going_on(curves, LP, quiet, None) == (TREE, LINEAR)
    assert going_on(curves, LP, quiet, 0.0) == (LINEAR,)  # as published


def test_projections_from_few_rows_are_noisier_than_from_many():
    errors = [projection_error({a: 0.01, 2 * a: 0.01}) for a in (0.05, 0.1, 0.25, 0.5)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == pytest.approx(0.01)


def test_the_report_adds_up_what_was_spent_on_learners_that_lost():
    _, steps = by_hand()
    report = steps[-1].report
    assert [entry["learners"] for entry in report["algorithms"]] == [LEARNERS] * 4 + [
        [TREE],
        [LINEAR],
        [LINEAR],
    ]
    assert report["algorithms"][4]["fraction"] == 0.25
    assert report["data_wasted"] == {  # the first four rounds are 1/64 + 1/32 + 1/16 + 1/8 = 15/64
        TREE: {"from_round_4": 0.25, "largest": 0.25, "all_rounds": 31 / 64},
        EXTRA: {"from_round_4": 0.0, "largest": 0.0, "all_rounds": 15 / 64},
    }
    assert report["data_wasted_share"] == pytest.approx((31 + 15) / (31 + 15 + 15 + 96))
    assert json.loads(json.dumps(report)) == report
    assert set(steps[4].report["data_wasted"]) == {LINEAR, EXTRA}  # as if it had ended there


def test_a_combined_trial_is_predicted_and_carries_the_cost_of_the_searches():
    _, steps = by_hand()
    for m, step in enumerate(steps):
        for trial in step.trials:
            assert trial.loss == pytest.approx(LOSSES[trial.learner][m])  # weights 1 and 3
            assert (trial.predicted, trial.fraction) == (True, 2.0 ** (m - 6))
            assert (trial.parties, trial.weight) == (2, 4.0)
            assert (trial.fits, trial.cpu_seconds) == (12, 1.0)


def test_the_fractions_of_the_paper_end_at_exactly_one():
    fractions = fractions_of(0.0375, 1.5)
    assert fractions[:2] == pytest.approx([0.0375, 0.05625])
    assert (len(fractions), fractions[-1]) == (10, 1.0)
    assert fractions[-2] == pytest.approx(0.0375 * 1.5**8)


def first_round(tables, **options):
    """The fraction of the first round, and how many rounds there are."""
    with federation_of(tables) as federation:
        problem = problem_of(*tables.values(), folds=2, **options)
        federation.problem = problem
        step = next(flash(federation, problem, trials=1, inner="lbm"))
    return step.trials[0].fraction, step.of


def test_rounds_in_which_parties_have_too_few_rows_are_left_out():
    """Three classes and two folds: 60 rows."""
    paper = fractions_of(0.0375, 1.5)
    assert first_round(parts(iris())) == (1.0, 1)  # 50 rows at a party
    many = parts(pd.concat([iris()] * 4))  # 200 rows: 57 are too few, 85 are enough
    assert first_round(many) == (pytest.approx(paper[6]), len(paper[6:]))
    assert 200 * paper[5] < 60 <= 200 * paper[6]


def test_the_published_objective_keeps_the_published_rounds():
    paper = fractions_of(0.0375, 1.5)
    assert first_round(parts(iris()), compare_by="parties") == (0.0375, len(paper))
    large = parts(pd.concat([iris()] * 33))  # 1,650 rows: 61 are enough
    assert first_round(large) == (0.0375, len(paper))


def test_rows_that_are_set_aside_are_not_counted():
    problem = problem_of(iris(), folds=2)
    half = msgspec.structs.replace(problem, holdout=0.5)
    assert enough(problem, 1) == pytest.approx(60 / 150)
    assert enough(half, 1) == pytest.approx(60 / 75)


def test_a_first_fraction_of_ones_own_is_taken_as_it_is(outcome):
    _, found = outcome  # 33 rows, of which a tenth
    assert found.problem.compare_by == "federation"
    assert found.trials[0].fraction == 0.1


@given(st.floats(0.001, 1.0), st.floats(1.05, 10.0))
def test_fractions_rise_to_one(first, growth):
    fractions = fractions_of(first, growth)
    assert fractions[-1] == 1.0
    assert np.all(np.diff(fractions) > 0)
    assert fractions[0] == pytest.approx(first)


def test_rounding_adds_no_fraction_beside_one():
    for steps in range(1, 12):
        assert len(fractions_of(1.1**-steps, 1.1)) == steps + 1


@given(st.floats(0, 1), st.floats(-1, 1), st.floats(0.01, 0.4), st.floats(0.01, 0.4))
def test_a_straight_curve_is_projected_to_its_end(start, slope, a, gap):
    line = {x: start + slope * x for x in (a, a + gap)}
    assert projected(line) == pytest.approx(start + slope, abs=1e-9)


# Algorithm 2


def rng():
    return np.random.default_rng(0)


def test_numbers_are_averaged_in_the_scale_of_the_search():
    space = Space({"l2": (1e-4, 1.0, "log"), "depth": (1, 9), "share": (0.0, 1.0, 0.25)})
    told = [
        {"l2": 1e-4, "depth": 1, "share": 0.0},
        {"l2": 1e-2, "depth": 2, "share": 0.25},
        {"l2": 1e-3, "depth": 8, "share": 0.25},
    ]
    combined = combine(space, told, rng())
    assert combined == {"l2": pytest.approx(1e-3), "depth": 4, "share": 0.25}
    assert type(combined["depth"]) is int
    assert combine(Space({"n": (1, 1000, "log")}), [{"n": 1}, {"n": 100}], rng()) == {"n": 10}


def test_categories_are_voted_on_and_ties_fall_to_either_by_the_seed():
    space = Space({"kernel": ["rbf", "linear", "poly"]})

    def vote(seed, *kernels):
        told = [{"kernel": kernel} for kernel in kernels]
        return combine(space, told, np.random.default_rng(seed))["kernel"]

    assert {vote(seed, "poly", "rbf", "poly") for seed in range(20)} == {"poly"}
    assert {vote(seed, "poly", "rbf") for seed in range(20)} == {"poly", "rbf"}
    assert [vote(s, "poly", "rbf") for s in range(9)] == [vote(s, "rbf", "poly") for s in range(9)]


def test_a_conditional_number_is_averaged_where_it_is_active():
    space = Space({"kernel": ["rbf", "linear"], "gamma": when((0.0, 1.0), kernel="rbf")})
    rbf = [{"kernel": "rbf", "gamma": 0.2}, {"kernel": "rbf", "gamma": 0.4}]
    linear = {"kernel": "linear"}
    combined = combine(space, [*rbf, linear], rng())
    assert combined == {"kernel": "rbf", "gamma": pytest.approx(0.3)}
    assert combine(space, [rbf[0], linear, linear], rng()) == linear


def test_a_parameter_that_was_active_nowhere_gets_its_centre():
    space = Space(
        {"a": [0, 1], "b": [0, 1], "x": when((0.0, 1.0), a=1, b=1), "n": (1, 3), "y": when(7, n=2)}
    )
    told = [
        {"a": 1, "b": 0, "n": 1},
        {"a": 0, "b": 1, "n": 3},
        {"a": 1, "b": 0, "n": 1},
        {"a": 0, "b": 1, "n": 3},
        {"a": 1, "b": 1, "n": 2, "x": 0.9, "y": 7},
    ]
    assert combine(space, told, rng()) == {"a": 1, "b": 1, "x": 0.9, "n": 2, "y": 7}
    seen = [combine(space, told[:4], np.random.default_rng(seed)) for seed in range(20)]
    assert {"a": 1, "b": 1, "x": 0.5, "n": 2, "y": 7} in seen


@settings(deadline=None, max_examples=60)
@given(spaces(), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_what_is_combined_is_a_configuration_and_equals_stay_as_they_are(space, count, seed):
    random = np.random.default_rng(seed)
    told = [space.sample(random) for _ in range(count)]
    combined = combine(space, told, random)
    assert space.validate(combined) == combined
    assert combine(space, told[:1] * count, random) == told[0]


def test_the_regressions_candidates_are_distinct_and_near_the_best_that_was_seen():
    space = Space({"x": (0.0, 1.0)})
    pairs = tuple(Pair(params, abs(params["x"] - 0.3)) for params in space.grid(41))
    best = promising(space, [Found(pairs[:20], 0, 0.0), Found(pairs[20:], 0, 0.0)], 5, seed=1)
    assert len({params["x"] for params in best}) == 5
    assert all(abs(params["x"] - 0.3) < 0.1 for params in best)
    small = Space({"kernel": ["rbf", "linear"], "solver": "adam"})
    pair = Pair(small.clip({}), 0.1)
    assert len(promising(small, [Found((pair,), 0, 0.0)], 10, seed=1)) == 2


# On rows


def test_a_round_is_one_message_and_a_second_where_candidates_are_judged(outcome):
    inner, found = outcome
    messages = ["propose"] if inner == "lbm" else ["search", "evaluate"]
    assert [entry.task for entry in found.rounds[3:]] == messages * ROUNDS
    assert {(e.task, e.verb) for e in found.rounds[3:]} <= {
        ("propose", "sum"),
        ("search", "gather"),
        ("evaluate", "sum"),
    }


def test_trials_tell_their_fraction_and_all_fits_are_accounted_for(outcome):
    inner, found = outcome
    assert list(dict.fromkeys(t.fraction for t in found.trials)) == [0.1, 0.2, 0.4, 0.8, 1.0]
    assert all(trial.predicted == (inner == "lbm") for trial in found.trials)
    assert sum(trial.fits for trial in found.trials) == found.ledger.fits
    assert sum(t.cpu_seconds for t in found.trials) == pytest.approx(
        found.ledger.cpu_seconds, rel=1e-3
    )
    for trial in found.trials:
        if trial.params != found.problem.beside(trial.learner):
            found.problem.space(trial.learner).validate(trial.params)


def test_a_default_outside_of_its_space_is_judged_on_all_rows_where_anything_is(outcome):
    inner, found = outcome
    for learner in found.report["algorithms"][-1]["learners"]:
        beside = found.problem.beside(learner)
        assert beside["max_depth"] is None
        own = [trial for trial in found.trials if trial.learner == learner]
        fractions = [trial.fraction for trial in own if trial.params == beside]
        assert fractions == ([] if inner == "lbm" else [1.0])


def test_the_outcome_is_the_best_of_the_last_round(outcome):
    _, found = outcome
    last = [trial for trial in found.trials if trial.fraction == 1.0]
    assert found.best in last
    assert found.best.loss == min(trial.loss for trial in last)
    assert found.best_learner not in found.report["data_wasted"]
    assert found.report["projections"][found.best_learner] == found.best_loss
    assert [e["fraction"] for e in found.report["algorithms"]] == [0.1, 0.2, 0.4, 0.8, 1.0]


def test_the_candidates_of_a_round_are_the_parties_k_best():
    found = tune(inner="lkbm", first=1.0)
    with federation_of(TABLES, problem=found.problem) as federation:
        replies = federation.gather(Search((TREE, EXTRA), 3, keep=2))
    for i, learner in enumerate((TREE, EXTRA)):
        told = [pair.params for reply in replies.values() for pair in reply.found[i].pairs]
        judged = [trial.params for trial in found.trials if trial.learner == learner]
        assert judged.pop() == found.problem.beside(learner)
        assert all(params in judged for params in told)
        assert all(params in told for params in judged)
        assert len(judged) == len({repr(params) for params in judged})


def test_all_candidates_of_the_regression_are_judged():
    trials = tune(inner="rm", first=1.0, candidates=4).trials
    assert [trial.learner for trial in trials] == [TREE] * 5 + [EXTRA] * 5  # and the default


def test_a_budget_that_ends_the_run_leaves_the_best_of_the_last_whole_round():
    found = tune(inner="lkbm", rounds=2 + 5, learners=[TREE])  # two rounds of two, and a search
    assert {trial.fraction for trial in found.trials} == {0.1, 0.2}
    assert found.best.fraction == 0.2
    assert len(found.report["algorithms"]) == 2
    assert "budget" in found.ended


def test_another_seed_gives_other_candidates():
    one, other = (tune(inner="rm", first=1.0, learners=[TREE], seed=seed) for seed in (3, 4))
    assert [trial.params for trial in one.trials] != [trial.params for trial in other.trials]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"inner": "lkb"}, "unknown inner method of flash 'lkb': .* Known: lbm, lkbm, rm"),
        ({"tolerance": -0.1}, "tolerance is -0.1: give .* 0 or more"),
        ({"tolerance": float("nan")}, "tolerance is nan"),
        ({"first": 0.0}, r"first fraction is 0.0: give a share of the rows in \(0, 1\]"),
        ({"first": 1.5}, "first fraction is 1.5"),
        ({"growth": 1.0}, "growth is 1.0: give a factor above 1"),
        ({"keep": 0}, "keep is 0: give a whole number of 1 or more"),
        ({"candidates": 2.5}, "candidates is 2.5: give a whole number of 1 or more"),
        ({"sampler": "tep"}, "unknown sampler 'tep': did you mean 'tpe'"),
        ({"sampler": "grid", "trials": 2}, "'grid' cannot cover this space in trials=2"),
    ],
)
def test_a_wrong_option_is_refused_before_any_message(options, sentence):
    federation = Recorded()
    with pytest.raises(UsageError, match=sentence):
        next(flash(federation, PROBLEM, **options))
    assert not federation.asked


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("inner", INNER)
def test_every_inner_method_conforms(inner, check):
    options = {"learners": [TREE], "trials": 2, "candidates": 2, "keep": 1, "folds": 2}
    check("flash", **options, inner=inner, first=0.7)  # two rounds: 70 % of the rows, and all
