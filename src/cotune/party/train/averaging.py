"""A party's part in training a network: some epochs from the weights that all parties share."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from cotune.errors import DataError, Malformed, UsageError
from cotune.party.task import RESOLUTION, Configuration, Reply, Task, Term, most_summed_bytes

if TYPE_CHECKING:
    from cotune.learners.contract import Learner
    from cotune.party.party import Party
    from cotune.party.rows import Opened
    from cotune.problem import Problem

#: No weight may lie beyond: the private ways of adding need to know.
FARTHEST = 2.0**20


class Weights(Reply, frozen=True):
    """The party's weights after its epochs; the loss of those it began with, summed over rows."""

    weights: list[float]
    loss: list[float]
    rows: list[float]


class Epochs(Task, frozen=True):
    """Train a network for some epochs on the party's own rows.

    The loss is that of the common weights, before the epochs, on the rows that the party holds
    back: `validation_fraction` of them, always the same. Without `early_stopping` it holds none
    back and tells the loss on the rows it trains on, like scikit-learn.

    Parameters
    ----------
    weights
        Float32, little-endian: layer by layer the coefficients, then the intercepts.
    epochs
        How often to go through the rows; with 0 only the loss is told.
    round
        Which it is: the order of the rows is another in each.
    """

    discloses = (
        "the weights of a network after some epochs of training on its rows (which may tell of "
        "single rows, if they are few), the loss on rows that it held back from training, and how "
        "many these are"
    )
    reply = Weights

    configuration: Configuration
    weights: bytes
    round: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    epochs: Annotated[int, msgspec.Meta(ge=0, le=1000)]

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        length = len(self.weights) // 4 if self.epochs else 0
        return {
            "weights": Term(length, -FARTHEST, FARTHEST, RESOLUTION, weighted=True),
            "loss": Term(1, 0.0, 2.0**31, RESOLUTION),
            "rows": Term(1, 0.0, 2.0**31, 1.0),
        }

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))

    def perform(self, party: Party) -> Weights:
        from cotune import learners

        party.require(self.configuration.learner)
        learner = learners.learner(self.configuration.learner)
        sums, seconds = party.compute(epochs, party.folder("dense"), learner, self)
        party.bill(0, seconds)
        terms = self.terms(party.problem)
        if not all(term.holds(sums[name], 1.0) for name, term in terms.items()):
            raise DataError(
                "the network's weights or its loss went out of bounds in training: is there a "
                "column with values far from the others', or is the learning rate too high?"
            )
        return Weights(**{name: values.tolist() for name, values in sums.items()})


def epochs(folder: Path, learner: Learner, task: Epochs) -> tuple[dict[str, np.ndarray], float]:
    """The reply, and the CPU seconds it took. Runs on a worker."""
    from cotune.party.fit import as_asked
    from cotune.party.key import random_state
    from cotune.party.rows import open_rows

    began = time.thread_time()
    rows = open_rows(folder)
    X, y = rows.features("dense"), _target(rows)
    with as_asked():
        network = untrained(rows.problem, learner, task.configuration, X.shape[1])
    if len(task.weights) != 4 * flat(network).size:
        raise Malformed("the weights are not as many as the network has")
    install(network, np.frombuffer(task.weights, "<f4").astype(float))
    train, held = _held_back(rows, network)
    told = {"loss": np.array([_loss(network, X[held], y[held])]), "rows": np.array([len(held)])}
    network.early_stopping = False  # `partial_fit` knows none
    if network.batch_size != "auto":
        network.batch_size = min(network.batch_size, len(train))
    with warnings.catch_warnings(), np.errstate(all="ignore"), as_asked():
        warnings.simplefilter("ignore")
        for epoch in range(task.epochs):
            # `partial_fit` begins its random numbers anew each time
            network.random_state = random_state(rows.key.seed("epoch", task.round, epoch))
            network.partial_fit(X[train], y[train])
    told["weights"] = flat(network) if task.epochs else np.empty(0)
    return told, time.thread_time() - began


def untrained(
    problem: Problem, learner: Learner, configuration: Configuration, columns: int
) -> Any:
    """scikit-learn's own network for a configuration, with its first random weights.

    It is laid out for all classes of the schema, by a step on rows of zeros that is too small to
    move anything.
    """
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    asked: Any = learner.estimator(
        configuration.params, task=problem.task, seed=problem.seed, schema=problem.schema
    )
    if asked.solver != "adam":
        raise UsageError(f"solver is {asked.solver!r}: the federation trains by 'adam' only")
    arguments = asked.get_params()
    still = {"early_stopping": False, "learning_rate_init": 1e-300, "batch_size": "auto"}
    if problem.task == "classification":
        network = MLPClassifier(**arguments | still)
        codes = np.arange(len(problem.schema.classes))
        network.partial_fit(np.zeros((len(codes), columns)), codes, classes=codes)
    else:
        network = MLPRegressor(**arguments | still)
        network.partial_fit(np.zeros((2, columns)), np.zeros(2))
    del network._optimizer  # the next step begins with fresh moments
    for name in still:
        setattr(network, name, arguments[name])
    return network


def flat(network: Any) -> np.ndarray:
    """All weights in one vector."""
    return np.concatenate([part.ravel() for part in network.coefs_ + network.intercepts_])


def install(network: Any, weights: np.ndarray) -> None:
    """Give a network its weights, from one vector."""
    ends = np.cumsum([part.size for part in network.coefs_ + network.intercepts_])
    pieces = np.split(weights, ends[:-1])
    for part, piece in zip(network.coefs_ + network.intercepts_, pieces, strict=True):
        part[...] = piece.reshape(part.shape)


def _target(rows: Opened) -> np.ndarray:
    schema = rows.problem.schema
    if schema.task == "classification":
        return rows.y
    return (rows.y - schema.target_mean) / schema.target_scale


def _held_back(rows: Opened, network: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on, and rows to measure on; the same ones where none can be spared."""
    from cotune.party.rows import fraction_of

    everything = np.arange(len(rows.y))
    if not network.early_stopping:
        return everything, everything
    train = fraction_of(rows.y, 1.0 - network.validation_fraction, rows.problem, rows.key)
    held = np.setdiff1d(everything, train)
    return train, held if len(held) else everything


def _loss(network: Any, X: np.ndarray, y: np.ndarray) -> float:
    """scikit-learn's loss without the penalty, summed: cross-entropy, or half the squares."""
    if hasattr(network, "classes_"):
        shares = network.predict_proba(X)[np.arange(len(y)), y]
        return float(-np.log(np.maximum(shares, np.finfo(float).eps)).sum())
    return float(((network.predict(X) - y) ** 2).sum() / 2.0)


TASKS: tuple[type[Task], ...] = (Epochs,)
