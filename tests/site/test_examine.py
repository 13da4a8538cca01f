from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from cotune.party.inspect import describe
from cotune.party.tasks import Inspect
from cotune.site.examine import as_text, examine
from tests.parts import diabetes, iris, letters, people, pictures


def test_a_good_file_can_take_part():
    found = examine(iris(), "target")
    assert found.problems == found.warnings == ()
    assert found.rows == 150
    assert found.classes == {"0": 50, "1": 50, "2": 50}
    assert {column.kind for column in found.columns} == {"numeric"}
    assert as_text(found).endswith("These rows can take part.")


def test_columns_are_shown_with_their_gaps_and_categories():
    found = examine(people(), "target")
    age, rare, city = found.columns
    assert (age.kind, city.kind, city.categories) == ("numeric", "categorical", 3)
    assert rare.missing == people()["rare"].isna().mean()
    assert found.warnings == (f"column 'rare' is missing in {rare.missing:.0%} of the rows",)
    assert max(map(len, as_text(found).splitlines())) <= 80


@pytest.mark.parametrize("frame", [pictures(), letters(), diabetes()])
def test_arrays_and_quantities_can_take_part(frame):
    found = examine(frame, "target")
    assert found.problems == ()
    assert "can take part" in as_text(found)


def test_a_quantity_has_no_classes():
    assert examine(diabetes(), "target").classes == {}


@pytest.mark.parametrize(
    ("frame", "target", "says"),
    [
        (pd.DataFrame(), "y", "no column 'y'"),
        (pd.DataFrame({"x": [], "y": []}), "y", "0 rows are fewer than the 5 folds"),
        (iris(), "targt", "did you mean 'target'?"),
        (iris()[["target"]], "target", "no column beside the target"),
        (iris(3), "target", "3 rows are fewer than the 5 folds"),
        (iris().assign(target=np.nan), "target", "is missing in 150 rows"),
        (iris().assign(x=np.inf), "target", "column 'x' has an infinite value"),
        (pictures().assign(x=1.0), "target", "beside the arrays"),
        (pd.concat([iris(), iris()], axis=1), "target", "several columns"),
        (iris().rename(columns={"target": 7}), "8", "no column '8'"),
    ],
)
def test_what_keeps_a_file_out_is_said_in_a_sentence(frame, target, says):
    found = examine(frame, target)
    assert any(says in sentence for sentence in found.problems), found.problems
    assert "To mend first:" in as_text(found)
    assert "can take part" not in as_text(found)


def test_all_columns_that_must_be_mended_are_named_at_once():
    names = [f"name {number}" for number in range(150)]
    found = examine(iris().assign(a=names, b=names, c=np.inf), "target")
    assert [sentence.split()[1] for sentence in found.problems] == ["'a'", "'b'", "'c'"]
    assert examine(iris().assign(a=names), "target", drop=("a",)).problems == ()


def test_what_is_worth_a_look_does_not_keep_a_file_out():
    rows = 150
    frame = iris().assign(
        patient=np.arange(rows)[::-1] * 7,
        same=1.0,
        empty=np.nan,
        town=[f"town {number % 90}" for number in range(rows)],
    )
    frame.loc[0, "target"] = 3
    found = examine(frame, "target", drop=("gone",))
    assert found.problems == ()
    for says in (
        "no column 'gone' to drop",
        "column 'patient' has another whole number in each row",
        "column 'same' has one value only",
        "column 'empty' is empty",
        "column 'town' has 90 different texts",
        "the class '3' has 1 row, fewer than 5, and is not disclosed",
    ):
        assert any(says in sentence for sentence in found.warnings), says
    assert len(found.warnings) == 6


def test_one_class_is_worth_a_look():
    found = examine(iris().assign(target="a"), "target")
    assert found.warnings == (
        "the target 'target' has one class only here: this party can judge little",
    )


def test_many_columns_are_not_all_listed():
    wide = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 100)))
    found = examine(wide.assign(target=["a", "b"] * 20), "target")
    assert len(found.columns) == 100
    assert "... and 70 more" in as_text(found)


def test_a_file_without_problems_is_one_that_the_first_round_accepts():
    for frame in (iris(), people(), pictures(), letters(), diabetes()):
        assert examine(frame, "target").problems == ()
        describe(frame, "target", Inspect(5))
