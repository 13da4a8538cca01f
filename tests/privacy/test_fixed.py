from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.errors import Malformed
from cotune.party.task import RESOLUTION, Term
from cotune.privacy.fixed import WIDTHS, Digits

TERMS = {
    "losses": Term(3, 0.0, 1.0, RESOLUTION, weighted=True),
    "sums": Term(2, -(2.0**31), 2.0**31, RESOLUTION),
    "counts": Term(1, 0.0, 2.0**31, 1.0),
    "nothing": Term(0, 0.0, 1.0, 1.0),
}
HEAVIEST = 1000.0


def vectors(rng):
    weight = rng.integers(1, 1000)
    return {
        "losses": np.rint(rng.random(3) / RESOLUTION) * RESOLUTION * weight,
        "sums": np.rint(rng.normal(size=2) * 1e4 / RESOLUTION) * RESOLUTION,
        "counts": rng.integers(0, 2**31, 1).astype(float),
        "nothing": np.empty(0),
    }


@pytest.mark.parametrize("width", WIDTHS.values())
@given(seed=st.integers(0, 2**32), parties=st.integers(1, 30))
def test_the_total_of_the_digits_is_the_total_of_the_values(width, seed, parties):
    rng = np.random.default_rng(seed)
    told = [vectors(rng) for _ in range(parties)]
    digits = Digits(TERMS, HEAVIEST, width)
    totals = digits.vectors(sum(digits.integers(one) for one in told))
    for name in TERMS:
        assert totals[name].tolist() == np.sum([one[name] for one in told], axis=0).tolist()


@pytest.mark.parametrize("width", WIDTHS.values())
def test_the_ends_of_the_bounds_can_be_written(width):
    digits = Digits(TERMS, HEAVIEST, width)
    ends = {
        "losses": np.full(3, HEAVIEST),
        "sums": np.array([-(2.0**31), 2.0**31]),
        "counts": np.array([2.0**31]),
        "nothing": np.empty(0),
    }
    written = digits.integers(ends)
    assert len(written) == digits.slots
    assert np.abs(written).max() < 2**width
    found = digits.vectors(written)
    assert {name: found[name].tolist() for name in TERMS} == {
        n: v.tolist() for n, v in ends.items()
    }


def test_what_is_beyond_the_bounds_is_refused():
    digits = Digits({"counts": Term(1, 0.0, 100.0, 1.0)}, 1.0, 4)
    with pytest.raises(Malformed, match="larger than its bounds"):
        digits.integers({"counts": np.array([1e6])})


def test_a_total_of_another_length_is_refused():
    with pytest.raises(Malformed, match="another length"):
        Digits(TERMS, HEAVIEST, 20).vectors(np.zeros(3, dtype=np.int64))
