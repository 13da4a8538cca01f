"""Compiling all loops before a round's clock ticks."""

from __future__ import annotations

from functools import cache

import numpy as np

from cotune.growth.layout import Layout
from cotune.growth.rules import Rules
from cotune.growth.split import Finder, leaf_value
from cotune.party.train.bins import Bins
from cotune.party.train.grow import Split
from cotune.party.train.grow_nodes import Columns, Nodes
from cotune.party.train.grow_rows import told_by_channel, two_classes, within_steps


@cache
def warm_up() -> None:
    """Grow a stump on four rows; takes seconds in the first process, a moment in later ones."""
    bins = Bins((2, 2), (np.zeros(1, dtype="<f4").tobytes(), None))
    layout, rules = Layout(bins, (0, 1)), Rules(1, 0.1, None, 1, min_hessian=0.0)
    gradients, hessians = two_classes(np.zeros((1, 4)), np.array([[0.0, 0.0, 1.0, 1.0]]))
    pair = within_steps(gradients, 2.0**-20, 1.0), within_steps(hessians, 2.0**-20, 1.0)
    codes = np.array([[0, 0, 1, 1], [0, 1, 1, 1]], dtype=np.uint8)
    nodes = Nodes(codes, bins, np.arange(4, dtype=np.uint32), 1)
    nodes.divide([Split(0, 0, 0, False), Split(1, 1, 0, False, b"\x01")])
    sums = nodes.sums([0], Columns((0, 1), bins), *pair)
    told = told_by_channel(sums.reshape(-1, sums.shape[-1]), np.ones(layout.slots, np.uint8))
    histogram = layout.unmasked(list(told), 1)[0]
    for allowed in ([True, False], [False, True]):  # by a number, by categories
        found = Finder(layout, rules).best(histogram, np.array(allowed))
        assert found is not None
        nodes.add_leaves([(1, leaf_value(found.left, rules))], np.zeros((1, 4)))
