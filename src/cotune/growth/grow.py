"""Growing the trees of one boosting round: those of all classes in the same messages."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from cotune.growth.layout import Layout
from cotune.growth.rules import Rules
from cotune.growth.split import GRADIENT, HESSIAN, Finder, Found, Sums, drawn, leaf_value
from cotune.party.train.bins import Bins
from cotune.party.train.grow import Split, Tree

#: Which parties answered.
Answered = tuple[str, ...]


class Finished(msgspec.Struct, frozen=True):
    """A round's trees, and how the parties are told of them: by the numbers of their own nodes."""

    trees: tuple[Tree, ...] = ()
    splits: tuple[Split, ...] = ()
    leaves: tuple[tuple[int, float], ...] = ()


class Source(Protocol):
    """Where the sums come from: all parties, or a party's own rows."""

    def ask(
        self,
        layout: Layout,
        wanted: Sequence[int],
        *,
        splits: Sequence[Split] = (),
        finished: Finished | None = None,
        within: Sequence[np.ndarray] = (),
    ) -> tuple[np.ndarray, list[Answered]]:
        """The histograms of the nodes wanted (node, channel, slot), and whose they are.

        Before, the rows are parted by the splits, and the round that is finished is added to what
        is predicted. `within` has for each node the numbers of rows in a histogram that holds all
        of its rows: where these are 0, the node's own need not be told.
        """


@dataclass(slots=True)
class Node:
    """A node of a tree, which may or may not come to be part of it.

    `known` says that its best split was looked for; `found` is None where there is none.
    """

    depth: int
    sums: Sums
    parent: Node | None = None
    histogram: np.ndarray | None = None
    answered: Answered | None = None
    known: bool = False
    found: Found | None = None
    children: tuple[int, int] | None = None


