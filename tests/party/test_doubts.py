"""What is doubtful about rows, at one party and over the parties of a simulation."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pandas as pd
import pytest

from cotune.errors import DataWarning
from cotune.party.doubts import announce, doubts
from tests.parts import diabetes, iris, letters, parts, pictures, wine


def kinds(*tables: pd.DataFrame, drop=(), folds: int = 5) -> dict[str, str]:
    return {doubt.name: doubt.kind for doubt in doubts(tables, "target", drop, folds)}


def dates(rows: int, spelled: str = "%Y-%m-%d", different: int = 30) -> np.ndarray:
    return np.resize(pd.date_range("2030-01-01", periods=different).strftime(spelled), rows)


@pytest.mark.parametrize("frame", [iris(), wine(), diabetes(), pictures(), letters()])
def test_sound_rows_raise_no_doubt_whole_or_in_parts(frame):
    assert kinds(frame) == kinds(*parts(frame).values()) == {}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("identifier", np.arange(150) * 7),
        ("identifier", np.arange(150) + 2**60),  # which floats cannot tell from each other
        ("identifier", pd.array([None, *range(1, 150)], dtype="Int64")),
        ("texts", [f"name {row}" for row in range(150)]),
        ("dates", dates(150)),
        ("dates", dates(150, "%Y-%m-%dT%H:%M:%S")),
        ("dates", dates(150, "%d.%m.%Y")),
        ("dates", dates(150, "%m/%d/%y")),
        ("constant", np.full(150, 1.0)),
        ("constant", ["here"] * 150),
        ("constant", [*[None] * 30, *[True] * 120]),
        ("empty", np.full(150, np.nan)),
        ("missing", np.where(np.arange(150) % 2, np.nan, np.arange(150) // 4 + 0.5)),
    ],
)
def test_a_doubtful_column_is_found_in_a_table_and_in_its_parts(kind, values):
    frame = iris().assign(x=values)
    assert kinds(frame) == kinds(*parts(frame, 5).values()) == {"x": kind}
    assert kinds(frame, drop=("x",)) == {}
    (doubt,) = doubts([frame], "target")
    assert "column 'x'" in doubt.sentence
    assert kind == "missing" or "--drop x" in doubt.sentence


@pytest.mark.parametrize(
    "values",
    [
        np.arange(150) + 0.5,
        np.arange(150) % 40,
        np.where(np.arange(150) < 3, np.inf, np.arange(150)),
        [f"ward {row % 12}" for row in range(150)],
        ["2030-01-01 and later"] * 75 + ["1.5"] * 75,
        [None if row % 5 == 0 else bool(row % 2) for row in range(150)],
        [[row % 3] for row in range(150)],
    ],
)
def test_other_columns_are_left_in_peace(values):
    frame = iris().assign(x=values)
    assert kinds(frame) == kinds(*parts(frame).values()) == {}


def test_parties_that_number_their_rows_each_from_one_have_an_identifier():
    tables = [iris().assign(x=range(150)) for _ in range(3)]
    assert kinds(*tables) == {"x": "identifier"}


def test_a_column_that_varies_between_the_parties_only_is_of_use():
    tables = [iris().assign(x=float(party), y=f"site {party}") for party in range(3)]
    assert kinds(*tables) == {}
    assert kinds(tables[0]) == {"x": "constant", "y": "constant"}


def test_columns_that_the_parties_do_not_share_are_left_to_the_error_that_follows():
    frame = iris().assign(x=1.0)
    twice = pd.concat([frame, frame[["x"]]], axis=1)
    assert kinds(frame, iris()) == kinds(frame, twice) == kinds(pd.DataFrame(), iris()) == {}


def test_classes_with_fewer_rows_than_folds_are_counted_over_all_parties():
    frame = iris().replace({"target": {2: 1}})
    frame.loc[:3, "target"] = 7
    tables = parts(frame, 2).values()
    assert kinds(*tables) == {"7": "class"}
    assert kinds(*tables, folds=4) == {}


def test_a_party_that_merges_rare_categories_does_not_say_that_they_are_disclosed():
    frame = iris().assign(day=dates(150), town=[f"town {row % 90}" for row in range(150)])
    day, town = (doubt.sentence for doubt in doubts([frame], "target", smallest=5))
    assert "each of which of 5 rows or more is taken as a category of its own" in day
    assert "90 different texts, those of 5 rows or more are disclosed" in town


@pytest.mark.parametrize(
    ("name", "ends"), [("rare", "(--classes)"), (7, "(--classes) or asks for --task regression")]
)
def test_a_class_too_rare_to_be_disclosed_needs_a_list_whatever_the_folds(name, ends):
    frame = iris()
    if isinstance(name, str):
        frame["target"] = frame["target"].map(lambda value: f"kind {value}")
    frame.loc[:3, "target"] = name
    (doubt,) = doubts([frame], "target", folds=2, smallest=5)
    assert (doubt.kind, doubt.name) == ("class", str(name))
    assert doubt.sentence.startswith(f"the class '{name}' has 4 rows, fewer than 5, and is not")
    assert doubt.sentence.endswith(ends)


def test_each_kind_is_said_once_and_its_other_columns_are_named():
    frame = iris().assign(**{f"n{number}": 1.0 for number in range(9)}, id=range(150))
    with pytest.warns(DataWarning) as caught:
        announce(doubts([frame], "target"))
    assert [str(one.message) for one in caught] == [
        "column 'n0' has one value only here, from which nothing can be learnt: if that is so at "
        "every party, drop it (--drop n0); the same holds for 'n1', 'n2', 'n3', 'n4' and 4 more",
        "column 'id' has another whole number in each row: if it is an identifier, drop it "
        "(--drop id)",
    ]
    assert {one.filename for one in caught} == {__file__}


def test_without_doubts_nothing_is_said():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        announce(doubts([iris()], "target"))


def test_a_hundred_thousand_rows_of_a_hundred_columns_take_a_second():
    rows = 100_000
    rng = np.random.default_rng(0)
    columns: dict[str, object] = {"target": rng.choice(["a", "b"], rows)}
    for number in range(0, 100, 4):
        columns[f"float {number}"] = rng.normal(size=rows)
        columns[f"id {number}"] = rng.permutation(rows)
        columns[f"town {number}"] = rng.choice([f"town {i}" for i in range(500)], rows)
        columns[f"date {number}"] = dates(rows, different=1000)
    frame = pd.DataFrame(columns)
    began = time.process_time()
    found = doubts([frame.iloc[0::2], frame.iloc[1::2]], "target")
    assert time.process_time() - began < 2.0  # half a second, with room for a busy machine
    assert len(found) == 50
