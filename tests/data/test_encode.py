from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from cotune.data.arrays import stacked
from cotune.data.encode import (
    MOST_CODES,
    MOST_ONE_HOT,
    as_text,
    columns_of,
    dense_form,
    encode,
    encode_columns,
    encode_target,
    trees_form,
)
from cotune.data.schema import Column, Schema
from cotune.errors import DataError
from tests.parts import letters, people, pictures, schema_of


def test_rows_are_encoded_in_the_order_of_the_schema():
    frame = pd.DataFrame({"c": ["b", "new", None], "n": [1, 2, 3]})
    columns = (Column("n", "numeric"), Column("c", "categorical", ("a", "b")))
    encoded = encode_columns(frame, columns)
    np.testing.assert_array_equal(encoded, [[1, 1], [2, np.nan], [3, np.nan]])


def test_a_column_of_nothing_but_gaps_is_encoded_as_gaps():
    frame = pd.DataFrame({"n": [None, None], "c": [np.nan, np.nan]})
    columns = (Column("n", "numeric"), Column("c", "categorical", ("a",)))
    assert np.isnan(encode_columns(frame, columns)).all()


def test_a_class_that_the_schema_does_not_know_is_refused_without_naming_it():
    schema = Schema("target", "classification", (), classes=("x",))
    with pytest.raises(DataError, match="a class that the schema does not know") as caught:
        encode_target(people(labels="xy"), schema)
    assert "'y'" not in str(caught.value)


def test_a_learner_gets_the_form_it_asks_for():
    frame = people()
    schema = schema_of(frame)
    codes = encode_columns(frame, schema.columns)
    np.testing.assert_array_equal(encode(frame, schema, "codes"), trees_form(codes, schema))
    for scaling in ("standard", "none"):
        np.testing.assert_array_equal(
            encode(frame, schema, "dense", scaling), dense_form(codes, schema, scaling)
        )


def test_dense_rows_are_standardised_filled_and_one_hot():
    columns = (
        Column("n", "numeric", mean=2.0, scale=4.0),
        Column("c", "categorical", ("a", "b", "z")),
    )
    codes = np.array([[6.0, 1.0], [np.nan, np.nan]])
    dense = dense_form(codes, Schema("t", "classification", columns))
    assert dense.tolist() == [[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]


def test_without_scaling_numbers_stay_as_they_are():
    columns = (
        Column("n", "numeric", mean=0.5, scale=4.0),
        Column("c", "categorical", ("a", "b")),
    )
    codes = np.array([[6.0, 1.0], [-2.25, 0.0], [np.nan, np.nan]])
    dense = dense_form(codes, Schema("t", "classification", columns), "none")
    assert dense.tolist() == [[6.0, 0.0, 1.0], [-2.25, 1.0, 0.0], [0.5, 0.0, 0.0]]


def test_without_scaling_numbers_keep_all_their_digits():
    schema = Schema("t", "classification", (Column("n", "numeric", mean=1e6, scale=1.0),))
    assert dense_form(np.array([[0.1]]), schema, "none").tolist() == [[0.1]]


def test_very_wide_columns_are_narrowed_to_their_frequent_categories():
    column = Column("c", "categorical", tuple(map(str, range(600))))
    schema = Schema("t", "classification", (column,))
    codes = np.array([[0.0], [400.0], [599.0], [np.nan]])
    assert dense_form(codes, schema).shape == (4, MOST_ONE_HOT)
    np.testing.assert_array_equal(
        trees_form(codes, schema)[:, 0], [0, MOST_CODES - 1, MOST_CODES - 1, np.nan]
    )


def test_one_value_has_one_spelling_whatever_its_type():
    spelled = [as_text(pd.Series(values)).tolist() for values in ([3, 4], [3.0, 4.0], ["3", "4"])]
    assert spelled == [["3", "4"]] * 3
    assert as_text(pd.Series([np.float32(3.0)])).tolist() == ["3"]
    assert as_text(pd.Series([1.0, None])).isna().tolist() == [False, True]


def test_arrays_of_amounts_are_stacked_and_standardised():
    frame = pictures()
    schema = schema_of(frame)
    images = stacked(frame["image"])
    encoded = encode(frame, schema, "tensor")
    assert encoded.dtype == np.float32
    np.testing.assert_allclose(encoded, (images - images.mean()) / images.std(), atol=1e-5)
    np.testing.assert_array_equal(encode(frame, schema, "tensor", "none"), images)
    assert encode(frame, schema, "tensor", "none").dtype == np.float32


def test_encoding_leaves_the_arrays_of_the_table_alone():
    frame = pictures(dtype=np.float32)
    before = stacked(frame["image"])
    encode(frame, schema_of(frame), "tensor")
    np.testing.assert_array_equal(stacked(frame["image"]), before)


def test_codes_of_characters_stay_as_they_are():
    frame = letters()
    encoded = encode(frame, schema_of(frame), "tensor")
    assert encoded.dtype == np.uint8
    np.testing.assert_array_equal(encoded, stacked(frame["text"]))


@pytest.mark.parametrize("make", [pictures, letters])
def test_no_rows_have_the_shape_and_type_of_some(make):
    frame = make()
    schema = schema_of(frame)
    some, none = (encode(rows, schema, "tensor") for rows in (frame, frame.iloc[:0]))
    assert none.shape == (0, *some.shape[1:])
    assert none.dtype == some.dtype
    assert encode(columns_of(frame.iloc[:0], schema), schema, "tensor").shape == none.shape


def test_a_table_is_a_tensor_in_its_dense_form():
    frame = people()
    schema = schema_of(frame)
    tensor = encode(frame, schema, "tensor")
    assert tensor.dtype == np.float32
    np.testing.assert_allclose(tensor, encode(frame, schema, "dense"), rtol=1e-6)


def test_a_users_arrays_may_have_other_types_but_no_other_shape():
    schema = schema_of(pictures())
    given = columns_of(pictures(dtype=float), schema)
    np.testing.assert_array_equal(stacked(given["image"]), stacked(pictures()["image"]))
    for wrong, said in ((pictures(side=5), "not of 5 x 5 numbers"), (people(), "not str")):
        wrong = wrong.rename(columns={"city": "image"})
        with pytest.raises(DataError, match=f"must hold arrays of 4 x 4 numbers, {said}"):
            columns_of(wrong.dropna(), schema)
    with pytest.raises(DataError, match="not of 4 x 4 characters"):
        columns_of(pictures(dtype=np.int8).map(_clipped), schema)


def _clipped(cell):
    return np.clip(cell, 0, 9) if isinstance(cell, np.ndarray) else cell
