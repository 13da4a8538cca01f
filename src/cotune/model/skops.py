"""Fitted scikit-learn estimators as bytes, without pickle: what is read back cannot run code.

The bytes are an archive in skops' format, which skops writes and reads. Here they are read by
`cotune` itself: an estimator is put together from the types listed below and from arrays that are
what they say, and from nothing else. Compiled code that believes an estimator's numbers (that of
trees) gets them checked; all other estimators in the list predict by NumPy, which looks at its
bounds. An `SVC` or a nearest neighbour's model consists of rows, and is read from nobody.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from cotune.errors import Malformed
from cotune.model.sklearn_trees import check_links, depth

#: Estimators that are read, by the package that has them.
_PACKAGES = {
    "sklearn.compose": "TransformedTargetRegressor",
    "sklearn.discriminant_analysis": "LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis",
    "sklearn.dummy": "DummyClassifier DummyRegressor",
    "sklearn.ensemble": "ExtraTreesClassifier ExtraTreesRegressor RandomForestClassifier "
    "RandomForestRegressor VotingClassifier VotingRegressor",
    "sklearn.kernel_approximation": "RBFSampler",
    "sklearn.linear_model": "ARDRegression BayesianRidge ElasticNet ElasticNetCV HuberRegressor "
    "Lars LarsCV Lasso LassoCV LassoLars LassoLarsCV LassoLarsIC LinearRegression "
    "LogisticRegression LogisticRegressionCV OrthogonalMatchingPursuit "
    "OrthogonalMatchingPursuitCV PassiveAggressiveClassifier PassiveAggressiveRegressor "
    "Perceptron QuantileRegressor Ridge RidgeCV RidgeClassifier RidgeClassifierCV SGDClassifier "
    "SGDRegressor TheilSenRegressor",
    "sklearn.naive_bayes": "BernoulliNB CategoricalNB ComplementNB GaussianNB MultinomialNB",
    "sklearn.neural_network": "MLPClassifier MLPRegressor",
    "sklearn.pipeline": "Pipeline",
    "sklearn.preprocessing": "LabelBinarizer LabelEncoder MaxAbsScaler MinMaxScaler RobustScaler "
    "StandardScaler",
    "sklearn.svm": "LinearSVC LinearSVR",
    "sklearn.tree": "DecisionTreeClassifier DecisionTreeRegressor ExtraTreeClassifier "
    "ExtraTreeRegressor",
}
_ESTIMATORS = {name: package for package, names in _PACKAGES.items() for name in names.split()}
#: The losses in linear models of stochastic descent; they hold a number at most.
_LOSSES = {
    "sklearn.linear_model._sgd_fast": "EpsilonInsensitive Hinge ModifiedHuber "
    "SquaredEpsilonInsensitive SquaredHinge",
    "sklearn._loss._loss": "CyHalfBinomialLoss CyHalfSquaredError CyHuberLoss",
}
TREE = "sklearn.tree._tree.Tree"
#: Types of a saved model that nobody else may send. They hold nothing but estimators and arrays.
OF_MODELS = (TREE, "cotune.model.predictors.AllClasses")
#: What the parts of a file may unpack to: a small file can claim to be a very large one.
MOST_UNPACKED = 2**31
#: And that many times the file's own size, once it is more than this. Trees over 500 classes, whose
#: nodes are mostly zeros, unpack to 140 times their size; an archive can claim 1000.
MOST_RATIO, SMALL = 250, 2**26
#: Of that, the description of the objects.
MOST_DESCRIBED = 2**26
#: The types of an array's numbers; `U` is text.
_KINDS = "biufU"
_KEYS = {"str": str, "int": int, "float": float, "int64": np.int64, "float64": np.float64}
_DESCRIPTION = "schema.json"
#: The version of skops' format, which pyproject.toml keeps skops at.
PROTOCOL = 2


class Untrusted(Malformed):
    """The bytes hold types that may not be read."""

    def __init__(self, types: list[str]) -> None:
        super().__init__(f"it holds types that cotune does not read: {', '.join(types)}")
        self.types = types


def dumped(estimator: Any) -> bytes:
    """The estimator in skops' format; its own exception for an object that it cannot save.

    Equal estimators give equal bytes: arrays are called by what they hold, not by where they lie
    in memory, and the archive has no time in it.
    """
    import skops.io

    with zipfile.ZipFile(io.BytesIO(skops.io.dumps(estimator))) as made:
        files = {name: made.read(name) for name in made.namelist()}
    description = json.loads(files.pop(_DESCRIPTION))
    names = {
        name: hashlib.blake2b(content, digest_size=16).hexdigest() + name[name.rindex(".") :]
        for name, content in files.items()
    }
    parts = {names[name]: content for name, content in files.items()}
    parts[_DESCRIPTION] = json.dumps(_without_places(description, names)).encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(parts):
            archive.writestr(zipfile.ZipInfo(name), parts[name], zipfile.ZIP_DEFLATED)
    return content.getvalue()


def _without_places(node: Any, names: Mapping[str, str]) -> Any:
    """A description without the objects' places in memory."""
    if isinstance(node, list):
        return [_without_places(part, names) for part in node]
    if not isinstance(node, dict):
        return node
    if not isinstance(node.get("__loader__"), str):  # an object's attributes, by any name
        return {name: _without_places(part, names) for name, part in node.items()}
    kept = {name: _without_places(part, names) for name, part in node.items() if name != "__id__"}
    return kept | {"file": names[node["file"]]} if "file" in node else kept


