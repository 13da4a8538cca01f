from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.errors import DataError
from cotune.party.key import RunKey, Secret
from cotune.party.rows import Rows, fold_indices, fraction_of, open_rows, parted, second_half
from tests.parts import iris, people, problem_of


@dataclass
class Stated:
    """As much of a problem as the choice of rows looks at."""

    task: str = "classification"
    folds: int = 2


labels = st.lists(st.integers(0, 3), min_size=4, max_size=80).map(np.array)
fractions = st.floats(0.01, 1.0)


@given(labels, fractions, fractions, st.integers(0, 5), st.sampled_from(["classification", "r"]))
def test_a_smaller_fraction_is_part_of_a_larger_one(y, one, other, seed, task):
    problem = Stated(task=task)
    small, large = (fraction_of(y, f, problem, RunKey(seed)) for f in sorted((one, other)))
    assert set(small) <= set(large)
    assert len(small) == max(np.ceil(min(one, other) * len(y)), min(len(y), 4))
    assert (np.diff(small) > 0).all()


@given(labels, fractions, st.integers(0, 5))
def test_a_fraction_has_the_classes_in_proportion(y, fraction, seed):
    chosen = fraction_of(y, fraction, Stated(), RunKey(seed))
    share = len(chosen) / len(y)
    for label in np.unique(y):
        expected = share * (y == label).sum()
        assert abs((y[chosen] == label).sum() - expected) <= len(np.unique(y)) / 2 + 0.5


def test_another_seed_chooses_other_rows():
    y = np.zeros(50, dtype=int)
    one, other = (fraction_of(y, 0.5, Stated(), RunKey(seed)).tolist() for seed in (0, 1))
    assert one != other


def test_every_row_is_tested_once_and_never_trained_on_then(tmp_path):
    frame = iris()
    rows = Rows(tmp_path / "rows", frame, problem_of(frame, folds=4), RunKey(0))
    splits = fold_indices(rows.folder, 1.0)
    assert sorted(np.concatenate([test for _, test in splits])) == list(range(150))
    assert not any(set(train) & set(test) for train, test in splits)


def test_folds_can_be_shuffled_otherwise_and_then_the_same_each_time(tmp_path):
    frame = iris()
    rows = Rows(tmp_path / "rows", frame, problem_of(frame), RunKey(0))

    def tested(shuffle):
        fold_indices.cache_clear()
        return [test.tolist() for _, test in fold_indices(rows.folder, 1.0, shuffle)]

    assert tested(0) == tested(0) != tested(1) == tested(1) != tested(2)
    assert sorted(row for rows in tested(2) for row in rows) == list(range(150))


def test_the_folds_of_a_fraction_lie_within_it(tmp_path):
    frame = iris()
    problem = problem_of(frame)
    rows = Rows(tmp_path / "rows", frame, problem, RunKey(0))
    chosen = fraction_of(open_rows(rows.folder).y, 0.3, problem, RunKey(0))
    tested = np.concatenate([test for _, test in fold_indices(rows.folder, 0.3)])
    assert sorted(tested) == chosen.tolist()


def test_classes_with_fewer_rows_than_folds_still_give_folds(tmp_path):
    frame = people(6, labels="x").assign(target=list("uvwxyz"))
    rows = Rows(tmp_path / "rows", frame, problem_of(frame, people(), folds=3), RunKey(0))
    assert len(fold_indices(rows.folder, 1.0)) == 3


@pytest.mark.filterwarnings("error")
def test_of_classes_with_fewer_rows_than_folds_nobody_is_warned():
    frame = iris().iloc[:40]
    frame.loc[2:, "target"] = 0
    frame.loc[:1, "target"] = 1
    problem = problem_of(frame, folds=3)
    outside, inside = parted(frame, msgspec.structs.replace(problem, fold=0), RunKey(0))
    assert len(outside) + len(inside) == 40


def test_the_problem_says_whether_rows_are_scaled(tmp_path):
    frame = iris()
    forms = []
    for scaling in ("standard", "none"):
        problem = problem_of(frame, learners=("logistic_regression",), scaling=scaling)
        rows = Rows(tmp_path / scaling, frame, problem, RunKey(0))
        rows.prepare("dense")
        forms.append(open_rows(rows.folder).features("dense"))
    np.testing.assert_allclose(forms[0].mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(forms[0].std(axis=0), 1.0, rtol=1e-6)
    np.testing.assert_allclose(forms[1], frame.drop(columns="target"), rtol=1e-12)


def test_columns_in_another_order_give_the_same_rows(tmp_path):
    frame = people()
    problem = problem_of(frame, learners=("logistic_regression", "decision_tree"))
    for form in ("codes", "dense"):
        opened = []
        for number, order in enumerate((list(frame), list(frame)[::-1])):
            rows = Rows(tmp_path / f"{form}{number}", frame[order], problem, RunKey(0))
            rows.prepare(form)
            opened.append(open_rows(rows.folder).features(form))
        np.testing.assert_array_equal(*opened)


def test_rows_that_were_refused_are_refused_again(tmp_path):
    problem = problem_of(people(labels="xy"))
    stranger = people(labels="xyz")
    for _ in range(2):
        with pytest.raises(DataError, match="class that the schema does not know"):
            Rows(tmp_path / "rows", stranger, problem, RunKey(0))


def test_a_regression_keeps_its_numbers(tmp_path):
    frame = pd.DataFrame({"a": range(10), "target": np.linspace(0, 1, 10)})
    rows = Rows(tmp_path / "rows", frame, problem_of(frame), RunKey(0))
    np.testing.assert_array_equal(open_rows(rows.folder).y, frame["target"])


@pytest.mark.parametrize("key", [RunKey(3), Secret(b"s" * 32)])
def test_each_class_is_in_both_halves_of_the_rows_or_in_one_as_a_whole(key):
    y = np.repeat([0, 1, 2], [40, 9, 11])
    second = second_half(y, True, 5, key, "site")
    counts = [int(second[y == label].sum()) for label in range(3)]
    assert counts[0] == 20
    assert counts[1] in (0, 9)
    assert counts[2] in (5, 6)
    assert (second == second_half(y, True, 5, key, "site")).all()


@pytest.mark.parametrize(("key", "enough"), [(RunKey(3), 8), (Secret(b"s" * 32), 40)])
def test_few_rows_are_in_one_half_as_a_whole(key, enough):
    for rows, halves in ((enough, {enough // 2}), (enough - 1, {0, enough - 1})):
        y = np.linspace(0.0, 1.0, rows)
        assert int(second_half(y, False, key.cell, key, "site").sum()) in halves
    halves = {second_half(np.zeros(5, int), True, 5, key, f"site-{i}").all() for i in range(20)}
    assert halves == {True, False}


def test_another_target_shifts_no_few_rows_from_half_to_half():
    """Two targets that differ in one row: halves by one order would differ in a few."""
    y = np.repeat([0, 1], 30)
    other = y.copy()
    other[7] = 1
    for secret in range(50):
        key = Secret(bytes([secret]) * 32)
        halves = [second_half(labels, True, 5, key, "site") for labels in (y, other)]
        apart = int((halves[0] != halves[1]).sum())
        assert 5 <= apart <= len(y) - 5
