"""What is told of growing trees: their splits, the finished ones, and what to start from."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from cotune.errors import Malformed
from cotune.model.sklearn_trees import MOST_DEPTH
from cotune.party.train.bins import MOST_BINS, Bins

if TYPE_CHECKING:
    from cotune.data.schema import Schema, TaskKind

#: The step to which every row's gradient and curvature are rounded, a power of two, and the most
#: they may be. All are exact in single precision, and all sums in double: totals do not depend on
#: the order of the rows. A regression's are in deviations of the target.
STEPS: dict[TaskKind, tuple[float, float]] = {
    "classification": (2.0**-20, 1.0),
    "regression": (2.0**-16, 2.0**8),
}
#: Rows of all parties together, at most.
MOST_ROWS = 2.0**31
#: Of one tree, at most.
MOST_SPLITS = 2**16
#: Of all trees of a round, at most.
MOST_NODES = 2**31
#: A leaf's value, a gain, a cover: at most. No honest tree comes near; sums of them stay finite.
LARGEST = 2.0**60
#: The step of the squares of a regression's target.
SQUARES_STEP = 2.0**-20
#: The step of a row's loss, and the most that it may be: beyond, all are as bad.
LOSS_STEP, LARGEST_LOSS = 2.0**-16, 64.0


class Split(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Sends the rows of a node up to a bin to the left; of categories, all but those in `right`.

    Nodes are numbered: the roots first, then the two that each split makes, left before right.
    """

    node: Annotated[int, msgspec.Meta(ge=0, le=MOST_NODES)]
    column: Annotated[int, msgspec.Meta(ge=0, le=MOST_NODES)]
    bin: Annotated[int, msgspec.Meta(ge=-1, le=MOST_BINS)]
    missing_left: bool
    right: bytes = b""


class Tree(msgspec.Struct, frozen=True, array_like=True):
    """A finished tree with the root 0: its splits, and the values of the nodes that are leaves.

    `gains` and `covers` say of each split how far it reduced the loss and how much it divided.
    """

    splits: tuple[Split, ...]
    leaves: tuple[tuple[int, float], ...]
    gains: tuple[float, ...] = ()
    covers: tuple[float, ...] = ()


class Start(msgspec.Struct, frozen=True):
    """All that a party must know to take part, also in the middle of the work.

    Parameters
    ----------
    target
        What is added up: gradients of a loss (`boost`), or the target itself (`class`, `value`).
    bins
        Of the columns.
    base
        What is predicted before the first tree, for each tree of a round.
    share, every
        The share of its rows that a party draws, anew every so many rounds.
    trees
        The finished rounds, each with its trees: one, or one per class.
    splits
        Of the trees that are under way.
    """

    target: Literal["boost", "class", "value"]
    bins: Bins
    base: tuple[float, ...] = (0.0,)
    share: float = 1.0
    every: Annotated[int, msgspec.Meta(ge=1)] = 1
    trees: tuple[tuple[Tree, ...], ...] = ()
    splits: tuple[Split, ...] = ()


def digest_of(task: msgspec.Struct) -> str:
    """Names what was asked up to here, whether or not the `start` was told with it."""
    encoded = msgspec.msgpack.encode(msgspec.structs.replace(task, start=None))
    return hashlib.blake2b(encoded, digest_size=12).hexdigest()


def trees_per_round(schema: Schema) -> int:
    """One for each class, if there are more than two."""
    return len(schema.classes) if len(schema.classes) > 2 else 1


def channels(schema: Schema, counted: bool) -> list[str]:
    """The sums that boosting looks at; a regression's curvature is the number of rows."""
    if schema.task == "regression":
        return ["gradients", "counts"]
    return ["gradients", "hessians", "counts"] if counted else ["gradients", "hessians"]


def check_tree(tree: Tree, bins: Bins) -> None:
    """Raise `Malformed` unless it is a tree over these bins, with numbers that can be meant."""
    if len(tree.splits) > MOST_SPLITS:
        raise Malformed(f"a tree has more than {MOST_SPLITS} splits")
    free = {0: 0}  # the nodes that are not divided, and how many splits lead to each
    for i, split in enumerate(tree.splits):
        if split.node not in free:
            raise Malformed("a tree divides a node that it does not have, or has divided before")
        depth = free.pop(split.node) + 1
        if depth > MOST_DEPTH:
            raise Malformed(f"a tree is more than {MOST_DEPTH} splits deep")
        free |= {1 + 2 * i: depth, 2 + 2 * i: depth}
        if not 0 <= split.column < len(bins.sizes):
            raise Malformed("a tree divides by a column that the schema does not have")
        size = bins.sizes[split.column]
        if bins.packed[split.column] is None:
            fits = split.right and all(code < size for code in split.right)
        else:
            fits = not split.right and -1 <= split.bin < size - 1
        if not fits:
            raise Malformed("a tree divides between bins that its column does not have")
    if len(tree.leaves) != len(free) or {node for node, _ in tree.leaves} != set(free):
        raise Malformed("the leaves of a tree are not the nodes that it does not divide")
    numbers = [value for _, value in tree.leaves] + [*tree.gains, *tree.covers]
    if not all(abs(number) <= LARGEST for number in numbers):  # NaN compares false
        raise Malformed("a tree has a number that is not finite or out of bounds")
    if not len(tree.gains) == len(tree.covers) == len(tree.splits):
        raise Malformed("a tree does not tell the gain of each split")
