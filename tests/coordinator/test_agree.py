from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.coordinator.agree import agree
from cotune.data.arrays import stacked
from cotune.errors import DataError
from cotune.party.tasks import Description, Place, SeenColumn
from cotune.protocol.wire import Refusal
from tests.parts import (
    diabetes,
    federation_of,
    iris,
    letters,
    parts,
    people,
    pictures,
    schema_of,
    unreliable,
)


def column_of(schema, name):
    return next(column for column in schema.columns if column.name == name)


def refused(**tables):
    with federation_of(tables) as federation, pytest.raises(DataError) as caught:
        agree(federation, folds=2, task=None)
    return str(caught.value)


def test_classes_and_categories_are_the_union_over_the_parties():
    schema = schema_of(
        people(seed=1, cities="ab", labels="x"),
        people(seed=2, cities="bc", labels="yz"),
        people(seed=3, cities="d", labels="x"),
    )
    assert schema.classes == ("x", "y", "z")
    assert sorted(column_of(schema, "city").categories) == ["a", "b", "c", "d"]


def test_classes_that_are_numbers_are_in_the_order_of_their_values():
    frames = [pd.DataFrame({"a": range(4), "target": t}) for t in ([10, 9] * 2, [2.0, 9.0] * 2)]
    assert schema_of(*frames).classes == ("2", "9", "10")


def test_the_most_frequent_category_comes_first():
    frames = [
        people(9).assign(city=["a"] * 2 + ["b"] * 4 + ["c"] * 3),
        people(9).assign(city=["c"] * 4 + ["b"] * 5),
    ]
    assert column_of(schema_of(*frames), "city").categories == ("b", "c", "a")


@pytest.mark.parametrize("make", [iris, diabetes, people])
def test_means_and_scales_are_those_of_the_pooled_rows(make):
    frame = make()
    schema = schema_of(*parts(frame, 3).values())
    for column in schema.columns:
        if column.kind == "numeric":
            assert column.mean == pytest.approx(frame[column.name].mean(), abs=1e-9)
            assert column.scale == pytest.approx(frame[column.name].std(ddof=0), rel=1e-9)
    if schema.task == "regression":
        assert schema.target_mean == pytest.approx(frame["target"].mean())
        assert schema.target_scale == pytest.approx(frame["target"].std(ddof=0))


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.floats(-1, 1).filter(lambda v: abs(v) > 1e-3), min_size=6, max_size=30),
    st.integers(-30, 30),
)
def test_standardisation_holds_at_every_magnitude(values, exponent):
    frame = pd.DataFrame(
        {"n": np.array(values) * 10.0**exponent, "target": np.arange(len(values)) % 2}
    )
    (column,) = schema_of(frame.iloc[::2], frame.iloc[1::2]).columns
    if np.std(values) > 1e-4:
        assert column.mean == pytest.approx(frame["n"].mean(), abs=1e-8 * 10.0**exponent)
        assert column.scale == pytest.approx(frame["n"].std(ddof=0), rel=1e-6)


def test_numbers_far_from_zero_are_standardised_too():
    times = 1.7e9 + 100.0 * np.random.default_rng(0).normal(size=60)
    tables = {
        name: people(30).assign(time=times[start : start + 30])
        for name, start in (("a", 0), ("b", 30))
    }
    column = column_of(schema_of(tables["a"], tables["b"]), "time")
    assert column.mean == pytest.approx(times.mean(), rel=1e-12)
    assert column.scale == pytest.approx(times.std(), rel=1e-3)


def test_numbers_that_are_few_at_each_party_but_many_together_are_a_regression():
    tables = [
        pd.DataFrame({"x": np.arange(10.0), "target": np.arange(start, start + 10)})
        for start in (0, 10, 20)
    ]
    assert schema_of(*tables).task == "regression"


def test_a_constant_or_empty_column_has_scale_one():
    frame = people().assign(age=5.0, rare=np.nan)
    schema = schema_of(*parts(frame, 2).values())
    assert (column_of(schema, "age").mean, column_of(schema, "age").scale) == (5.0, 1.0)
    assert (column_of(schema, "rare").kind, column_of(schema, "rare").scale) == ("numeric", 1.0)


@pytest.mark.parametrize("empty", ["age", "city"])
def test_a_column_that_is_empty_at_one_party_takes_the_kind_of_the_others(empty):
    schema = schema_of(people(), people(seed=1).assign(**{empty: np.nan}))
    assert column_of(schema, empty).kind == {"age": "numeric", "city": "categorical"}[empty]


def test_the_schema_does_not_depend_on_the_order_of_columns():
    one, other = people(), people(seed=1)
    assert schema_of(one, other[list(other)[::-1]]) == schema_of(one, other)


def test_columns_that_are_dropped_are_not_in_the_schema():
    with federation_of(parts(people(), 2)) as federation:
        schema = agree(federation, folds=2, task=None, drop=("city",))
    assert [column.name for column in schema.columns] == ["age", "rare"]


def test_a_column_to_drop_that_nobody_has_is_a_typing_error():
    with (
        federation_of({"a": people(), "b": people()}) as federation,
        pytest.raises(DataError, match="no party has a column 'ctiy'"),
    ):
        agree(federation, folds=2, task=None, drop=("ctiy",))


def test_one_party_with_many_values_makes_it_a_regression_for_all():
    few = pd.DataFrame({"a": range(30), "target": [1, 2] * 15})
    many = pd.DataFrame({"a": range(30), "target": np.linspace(0, 1, 30)})
    schema = schema_of(few, many)
    assert (schema.task, schema.classes) == ("regression", ())


