"""The trained model: what a user predicts with, saves, and passes on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pandas as pd

from cotune.data.arrays import shown
from cotune.data.encode import Features, columns_of, encode
from cotune.data.schema import Schema
from cotune.errors import Malformed, UsageError
from cotune.model.files import MANIFEST, Manifest, Packed, Params, is_booster, payload_of, versions
from cotune.model.predictors import Checked, OfBooster
from cotune.problem import Scaling

if TYPE_CHECKING:
    from cotune.party.task import Configuration
    from cotune.problem import Problem

#: Columns and classes that `describe` names, of each kind.
SHOWN = 12


@dataclass(frozen=True, repr=False, eq=False)
class Model:
    """A trained model, with all that is needed to use it on a table.

    Parameters
    ----------
    learner, params
        The configuration that was trained.
    schema, scaling, features
        How a table's rows become the numbers that the estimator takes.
    metric
        The name of the metric that it was tuned for.
    estimator
        What was fitted: one of scikit-learn's, or an `xgboost.Booster`. It predicts class codes
        (positions in `schema.classes`), or numbers.
    about
        How it was trained: method, parties, rounds, bytes. Saving adds the libraries' versions.
    """

    learner: str
    params: Params
    schema: Schema
    scaling: Scaling
    features: Features
    metric: str
    estimator: Any
    about: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, problem: Problem, configuration: Configuration, estimator: Any, about: dict[str, Any]
    ) -> Model:
        """The model of a problem, as a way of training leaves it."""
        from cotune import learners

        return cls(
            learner=configuration.learner,
            params=configuration.params,
            schema=problem.schema,
            scaling=problem.scaling,
            features=learners.learner(configuration.learner).features,
            metric=problem.metric_name,
            estimator=estimator,
            about=about,
        )

    def predict(self, frame: pd.DataFrame) -> np.ndarray:
        """A class for each row, as the parties' tables write it, or a number.

        The frame's columns may be in any order, and others than the model's are ignored. A
        category that no party had counts as missing.
        """
        X = self.encoded(frame)
        predicted: np.ndarray = self.on_codes.predict(X) if len(X) else np.empty(0)
        if self.schema.task == "classification":
            predicted = self.labels[predicted.astype(int)]
        return predicted

    def predict_proba(self, frame: pd.DataFrame) -> pd.DataFrame:
        """For each row the probability of each class, in a column that has the class's name.

        An estimator without probabilities is read by the logistic function (of several classes:
        the softmax) of its decision values, which ranks rows but is not calibrated.
        """
        if self.schema.task == "regression":
            raise UsageError("the model predicts numbers, which have no probabilities: use predict")
        X = self.encoded(frame)
        scores = self.on_codes.predict_proba(X) if len(X) else np.empty((0, len(self.labels)))
        return pd.DataFrame(scores, index=frame.index, columns=self.labels)

    def table(self, frame: pd.DataFrame) -> pd.DataFrame:
        """A column `prediction`, and for classes one with the probability of each."""
        predicted = pd.DataFrame({"prediction": self.predict(frame)}, index=frame.index)
        if self.schema.task == "regression":
            return predicted
        each = self.predict_proba(frame).add_prefix("probability ")
        return pd.concat([predicted, each], axis=1)

    def encoded(self, frame: pd.DataFrame) -> np.ndarray:
        """The frame's rows as the estimator takes them."""
        return encode(columns_of(frame, self.schema), self.schema, self.features, self.scaling)

    @cached_property
    def on_codes(self) -> Checked:
        """The estimator by scikit-learn's interface, from encoded rows to class codes."""
        classes = len(self.schema.classes)
        if is_booster(self.estimator):
            return Checked(OfBooster(self.estimator, classes), classes)
        return Checked(self.estimator, classes)

    @cached_property
    def labels(self) -> np.ndarray:
        """The classes in the order of their codes: text, or numbers where they were numbers."""
        classes = self.schema.classes
        if not self.schema.number_classes:
            return np.array(classes, dtype=object)
        try:
            return np.array([int(name) for name in classes])
        except ValueError:
            return np.array([float(name) for name in classes])

    def save(self, folder: str | Path) -> None:
        """Write the model into a folder, which is made if need be.

        `model.json` says what it is. Beside it lies the estimator: `booster.json`, which plain
        XGBoost reads, or `estimator.skops`. A model that lies there already is replaced.
        """
        packed = self._packed()
        try:
            packed.write(Path(folder))
        except OSError as error:
            raise UsageError(
                f"the model cannot be written to {folder} ({error.strerror}): give another folder, "
                "or see to the rights and the free space there"
            ) from error

    @classmethod
    def load(cls, folder: str | Path) -> Model:
        """Read a model from its folder, or from that of the run which trained it.

        Nothing in the files is run: a model is put together from known types only, and whatever
        compiled code will follow is checked before. The digest reveals a damaged file, not a
        forged one: what a forged model predicts is its author's choice.
        """
        folder = Path(folder)
        place = folder if (folder / MANIFEST).exists() else folder / "model"
        try:
            return cls._unpacked(Packed.read(place))
        except FileNotFoundError as error:
            missing = Path(error.filename).name
            raise UsageError(f"there is no model in {folder}: {missing} is missing") from error
        except OSError as error:
            raise UsageError(f"{folder} cannot be read: {error.strerror}") from error
        except UsageError as error:
            raise UsageError(f"{place}: {error}") from error

    def packed(self) -> bytes:
        """The model as one message, which `Model.unpacked` reads."""
        return msgspec.msgpack.encode(self._packed())

    @classmethod
    def unpacked(cls, message: bytes) -> Model:
        """Read a model with the same care as `load`; `Malformed` if it is not one."""
        try:
            return cls._unpacked(Packed.unpacked(message))
        except UsageError as error:
            raise Malformed("the message is not a model of this version of cotune") from error

    def describe(self) -> str:
        """What the model's files contain, and how it was trained, in a few lines."""
        packed = self._packed()
        numbers = [column.name for column in self.schema.columns if column.kind == "numeric"]
        categories = [column.name for column in self.schema.columns if column.kind == "categorical"]
        array = self.schema.array
        lines = {
            "learner": f"{self.learner} ({type(self.estimator).__name__})",
            "parameters": _pairs(self.params),
            "predicts": f"{self.schema.target}: {self.schema.task}, tuned for {self.metric}",
            "classes": _listed(self.schema.classes),
            "numbers": _listed(numbers),
            "categories": _listed(categories),
            "arrays": f"{array.name} of {shown(array.shape, array.codes)}" if array else "",
            "trained": _pairs({k: v for k, v in self.about.items() if k != "versions"}),
            "versions": _pairs(packed.manifest.about["versions"]),
            "file": f"{packed.manifest.payload}, {len(packed.payload)} bytes",
        }
        return "\n".join(f"{name:<11} {text}" for name, text in lines.items() if text)

    def __repr__(self) -> str:
        return f"<Model of {self.schema.target!r}: {self.learner}>"

    def _packed(self) -> Packed:
        name, payload = payload_of(self.estimator)
        manifest = Manifest(
            learner=self.learner,
            params=self.params,
            schema=self.schema,
            scaling=self.scaling,
            features=self.features,
            metric=self.metric,
            about=self.about | {"versions": versions(name)},
            payload=name,
            sha256=hashlib.sha256(payload).hexdigest(),
        )
        return Packed(manifest, payload)

    @classmethod
    def _unpacked(cls, packed: Packed) -> Model:
        manifest = packed.manifest
        return cls(
            learner=manifest.learner,
            params=manifest.params,
            schema=manifest.schema,
            scaling=manifest.scaling,
            features=manifest.features,
            metric=manifest.metric,
            estimator=packed.estimator,
            about=manifest.about,
        )


def _listed(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
