"""Fitted scikit-learn estimators as bytes, without pickle: what is read back cannot run code."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from cotune.errors import Malformed
from cotune.trees import check_links

#: Types of a saved model that skops does not trust by itself. Trees are checked after they are
#: read; the others are cotune's own and hold nothing but estimators and arrays.
OF_MODELS = ("sklearn.tree._tree.Tree", "cotune.predictors.AllClasses")
#: What the parts of a file may unpack to: a small file can claim to be a very large one.
MOST_UNPACKED = 2**31


class Untrusted(Malformed):
    """The bytes hold types that may not be read."""

    def __init__(self, types: list[str]) -> None:
        super().__init__(f"it holds types that cotune does not read: {', '.join(types)}")
        self.types = types


def dumped(estimator: Any) -> bytes:
    """The estimator in skops' format; its own exception for an object that it cannot save."""
    import skops.io

    content: bytes = skops.io.dumps(estimator, compression=zipfile.ZIP_DEFLATED)
    return content


def untrusted(content: bytes, trusted: tuple[str, ...] = ()) -> list[str]:
    """The types in the bytes that neither skops nor the caller trusts."""
    import skops.io

    return sorted(set(skops.io.get_untrusted_types(data=content)) - set(trusted))


def loaded(content: bytes, columns: int, trusted: tuple[str, ...] = ()) -> Any:
    """The estimator that was dumped, to be used on rows with that many columns.

    `Malformed` for all that is not one, `Untrusted` where types are the reason.
    """
    import skops.io
    from sklearn.tree._tree import Tree

    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(part.file_size for part in archive.infolist()) > MOST_UNPACKED:
                raise Malformed("it would unpack to more than cotune reads")
        unknown = untrusted(content, trusted)
        if unknown:
            raise Untrusted(unknown)
        estimator = skops.io.loads(content, trusted=list(trusted))
        for part in parts(estimator):
            if isinstance(part, Tree):
                _check_tree(part, columns)
    except Malformed:
        raise
    except Exception as error:  # foreign bytes fail in as many ways as there are types
        raise Malformed("it is not an estimator that these versions can read") from error
    return estimator


def _check_tree(tree: Any, columns: int) -> None:
    if tree.node_count < 1:
        raise Malformed("a tree has no nodes")
    check_links(tree.children_left, tree.children_right, tree.feature, columns)


def parts(whole: Any) -> Iterator[Any]:
    """Every object that an estimator is made of, itself first, each once."""
    seen: set[int] = set()
    waiting = [whole]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, list | tuple | set):
            waiting += part
        elif isinstance(part, np.ndarray):
            waiting += part.ravel().tolist() if part.dtype == object else []
        else:
            waiting += getattr(part, "__dict__", {}).values()