def test_agreeing_costs_two_rounds_and_the_second_tells_totals_only():
    with federation_of(parts(people())) as federation:
        agree(federation, folds=2, task=None)
        rounds = list(federation.ledger)
    assert [(entry.task, entry.verb) for entry in rounds] == [
        ("inspect", "gather"),
        ("measure", "sum"),
    ]
    assert rounds[1].replies is None


def test_a_kind_that_disagrees_names_the_party_and_the_column():
    sentence = refused(a=people(), b=people().assign(age="old"), c=people())
    assert sentence.startswith("b: column 'age' holds text where the others have numbers")
    sentence = refused(a=people(), b=people().assign(city=1.5), c=people())
    assert sentence.startswith("b: column 'city' holds numbers where the others have text")


def test_a_missing_column_names_the_party_and_the_column_that_may_be_meant():
    sentence = refused(a=people(), b=people().rename(columns={"city": "City"}), c=people())
    assert sentence == (
        "b: has no column 'city', which the others have; is it the column 'City'? Rename it"
    )
    assert "add it" in refused(a=people(), b=people().drop(columns="city"), c=people())


def test_a_column_that_only_one_party_has_is_named_with_the_way_to_drop_it():
    sentence = refused(a=people(), b=people().assign(extra=1), c=people())
    assert sentence == "b: has a column 'extra', which the others lack; drop it (--drop extra)"


@pytest.mark.parametrize("number", [[0, 1], list(np.linspace(0, 1, 60))])
def test_a_target_of_another_kind_names_the_party(number):
    odd = people().assign(target=(number * 60)[:60])
    sentence = refused(a=people(), b=odd, c=people())
    assert sentence.startswith("b: the target 'target' holds numbers where the others have text")
    text = people()
    sentence = refused(a=odd, b=text, c=odd)
    assert sentence.startswith("b: the target 'target' holds text where the others have numbers")


def test_classes_that_are_numbers_at_one_party_and_text_at_another_are_the_same():
    numbers = people().assign(target=[1, 2] * 30)
    text = people().assign(target=["1", "2", "3+"] * 20)
    assert schema_of(numbers, text).classes == ("1", "2", "3+")


def test_the_same_value_in_all_rows_of_all_parties_is_nothing_to_learn():
    sentence = refused(a=people(labels="x"), b=people(labels="x"))
    assert "the same value in all rows of all parties" in sentence


def test_one_class_at_one_party_is_enough_if_another_has_another():
    assert schema_of(people(labels="x"), people(labels="y")).classes == ("x", "y")


def test_a_party_that_is_lost_meanwhile_does_not_stop_the_agreement():
    def change(call, name, reply):
        return Refusal("lost", "gone") if name == "party-2" and call > 1 else reply

    with unreliable(parts(iris()), change) as federation:
        schema = agree(federation, folds=2, task=None)
    assert column_of(schema, "sepal length (cm)").scale > 0


def test_text_that_identifies_rows_is_refused_with_the_party_and_the_fix():
    named = people().assign(name=[f"patient {i}" for i in range(60)])
    sentence = refused(a=named, b=named)
    assert sentence.startswith("a: column 'name' has 60 different texts in 60 rows")
    assert "--drop name" in sentence
    assert "patient" not in sentence


def test_arrays_have_one_mean_and_one_deviation_over_all_parties():
    frame = pictures()
    (column,) = schema_of(*parts(frame, 3).values()).columns
    images = stacked(frame["image"])
    assert (column.name, column.kind, column.shape, column.codes) == ("image", "array", (4, 4), 0)
    assert column.mean == pytest.approx(images.mean())
    assert column.scale == pytest.approx(images.std())


def test_the_codes_of_characters_have_no_mean():
    (column,) = schema_of(*parts(letters(), 3).values()).columns
    assert (column.shape, column.codes, column.mean, column.scale) == ((10,), 97, 0.0, 1.0)


def test_arrays_of_another_shape_name_the_party_and_the_column():
    said = refused(a=pictures(), b=pictures(side=5), c=pictures())
    assert said.startswith("b: column 'image' holds arrays of 5 x 5 numbers where the others have")


def test_arrays_and_numbers_do_not_agree():
    numbers = pictures().assign(image=range(30))
    assert "holds numbers where the others have arrays" in refused(
        a=pictures(), b=numbers, c=pictures()
    )


class Described:
    """A federation of which only the descriptions are known; sums are of ten rows with zeros."""

    def __init__(self, replies: dict[str, Description]) -> None:
        self._replies = replies

    def gather(self, task):
        return self._replies

    def sum(self, task):
        self._draft = task.draft
        return SimpleNamespace(sum=self._total)

    def _total(self, name):
        if name == "numeric":
            return np.array([10.0, 0.0, 1.0] * len(self._draft.columns))
        if name == "few":
            return np.array([100.0])
        return np.full(len(self._draft.classes), 5.0) if name == "target" else np.array([])


def test_a_hundred_parties_with_five_thousand_columns_agree_in_seconds():
    columns = tuple(SeenColumn(f"gene {i}", "numeric", Place(0.0, 3)) for i in range(5000))
    reply = Description((), columns, "target", False, Place(), ("a", "b"))
    federation = Described({f"party-{i}": reply for i in range(100)})
    began = time.process_time()
    schema = agree(federation, folds=2, task=None)
    assert time.process_time() - began < 6.0  # about 18 where each name is searched for
    assert len(schema.columns) == 5000
