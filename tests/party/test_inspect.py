from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.data.schema import Column, Schema
from cotune.errors import DataError
from cotune.party.inspect import describe, measure, place
from cotune.party.tasks import Inspect, Measure, Place
from tests.parts import letters, people, pictures

TWO_FOLDS = Inspect(2)


def column_of(description, name):
    return next(column for column in description.columns if column.name == name)


def test_a_description_names_kinds_and_categories():
    seen = describe(people(), "target", TWO_FOLDS)
    assert [(c.name, c.kind) for c in seen.columns] == [
        ("age", "numeric"),
        ("rare", "numeric"),
        ("city", "categorical"),
    ]
    assert column_of(seen, "city").categories == ("a", "b", "c")
    assert seen.classes == ("x", "y")


def test_a_description_tells_roughly_where_numbers_lie_and_no_value():
    frame = pd.DataFrame({"income": [1000.0, -1025.5, np.nan], "target": [0, 1, 1]})
    seen = column_of(describe(frame, "target", TWO_FOLDS), "income")
    assert seen.place == Place(0.0, 11)
    assert seen.categories == ()


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=5))
def test_all_numbers_lie_in_the_place_that_is_told(numbers):
    told = place(pd.Series(numbers))
    assert np.all(np.abs(np.array(numbers) - told.centre) <= np.ldexp(1.0, told.exponent))


def test_a_column_without_values_has_no_kind():
    frame = people().assign(age=np.nan)
    assert column_of(describe(frame, "target", TWO_FOLDS), "age").kind is None


def test_a_column_that_is_dropped_is_not_described():
    seen = describe(people(), "target", Inspect(2, drop=("city", "not there")))
    assert [column.name for column in seen.columns] == ["age", "rare"]


@pytest.mark.parametrize("gaps", [0, 20])
def test_text_that_identifies_rows_is_refused_and_not_quoted(gaps):
    names = [None] * gaps + [f"patient {i}" for i in range(60 - gaps)]
    with pytest.raises(DataError, match=r"column 'name' .*like an identifier: drop it") as caught:
        describe(people(60).assign(name=names), "target", TWO_FOLDS)
    assert "patient" not in str(caught.value)


def test_names_in_a_small_party_are_refused_too():
    names = [f"patient {i}" for i in range(15)]
    with pytest.raises(DataError, match="like an identifier"):
        describe(people(15).assign(name=names), "target", TWO_FOLDS)


def test_the_target_cannot_be_dropped():
    with pytest.raises(DataError, match="cannot be dropped"):
        describe(people(), "target", Inspect(2, drop=("target",)))


def test_a_few_texts_that_all_differ_are_categories():
    frame = pd.DataFrame({"name": list("abcd"), "target": [0, 1, 0, 1]})
    assert column_of(describe(frame, "target", TWO_FOLDS), "name").kind == "categorical"


@pytest.mark.parametrize(
    ("target", "task", "classes"),
    [
        ([0, 1, 2, 1], None, ("0", "1", "2")),
        ([0.0, 1.0, 2.0, 1.0], None, ("0", "1", "2")),
        ([0.5, 1.0, 2.0, 1.0], None, None),
        (list(range(30)), None, None),
        (list(range(30)), "classification", tuple(sorted(map(str, range(30))))),
        ([0, 1, 2, 1], "regression", None),
        ([True, False, True, True], None, ("False", "True")),
    ],
)
def test_the_target_is_classes_or_a_number(target, task, classes):
    frame = pd.DataFrame({"a": np.arange(len(target)), "target": target})
    assert describe(frame, "target", Inspect(2, task)).classes == classes


@pytest.mark.parametrize(
    ("frame", "task", "sentence"),
    [
        (people(), Inspect(2), "no column 'disease' to predict"),
        (people(3), Inspect(5), "3 rows are fewer than the 5 folds: use fewer folds"),
        (people()[["target"]], Inspect(2), "no column beside the target"),
        (people().assign(target=None), Inspect(2), "is missing in 60 rows"),
        (people(), Inspect(2, "regression"), "holds text: regression needs numbers"),
        (
            pd.DataFrame({"a": range(1200), "target": np.arange(1200.0)}),
            Inspect(2, "classification"),
            "1200 different values: too many classes",
        ),
    ],
)
def test_what_cannot_be_used_is_said_with_the_fix(frame, task, sentence):
    target = "disease" if "disease" in sentence else "target"
    with pytest.raises(DataError, match=sentence):
        describe(frame, target, task)


def test_measures_are_counts_sums_and_squares_of_what_is_there():
    frame = pd.DataFrame(
        {"n": [1.0, 3.0, np.nan], "c": ["a", None, "b"], "target": ["x", "y", "x"]}
    )
    columns = (Column("c", "categorical", ("a", "b", "z")), Column("n", "numeric"))
    draft = Schema("target", "classification", columns, classes=("w", "x", "y"))
    measures = measure(frame, Measure(draft, (Place(), Place(5.0, 2)), Place()))
    assert measures.numeric == [2.0, -6.0 / 4, 20.0 / 16]
    assert measures.categories == [1.0, 1.0, 0.0]
    assert measures.target == [0.0, 2.0, 1.0]


@pytest.mark.parametrize(("value", "scaled"), [(1.5e308, 1.5e308 / 2.0**1023 / 4), (5e-324, 0.5)])
def test_the_largest_and_the_smallest_numbers_can_be_measured(value, scaled):
    frame = pd.DataFrame({"n": [value, -value], "target": [0, 1]})
    seen = column_of(describe(frame, "target", TWO_FOLDS), "n")
    draft = Schema("target", "classification", (Column("n", "numeric"),), classes=("0", "1"))
    count, total, squares = measure(frame, Measure(draft, (seen.place,), Place())).numeric
    assert (count, total) == (2.0, 0.0)
    assert squares == pytest.approx(2 * scaled**2)


def test_a_description_of_arrays_tells_their_shape_and_where_their_numbers_lie():
    (seen,) = describe(pictures(), "target", TWO_FOLDS).columns
    assert (seen.kind, seen.shape, seen.codes, seen.place) == ("array", (4, 4), 0, Place(0.0, 8))
    (seen,) = describe(letters(), "target", TWO_FOLDS).columns
    assert (seen.kind, seen.shape, seen.codes, seen.place) == ("array", (10,), 97, Place())


def test_arrays_are_learnt_from_alone():
    frame = pictures().assign(age=1.0)
    with pytest.raises(DataError, match=r"'age' is beside the arrays of 'image'.*--drop age"):
        describe(frame, "target", TWO_FOLDS)
    assert len(describe(frame, "target", Inspect(2, drop=("age",))).columns) == 1


def test_arrays_are_nothing_to_predict():
    with pytest.raises(DataError, match="the target 'image' holds arrays"):
        describe(pictures(), "image", TWO_FOLDS)


@pytest.mark.parametrize("chunk", [7, 1000])
def test_a_row_of_arrays_counts_once(chunk, monkeypatch):
    monkeypatch.setattr("cotune.data.arrays.CHUNK", chunk)
    draft = Schema(
        "target", "classification", (Column("image", "array", shape=(4, 4)),), classes=("no", "yes")
    )
    measured = measure(pictures(), Measure(draft, (Place(0.0, 8),), Place()))
    images = np.stack(pictures()["image"]) / 256
    assert measured.numeric == pytest.approx([30, 30 * images.mean(), 30 * (images**2).mean()])
