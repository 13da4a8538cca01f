from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.data.load import load
from cotune.data.split import SPLITS, split
from cotune.errors import DataError, UsageError

some = settings(max_examples=40, deadline=None)


def table(rows: int, classes: int = 3, seed: int = 0) -> pd.DataFrame:
    """Rows numbered in `row`, with a feature of each kind and a target of uneven classes."""
    random = np.random.default_rng(seed)
    labels = np.minimum(random.integers(0, 2 * classes, rows), classes - 1)
    labels[:2] = [0, classes - 1]
    return pd.DataFrame(
        {
            "row": np.arange(rows),
            "size": random.normal(100.0, 20.0, rows),
            "y": [f"class {label}" for label in labels],
            "site": random.choice(["North", "South", "St. Mary's"], rows),
        }
    )


def sizes(parts: dict[str, pd.DataFrame]) -> list[int]:
    return [len(part) for part in parts.values()]


def together(parts: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(parts.values()).sort_values("row", ignore_index=True)


# Every split


@some
@given(
    rows=st.integers(40, 200),
    parties=st.integers(1, 4),
    spec=st.sampled_from(["iid", "dirichlet:2", "quantity:2"]),
    seed=st.integers(0, 1000),
)
def test_every_row_goes_to_exactly_one_party(rows: int, parties: int, spec: str, seed: int) -> None:
    frame = table(rows, seed=seed)
    parts = split(frame, "y", parties, spec, seed)
    assert len(parts) == parties
    pd.testing.assert_frame_equal(together(parts), frame)


@some
@given(rows=st.integers(10, 100), seed=st.integers(0, 1000))
def test_every_row_goes_to_the_party_of_its_value(rows: int, seed: int) -> None:
    frame = table(rows, seed=seed)
    parts = split(frame, "y", None, "by:site")
    pd.testing.assert_frame_equal(together(parts), frame.drop(columns="site"))


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.5", "quantity:0.5", "noise:0.1"])
def test_a_seed_decides_the_split(spec: str) -> None:
    frame = table(300)
    first, again, other = (split(frame, "y", 4, spec, seed) for seed in (1, 1, 2))
    for name in first:
        pd.testing.assert_frame_equal(first[name], again[name])
    assert any(not first[name].equals(other[name]) for name in first)


@pytest.mark.parametrize("spec", ["iid", "dirichlet:5", "quantity:5", "noise:0.1", "by:site"])
def test_parties_own_their_rows(spec: str) -> None:
    frame = table(90)
    before = frame.copy()
    for part in split(frame, "y", 3, spec).values():
        assert part.index.tolist() == list(range(len(part)))
        assert list(part.columns) == [name for name in frame.columns if name in part.columns]
        part.loc[:, "y"] = "changed"
    pd.testing.assert_frame_equal(frame, before)


def test_party_names_have_one_width() -> None:
    assert list(split(table(30), "y", 3)) == ["party-1", "party-2", "party-3"]
    assert list(split(table(30), "y", 10))[::9] == ["party-01", "party-10"]


def test_any_index_will_do() -> None:
    frame = table(30).set_axis([0] * 30)
    assert sum(sizes(split(frame, "y", 4, "noise:0.1"))) == 30


# iid


@some
@given(rows=st.integers(8, 200), parties=st.integers(1, 8), seed=st.integers(0, 1000))
def test_an_even_split_balances_sizes_and_classes(rows: int, parties: int, seed: int) -> None:
    parts = split(table(rows, classes=5, seed=seed), "y", parties, "iid", seed)
    assert max(sizes(parts)) - min(sizes(parts)) <= 1
    counts = pd.DataFrame({name: part["y"].value_counts() for name, part in parts.items()})
    counts = counts.fillna(0)
    assert (counts.max(axis=1) - counts.min(axis=1)).max() <= 1


@pytest.mark.parametrize(
    "labels",
    [
        np.arange(120) % 4,
        np.arange(120) % 4 * 1.0,
        np.arange(120) % 2 == 0,
        pd.Categorical(np.arange(120) % 4),
    ],
)
def test_whole_numbers_booleans_and_categories_are_balanced_as_classes(labels: object) -> None:
    parts = split(pd.DataFrame({"x": range(120), "y": labels}), "y", 3)
    assert len({tuple(part["y"].value_counts(sort=False)) for part in parts.values()}) == 1


def test_a_continuous_target_is_split_at_random() -> None:
    frame = pd.DataFrame({"x": range(400), "y": np.linspace(0, 1, 400)})
    parts = split(frame, "y", 4)
    assert sizes(parts) == [100] * 4
    assert all(0.35 < part["y"].mean() < 0.65 for part in parts.values())


def test_one_party_may_have_everything() -> None:
    frame = table(20)
    pd.testing.assert_frame_equal(split(frame, "y", 1)["party-1"], frame)


def test_each_row_may_be_a_party() -> None:
    assert sizes(split(table(20), "y", 20)) == [1] * 20


# Dirichlet skews


def spread_of_classes(alpha: float) -> float:
    parts = split(table(3000), "y", 5, f"dirichlet:{alpha}")
    shares = [(part["y"] == "class 2").mean() for part in parts.values()]
    return float(np.std(shares))


def test_a_smaller_alpha_skews_the_labels_more() -> None:
    assert spread_of_classes(0.1) > spread_of_classes(5) > spread_of_classes(1e6)
    assert spread_of_classes(1e6) < 0.01


def test_a_smaller_beta_skews_the_sizes_more() -> None:
    spreads = [np.std(sizes(split(table(3000), "y", 5, f"quantity:{b}"))) for b in (0.4, 5, 1e6)]
    assert spreads[0] > spreads[1] > spreads[2]
    assert spreads[2] <= 3


def test_a_skew_of_sizes_leaves_the_classes_alone() -> None:
    frame = table(5000)
    everywhere = (frame["y"] == "class 2").mean()
    for part in split(frame, "y", 3, "quantity:2").values():
        assert (part["y"] == "class 2").mean() == pytest.approx(everywhere, abs=0.1)


@pytest.mark.parametrize("target", ["size", "row"])
def test_a_continuous_target_is_skewed_by_its_quantiles(target: str) -> None:
    parts = split(table(2000), target, 4, "dirichlet:0.2")
    means = [part[target].mean() for part in parts.values()]
    assert np.ptp(means) > 0.3 * table(2000)[target].std()


def test_a_target_of_mostly_one_number_can_be_skewed() -> None:
    frame = pd.DataFrame({"row": range(200), "y": [0.0] * 190 + list(np.linspace(1, 2, 10))})
    assert sum(sizes(split(frame, "y", 3, "dirichlet:1"))) == 200


@some
@given(spec=st.sampled_from(["dirichlet:0.3", "quantity:0.5"]), seed=st.integers(0, 1000))
def test_a_skewed_party_still_has_ten_rows(spec: str, seed: int) -> None:
    assert min(sizes(split(table(600), "y", 4, spec, seed))) >= 10


@pytest.mark.parametrize("spec", ["dirichlet:0.0001", "quantity:0.0001"])
def test_a_hopeless_skew_names_the_way_out(spec: str) -> None:
    with pytest.raises(DataError, match="use a larger value or fewer parties"):
        split(table(100), "y", 20, spec)


# Noise


def test_noise_has_the_variance_of_the_paper_in_units_of_the_column() -> None:
    frame = table(40_000)
    beta = 0.5
    scale = frame["size"].std(ddof=0)
    clean = split(frame, "y", 4, "noise:1e-30", seed=3)
    noisy = split(frame, "y", 4, f"noise:{beta}", seed=3)
    for i, name in enumerate(noisy, start=1):
        noise = (noisy[name]["size"] - clean[name]["size"]) / scale
        assert noise.var() == pytest.approx(beta * i / 4, rel=0.1)
        assert noise.mean() == pytest.approx(0, abs=0.05)


def test_noise_leaves_target_categories_booleans_and_gaps_alone() -> None:
    frame = table(40).assign(flag=[True, False] * 20, level=pd.Categorical([1, 2] * 20))
    frame.loc[::4, "size"] = None
    frame["y"] = np.arange(40.0)
    parts = split(frame, "y", 2, "noise:1")
    for part in parts.values():
        original = frame.loc[part["y"].astype(int)].reset_index(drop=True)
        same = ["y", "site", "flag", "level"]
        pd.testing.assert_frame_equal(part[same], original[same])
        assert part["size"].isna().equals(original["size"].isna())
        assert part["row"].dtype == float
        assert (part["row"] != original["row"]).all()


def test_noise_on_words_alone_changes_nothing() -> None:
    frame = table(30)[["site", "y"]]
    assert sizes(split(frame, "y", 3, "noise:1")) == [10, 10, 10]


def test_a_constant_column_stays_constant_under_noise() -> None:
    parts = split(table(30).assign(one=1), "y", 3, "noise:1")
    assert all((part["one"] == 1).all() for part in parts.values())


# By column


def test_parties_are_named_after_the_values() -> None:
    parts = split(table(60), "y", 3, "by:site")
    assert list(parts) == ["north", "south", "st.-mary-s"]
    assert all("site" not in part.columns for part in parts.values())


def test_numbers_and_categories_name_parties_too() -> None:
    frame = table(60).assign(ward=[2, 10, 1] * 20, unit=pd.Categorical(["b", "a"] * 30))
    assert list(split(frame, "y", None, "by:ward")) == ["1", "2", "10"]
    assert list(split(frame, "y", None, "by:unit")) == ["a", "b"]


def test_a_column_name_may_have_a_colon() -> None:
    frame = table(60).rename(columns={"site": "place:site"})
    assert len(split(frame, "y", None, "by:place:site")) == 3


# Refusals


@pytest.mark.parametrize(
    ("parties", "spec", "expected"),
    [
        (0, "iid", "at least 1"),
        (-2, "iid", "at least 1"),
        (None, "iid", "number of parties is missing"),
        (None, "dirichlet:1", "number of parties is missing"),
        (3, "dirichelt:1", r"unknown split 'dirichelt:1'.*Known: iid, dirichlet:ALPHA"),
        (3, "", "unknown split"),
        (3, "iid:1", "write iid"),
        (3, "dirichlet", "write dirichlet:ALPHA"),
        (3, "by", "write by:COLUMN"),
        (3, "dirichlet:", "must be a number above 0"),
        (3, "dirichlet:-1", "must be a number above 0"),
        (3, "quantity:0", "must be a number above 0"),
        (3, "noise:much", "must be a number above 0"),
        (3, "noise:nan", "must be a number above 0"),
        (3, "dirichlet:inf", "must be a number above 0"),
        (3, "by:y", "would drop the target"),
        (4, "by:site", "makes 3 parties, not 4"),
    ],
)
def test_a_malformed_request_is_refused(parties: int | None, spec: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        split(table(60), "y", parties, spec)


def test_more_parties_than_rows_are_refused() -> None:
    with pytest.raises(DataError, match="21 parties cannot share 20 rows"):
        split(table(20), "y", 21)


def test_a_missing_target_is_refused() -> None:
    with pytest.raises(DataError, match="no column 'z'"):
        split(table(20), "z", 2)


def test_a_missing_column_to_split_by_is_refused() -> None:
    with pytest.raises(DataError, match=r"no column 'sit': did you mean 'site'\?"):
        split(table(20), "y", None, "by:sit")


def test_gaps_in_the_column_to_split_by_are_refused() -> None:
    frame = table(20)
    frame.loc[:2, "site"] = None
    with pytest.raises(DataError, match="missing in 3 rows"):
        split(frame, "y", None, "by:site")


@pytest.mark.parametrize("values", [["A b", "a-b"], ["-1", "1"], ["x", "!"]])
def test_values_that_cannot_name_parties_are_refused(values: list[str]) -> None:
    frame = table(20).assign(site=values * 10)
    with pytest.raises(DataError, match="rename them"):
        split(frame, "y", None, "by:site")


def test_the_help_text_has_every_spelling() -> None:
    assert SPLITS == ("iid", "dirichlet:ALPHA", "quantity:BETA", "noise:BETA", "by:COLUMN")


def test_a_loaded_collection_can_be_split() -> None:
    parts = split(load("sklearn:digits"), "target", 10, "dirichlet:0.5")
    assert sum(sizes(parts)) == 1797


def test_rows_of_a_party_keep_their_order() -> None:
    frame = pd.DataFrame({"x": range(40), "y": ["a", "b"] * 20})
    for spec in ("iid", "dirichlet:5", "quantity:5"):
        for part in split(frame, "y", 4, spec).values():
            assert part["x"].is_monotonic_increasing
