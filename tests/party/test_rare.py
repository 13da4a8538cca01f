"""Categories of few rows: one category at their party, in all that it does with its rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import cotune
from cotune.coordinator.agree import agree
from cotune.coordinator.federation import Federation
from cotune.data.encode import encode_columns
from cotune.engines.local import LocalEngine
from cotune.errors import DataError, UsageError
from cotune.party.inspect import describe, with_other
from cotune.party.tasks import Inspect
from tests.parts import people, threads


def ward(frame: pd.DataFrame, **rows: int) -> pd.DataFrame:
    """The rows with a ward, so many of each; "big" is that of all others."""
    names = [name for name, count in rows.items() for _ in range(count)]
    return frame.assign(ward=[*names, *["big"] * (len(frame) - len(names))])


#: "b" is rare in the north and not in the south; "c" is rare everywhere.
NORTH = ward(people(60, seed=1), a=10, b=3, c=1)
SOUTH = ward(people(60, seed=2), a=4, b=9, c=2)


def federation(smallest_cell: int = 5) -> Federation:
    engine = LocalEngine(
        {"north": NORTH, "south": SOUTH},
        "target",
        executor=threads(),
        smallest_cell=smallest_cell,
    )
    return Federation(engine)


def test_a_category_of_few_rows_is_named_by_nobody_and_counted_as_other():
    with federation() as bound:
        schema = agree(bound, folds=2, task=None)
        (column,) = (column for column in schema.columns if column.name == "ward")
        assert set(column.categories) == {"a", "b", "big", "other"}
        assert column.categories.index("other") == 2  # by 10 rows: as many as a, and after it
        encoded = {}
        for name in ("north", "south"):
            codes = encode_columns(bound.engine.party(name).all_rows, (column,))[:, 0]
            rows = pd.Series(codes.astype(int)).map(dict(enumerate(column.categories)))
            encoded[name] = rows.value_counts().to_dict()
    assert encoded["north"] == {"big": 46, "a": 10, "other": 4}
    assert encoded["south"] == {"big": 45, "b": 9, "other": 6}


def test_a_model_takes_what_nobody_named_for_other():
    with federation() as bound:
        outcome = cotune.tune(
            bound, "defaults", learners=["decision_tree"], folds=2, progress=False
        )
    rows = people(5, seed=9).drop(columns="target").assign(ward="never seen")
    told, other = (outcome.model.table(r) for r in (rows, rows.assign(ward="other")))
    pd.testing.assert_frame_equal(told, other)
    schema = outcome.problem.schema
    (place,) = (i for i, column in enumerate(schema.columns) if column.name == "ward")
    missing = encode_columns(rows.assign(ward=None), schema.columns)[:, place]
    assert np.isnan(missing).all(), "a cell without a value stays one"


def test_in_simulations_all_categories_are_named_unless_one_asks():
    assert with_other(NORTH, "target", 1) is NORTH
    with federation(1) as bound:
        (column,) = (c for c in agree(bound, folds=2, task=None).columns if c.name == "ward")
    assert set(column.categories) == {"a", "b", "c", "big"}
    with cotune.simulate(NORTH, parties=2, processes=1, smallest_cell=5) as asked:
        (column,) = (c for c in agree(asked, folds=2, task=None).columns if c.name == "ward")
        assert "c" not in column.categories
        assert asked.origin["smallest_cell"] == 5
    with pytest.raises(UsageError, match="smallest_cell is 0: give a number of rows"):
        cotune.simulate(NORTH, smallest_cell=0)


def test_an_identifier_is_refused_and_not_made_one_category():
    frame = people().assign(id=[f"p{i}" for i in range(60)])
    with pytest.raises(DataError, match="'id' has 60 different texts in 60 rows, like an id"):
        describe(with_other(frame, "target", 5), "target", Inspect(2), 5)


def test_a_number_and_the_target_stay_as_they_are():
    frame = people(labels="x")
    frame.loc[0, "target"] = "rare"
    merged = with_other(frame, "target", 5)
    for name in ("age", "target"):
        pd.testing.assert_series_equal(merged[name], frame[name])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"classes": ["x"]}, "the classes are 'x': list two or more, each once"),
        ({"classes": ["x", "x"]}, "list two or more, each once"),
        ({"classes": ["x", "y"], "task": "regression"}, "a regression has none"),
        ({"classes": ["x", "y"], "metric": "rmse"}, "a regression has none"),
    ],
)
def test_a_list_of_classes_that_cannot_be_is_refused(settings, sentence):
    with federation() as bound, pytest.raises(UsageError, match=sentence):
        cotune.tune(bound, **settings)


def test_numbers_that_are_classes_can_be_listed():
    frame = people().assign(target=np.arange(60) % 3)
    with Federation(LocalEngine({"one": frame}, "target", executor=threads())) as bound:
        schema = agree(bound, folds=2, task=None, classes=("2", "0", "1"))
    assert schema.classes == ("0", "1", "2")
    assert schema.number_classes
