"""Small tables for the tests: three numeric columns and a categorical one, with missing values."""

from __future__ import annotations

import numpy as np

from cotune.data.schema import Column, Schema
from cotune.learners import Learner

KINDS = ("binary", "multiclass", "regression")


def task_of(kind: str) -> str:
    return "regression" if kind == "regression" else "classification"


def make_schema(kind: str = "binary") -> Schema:
    classes = {"binary": ("0", "1"), "multiclass": ("0", "1", "2"), "regression": ()}[kind]
    numeric = tuple(Column(name, "numeric") for name in ("age", "weight", "height"))
    colour = Column("colour", "categorical", categories=("red", "green", "blue", "grey"))
    return Schema("target", task_of(kind), (*numeric, colour), classes)


def make_rows(learner: Learner, kind: str, n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Rows as `learner` asks for them; the target follows the age and the colour."""
    random = np.random.default_rng(7)
    numeric = random.normal(size=(n, 3))
    colour = random.integers(0, 4, n)
    score = numeric[:, 0] + (colour % 2) + 0.1 * random.normal(size=n)
    cuts = {"binary": [0.5], "multiclass": [0.0, 1.0], "regression": None}[kind]
    y = score if cuts is None else np.digitize(score, cuts)
    if learner.features != "codes":
        kind = np.float32 if learner.features == "tensor" else float
        return np.column_stack([numeric, np.eye(4)[colour]]).astype(kind), y
    X = np.column_stack([numeric, colour])
    X[random.random(X.shape) < 0.1] = np.nan
    return X, y
