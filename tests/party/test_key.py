from __future__ import annotations

import stat
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.errors import FederationError
from cotune.methods.flash import fractions_of
from cotune.party.key import LADDER, SMALLEST_CELL, KeyFile, RowsRefused, RunKey, Secret
from cotune.party.rows import fraction_of, set_aside, validated

SECRET = Secret(bytes(range(32)))


@dataclass
class Stated:
    """As much of a problem as the choice of rows looks at."""

    task: str
    folds: int


def test_a_key_is_kept_for_its_data_and_readable_by_its_owner_only(tmp_path):
    keys = tmp_path / "state" / "keys"
    first = KeyFile.opened(keys, "one")
    assert KeyFile.opened(keys, "one").key == first.key
    assert KeyFile.opened(keys, "two").key != first.key
    assert len(first.key.secret) == 32
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o600
    for folder in (keys, keys.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_key_is_not_shown(tmp_path):
    assert SECRET.secret.hex() not in repr(SECRET)
    assert str(SECRET.secret) not in repr(KeyFile(tmp_path, SECRET))


def test_the_first_share_that_is_set_aside_is_the_only_one_also_after_a_restart(tmp_path):
    kept = KeyFile.opened(tmp_path, "one")
    kept.set_aside(0.0)
    kept.set_aside(0.2)
    for again in (kept, KeyFile.opened(tmp_path, "one")):
        again.set_aside(0.2)
        again.set_aside(0.0)
        for share in (0.20033, 0.21, 0.5):
            with pytest.raises(RowsRefused, match=r"sets 0\.2 of these rows aside.*--holdout 0\.2"):
                again.set_aside(share)
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600


def test_a_share_beside_the_ladder_is_refused_and_not_kept(tmp_path):
    kept = KeyFile.opened(tmp_path, "one")
    with pytest.raises(RowsRefused, match=r"holdout is 0\.20033.*whole percents.*use 0\.2$"):
        kept.set_aside(0.20033)
    kept.set_aside(0.3)


@pytest.mark.parametrize("share", [1.0, 1.0 - 1e-12, np.nan, np.inf])
def test_a_share_that_leaves_no_row_is_refused_and_the_key_stays_readable(tmp_path, share):
    kept = KeyFile.opened(tmp_path, "one")
    with pytest.raises(RowsRefused, match="the holdout is"):
        kept.set_aside(share)
    again = KeyFile.opened(tmp_path, "one")
    assert again.key == kept.key
    assert again.holdout == 0.0


def test_a_share_that_could_not_be_written_down_is_not_answered_for(tmp_path):
    kept = KeyFile.opened(tmp_path / "keys", "one")
    (tmp_path / "keys").rename(tmp_path / "gone")
    for _ in range(2):
        with pytest.raises(OSError, match="No such file"):
            kept.set_aside(0.2)


@pytest.mark.parametrize("content", [b"", b"{", b'{"secret":"YQ=="}', b"\xff\xfe"])
def test_a_damaged_key_is_a_sentence(tmp_path, content):
    path = KeyFile.opened(tmp_path, "one").path
    path.write_bytes(content)
    with pytest.raises(FederationError, match="is damaged: restore it"):
        KeyFile.opened(tmp_path, "one")


def test_every_share_of_flash_and_every_percent_is_on_the_ladder():
    for share in (*fractions_of(0.0375, 1.5), 0.1, 0.2, 0.3, 0.5, 0.9, 1.0):
        SECRET.check(share, "fraction")
    assert RunKey(0).check(0.20033, "fraction") is None


def test_another_purpose_or_key_has_another_seed():
    seeds = {
        SECRET.seed("a"), SECRET.seed("a", "b"), SECRET.seed("ab"), SECRET.seed("a", within="b"),
        SECRET.part("a").seed("b"), Secret(bytes(32)).seed("a"),
    }  # fmt: skip
    assert len(seeds) == 6
    assert min(seeds) > 2**200


def differ(one: set[int], other: set[int]) -> int:
    return len(one ^ other)


shares = st.one_of(st.floats(0.001, 0.999), st.sampled_from(LADDER[1:-1]))
questions = st.lists(
    st.tuples(
        st.sampled_from(["holdout", "fraction", "validation", "draw"]),
        shares,
        st.integers(2, 12),  # folds, or a round
        st.sampled_from(["classification", "regression"]),
        st.booleans(),  # of all rows, or without those that are set aside
    ),
    min_size=2,
    max_size=50,
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=120),
    questions,
    st.binary(min_size=32, max_size=32),
)
def test_no_two_sets_of_rows_of_one_order_differ_by_one_to_four(labels, asked, secret):
    """Sets of different orders differ by chance, which nobody outside can see."""
    frame = pd.DataFrame({"x": np.arange(len(labels)), "target": [f"c{i}" for i in labels]})
    everything, holdout = set(range(len(labels))), None
    kept, orders = everything, {}
    for kind, share, number, task, whole in asked:
        base = sorted(everything if whole else kept)
        y, key = np.array(labels)[base], Secret(secret)
        if kind == "holdout":
            try:
                key.check(share, kind)
            except RowsRefused:
                continue
            if holdout in (None, share):  # the first is pinned: see `KeyFile`
                rest, held = set_aside(frame, "target", share, key)
                holdout, kept = share, set(rest["x"])
                assert kept == everything - set(held["x"])
                assert len(kept) >= min(SMALLEST_CELL, len(labels))
            orders.setdefault("all", []).append(kept)
            continue
        if kind == "fraction":
            taken = fraction_of(y, share, Stated(task, number), key)
        elif kind == "validation":
            taken, judged = validated(len(y), share, key)
            assert len(judged) >= min(SMALLEST_CELL, len(y))
        else:
            taken = key.part("rows", "north").drawn(len(y), share, number)
        order = (kind, task if kind == "fraction" else "", whole or kept == everything)
        if kind == "draw":  # every round has an order of its own
            order += (number, round(share, 9))
        rows = {base[position] for position in taken}
        assert len(rows) >= min(SMALLEST_CELL, len(base))
        orders.setdefault(order, [set(base)]).append(rows)
    orders.setdefault("all", []).append(everything)
    for answered in orders.values():
        for one, other in combinations(answered, 2):
            assert differ(one, other) == 0 or differ(one, other) >= SMALLEST_CELL


def test_orders_of_rows_have_nothing_to_do_with_each_other():
    """Of two rounds, shares, tasks, targets and keys: as many in common as chance has it."""
    key, rows = SECRET, 2000
    drawn = [
        key.drawn(rows, 0.5, 1), key.drawn(rows, 0.5, 2), key.drawn(rows, 0.51, 1),
        key.part("rows", "north").drawn(rows, 0.5, 1), Secret(bytes(32)).drawn(rows, 0.5, 1),
        validated(rows, 0.5, key)[0],
        fraction_of(np.zeros(rows, int), 0.5, Stated("classification", 5), key),
        fraction_of(np.zeros(rows, int), 0.5, Stated("regression", 5), key),
        fraction_of(np.arange(rows) // 1999, 0.5, Stated("classification", 5), key),
    ]  # fmt: skip
    for one, other in combinations(drawn, 2):
        assert 0.45 < len(set(one) & set(other)) / (rows / 2) < 0.56
