from __future__ import annotations

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from cotune.data.encode import encode
from cotune.party.train.bins import LARGEST, Bins
from cotune.party.train.grow import Split, Start, Tree
from cotune.party.train.histogram import Crowd, Grow
from cotune.protocol.wire import Refusal, Summand
from tests.parts import ask, diabetes, party_of, people, problem_of

STEP = 2.0**-20


def packed(*numbers) -> bytes:
    return np.array(numbers, dtype="<f4").tobytes()


#: Of `people`: age, a number that is mostly missing, a city of three.
BINS = Bins((3, 2, 3), (packed(35.0, 45.0), packed(0.0), None))
START = Start("boost", BINS, base=(0.5,))
CELLS = 4 + 3 + 4
FIRST = Grow("one", CELLS, CELLS, CELLS, wanted=(0,), start=START)


@pytest.fixture
def frame() -> pd.DataFrame:
    return people(80, seed=3)


@pytest.fixture
def problem(frame):
    return problem_of(frame, learners=("hgb",))


@pytest.fixture
def party(frame, tmp_path):
    return party_of(frame, tmp_path)


def summed(party, task, problem, **options) -> dict[str, np.ndarray]:
    answer = ask(party, task, problem, verb="sum", **options)
    assert isinstance(answer, Summand), answer
    return {name: np.frombuffer(vector) for name, vector in answer.terms.items()}


def in_bins(frame, problem) -> np.ndarray:
    return BINS.of(encode(frame, problem.schema, "codes"))


def by_hand(codes, rows, weights) -> np.ndarray:
    """The sums of the weights over the bins of all columns, one after the other."""
    rounded = np.rint(weights / STEP) * STEP
    return np.array(
        [
            rounded[rows & (codes[:, column] == b)].sum()
            for column, size in enumerate(BINS.sizes)
            for b in range(size + 1)
        ]
    )


def gradients(frame, problem, raw):
    y = (frame["target"] == problem.schema.classes[1]).to_numpy()
    likely = expit(raw)
    return likely - y, likely * (1 - likely)


def test_values_are_counted_between_boundaries(party, frame, problem):
    task = Crowd((0, 1), (packed(30.0, 40.0), packed(0.0)))
    found = summed(party, task, problem)["counts"]
    ages, rare = frame["age"].dropna(), frame["rare"].dropna()
    assert found[:3].tolist() == [
        sum(ages < 30), sum((ages >= 30) & (ages < 40)), sum(ages >= 40),
    ]  # fmt: skip
    assert found[3:].tolist() == [sum(rare < 0), sum(rare >= 0)]


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1), st.data())
def test_a_bin_holds_the_numbers_from_its_edge_to_the_next(values, data):
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
    edges = np.array(sorted(data.draw(st.sets(finite, max_size=9))), dtype="<f4")
    edges = np.unique(edges)
    bins = Bins((len(edges) + 1,), (edges.tobytes(),))
    codes = bins.of(np.array([*values, np.nan])[:, None])[:, 0]
    assert codes[-1] == len(edges) + 1
    for value, code in zip(np.clip(values, -LARGEST, LARGEST), codes, strict=False):
        assert sum(edge <= np.float32(value) for edge in edges) == code


@pytest.mark.parametrize(
    "bins",
    [
        {"sizes": [300], "packed": [None]},
        {"sizes": [3], "packed": [packed(1.0)]},
        {"sizes": [3, 3], "packed": [None]},
    ],
)
def test_bins_that_are_none_are_not_read(bins):
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(bins), type=Bins)


def test_gradients_are_summed_over_the_bins_of_a_node(party, frame, problem):
    found = summed(party, FIRST, problem)
    codes, rows = in_bins(frame, problem), np.ones(80, dtype=bool)
    g, h = gradients(frame, problem, np.full(80, 0.5))
    np.testing.assert_array_equal(found["gradients"], by_hand(codes, rows, g))
    np.testing.assert_array_equal(found["hessians"], by_hand(codes, rows, h))
    np.testing.assert_array_equal(found["counts"], by_hand(codes, rows, np.ones(80)))


def test_splits_part_the_rows_and_leaves_move_the_gradients(party, frame, problem):
    codes = in_bins(frame, problem)
    summed(party, FIRST, problem)
    split = Split(0, 0, 1, True)
    second = Grow(FIRST.digest, 2 * CELLS, 0, 2 * CELLS, splits=(split,), wanted=(2, 1))
    found = summed(party, second, problem)
    left = (codes[:, 0] <= 1) | (codes[:, 0] == 3)
    g, _ = gradients(frame, problem, np.full(80, 0.5))
    both = np.concatenate([by_hand(codes, ~left, g), by_hand(codes, left, g)])
    np.testing.assert_array_equal(found["gradients"], both)
    cities = Split(1, 2, 0, False, bytes([0, 2]))
    third = Grow(
        second.digest, CELLS, CELLS, splits=(cities,), wanted=(0,),
        leaves=((2, 0.25), (3, -1.0), (4, 2.0)),
    )  # fmt: skip
    found = summed(party, third, problem)
    raw = 0.5 + np.where(~left, 0.25, np.where(codes[:, 2] == 1, -1.0, 2.0))
    g, h = gradients(frame, problem, raw)
    np.testing.assert_array_equal(found["gradients"], by_hand(codes, left | ~left, g))
    np.testing.assert_array_equal(found["hessians"], by_hand(codes, left | ~left, h))


