"""The grid over a space that PrivTuna counts configurations in, and clusters of its dense cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from cotune.errors import UsageError
from cotune.space import Space
from cotune.space.domain import Category, Fixed, Number

#: L of section V-C: a cell is at most so much of a parameter's range wide, in the search's scale.
#: All have one width, which makes it 1/7.
WIDTH = 0.15
#: Cells of one learner, at most: with more parameters cells are wider.
MOST_CELLS = 4096


class Cells:
    """Cells of the unit cube of a space; a category has one for each choice.

    A parameter that may be inactive has one more for that. Numbers that differ by one cell in one
    parameter are neighbours (above, below, left, right in two dimensions), categories never.

    >>> cells = Cells(Space({"lr": (0.0, 1.0), "kernel": ["rbf", "poly"]}))
    >>> cells.shape, cells.of({"lr": 0.2, "kernel": "poly"})
    ((7, 2), 3)
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._names = [name for name in space if not isinstance(space[name], Fixed)]
        self.shape = self._shape(WIDTH)
        per_number = self._per_number(WIDTH)
        while math.prod(self.shape) > MOST_CELLS and per_number > 2:
            per_number -= 1
            self.shape = self._shape(1.0 / per_number)
        if math.prod(self.shape) > MOST_CELLS:
            raise UsageError(
                f"a space of {len(self._names)} parameters has too many cells to count in: combine "
                "by 'mean' or 'best-mean', or fix parameters that matter little"
            )

    @staticmethod
    def _per_number(width: float) -> int:
        return math.ceil(1.0 / width - 1e-9)

    def _shape(self, width: float) -> tuple[int, ...]:
        sizes = []
        for name in self._names:
            domain = self._space[name]
            usual = len(domain.choices) if isinstance(domain, Category) else self._per_number(width)
            sizes.append(usual + self._may_be_inactive(name))
        return tuple(sizes)

    def _may_be_inactive(self, name: str) -> bool:
        return name not in self._space.active({})

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def of(self, params: Mapping[str, Any]) -> int:
        """The number of the configuration's cell."""
        return self._number(self._place(params))

    def closest(self, params: Mapping[str, Any]) -> int | None:
        """Line 4 of Algorithm 3: the neighbour of its cell whose centre it is nearest to."""
        place, found = self._place(params), []
        for axis in self._numeric:
            name, per_number = self._names[axis], self._numbers(axis)
            if name not in params:
                continue
            at = float(self._space[name].encode([params[name]])[0, 0]) * per_number
            for moved in (place[axis] - 1, place[axis] + 1):
                if 0 <= moved < per_number:
                    # the other offsets are the same for all neighbours, but for this axis' own
                    farther = (at - moved - 0.5) ** 2 - (at - place[axis] - 0.5) ** 2
                    neighbour = (*place[:axis], moved, *place[axis + 1 :])
                    found.append((farther / per_number**2, self._number(neighbour)))
        return min(found)[1] if found else None

    def clusters(self, dense: np.ndarray) -> np.ndarray:
        """Line 15: for every cell the number of its cluster, -1 where it is not dense.

        Adjacent dense cells are of one cluster; clusters are numbered by their first cell.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        cells = np.flatnonzero(dense)
        index = {int(cell): i for i, cell in enumerate(cells)}
        pairs = [
            (index[cell], index[neighbour])
            for cell in index
            for neighbour in self._neighbours(cell)
            if neighbour in index
        ]
        labels = np.full(self.count, -1)
        if len(cells):
            rows, columns = np.array(pairs, dtype=int).reshape(-1, 2).T
            graph = coo_array((np.ones(len(rows)), (rows, columns)), shape=(len(cells),) * 2)
            _, found = connected_components(graph, directed=False)
            order = {label: i for i, label in enumerate(dict.fromkeys(found.tolist()))}
            labels[cells] = [order[label] for label in found.tolist()]
        return labels

    def _neighbours(self, cell: int) -> list[int]:
        place = np.unravel_index(cell, self.shape) if self.shape else ()
        return [
            self._number((*place[:axis], place[axis] + 1, *place[axis + 1 :]))
            for axis in self._numeric
            if place[axis] + 1 < self._numbers(axis)
        ]

    def _numbers(self, axis: int) -> int:
        """Cells of a number, without that for being inactive."""
        return self.shape[axis] - self._may_be_inactive(self._names[axis])

    @cached_property
    def _numeric(self) -> list[int]:
        names = enumerate(self._names)
        return [axis for axis, name in names if isinstance(self._space[name], Number)]

    def _place(self, params: Mapping[str, Any]) -> tuple[int, ...]:
        place = []
        for axis, name in enumerate(self._names):
            domain = self._space[name]
            if name not in params:
                place.append(self.shape[axis] - 1)
            elif isinstance(domain, Category):
                place.append(domain.position(params[name]))
            else:
                unit = float(domain.encode([params[name]])[0, 0])
                place.append(min(self._numbers(axis) - 1, int(unit * self._numbers(axis))))
        return tuple(place)

    def _number(self, place: Sequence[Any]) -> int:
        return int(np.ravel_multi_index(place, self.shape)) if self.shape else 0
