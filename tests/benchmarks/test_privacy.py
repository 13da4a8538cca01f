"""The benchmark of private sums, with few parties."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import privacy


@pytest.mark.parametrize(("parties", "lost"), [(2, []), (3, [1]), (4, [1, 2])])
def test_as_many_parties_drop_out_as_a_masked_total_can_lose(parties, lost):
    found = privacy.rounds(parties, "masked", 1)
    assert list(found) == ["short", "long", *(f"short, {gone} dropped out" for gone in lost)]
    assert all(seconds > 0 for seconds in found.values())