def untrusted(content: bytes, trusted: tuple[str, ...] = ()) -> list[str]:
    """The types in the bytes that cotune does not read, and that are not among the trusted."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return _unknown(_described(archive), trusted)


def loaded(content: bytes, columns: int, trusted: tuple[str, ...] = ()) -> Any:
    """The estimator that was dumped, to be used on rows with that many columns.

    `Malformed` for all that is not one, `Untrusted` where types are the reason.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            most = min(MOST_UNPACKED, SMALL + MOST_RATIO * len(content))
            if sum(part.file_size for part in archive.infolist()) > most:
                raise Malformed("it would unpack to more than cotune reads")
            description = _described(archive)
            unknown = _unknown(description, trusted)
            if unknown:
                raise Untrusted(unknown)
            return _Reader(archive, columns, trusted).built(description)
    except Malformed:
        raise
    except Exception as error:  # foreign bytes fail in as many ways as there are types
        raise Malformed("it is not an estimator that these versions can read") from error


def read_array(content: bytes) -> np.ndarray:
    """The array in the bytes of a `.npy` file.

    Its size is that of the bytes: `np.load` makes room for as many numbers as the header claims.
    """
    stream = io.BytesIO(content)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise Malformed("an array is of a version of NumPy's format that cotune does not write")
        shape, by_columns, kind = np.lib.format.read_array_header_1_0(stream)
        fits = math.prod(shape) * kind.itemsize == len(content) - stream.tell()
        if kind.hasobject or min(shape, default=0) < 0 or not fits:
            raise Malformed("an array does not have as many numbers as its shape says")
        own = bytearray(stream.read())  # that can be written to
        return np.frombuffer(own, kind).reshape(shape, order="F" if by_columns else "C")
    except Malformed:
        raise
    except Exception as error:  # headers are Python literals, and fail as these do
        raise Malformed("it is not an array of NumPy's") from error


def _described(archive: zipfile.ZipFile) -> Any:
    description = json.loads(_part(archive, _DESCRIPTION, MOST_DESCRIBED))
    if description["protocol"] != PROTOCOL:
        raise Malformed("it is of another version of skops' format than cotune reads")
    return description


def _part(archive: zipfile.ZipFile, name: str, most: int = MOST_UNPACKED) -> bytes:
    part = archive.getinfo(name)
    if part.file_size > most or part.compress_type not in (
        zipfile.ZIP_STORED,
        zipfile.ZIP_DEFLATED,
    ):
        raise Malformed("it would unpack to more than cotune reads")
    with archive.open(part) as file:
        return file.read(part.file_size)  # `archive.read` would unpack more, if there is more


def _unknown(description: Any, trusted: tuple[str, ...]) -> list[str]:
    """The types in a description that are not read, in the order of their names."""
    unknown, waiting = set(), [description]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if isinstance(node.get("__loader__"), str) and not _is_known(node, trusted):
                unknown.add(_name(node))
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return sorted(unknown)


def _name(node: Mapping[str, Any]) -> str:
    return f"{node.get('__module__')}.{node.get('__class__')}"


def _is_known(node: Mapping[str, Any], trusted: tuple[str, ...]) -> bool:
    module, kind = str(node.get("__module__")), str(node.get("__class__"))
    match node["__loader__"]:
        case "JsonNode":
            return True
        case "DictNode" | "ListNode" | "TupleNode":
            return _name(node) in ("builtins.dict", "builtins.list", "builtins.tuple")
        case "TypeNode":
            return kind in _KEYS
        case "NdArrayNode":
            return module == "numpy" and node.get("type") == "numpy"
        case "LossNode":
            return kind in _LOSSES.get(module, "").split()
        case "TreeNode":
            return TREE in trusted and _name(node) == TREE
        case "ObjectNode":
            own = module.startswith("sklearn.") and kind in _ESTIMATORS
            return own or (_name(node) in trusted and _name(node) != TREE)
    return False