class Growth:
    """The nodes of one round's trees, numbered as the parties number them."""

    def __init__(
        self, source: Source, rules: Rules, layout: Layout, roots: int, seeds: Sequence[int]
    ) -> None:
        self._source = source
        self._rules = rules
        self._layout = layout
        self._seeds = seeds
        self._roots = range(roots)
        self._finder = Finder(layout, rules)
        self._nodes = [Node(0, (0.0, 0.0, 0.0)) for _ in self._roots]
        self._unsaid: list[Split] = []

    def grow(self, before: Finished | None) -> Finished:
        """Ask until all trees are grown; the parties are told first of the round before.

        A message asks for the children of all nodes that can still be divided. If leaves are
        limited, some of them will lose their place to nodes not seen yet: that costs bytes, and
        saves a message for every leaf.
        """
        histograms, answered = self._source.ask(self._layout, self._roots, finished=before)
        self._note_roots(self._roots, histograms, answered)
        taken: dict[int, list[int]] = {}
        while len(taken) < len(self._roots):
            wanted: list[int] = []
            for root in self._roots:
                if root in taken:
                    continue
                chosen, to_divide, certain = self._replayed(root)
                children = [child for node in to_divide for child in self._divided(node)]
                if certain:
                    taken[root] = chosen
                else:
                    wanted += children
            if wanted:
                self._explore(wanted)
        return self._finished([taken[root] for root in self._roots])

    def _replayed(self, root: int) -> tuple[list[int], list[int], bool]:
        """Divide the node of the largest gain, again and again, as far as gains are known.

        Returns the nodes that are divided in the tree, those to be divided now, and whether the
        tree is certain. A node that so many others come before that there is room for no more
        leaves is left alone: what is not known yet can only push it back further.
        """
        most = self._rules.leaves or 2**31
        queue = self._queued([root])
        leaves, certain = 1, True
        taken: list[int] = []
        to_divide: list[int] = []
        while queue and leaves < most:
            number = heapq.heappop(queue)[1]
            leaves += 1
            children = self._nodes[number].children
            ready = children is not None and all(self._nodes[c].known for c in children)
            if children is None and (leaves < most or certain):
                to_divide.append(number)
            certain = certain and (ready or leaves == most)
            if certain:
                taken.append(number)
            if children is not None and ready:
                for entry in self._queued(children):
                    heapq.heappush(queue, entry)
        return taken, to_divide, certain

    def _queued(self, numbers: Sequence[int]) -> list[tuple[float, int]]:
        found = [(self._nodes[number].found, number) for number in numbers]
        return [(-split.gain, number) for split, number in found if split is not None]

    def _divided(self, number: int) -> list[int]:
        """Make the children of a node; of two, the smaller is to be asked for, if any."""
        node = self._nodes[number]
        assert node.found is not None
        first = len(self._nodes)
        for sums in (node.found.left, node.found.right):
            child = Node(node.depth + 1, sums, node)
            child.known = self._is_closed(child)
            self._nodes.append(child)
        node.children = (first, first + 1)
        self._unsaid.append(node.found.split(number))
        if all(self._nodes[child].known for child in node.children):
            return []
        left_is_smaller = node.found.left[-1] <= node.found.right[-1]
        return [first if left_is_smaller else first + 1]

    def _is_closed(self, node: Node) -> bool:
        rules = self._rules
        return (
            node.depth == rules.depth
            or (rules.counted and node.sums[-1] < 2 * rules.min_rows)
            or node.sums[HESSIAN] * rules.curvature < 2 * rules.min_hessian
        )

    def _explore(self, wanted: Sequence[int]) -> None:
        """Ask for the smaller children. The others have what is left of the parent's rows.

        Not, though, if other parties answered for the parent than for the child: then both are
        asked for once more.
        """
        parents = [self._parent(number) for number in wanted]
        within = [histogram[-1] for _, histogram in parents] if self._rules.counted else []
        histograms, answered = self._source.ask(
            self._layout, wanted, splits=self._unsaid, within=within
        )
        self._unsaid = []
        again: list[int] = []
        for i, (number, (parent, rest)) in enumerate(zip(wanted, parents, strict=True)):
            assert parent.children is not None
            if parent.answered == answered[i]:
                rest -= histograms[i]
                self._note(number, histograms[i], answered[i])
                self._note(sum(parent.children) - number, rest, answered[i])
            else:
                again += parent.children
            parent.histogram = None
        if again:
            self._note_roots(again, *self._source.ask(self._layout, again))

    def _parent(self, number: int) -> tuple[Node, np.ndarray]:
        parent = self._nodes[number].parent
        assert parent is not None
        assert parent.histogram is not None
        return parent, parent.histogram

    def _note_roots(
        self, numbers: Sequence[int], histograms: np.ndarray, answered: Sequence[Answered]
    ) -> None:
        """Note histograms of nodes whose sums no split of a parent told, or told of others."""
        totals = self._layout.totals(histograms)[:, [GRADIENT, HESSIAN, -1]]
        for number, sums, histogram, whose in zip(
            numbers, totals.tolist(), histograms, answered, strict=True
        ):
            self._nodes[number].sums = tuple(sums)
            self._note(number, histogram, whose)

    def _note(self, number: int, histogram: np.ndarray, answered: Answered) -> None:
        """Look for the best split of a node, if it may be divided, and keep the histogram."""
        node = self._nodes[number]
        if not node.known:
            node.histogram, node.answered, node.known = histogram, answered, True
            node.found = self._finder.best(histogram, self._allowed(number))

    def _allowed(self, number: int) -> np.ndarray | None:
        """Which columns may divide a node, where they are drawn anew for each."""
        if self._rules.features >= 1.0:
            return None
        columns = len(self._layout.columns)
        allowed = np.zeros(columns, dtype=bool)
        allowed[drawn(self._rules.features, columns, (*self._seeds, number))] = True
        return allowed

    def _finished(self, taken: Sequence[Sequence[int]]) -> Finished:
        """The trees with nodes numbered anew, and the leaves as the parties know them."""
        trees = []
        leaves: list[tuple[int, float]] = []
        for root, divided in zip(self._roots, taken, strict=True):
            inside = set(divided)
            order = [root]  # by the new numbers
            splits, gains, covers = [], [], []
            own_leaves: list[tuple[int, float]] = []
            for new, number in enumerate(order):
                node = self._nodes[number]
                if number in inside:
                    assert node.found is not None
                    assert node.children is not None
                    splits.append(node.found.split(new))
                    gains.append(node.found.gain)
                    covers.append(node.sums[HESSIAN] * self._rules.curvature)
                    order += node.children
                else:
                    value = leaf_value(node.sums, self._rules)
                    leaves.append((number, value))
                    own_leaves.append((new, value))
            trees.append(Tree(tuple(splits), tuple(own_leaves), tuple(gains), tuple(covers)))
        return Finished(tuple(trees), tuple(self._unsaid), tuple(leaves))


def grow_rounds(
    source: Source,
    rules: Rules,
    bins: Bins,
    roots: int,
    seed: int,
    numbers: Sequence[int],
    before: Finished | None = None,
) -> Iterator[Finished]:
    """Rounds of boosting one after the other; for each, the columns are drawn that it may use."""
    everything = tuple(range(len(bins.sizes)))
    layout = Layout(bins, everything)
    for number in numbers:
        if rules.columns < 1.0:
            columns = drawn(rules.columns, len(everything), (seed, number))
            layout = Layout(bins, tuple(columns.tolist()))
        before = Growth(source, rules, layout, roots, (seed, number)).grow(before)
        yield before
