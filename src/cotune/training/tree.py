"""One decision tree grown on all parties' rows, level by level, from counts in shared bins."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import msgspec
import numpy as np

from cotune import learners
from cotune.coordinator.federation import Federation
from cotune.data.schema import Schema
from cotune.errors import FederationError, UsageError, choices
from cotune.growth.grow import Answered
from cotune.growth.layout import Layout
from cotune.growth.warm_up import warm_up
from cotune.model.sklearn_trees import LEAF, NODE, PackedTree, build, check_packed
from cotune.party.task import Configuration
from cotune.party.train.bins import Bins
from cotune.party.train.grow import Split, Start
from cotune.problem import Problem, seed_of
from cotune.training import Stage, settled
from cotune.training.bins import shared_bins
from cotune.training.checkpoint import read
from cotune.training.grow_ask import Asker, Told
from cotune.training.grow_impurity import Chosen, Criterion, Search, purity

#: What scikit-learn's trees can count.
MOST_ROWS = np.iinfo(np.int32).max
#: What the federation can honour of scikit-learn's parameters.
KNOWN = ("max_depth", "min_samples_split", "min_samples_leaf", "max_features", "criterion",
         "ccp_alpha")  # fmt: skip
#: Below this variance, in deviations of the target squared, all rows count as the same.
NO_VARIANCE = 2.0**-19


class Grown(msgspec.Struct, frozen=True):
    """A finished tree: packed nodes (`cotune.model.sklearn_trees.NODE`), and packed values."""

    nodes: bytes
    values: bytes


def tree(
    federation: Federation, problem: Problem, configuration: Configuration
) -> Generator[Stage, None, Any]:
    """Train `decision_tree` or `extra_tree`; the model is scikit-learn's own estimator.

    Category codes are read as numbers, as the learners do it. Thresholds lie between the shared
    bins; with those, the tree is that of the rows in one place. Stages count rows that have come
    to a leaf.
    """
    name = configuration.learner
    params = settled(problem, configuration)
    for parameter in params:
        if parameter not in KNOWN:
            raise UsageError(choices(parameter, f"{name} parameter in federated training", KNOWN))
    if problem.task == "regression" and params.get("criterion", "squared_error") != "squared_error":
        raise UsageError(f"{name} of numbers is trained by squared_error only: fix its criterion")
    warm_up()
    saved = federation.restored()
    if saved is None:
        bins = shared_bins(federation, problem, codes_are_numbers=True)
        growth = _Growth(federation, problem, name, params, bins)
        yield from growth.grow()
        grown = growth.grown()
        federation.checkpoint(msgspec.msgpack.encode(grown))
    else:
        grown = read(saved, Grown, lambda grown: _check(grown, problem.schema))
    return _estimator(problem, name, params, grown)


@dataclass
class _Node:
    """`histogram` has the sums over its bins, while it may be divided."""

    depth: int
    sums: np.ndarray
    histogram: np.ndarray | None = None
    answered: Answered | None = None
    chosen: Chosen | None = None
    children: tuple[int, int] | None = None


class _Growth:
    """The nodes of the tree, numbered as the parties number them."""

    def __init__(
        self,
        federation: Federation,
        problem: Problem,
        learner: str,
        params: Mapping[str, Any],
        bins: Bins,
    ) -> None:
        self._schema = problem.schema
        self._classes = len(self._schema.classes)
        self._asker = Asker(
            federation,
            Told(Start("class" if self._classes else "value", bins)),
            pairs=max(1, self._classes // 2),
            names=("gradients", "hessians", "counts")
            if self._classes > 2
            else ("gradients", "counts"),
        )
        self._layout = Layout(bins, tuple(range(len(bins.sizes))))
        self._params = params
        self._random = learner == "extra_tree"
        self._seed = seed_of(problem.seed, "tree", learner)
        self._nodes: list[_Node] = [_Node(0, np.empty(0))]

    def grow(self) -> Generator[Stage, None, None]:
        """Divide all nodes of a level in one message, as far as it has room for their answers."""
        squares = () if self._classes else (0,)
        histograms, answered = self._asker.ask(self._layout, [0], squares=squares)
        root = self._nodes[0]
        root.histogram, root.answered = self._channels(histograms)[:, 0], answered[0]
        root.sums = self._layout.totals(root.histogram)
        rows = int(root.sums[-1])
        self._split, self._leaf = _least(self._params, rows)
        level = [] if self._is_leaf(0) else [0]
        while level:
            self._choose(level)
            divided = [number for number in level if self._nodes[number].chosen]
            level = self._divide(divided)
            if len(self._nodes) >= 2 * self._schema.rows:  # a tree of exact sums has fewer
                raise _drowned()
            waiting = sum(int(self._nodes[number].sums[-1]) for number in level)
            yield Stage(rows - waiting, rows)

    def grown(self) -> Grown:
        nodes = np.zeros(len(self._nodes), dtype=NODE)
        values = np.empty((len(self._nodes), self._classes or 1))
        for number, node in enumerate(self._nodes):
            if not 1 <= node.sums[-1] <= MOST_ROWS:
                raise _drowned()
            shares = node.sums[:-1] / node.sums[-1]
            values[number] = shares
            if not self._classes:
                values[number] = self._schema.target_mean + shares * self._schema.target_scale
            packed = nodes[number : number + 1]
            packed["n_node_samples"] = packed["weighted_n_node_samples"] = node.sums[-1]
            packed["impurity"] = self._impurity(number)
            packed["left_child"] = packed["right_child"] = LEAF
            if node.chosen is not None and node.children is not None:
                packed["left_child"], packed["right_child"] = node.children
                packed["feature"] = node.chosen.column
                packed["threshold"] = self._threshold(node.chosen)
                packed["missing_go_to_left"] = node.chosen.missing_left
        return Grown(nodes.tobytes(), values.astype("<f8").tobytes())

    def _threshold(self, chosen: Chosen) -> float:
        """scikit-learn sends values up to the threshold to the left, the bins those below it."""
        edges = self._layout.bins.edges[chosen.column]
        assert edges is not None
        if chosen.bin == len(edges):
            return np.inf
        return float(np.nextafter(float(edges[chosen.bin]), -np.inf))

    def _choose(self, level: list[int]) -> None:
        """Look for the best splits; the nodes must have histograms."""
        search = Search(
            self._criterion,
            _columns(self._params.get("max_features"), len(self._layout.columns)),
            self._leaf,
            self._random,
            self._seed,
        )
        for begin in range(0, len(level), 64):
            part = level[begin : begin + 64]
            histograms = [self._nodes[number].histogram for number in part]
            stacked = np.stack([h for h in histograms if h is not None], axis=1)
            for number, chosen in zip(
                part, search.splits(stacked, self._layout, part), strict=True
            ):
                self._nodes[number].chosen = chosen

    def _divide(self, level: list[int]) -> list[int]:
        """Make the children of the nodes; those that can be divided further, with histograms."""
        splits: list[Split] = []
        for number in level:
            node = self._nodes[number]
            assert node.chosen is not None
            first = len(self._nodes)
            node.children = (first, first + 1)
            for sums in (node.chosen.left, node.chosen.right):
                self._nodes.append(_Node(node.depth + 1, sums))
            split = node.chosen
            splits.append(Split(number, split.column, split.bin, split.missing_left))
        children = [c for number in level for c in self._nodes[number].children or ()]
        open_nodes = {number for number in children if not self._is_leaf(number, early=True)}
        wanted, parents = [], []
        for number in level:
            left, right = self._nodes[number].children or (0, 0)
            if open_nodes & {left, right}:
                left_is_smaller = self._nodes[left].sums[-1] <= self._nodes[right].sums[-1]
                wanted.append(left if left_is_smaller else right)
                parents.append(number)
            else:
                self._nodes[number].histogram = None
        self._ask(wanted, parents, splits, () if self._classes else tuple(children))
        return [number for number in children if not self._is_leaf(number)]

    def _ask(
        self, wanted: list[int], parents: list[int], splits: list[Split], squares: tuple[int, ...]
    ) -> None:
        """Fill in the histograms of the wanted children and of their siblings."""
        within = [self._rows(self._nodes[number]) for number in parents]
        if not wanted and not squares:
            return
        told, answered = self._asker.ask(
            self._layout, wanted, splits=splits, within=within, squares=squares
        )
        channels = self._channels(told)
        again: list[int] = []
        for i, (number, parent) in enumerate(zip(wanted, parents, strict=True)):
            node = self._nodes[parent]
            assert node.histogram is not None
            assert node.children is not None
            if node.answered == answered[i]:
                self._note(number, channels[:, i], answered[i])
                self._note(
                    sum(node.children) - number, node.histogram - channels[:, i], answered[i]
                )
            else:
                again += node.children
            node.histogram = None
        if again:
            told, answered = self._asker.ask(self._layout, again)
            for i, number in enumerate(again):
                self._note(number, self._channels(told)[:, i], answered[i])

    def _note(self, number: int, histogram: np.ndarray, answered: Answered) -> None:
        node = self._nodes[number]
        sums = self._layout.totals(histogram)
        node.sums = sums if sums[-1] > 0 else node.sums  # all who had rows here may have left
        if not self._is_leaf(number, early=True):
            node.histogram, node.answered = histogram, answered

    def _rows(self, node: _Node) -> np.ndarray:
        assert node.histogram is not None
        rows: np.ndarray = node.histogram[-1]
        return rows

    def _channels(self, told: np.ndarray) -> np.ndarray:
        """The rows of each class (or the sum of the target) and all rows: channel, node, slot.

        Of the first class nothing was: it has the rows that the others have not.
        """
        told = np.moveaxis(told, 1, 0)
        if not self._classes:
            return told
        pairs = self._classes // 2
        of_class = [told[(k - 1) % 2 * pairs + (k - 1) // 2] for k in range(1, self._classes)]
        return np.stack([told[-1] - sum(of_class), *of_class, told[-1]])

    @property
    def _criterion(self) -> Criterion:
        if not self._classes:
            return "squared_error"
        return "gini" if self._params.get("criterion", "gini") == "gini" else "entropy"

    def _impurity(self, number: int) -> float:
        sums = self._nodes[number].sums
        if self._classes:
            pure = float(purity(sums, self._criterion) / max(sums[-1], 1.0))
            return max(0.0, 1.0 - pure if self._criterion == "gini" else -pure)
        variance = self._asker.squares[number] / sums[-1] - (sums[0] / sums[-1]) ** 2
        return max(0.0, float(variance)) * self._schema.target_scale**2

    def _is_leaf(self, number: int, *, early: bool = False) -> bool:
        """Whether the node cannot be divided; early, the squares of its target are not known."""
        node, rows = self._nodes[number], self._nodes[number].sums[-1]
        if node.depth == self._params.get("max_depth"):
            return True
        if rows < max(self._split, 2 * self._leaf):
            return True
        if self._classes:
            return bool(node.sums[:-1].max() == rows)
        return not early and self._impurity(number) <= NO_VARIANCE * self._schema.target_scale**2


def _check(grown: Grown, schema: Schema) -> None:
    packed = PackedTree(len(grown.nodes) // NODE.itemsize, grown.nodes, grown.values)
    check_packed(packed, len(schema.columns), len(schema.classes))


def _drowned() -> FederationError:
    return FederationError(
        "the noise hides how many rows lie in the nodes of the tree: resume with --no-train, or "
        "tune another learner"
    )


def _least(params: Mapping[str, Any], rows: int) -> tuple[int, int]:
    """The rows that a node must have to be divided, and a leaf; given as numbers or shares."""
    split, leaf = params.get("min_samples_split", 2), params.get("min_samples_leaf", 1)
    split = ceil(split * rows) if isinstance(split, float) else split
    leaf = ceil(leaf * rows) if isinstance(leaf, float) else leaf
    return max(2, split), max(1, leaf)


def _columns(share: float | int | str | None, columns: int) -> int:
    """How many columns are looked at, by scikit-learn's `max_features`."""
    if share is None:
        return columns
    if isinstance(share, str):
        wide = {"sqrt": np.sqrt, "log2": np.log2}[share](columns)
        return max(1, int(wide))
    return share if isinstance(share, int) else max(1, int(share * columns))


def _estimator(problem: Problem, name: str, params: Mapping[str, Any], grown: Grown) -> Any:
    """scikit-learn's estimator as if it had been fitted; pruned, where that is asked for."""
    schema = problem.schema
    estimator: Any = learners.learner(name).estimator(
        params, task=schema.task, seed=problem.seed, schema=schema
    )
    nodes = np.frombuffer(grown.nodes, dtype=NODE)
    values = np.frombuffer(grown.values, dtype="<f8").reshape(len(nodes), -1)
    columns = len(schema.columns)
    estimator.n_features_in_, estimator.n_outputs_ = columns, 1
    estimator.max_features_ = _columns(params.get("max_features"), columns)
    if schema.classes:
        estimator.classes_ = np.arange(len(schema.classes))
        estimator.n_classes_ = np.int64(len(schema.classes))
    estimator.tree_ = build(nodes, values, columns)
    estimator._prune_tree()
    return estimator
