"""A model's files: what they say, and how the estimator in them is read without running code."""

from __future__ import annotations

import hashlib
import warnings
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from cotune.data.encode import Features, dense_width
from cotune.data.schema import Schema
from cotune.errors import Malformed, UsageError
from cotune.files import UNREADABLE, make_folder, sealed, unsealed, write
from cotune.model import boosters
from cotune.model.predictors import AllClasses
from cotune.model.skops import OF_MODELS, Untrusted, dumped, loaded, parts, read_array
from cotune.problem import Scaling

#: Of the files below; a model with another is refused.
FORMAT = 3
MANIFEST = "model.json"
BOOSTER: Literal["booster.json"] = "booster.json"
ESTIMATOR: Literal["estimator.skops"] = "estimator.skops"
WEIGHTS: Literal["weights.npy"] = "weights.npy"

Payload = Literal["booster.json", "estimator.skops", "weights.npy"]

Params = dict[str, bool | int | float | str | None]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`model.json`: everything but the estimator, and the SHA-256 of the file that holds it."""

    format: int = FORMAT
    learner: str
    params: Params
    schema: Schema
    scaling: Scaling
    features: Features
    metric: str
    about: dict[str, Any]
    payload: Payload
    sha256: str


class Packed(msgspec.Struct, frozen=True):
    """A model as bytes: its manifest, and its estimator."""

    manifest: Manifest
    payload: bytes

    @property
    def estimator(self) -> Any:
        """The estimator; `UsageError` if the bytes are damaged, or not to be read."""
        name = self.manifest.payload
        if hashlib.sha256(self.payload).hexdigest() != self.manifest.sha256:
            raise UsageError(
                f"{name} is not what {MANIFEST} says: it was changed, or not wholly copied; get "
                "the model again"
            )
        differing = _differing(self.manifest.about.get("versions"), versions(name))
        try:
            estimator = _read(self.payload, self.manifest)
        except Untrusted as error:
            raise UsageError(
                f"{name} is refused, {error}. cotune reads what its own training makes: estimators "
                "of scikit-learn, boosters of XGBoost and weights of networks"
            ) from error
        except Malformed as error:
            hint = f"; it was made with other versions ({differing})" if differing else ""
            raise UsageError(f"{name} cannot be read, {error}{hint}") from error
        if differing:
            warnings.warn(
                f"the model was made with other versions ({differing}): install those if its "
                "predictions must be the same to the last digit",
                stacklevel=4,
            )
        return estimator

    def write(self, folder: Path) -> None:
        """The two files, the manifest last: until then a model that lay there is not valid."""
        make_folder(folder)
        write(folder / self.manifest.payload, self.payload)
        write(folder / MANIFEST, sealed(self.manifest))
        for other in {BOOSTER, ESTIMATOR, WEIGHTS} - {self.manifest.payload}:
            (folder / other).unlink(missing_ok=True)

    @classmethod
    def read(cls, folder: Path) -> Packed:
        manifest = _manifest((folder / MANIFEST).read_bytes())
        return cls(manifest, (folder / manifest.payload).read_bytes())

    @classmethod
    def unpacked(cls, message: bytes) -> Packed:
        """The model in a message, its estimator not yet read; `Malformed` if there is none."""
        try:
            return msgspec.msgpack.decode(message, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed("the message is not a model of this version of cotune") from error


def payload_of(estimator: Any) -> tuple[Payload, bytes]:
    """The file that an estimator is kept in, and its content."""
    if is_booster(estimator):
        return BOOSTER, bytes(estimator.save_raw("json"))
    if type(estimator).__module__ == "cotune.networks.flat":
        content = BytesIO()
        np.save(content, estimator.weights, allow_pickle=False)
        return WEIGHTS, content.getvalue()
    return ESTIMATOR, dumped(estimator)


def is_booster(estimator: Any) -> bool:
    """Whether it is an `xgboost.Booster`, without importing XGBoost."""
    kind = type(estimator)
    return kind.__name__ == "Booster" and kind.__module__.startswith("xgboost")


def versions(payload: str) -> dict[str, str]:
    """Of the libraries that the file depends on."""
    from cotune import __version__

    names = {
        BOOSTER: ("xgboost", "xgboost-cpu"),
        ESTIMATOR: ("scikit-learn", "numpy", "skops"),
        WEIGHTS: ("torch", "numpy"),
    }[payload]
    found = {"cotune": __version__}
    for name in names:
        try:
            found[name.removesuffix("-cpu")] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _read(payload: bytes, manifest: Manifest) -> Any:
    if manifest.payload == BOOSTER:
        return boosters.read(payload, manifest.schema)
    if manifest.payload == WEIGHTS:
        return _network(payload, manifest)
    return _estimator(payload, manifest)


def _estimator(payload: bytes, manifest: Manifest) -> Any:
    """scikit-learn's estimator, over the schema's columns and classes."""
    columns = len(manifest.schema.columns)
    if manifest.features == "dense":
        columns = dense_width(manifest.schema)
    estimator = loaded(payload, columns, OF_MODELS)
    for part in parts(estimator):
        if isinstance(part, AllClasses) and part.classes != len(manifest.schema.classes):
            raise Malformed("a part of it is not for the classes of the schema")
    return estimator


def _network(payload: bytes, manifest: Manifest) -> Any:
    """The network of a learner, which must be known here, with the weights in the file."""
    from cotune.training.rounds import network_learner

    learner, weights = network_learner(manifest.learner), read_array(payload)
    count = learner.size(manifest.params, manifest.schema)
    if weights.dtype != np.float32 or weights.shape != (count,):
        raise Malformed("its weights are not as many as the network has")
    network = learner.network(manifest.params, manifest.schema, seed=0)
    network.load(weights)
    return network


class _Versioned(msgspec.Struct):
    format: int


def _manifest(content: bytes) -> Manifest:
    try:
        written = msgspec.json.decode(content, type=_Versioned).format
    except UNREADABLE as error:
        raise UsageError(f"{MANIFEST} is not that of a model of cotune: get it again") from error
    if written != FORMAT:
        raise UsageError(
            f"the model has the format {written}, and this version of cotune reads {FORMAT}: "
            "install the version of cotune that made it"
        )
    try:
        manifest = unsealed(content, Manifest)
        _check_schema(manifest.schema, manifest.features)
        return manifest
    except (Malformed, ValueError) as error:
        raise UsageError(
            f"{MANIFEST} is not that of a model of cotune, {error}: get the model again"
        ) from error


def _check_schema(schema: Schema, features: Features) -> None:
    """Raise `ValueError` where rows could not be encoded by it, or classes not be named."""
    names = [tuple(column.name for column in schema.columns), schema.classes]
    if any(len(set(one)) != len(one) for one in (*names, *(c.categories for c in schema.columns))):
        raise ValueError("two columns, categories or classes have one name")
    if schema.array is not None and (len(schema.columns) > 1 or features != "tensor"):
        raise ValueError("a column of arrays is not the only one")
    if any(min(c.shape, default=0) < 1 for c in schema.columns if c.kind == "array"):
        raise ValueError("a column's arrays have no numbers")
    if bool(schema.classes) != (schema.task == "classification"):
        raise ValueError("its task and its classes do not fit")
    if schema.number_classes:
        list(map(float, schema.classes))


def _differing(then: Any, now: dict[str, str]) -> str:
    """The libraries of another version than now, patches aside; empty if there is none."""
    written = then if isinstance(then, dict) else {}
    return ", ".join(
        f"{name} {written[name]}, here {there}"
        for name, there in now.items()
        if name in written and str(written[name]).split(".")[:2] != there.split(".")[:2]
    )