class _Reader:
    """Puts the objects of a description together."""

    def __init__(self, archive: zipfile.ZipFile, columns: int, trusted: tuple[str, ...]) -> None:
        self._archive = archive
        self._columns = columns
        self._trusted = trusted
        self._arrays: dict[str, np.ndarray] = {}

    def built(self, node: dict[str, Any]) -> Any:
        if not _is_known(node, self._trusted):
            raise Untrusted([_name(node)])
        match node["__loader__"]:
            case "JsonNode":
                return _value(node["content"])
            case "DictNode":
                return self._dict(node)
            case "ListNode":
                return [self.built(part) for part in node["content"]]
            case "TupleNode":
                return tuple(self.built(part) for part in node["content"])
            case "NdArrayNode":
                return self._plain_array(node)
            case "LossNode":
                return self._loss(node)
            case "TreeNode":
                return self._tree(node)
            case "ObjectNode":
                return self._estimator(node)
            case _:  # the type of a dictionary's keys is no value: nothing is imported for it
                raise Malformed("a type stands in it where there should be a value")

    def _dict(self, node: dict[str, Any]) -> dict[Any, Any]:
        kinds = [_KEYS[kind["__class__"]] for kind in node["key_types"]["content"]]
        pairs = zip(kinds, node["content"].items(), strict=True)
        return {kind(name): self.built(value) for kind, (name, value) in pairs}

    def _plain_array(self, node: dict[str, Any]) -> Any:
        array = self._array(node)
        if array.dtype.kind not in _KINDS:
            raise Malformed("an array in it holds neither numbers nor text")
        return array if node["__class__"] == "ndarray" else array.reshape(())[()]

    def _array(self, node: dict[str, Any]) -> np.ndarray:
        name = node["file"]
        if name not in self._arrays:
            self._arrays[name] = read_array(_part(self._archive, name))
        return self._arrays[name]

    def _loss(self, node: dict[str, Any]) -> Any:
        numbers = self.built(node["__reduce__"]["args"])
        return getattr(import_module(node["__module__"]), node["__class__"])(*map(float, numbers))

    def _tree(self, node: dict[str, Any]) -> Any:
        """A tree for one output, whose nodes are of the one type that it reads them as."""
        from sklearn.tree._tree import NODE_DTYPE, Tree

        columns, classes, outputs = self.built(node["__reduce__"]["args"])
        state = node["content"]["content"]
        nodes, values = self._array(state["nodes"]), self.built(state["values"])
        if type(columns) is not int or outputs != 1 or classes.shape != (1,):
            raise Malformed("a tree is not one over columns with one output")
        if nodes.dtype != NODE_DTYPE or nodes.ndim != 1:
            raise Malformed("a tree's nodes are not those of this version of scikit-learn")
        if values.dtype != np.float64 or values.shape != (len(nodes), 1, classes[0]):
            raise Malformed("a tree has not as many values as it has nodes and classes")
        left, right, feature = (nodes[n] for n in ("left_child", "right_child", "feature"))
        check_links(left, right, feature, min(columns, self._columns))
        tree = Tree(columns, classes.astype(np.intp), 1)
        tree.__setstate__(
            {
                "max_depth": depth(left, right),
                "node_count": len(nodes),
                "nodes": np.ascontiguousarray(nodes),
                "values": np.ascontiguousarray(values),
            }
        )
        return tree

    def _estimator(self, node: dict[str, Any]) -> Any:
        name = node["__class__"]
        package = _ESTIMATORS[name] if node["__module__"].startswith("sklearn.") else None
        kind = getattr(import_module(package or node["__module__"]), name)
        estimator = kind.__new__(kind)
        state = self._dict(node["content"])
        state.pop("_sklearn_version", None)
        if state.get("n_jobs") is not None:
            state["n_jobs"] = 1  # how many threads are started is not the sender's to say
        vars(estimator).update(state)
        _check_trees(estimator)
        return estimator


def _value(written: str) -> bool | int | float | str | None:
    value = json.loads(written)
    if not isinstance(value, bool | int | float | str | None):
        raise Malformed("a value in it is neither a number nor text")
    return value


def _check_trees(estimator: Any) -> None:
    """A forest's trees are given its rows without another look: all must be over its columns."""
    state = vars(estimator)
    if "Tree" not in type(estimator).__name__ and "Forest" not in type(estimator).__name__:
        return
    for part in [estimator, *state.get("estimators_", [])]:
        tree, columns = vars(part).get("tree_"), state.get("n_features_in_")
        if tree is not None and (type(columns) is not int or tree.n_features != columns):
            raise Malformed("a tree is not one over the columns of its estimator")


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
