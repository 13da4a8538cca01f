from __future__ import annotations

import numpy as np
import pytest

from cotune.compiled import compiled


def ratio(a: float, b: float) -> float:
    return a / b


def test_numbers_are_divided_as_in_numpy():
    assert compiled(ratio)(1.0, 0.0) == np.inf
    assert np.isnan(compiled(ratio)(0.0, 0.0))


def test_a_function_is_compiled_also_where_nothing_can_be_kept(monkeypatch):
    import numba

    whole = numba.njit

    def njit(*, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return whole(**options)

    monkeypatch.setattr(numba, "njit", njit)
    assert compiled(ratio)(1.0, 2.0) == pytest.approx(0.5)
