"""A party's own model, for learners that know no better way."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from cotune.errors import Malformed
from cotune.party.task import Configuration, Reply, Task, check_weight

if TYPE_CHECKING:
    from cotune.learners.contract import Learner
    from cotune.party.party import Party
    from cotune.problem import Problem

#: The largest model that a party sends, in bytes.
MOST_BYTES = 64 * 2**20


class OwnModel(Reply, frozen=True):
    """A fitted estimator in skops' format, the classes it knows, and its weight in the mean."""

    model: bytes
    classes: tuple[int, ...]
    weight: float


class FitOwn(Task, frozen=True):
    """Fit a configuration on the party's own rows, and hand the model over.

    A model leaves its party only if it holds no rows, as far as its learner and its arrays tell,
    and only in skops' format with types that `cotune.model.skops` reads: no code travels.
    """

    discloses = (
        "a whole model that it fitted on its own rows alone: what it predicts for any row, and all "
        "that its parameters tell of the rows (little for a few coefficients, much for a model "
        "that can memorise), which classes it has, and its number of rows (unless all parties "
        "count equally)"
    )
    reply = OwnModel

    configuration: Configuration

    def perform(self, party: Party) -> OwnModel:
        from cotune.learners import learner
        from cotune.party.party import Refuse

        party.require(self.configuration.learner)
        chosen = learner(self.configuration.learner)
        if chosen.keeps_rows:
            raise Refuse("unknown_learner", holds_rows(chosen.name))
        sent = party.compute(fit_own, party.folder(chosen.features), chosen, self.configuration)
        party.bill(1, sent.seconds)
        if sent.obstacle is not None:
            raise Refuse("unknown_learner", sent.obstacle)
        return OwnModel(sent.model, sent.classes, party.weight)

    def most_fits(self, problem: Problem) -> int:
        return 1

    def most_bytes(self, problem: Problem | None) -> int:
        return 256 + MOST_BYTES

    def check(self, reply: OwnModel, problem: Problem | None) -> None:
        assert problem is not None
        if len(reply.model) > MOST_BYTES:
            raise Malformed(f"the reply has a model of more than {MOST_BYTES} bytes")
        check_weight(reply.weight)
        known = len(problem.schema.classes)
        if list(reply.classes) != sorted(set(reply.classes) & set(range(known))):
            raise Malformed("the reply's classes are not some of the schema's in their order")
        if known and not reply.classes:
            raise Malformed("the reply has a model without classes")
        read_model(reply, problem, self.configuration.learner)


def read_model(reply: OwnModel, problem: Problem, name: str) -> Any:
    """The party's model, tried on a row of means; `Malformed` if it does not predict.

    A classifier is made one for all classes of the schema; a regressor for dense rows predicts the
    standardised target.
    """
    from cotune.data.encode import dense_form, trees_form
    from cotune.learners import learner
    from cotune.model.predictors import AllClasses
    from cotune.model.skops import loaded

    schema = problem.schema
    form = trees_form if learner(name).features == "codes" else dense_form
    row = form(np.array([[column.mean for column in schema.columns]]), schema)
    model = loaded(reply.model, row.shape[1])
    if schema.classes:
        model = AllClasses(model, np.array(reply.classes), len(schema.classes))
    try:
        predicted = model.predict_proba(row) if schema.classes else model.predict(row)
        usable = len(predicted) == 1 and bool(np.isfinite(predicted).all())
    except Exception as error:  # a model of another version, or made to fail
        raise Malformed("the reply's model does not predict") from error
    if not usable:
        raise Malformed("the reply's model does not predict a number")
    return model


class Sent(msgspec.Struct, frozen=True):
    """What a worker made: the model and the classes it knows, or why it may not leave."""

    seconds: float
    model: bytes = b""
    classes: tuple[int, ...] = ()
    obstacle: str | None = None


def fit_own(folder: Path, learner: Learner, configuration: Configuration) -> Sent:
    """Fit on all rows to learn from; a regression's target is standardised for dense rows."""
    from cotune.party.fit import as_asked
    from cotune.party.rows import open_rows

    began = time.thread_time()
    rows = open_rows(folder)
    X, schema = rows.features(learner.features), rows.problem.schema
    seed = rows.key.fit_seed(learner.name, configuration.params)
    estimator: Any = learner.estimator(
        configuration.params, task=schema.task, seed=seed, schema=schema
    )
    y, present = rows.y, np.empty(0, dtype=int)
    if schema.task == "classification":
        present, y = np.unique(y, return_inverse=True)
        if len(present) == 1:  # there is one thing to predict
            from sklearn.dummy import DummyClassifier

            estimator = DummyClassifier()
    elif learner.features == "dense":
        y = (y - schema.target_mean) / schema.target_scale
    with warnings.catch_warnings(), np.errstate(all="ignore"), as_asked():
        warnings.simplefilter("ignore")
        estimator.fit(X, y)
    content, obstacle = _packed(learner.name, estimator, X)
    seconds = time.thread_time() - began
    return Sent(seconds, content, tuple(map(int, present)), obstacle)


def _packed(name: str, estimator: Any, X: np.ndarray) -> tuple[bytes, str | None]:
    """The model as bytes, or why it may not leave the party."""
    from cotune.model.skops import dumped, untrusted

    if keeps_rows(estimator, X):
        return b"", holds_rows(name)
    try:
        content = dumped(estimator)
        unknown = untrusted(content)
    except Exception:  # skops has several for objects that it cannot save
        return b"", (
            f"a model of the learner {name!r} cannot be saved without pickle: let its estimator "
            "be one of scikit-learn's, or set another trained_by"
        )
    if unknown:
        return b"", (
            f"a model of the learner {name!r} has parts that cotune takes from nobody "
            f"({', '.join(unknown)}): build it of other scikit-learn estimators, or set another "
            "trained_by"
        )
    if len(content) > MOST_BYTES:
        return b"", (
            f"a model of the learner {name!r} has more than the {MOST_BYTES} bytes that a party "
            "may send: choose parameters for a smaller one"
        )
    return content, None


def holds_rows(name: str) -> str:
    return (
        f"a model of the learner {name!r} holds rows that it was fitted on, so it may not leave "
        "its party: choose another learner, or tune without training a model"
    )


def keeps_rows(estimator: Any, X: np.ndarray) -> bool:
    """Whether some matrix in a fitted estimator consists of rows it was fitted on.

    Neighbours, support vectors and the like are kept so, also by learners that do not say it.
    """
    from cotune.model.skops import parts

    own = {row.tobytes() for row in np.ascontiguousarray(X, dtype=np.float64) + 0.0}
    for part in parts(estimator):
        if isinstance(part, np.ndarray) and part.ndim == 2 and part.shape[1] == X.shape[1] > 1:
            if part.dtype.kind not in "fiu" or len(part) == 0:
                continue
            if all(row.tobytes() in own for row in part.astype(np.float64) + 0.0):
                return True
    return False


TASKS: tuple[type[Task], ...] = (FitOwn,)
