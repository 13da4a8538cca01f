from __future__ import annotations

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.data.schema import Column, Schema
from cotune.errors import Malformed
from cotune.party.marginals import ROWS_PER_QUANTILE, marginals, quantiles_of, wasserstein
from cotune.party.tasks import Distributions, Marginals
from cotune.protocol.wire import decode_body, encode
from tests.parts import (
    ask,
    diabetes,
    federation_of,
    iris,
    parts,
    party_of,
    people,
    pictures,
    problem_of,
    schema_of,
)

COLUMNS = (
    Column("age", "numeric", mean=10.0, scale=2.0),
    Column("city", "categorical", ("a", "b")),
)
SCHEMA = Schema("target", "classification", COLUMNS, ("no", "yes"))

steps = st.lists(st.floats(-100, 100), min_size=1, max_size=7).map(lambda q: tuple(sorted(q)))
counts = st.lists(st.integers(0, 50), min_size=3, max_size=3).filter(any)
shares = counts.map(lambda told: tuple(n / sum(told) for n in told))
told_by_any = st.builds(Distributions, st.tuples(steps, steps), st.tuples(shares))


def told(*quantiles, shares=()):
    return Distributions(tuple(quantiles), tuple(shares))


def test_marginals_are_standardised_quantiles_and_shares():
    frame = pd.DataFrame(
        {
            "age": [*range(20), np.nan],
            "city": ["a"] * 14 + [None] * 7,
            "target": ["yes"] * 7 + ["no"] * 14,
        }
    )
    found = marginals(frame, SCHEMA, 2)
    assert found.quantiles == (((4.75 - 10) / 2, (14.25 - 10) / 2),)
    assert found.shares[0] == pytest.approx((2 / 3, 0, 1 / 3))
    assert found.shares[1] == pytest.approx((2 / 3, 1 / 3))


def test_a_category_unknown_to_the_schema_counts_as_missing():
    frame = pd.DataFrame({"age": [1.0, 2.0], "city": ["a", "new"], "target": ["yes", "no"]})
    assert marginals(frame, SCHEMA, 2).shares[0] == (0.5, 0.0, 0.5)


def test_a_column_without_values_is_told_as_the_mean():
    frame = pd.DataFrame({"age": [np.nan] * 30, "city": None, "target": "no"})
    assert marginals(frame, SCHEMA, 21) == told((0.0,), shares=[(0.0, 0.0, 1.0), (1.0, 0.0)])


@given(st.lists(st.floats(-1e6, 1e6), max_size=80), st.integers(1, 30))
def test_a_quantile_stands_for_ten_values_and_ends_are_told_only_if_others_are_as_far(
    values, count
):
    found = quantiles_of(np.array([*values, np.nan]), count)
    if len(values) < ROWS_PER_QUANTILE:
        assert found == (0.0,)
        return
    assert len(found) == min(count, len(values) // ROWS_PER_QUANTILE)
    assert list(found) == sorted(found)
    inner = sorted(values)[1:-1]
    assert inner[0] <= found[0]
    assert found[-1] <= inner[-1]


def test_distances_computed_by_hand():
    assert wasserstein(told((0.0, 1.0)), told((2.0, 4.0))) == 2.5
    assert wasserstein(told((0.0,)), told((-1.0, 3.0))) == 2.0
    assert wasserstein(told((0.0, 3.0)), told((0.0, 1.0, 2.0))) == pytest.approx((1 + 2 + 2) / 6)
    one, other = (told((1.0,), shares=[s]) for s in ((0.5, 0.5, 0.0), (0.2, 0.4, 0.4)))
    assert wasserstein(one, other) == pytest.approx(0.4)


def test_a_shift_of_all_values_is_the_distance():
    values = np.random.default_rng(0).normal(size=500)
    one, other = (told(quantiles_of(values + shift, 21)) for shift in (0.0, 0.7))
    assert wasserstein(one, other) == pytest.approx(0.7)


@given(told_by_any, told_by_any, told_by_any)
def test_the_distance_is_symmetric_and_obeys_the_triangle_inequality(a, b, c):
    assert wasserstein(a, a) == 0
    assert wasserstein(a, b) == wasserstein(b, a) >= 0
    assert wasserstein(a, c) <= wasserstein(a, b) + wasserstein(b, c) + 1e-9


@pytest.mark.parametrize(("frame", "metric"), [(people(200), "accuracy"), (diabetes(), "rmse")])
def test_a_party_tells_its_marginals_within_the_size_foretold(tmp_path, frame, metric):
    problem = problem_of(frame, metric=metric)
    reply = ask(party_of(frame, tmp_path), Marginals(), problem)
    found = decode_body(Marginals(), reply.body, problem)
    assert found == marginals(frame, problem.schema)
    assert len(encode(reply)) <= Marginals().most_bytes(problem)
    assert reply.cost.fits == 0


def test_identical_parties_are_at_no_distance_and_others_are():
    tables = {"one": iris(), "twin": iris(), "other": iris().query("target != 2")}
    problem = problem_of(*tables.values())
    with federation_of(tables, problem=problem) as federation:
        found = federation.gather(Marginals())
    assert wasserstein(found["one"], found["twin"]) == 0
    assert wasserstein(found["one"], found["other"]) > 0.5


def test_of_arrays_nothing_is_told_but_their_classes():
    schema = schema_of(pictures())
    assert marginals(pictures(), schema) == told(shares=[(1.0,), (0.5, 0.5)])


def test_a_random_split_lies_closer_than_one_by_class():
    schema = problem_of(iris()).schema
    by_class = [rows for _, rows in iris().groupby("target")]
    even, skewed = (
        [marginals(rows, schema, 5) for rows in split]
        for split in (parts(iris()).values(), by_class)
    )
    assert wasserstein(even[0], even[1]) < wasserstein(skewed[0], skewed[1]) / 4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"quantiles": [[0.0]] * 3}, "not those of the schema"),
        ({"shares": []}, "not those of the schema"),
        ({"shares": [[0.5, 0.5]]}, "not those of the schema"),
        ({"quantiles": [[0.0]] * 3 + [[]]}, "between 1 and 21 quantiles"),
        ({"quantiles": [[0.0]] * 3 + [[0.0] * 22]}, "between 1 and 21 quantiles"),
        ({"quantiles": [[0.0]] * 3 + [[1.0, 0.0]]}, "ascending"),
        ({"quantiles": [[0.0]] * 3 + [[0.0, np.inf]]}, "finite"),
        ({"quantiles": [[0.0]] * 3 + [[np.nan]]}, "finite"),
        ({"shares": [[0.5, 0.5, 0.5]]}, "sum to 1"),
        ({"shares": [[1.5, -0.5, 0.0]]}, "from 0 to 1"),
        ({"shares": [[np.nan, 0.5, 0.5]]}, "from 0 to 1"),
        ({"shares": "all"}, "does not fit the task marginals"),
    ],
)
def test_a_reply_that_is_no_distribution_is_malformed(change, sentence):
    reply = {"quantiles": [[0.0]] * 4, "shares": [[0.5, 0.25, 0.25]]}
    problem = problem_of(iris())
    decode_body(Marginals(), msgspec.Raw(encode(reply)), problem)
    with pytest.raises(Malformed, match=sentence):
        decode_body(Marginals(), msgspec.Raw(encode(reply | change)), problem)
