from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.errors import UsageError
from cotune.party.cells import MOST_CELLS, Cells
from cotune.space import Space, when

PLANE = Space({"x": (0.0, 1.0), "y": (0.0, 1.0)})
MIXED = Space({"lr": (1e-3, 1.0, "log"), "kernel": ["rbf", "poly"], "solver": "adam",
               "degree": when((1, 9), kernel="poly")})  # fmt: skip


def at(x, y):
    return {"x": x, "y": y}


def test_a_cell_is_as_wide_as_the_paper_says():
    assert Cells(PLANE).shape == (7, 7)  # ceil(1 / 0.15)


def test_numbers_are_placed_in_the_scale_of_the_search():
    cells = Cells(Space({"lr": (1e-7, 1.0, "log")}))
    assert [cells.of({"lr": 10.0 ** (k - 7) * 1.01}) for k in range(7)] == list(range(7))
    assert cells.of({"lr": 1.0}) == 6


@given(st.integers(0, 2**32))
def test_every_configuration_has_a_cell_and_neighbours_are_others(seed):
    cells = Cells(MIXED)
    params = MIXED.sample(np.random.default_rng(seed))
    own, closest = cells.of(params), cells.closest(params)
    assert 0 <= own < cells.count
    assert closest is not None
    assert own != closest
    places = [np.unravel_index(cell, cells.shape) for cell in (own, closest)]
    assert sum(abs(int(a) - int(b)) for a, b in zip(*places, strict=True)) == 1


def test_the_closest_cell_is_across_the_nearest_wall():
    cells = Cells(PLANE)
    middle = cells.of(at(0.5, 0.5))
    assert cells.closest(at(0.5, 0.5 + 0.06)) == middle + 1
    assert cells.closest(at(0.5 - 0.06, 0.5)) == middle - 7
    assert cells.closest(at(0.0, 0.0)) == 1  # no cell is below 0, and of equals the first is taken


def test_adjacent_dense_cells_are_one_cluster_and_corners_do_not_join():
    cells = Cells(PLANE)
    dense = np.zeros((7, 7), dtype=bool)
    dense[1, 1:4] = dense[2, 3] = True
    dense[3, 4] = dense[6, 6] = True  # (3, 4) touches (2, 3) by a corner only
    labels = cells.clusters(dense.ravel()).reshape(7, 7)
    assert labels[1, 1:4].tolist() == [0, 0, 0]
    assert (labels[2, 3], labels[3, 4], labels[6, 6]) == (0, 1, 2)
    assert (labels >= 0).sum() == 6


def test_categories_and_inactive_parameters_do_not_join():
    cells = Cells(MIXED)
    assert cells.shape == (7, 2, 8)
    labels = cells.clusters(np.ones(cells.count, dtype=bool)).reshape(cells.shape)
    assert len(np.unique(labels)) == 4  # two kernels, each with and without a degree
    assert cells.of({"lr": 1e-3, "kernel": "rbf"}) == 7


def test_nothing_dense_is_no_cluster():
    assert set(Cells(PLANE).clusters(np.zeros(49, dtype=bool))) == {-1}


def test_many_parameters_have_wider_cells_and_too_many_are_refused():
    seven = Cells(Space({f"p{i}": (0.0, 1.0) for i in range(7)}))
    assert seven.shape == (3,) * 7
    assert seven.count <= MOST_CELLS
    with pytest.raises(UsageError, match="combine by 'mean'"):
        Cells(Space({f"p{i}": (0.0, 1.0) for i in range(13)}))


def test_a_space_without_freedom_is_one_cell():
    cells = Cells(Space({"solver": "adam"}))
    assert (cells.count, cells.of({"solver": "adam"})) == (1, 0)
    assert cells.closest({"solver": "adam"}) is None
    assert cells.clusters(np.array([True])).tolist() == [0]
