"""FedEx in its wrappers, over real parties."""

from __future__ import annotations

from typing import Any

import pytest

from cotune.testing.method import METHOD_CHECKS

#: Small enough for dozens of runs: four arms of the wrapper, each with three of its own.
SMALL: dict[str, Any] = {
    "learners": ["torch_mlp"],
    "fixed": {"torch_mlp": {"hidden": 16, "layers": 1}},
    "rounds": 12,
    "max_rounds": 6,
    "eta": 2,
    "eliminations": 2,
    "arms": 3,
    "clients_per_round": 3,
}


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
def test_keeps_to_what_every_method_keeps_to(check: Any) -> None:
    check("fedex", **SMALL)
