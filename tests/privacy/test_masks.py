from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.errors import Malformed
from cotune.privacy.masks import Pairs, name_of, signed


def acquainted(count):
    pairs = {f"party-{i}": Pairs(f"party-{i}") for i in range(count)}
    roster = {name: one.public for name, one in pairs.items()}
    for one in pairs.values():
        one.meet(roster)
    return pairs


PAIRS = acquainted(6)


@settings(max_examples=25)
@given(count=st.integers(2, 6), length=st.integers(0, 40), seed=st.integers(0, 2**32))
def test_masks_cancel_in_the_total(count, length, seed):
    among = list(PAIRS)[:count]
    rng = np.random.default_rng(seed)
    told = {name: rng.integers(-(2**46), 2**46, length) for name in among}
    masked = [PAIRS[name].mask(told[name], among, "1") for name in among]
    total = np.sum(masked, axis=0, dtype=np.uint64) if length else np.empty(0, np.uint64)
    assert total.view(np.int64).tolist() == np.sum(list(told.values()), axis=0).tolist()


def test_a_masked_vector_looks_random_and_differs_by_round():
    zeros = np.zeros(1000, dtype=np.int64)
    first, second = (PAIRS["party-0"].mask(zeros, PAIRS, number) for number in "12")
    assert len(set(first.tolist()) | set(second.tolist())) == 2000
    bits = np.unpackbits(first.view(np.uint8)).mean()
    assert 0.49 < bits < 0.51


def test_the_key_of_one_round_takes_off_the_masks_of_that_round_only():
    zeros, pair = np.zeros(5, dtype=np.int64), ["party-0", "party-1"]
    key = PAIRS["party-1"].stream_key("party-0", "1")
    for number, taken_off in (("1", True), ("2", False)):
        masked = PAIRS["party-0"].mask(zeros, pair, number)
        left = masked - signed("party-0", "party-1", key, 5)
        assert (not left.any()) == taken_off


def test_a_roster_without_the_partys_own_key_is_refused():
    one, other = Pairs("one"), Pairs("other")
    with pytest.raises(Malformed, match="own key"):
        one.meet({"one": other.public, "other": other.public})


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(32)], ids=["none", "short", "small order"])
def test_a_key_that_is_none_is_refused(key):
    one = Pairs("one")
    with pytest.raises(Malformed, match="a public key that is none"):
        one.meet({"one": one.public, "other": key})


def test_a_roster_is_named_by_its_keys():
    roster = {"one": bytes(32), "two": bytes(31) + b"1"}
    assert name_of(roster) == name_of(dict(reversed(roster.items())))
    assert name_of(roster) != name_of(roster | {"two": bytes(32)})
