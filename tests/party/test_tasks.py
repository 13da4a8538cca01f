from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.errors import CotuneError, Malformed
from cotune.party.task import Configuration, Term
from cotune.party.tasks import (
    REASONS,
    TASKS,
    Candidates,
    Evaluate,
    Evaluations,
    Found,
    Inspect,
    Pair,
    Predict,
    Predictions,
    Search,
    Searches,
)
from cotune.problem import RESOLUTION
from cotune.protocol.wire import encode
from cotune.space import Space
from tests.parts import ask, iris, party_of, problem_of
from tests.space.test_space import seeds, spaces

LOSS = Term(1, 0.0, 1.0, RESOLUTION, weighted=True)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 10_000)), min_size=1, max_size=200))
def test_a_weighted_sum_is_exact_and_does_not_depend_on_the_order_of_the_parties(told):
    """Losses are rounded to a power of two, so that floating point adds them without error."""
    products = [LOSS.rounded(np.array([loss]), "losses")[0] * weight for loss, weight in told]
    shuffled = random.Random(0).sample(products, len(products))
    in_steps = sum(round(product / RESOLUTION) for product in products)
    assert sum(products) == sum(shuffled) == sum(reversed(products)) == in_steps * RESOLUTION


@given(st.floats(0, 1))
def test_rounding_moves_a_value_by_half_a_step_at_most_and_once(value):
    once = LOSS.rounded(np.array([value]), "losses")
    assert abs(once[0] - value) <= RESOLUTION / 2
    assert LOSS.rounded(once, "losses") == once


@given(st.floats())
def test_a_value_is_held_if_it_lies_within_the_bounds(value):
    inside = -RESOLUTION <= value <= 1 + RESOLUTION
    assert LOSS.holds(np.array([value]), 1.0) == inside


@pytest.mark.parametrize("values", [[np.nan], [np.inf], [-0.5], [1.5], [0.1, 0.2], []])
def test_a_partys_own_term_out_of_its_bounds_is_an_error(values):
    with pytest.raises(CotuneError, match="its bounds"):
        LOSS.rounded(np.array(values), "losses")


def test_every_task_says_what_it_discloses():
    assert all(len(task.discloses) > 30 for task in TASKS)


def test_a_task_without_terms_cannot_be_summed():
    with pytest.raises(CotuneError, match="inspect has no terms to sum: use gather"):
        Inspect(2).terms(None)


@pytest.mark.parametrize("metric", ["accuracy", "log_loss"])
def test_the_size_and_the_fits_of_a_reply_stay_below_what_was_foretold(tmp_path, metric):
    problem = problem_of(iris(), learners=("decision_tree", "extra_tree"), metric=metric)
    depths = range(1, 12)
    task = Evaluate(tuple(Configuration("decision_tree", {"max_depth": d}) for d in depths))
    party = party_of(iris(), tmp_path)
    gathered = ask(party, task, problem)
    assert gathered.cost.fits == task.most_fits(problem) == 33
    for verb in ("gather", "sum"):
        reply = ask(party, task, problem, verb=verb, round=2)
        assert len(encode(reply)) <= task.most_bytes(problem)
    search = Search(("decision_tree", "extra_tree"), trials=7)
    reply = ask(party, search, problem)
    assert len(encode(reply)) <= search.most_bytes(problem)
    assert reply.cost.fits <= search.most_fits(problem)


def test_an_evaluation_counts_each_reason(tmp_path):
    problem = problem_of(iris())
    configurations = (
        Configuration("decision_tree", {"max_depth": 2}),
        Configuration("decision_tree", {"no_such": 2}),
    )
    reply = ask(party_of(iris(), tmp_path), Evaluate(configurations), problem)
    told = msgspec.msgpack.decode(reply.body, type=Evaluations)
    assert told.failed == [0, 0, 0, 0, 1, 0, 0, 0]
    assert len(told.failed) == 2 * len(REASONS)
    assert told.losses[1] == 1.0


@pytest.mark.parametrize(
    "change",
    [
        *({"losses": losses} for losses in ([np.nan], [np.inf], [], [0.1, 0.2], [5.0], [-0.1])),
        *({"variances": variances} for variances in ([np.nan], [], [2.0], [-0.1])),
        *({"fits": fits} for fits in ([], [1, 1], [-1])),
        *({"cpu_seconds": seconds} for seconds in ([np.nan], [-1.0], [])),
        *({"failed": failed} for failed in ([0], [0, 0, 0, 2])),
        *({"weight": weight} for weight in (0.0, np.nan, 1e300)),
        {"counts": (1,)},
    ],
    ids=str,
)
def test_a_gathered_reply_must_fit_its_task(change):
    task = Evaluate((Configuration("decision_tree", {}),))
    problem = problem_of(iris(), compare_by="parties")
    fitting = Evaluations([0.5], [0.1], [1], [0.0], [0, 0, 0, 0])
    task.check(fitting, problem)
    with pytest.raises(Malformed):
        task.check(msgspec.structs.replace(fitting, **change), problem)


@pytest.mark.parametrize(
    "change",
    [
        *({"losses": losses} for losses in ([np.nan], [], [0.1, 0.2], [5.0])),
        *({"counts": counts} for counts in ((), (1,) * 6, (-1, *(1,) * 6))),
        {"variances": [0.1]},
        {"wholes": (16.0,)},
    ],
    ids=str,
)
def test_a_gathered_tally_must_fit_its_task(change):
    task, problem = Evaluate((Configuration("decision_tree", {}),)), problem_of(iris())
    fitting = Evaluations([0.5], [], [1], [0.0], [0, 0, 0, 0], counts=(0, *(50,) * 3, *(25,) * 3))
    task.check(fitting, problem)
    with pytest.raises(Malformed):
        task.check(msgspec.structs.replace(fitting, **change), problem)


