from __future__ import annotations

import msgspec
import numpy as np
import pytest

from cotune.errors import Malformed
from cotune.party.task import Configuration
from cotune.party.train.bins import Bins
from cotune.party.train.grow import Split, Start, Tree, check_tree
from cotune.party.train.merging import Boost, Boosted
from cotune.protocol.wire import Refusal
from tests.parts import ask, party_of, people, problem_of

EDGES = np.array([35.0, 45.0], dtype="<f4").tobytes()
#: Of `people`: age, a number that is mostly missing, a city of three.
BINS = Bins((3, 2, 3), (EDGES, np.zeros(1, dtype="<f4").tobytes(), None))
PARAMS = {"max_iter": 5, "learning_rate": 0.1, "min_samples_leaf": 3}
FIRST = Boost(
    "one", Configuration("hgb", PARAMS), 0, 2, BINS, start=Start("boost", BINS, base=(0.0,))
)


@pytest.fixture
def problem():
    return problem_of(people(80, seed=3), learners=("hgb",))


@pytest.fixture
def party(tmp_path):
    return party_of(people(80, seed=3), tmp_path)


def boosted(party, task, problem) -> Boosted:
    answer = ask(party, task, problem)
    assert not isinstance(answer, Refusal), answer
    found = msgspec.msgpack.decode(answer.body, type=Boosted)
    task.check(found, problem)
    return found


def test_it_tells_its_trees_and_what_it_counts(party, problem):
    found = boosted(party, FIRST, problem)
    assert found.weight == 80
    assert len(found.trees) == 2
    assert all(tree.splits for (tree,) in found.trees)


def test_asked_again_it_answers_alike(party, problem):
    assert boosted(party, FIRST, problem) == boosted(party, FIRST, problem)


def test_an_answer_that_is_asked_for_again_costs_what_it_cost(party, problem):
    first, again = (ask(party, FIRST, problem).cost for _ in range(2))
    assert first == again
    assert first.fits == 1


def test_what_was_merged_is_what_it_boosts_further(party, problem):
    first = boosted(party, FIRST, problem)
    going_on = msgspec.structs.replace(
        FIRST, after=FIRST.digest, number=2, merged=first.trees, start=None
    )
    other = msgspec.structs.replace(going_on, merged=())
    on_its_own = boosted(party, going_on, problem)
    boosted(party, FIRST, problem)  # from the start again
    assert boosted(party, other, problem).trees != on_its_own.trees
    assert boosted(party, FIRST, problem).trees == first.trees


def test_who_was_not_there_says_so(party, problem):
    late = msgspec.structs.replace(FIRST, start=None)
    answer = ask(party, late, problem)
    assert isinstance(answer, Refusal)
    assert answer.code == "no_state"


GOOD = Tree((Split(0, 0, 1, True), Split(2, 2, 0, False, b"\x01")), ((1, 0.1), (3, 0.2), (4, 0.3)),
            (1.0, 0.5), (9.0, 4.0))  # fmt: skip


def test_a_good_tree_is_taken():
    check_tree(GOOD, BINS)
    check_tree(Tree((), ((0, 1.0),)), BINS)


@pytest.mark.parametrize(
    "change",
    [
        {"leaves": ((1, 0.1), (3, 0.2))},
        {"leaves": ((1, 0.1), (3, 0.2), (3, 0.3))},
        {"leaves": ((1, 0.1), (3, 0.2), (2, 0.3))},
        {"leaves": ((1, float("nan")), (3, 0.2), (4, 0.3))},
        {"gains": (1.0,)},
        {"covers": (float("inf"), 1.0)},
        {"splits": (Split(0, 0, 1, True), Split(0, 2, 0, False, b"\x01"))},
        {"splits": (Split(0, 0, 1, True), Split(7, 2, 0, False, b"\x01"))},
        {"splits": (Split(0, 3, 1, True), Split(2, 2, 0, False, b"\x01"))},
        {"splits": (Split(0, -1, 1, True), Split(2, 2, 0, False, b"\x01"))},
        {"splits": (Split(0, 0, 2, True), Split(2, 2, 0, False, b"\x01"))},
        {"splits": (Split(0, 0, 1, True), Split(2, 2, 0, False))},
        {"leaves": ((1, 1.7e308), (3, 0.2), (4, 0.3))},
        {"splits": (Split(0, 0, -2, True), Split(2, 2, 0, False, b"\x01"))},
        {"splits": (Split(0, 0, 1, True), Split(2, 2, 0, False, b"\x03"))},
        {"splits": (Split(0, 0, 1, True), Split(2, 1, 0, False, b"\x01"))},
    ],
)
def test_what_is_no_tree_over_these_bins_is_malformed(change):
    with pytest.raises(Malformed):
        check_tree(msgspec.structs.replace(GOOD, **change), BINS)


def test_a_tree_that_is_one_long_chain_is_malformed():
    """XGBoost would run out of stack."""
    splits = 2**14 + 1
    chain = Tree(
        tuple(Split(2 * i, 0, 1, True) for i in range(splits)),
        ((2 * splits, 0.1), *((2 * i + 1, 0.1) for i in range(splits))),
        (1.0,) * splits,
        (1.0,) * splits,
    )
    with pytest.raises(Malformed, match="splits deep"):
        check_tree(chain, BINS)


@pytest.mark.parametrize(
    "reply",
    [
        Boosted(((GOOD,),), 80.0),
        Boosted(((GOOD,), (GOOD, GOOD)), 80.0),
        Boosted(((GOOD,), (GOOD,)), 0.0),
        Boosted(((GOOD,), (GOOD,)), float("nan")),
    ],
)
def test_another_number_of_trees_or_no_weight_is_malformed(reply, problem):
    with pytest.raises(Malformed):
        FIRST.check(reply, problem)