def test_who_was_not_there_refuses_and_can_be_told_everything(frame, problem, tmp_path):
    there, late = (party_of(frame, tmp_path / name) for name in "ab")
    split = Split(0, 0, 1, True)
    leaves = ((1, 0.5), (2, -0.5))
    second = Grow(FIRST.digest, CELLS, splits=(split,), leaves=leaves, wanted=(0,))
    third = Grow(second.digest, CELLS, splits=(split,), wanted=(2,))
    for task in (FIRST, second):
        summed(there, task, problem)
    answer = summed(there, third, problem)
    refusal = ask(late, third, problem, verb="sum")
    assert isinstance(refusal, Refusal)
    assert refusal.code == "no_state"
    whole = msgspec.structs.replace(START, trees=((Tree((split,), leaves),),))
    told = summed(late, msgspec.structs.replace(third, start=whole), problem)
    np.testing.assert_array_equal(told["gradients"], answer["gradients"])


def test_asked_twice_a_party_answers_alike(party, problem):
    summed(party, FIRST, problem)
    second = Grow(FIRST.digest, CELLS, splits=(Split(0, 0, 1, True),), wanted=(2,))
    once, twice = (summed(party, second, problem)["gradients"] for _ in range(2))
    np.testing.assert_array_equal(once, twice)
    assert isinstance(ask(party, msgspec.structs.replace(second, after="other"), problem,
                          verb="sum"), Refusal)  # fmt: skip


def test_bins_that_must_be_empty_need_not_be_told(party, problem):
    whole = summed(party, FIRST, problem)["counts"]
    mask = whole > 0
    task = Grow("two", counts=int(mask.sum()), wanted=(0,), mask=np.packbits(mask).tobytes(),
                gradients=int(mask.sum()), start=START)  # fmt: skip
    np.testing.assert_array_equal(summed(party, task, problem)["counts"], whole[mask])


@pytest.mark.parametrize(
    "wrong",
    [
        {"mask": b"\x80"},
        {"wanted": (1,)},
        {"columns": (0, 3)},
        {"splits": (Split(7, 0, 1, True),)},
        {"leaves": ((4, 1.0),)},
        {"start": Start("boost", BINS, base=(0.5, 0.5)), "wanted": (1,)},
        {"start": Start("class", BINS, base=(0.0, 0.0)), "wanted": (1,)},
    ],
)
def test_a_task_that_names_what_is_not_there_is_malformed(party, problem, wrong):
    task = msgspec.structs.replace(FIRST, **wrong)
    refused = ask(party, task, problem, verb="sum")
    assert isinstance(refused, Refusal)
    assert refused.code == "malformed"


def test_only_the_columns_that_are_used_are_told(party, problem):
    whole = summed(party, FIRST, problem)["gradients"]
    task = Grow("two", gradients=8, wanted=(0,), columns=(0, 2), start=START)
    np.testing.assert_array_equal(
        summed(party, task, problem)["gradients"], np.delete(whole, [4, 5, 6])
    )


def test_rows_are_drawn_anew_for_every_round(party, problem):
    half = msgspec.structs.replace(START, share=0.5)
    first = msgspec.structs.replace(FIRST, start=half)
    one = summed(party, first, problem)["counts"]
    second = Grow(first.digest, CELLS, CELLS, CELLS, leaves=((0, 0.0),), wanted=(0,))
    other = summed(party, second, problem)["counts"]
    assert 15 < one[:4].sum() < 65
    assert not np.array_equal(one, other)


def test_a_regressions_targets_are_told_in_deviations(tmp_path):
    frame = diabetes()
    problem = problem_of(frame, learners=("decision_tree",))
    bins = Bins((1,) * 10, (b"",) * 10)
    task = Grow(
        "one", gradients=20, counts=20, wanted=(0,), squares=(0,), start=Start("value", bins)
    )
    found = summed(party_of(frame, tmp_path), task, problem)
    assert found["gradients"][0] == pytest.approx(0.0, abs=0.01)
    assert found["counts"][:2].tolist() == [442, 0]
    assert found["squares"][0] == pytest.approx(442, rel=1e-4)