def searched(losses=(0.5,), weight=1.0, params=None):
    params = params or problem_of(iris()).space("decision_tree").clip({})
    pairs = tuple(Pair(params, loss) for loss in losses)
    return Searches((Found(pairs, 3, 0.1),), weight)


def test_a_gathered_search_must_tell_finite_losses():
    problem = problem_of(iris())
    Search(("decision_tree",), 1).check(searched(), problem)
    for loss in (float("nan"), float("inf"), 1e308, -0.1):
        with pytest.raises(Malformed, match="not a number within its bounds"):
            Search(("decision_tree",), 1).check(searched([loss]), problem)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_gathered_search_must_tell_a_weight_that_counts(weight):
    with pytest.raises(Malformed, match="weight is not a number above 0"):
        Search(("decision_tree",), 1).check(searched(weight=weight), problem_of(iris()))


def test_a_gathered_search_must_tell_what_was_asked_and_no_more():
    problem = problem_of(iris())
    with pytest.raises(Malformed, match="has 1 searches, not 2"):
        Search(("decision_tree", "extra_tree"), 1).check(searched(), problem)
    for losses in ([], [0.1, 0.2]):
        with pytest.raises(Malformed, match=f"has {len(losses)} pairs for decision_tree"):
            Search(("decision_tree",), 1).check(searched(losses), problem)
    for params in ({"max_depth": -3}, {"no_such": 1}):
        with pytest.raises(Malformed, match="outside the space"):
            Search(("decision_tree",), 1).check(searched(params=params), problem)


@settings(max_examples=50, deadline=None)
@given(spaces(), seeds, st.integers(2, 20), st.booleans())
def test_candidates_are_configurations_of_the_space_that_everybody_draws_alike(
    space, seed, count, near
):
    around = (space.clip({}), space.sample(np.random.default_rng(seed))) if near else ()
    described = Candidates(count, seed, around, 0.1)
    drawn = described.drawn(space)
    assert len(drawn) == count
    assert tuple(drawn[: len(around)]) == around
    assert all(space.validate(params) == params for params in drawn)
    there = msgspec.msgpack.decode(msgspec.msgpack.encode(described), type=Candidates)
    again = there.drawn(Space.from_json(space.to_json()))
    assert described.digest_of(space, drawn) == there.digest_of(space, again)


def test_other_candidates_have_another_digest_and_last_bits_do_not_count():
    space = Space({"x": (0.0, 1.0), "kernel": ["rbf", "poly"]})
    described = Candidates(2, 0)
    digest = described.digest_of(space, [{"x": 0.5, "kernel": "rbf"}])
    assert digest == described.digest_of(space, [{"x": 0.5 + 1e-12, "kernel": "rbf"}])
    assert digest != described.digest_of(space, [{"x": 0.51, "kernel": "rbf"}])
    assert digest != described.digest_of(space, [{"x": 0.5, "kernel": "poly"}])


@pytest.mark.parametrize("count", [0, -1, 2**16 + 1])
def test_a_party_is_not_asked_for_candidates_without_number(count):
    written = msgspec.msgpack.encode({"count": count, "seed": 0})
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(written, type=Candidates)


@pytest.mark.parametrize("losses", [[np.nan, 0.1], [0.1], [0.1, 0.2, 0.3]])
def test_a_gathered_prediction_must_fit_its_task(losses):
    task = Predict(Search(("decision_tree",), 1), (Candidates(2, 0),))
    problem = problem_of(iris())
    task.check(Predictions([0.1, 0.2], [3], [0.1]), problem)
    with pytest.raises(Malformed):
        task.check(Predictions(losses, [3], [0.1]), problem)


def test_the_size_of_a_prediction_stays_below_what_was_foretold(tmp_path):
    problem = problem_of(iris())
    space, described = problem.space("decision_tree"), Candidates(50, 3)
    digest = described.digest_of(space, described.drawn(space))
    candidates = msgspec.structs.replace(described, digest=digest)
    task = Predict(Search(("decision_tree",), 3), (candidates,))
    party = party_of(iris(), tmp_path)
    for verb in ("gather", "sum"):
        reply = ask(party, task, problem, verb=verb)
        assert len(encode(reply)) <= task.most_bytes(problem)


def test_the_best_pairs_are_kept_where_a_party_may_tell_few():
    pairs = tuple(Pair({}, loss) for loss in (0.3, 0.1, 0.2))
    found = Found(pairs, 9, 0.1)
    kept = Search(("decision_tree",), 3, keep=2).kept(found)
    assert [pair.loss for pair in kept.pairs] == [0.1, 0.2]
    assert Search(("decision_tree",), 3).kept(found) is found


def test_of_each_fit_the_best_pair_is_kept():
    """Else the best would all be one model after different numbers of iterations."""
    told = ((0.30, False), (0.10, True), (0.11, True), (0.20, False), (0.25, False))
    pairs = tuple(Pair({}, loss, free) for loss, free in told)
    kept = Search(("decision_tree",), 3, keep=2, free_pairs=True).kept(Found(pairs, 9, 0.1))
    assert [pair.loss for pair in kept.pairs] == [0.10, 0.20]
    assert (kept.fits, kept.cpu_seconds) == (9, 0.1)
