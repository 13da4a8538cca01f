"""The public statement of a tuning job: what is tuned, how it is scored, what it may cost."""

from __future__ import annotations

import hashlib
import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from cotune.data.schema import Schema, TaskKind
from cotune.errors import UsageError, choices
from cotune.party.task import RESOLUTION
from cotune.space import Space
from cotune.space.domain import Fixed

if TYPE_CHECKING:
    from cotune.space.search import Search

#: The most a regression's loss may be, in deviations of the target: beyond, all are as bad.
WORST_DEVIATIONS = 1000.0

Weights = Literal["rows", "equal"]
Scaling = Literal["standard", "none"]
#: How a party's part of a sum is hidden from the coordinator.
Privacy = Literal["plain", "masked", "encrypted"]
#: What configurations are compared by: figures over all parties' rows, or the mean of the parties'
#: own losses, the published objective.
CompareBy = Literal["federation", "parties"]
#: What a configuration is evaluated by: fits of every party alone, or a model that they train
#: together.
JudgedBy = Literal["local", "federated"]


class Metric(msgspec.Struct, frozen=True):
    """How predictions are scored. Minimised as a loss inside, shown in the user's direction."""

    name: str
    task: TaskKind
    shown: Literal["higher", "lower"]

    def value(self, loss: float) -> float:
        """The user's figure for a loss: 1 - loss where higher is better, the loss otherwise."""
        return 1.0 - loss if self.shown == "higher" else loss

    def worst(self, schema: Schema) -> float:
        """The loss of a failed fit and the upper bound of every loss (all are at least 0)."""
        if self.name == "log_loss":
            return 37.0  # a probability of zero, as float64 knows it: -ln(2.2e-16) = 36.04
        if self.name == "r2":
            return WORST_DEVIATIONS
        if self.task == "regression":
            return WORST_DEVIATIONS * schema.target_scale
        return 1.0

    def resolution(self, schema: Schema) -> float:
        """The step to which a loss is rounded before it leaves a party; a power of two."""
        return RESOLUTION * self.unit(schema)

    def unit(self, schema: Schema) -> float:
        """About the target's deviation for losses in its unit, else 1; a power of two."""
        if self.name in ("rmse", "mae"):
            return 2.0 ** math.ceil(math.log2(schema.target_scale))
        return 1.0


METRICS = {
    metric.name: metric
    for metric in (
        Metric("balanced_accuracy", "classification", "higher"),  # mean recall over the classes
        Metric("accuracy", "classification", "higher"),  # share of rows predicted right
        Metric("log_loss", "classification", "lower"),  # cross-entropy of the probabilities
        Metric("roc_auc", "classification", "higher"),  # area under the ROC curve, one-vs-rest
        Metric("f1", "classification", "higher"),  # F1 averaged over the classes
        Metric("rmse", "regression", "lower"),  # root mean squared error, in the target's unit
        Metric("mae", "regression", "lower"),  # mean absolute error, in the target's unit
        Metric("r2", "regression", "higher"),  # share of the target's variance explained
    )
}


def metric(name: str) -> Metric:
    """The metric of that name.

    >>> metric("rmse").shown
    'lower'
    """
    if name not in METRICS:
        raise UsageError(choices(name, "metric", METRICS))
    return METRICS[name]


class Budget(msgspec.Struct, frozen=True):
    """The most a run may spend; None is no limit. A round that could exceed it is not begun.

    `trials` counts configurations per learner, `fits` model fits at all parties together,
    `seconds` wall-clock time of all rounds, `bytes` messages in both directions.
    """

    trials: int | None = None
    rounds: int | None = None
    fits: int | None = None
    seconds: float | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise UsageError(f"the budget in {name} is {limit}: give a number above 0")
            if limit is not None and name != "seconds" and not isinstance(limit, int):
                raise UsageError(f"the budget in {name} is {limit!r}: give a whole number")


class Problem(msgspec.Struct, frozen=True, dict=True):
    """What every party of a run is told, and all it is told.

    `spaces` are in JSON form, by learner; `problem.space(learner)` gives them back.
    """

    schema: Schema
    learners: tuple[str, ...]
    spaces: dict[str, dict[str, Any]]
    metric_name: str
    folds: int = 5
    weights: Weights = "rows"
    seed: int = 0
    scaling: Scaling = "standard"
    #: The share of every party's rows that is set aside before anything else, to judge the model.
    holdout: float = 0.0
    #: The least that hides a party's part of a sum: for this problem no party accepts less.
    privacy: Privacy = "plain"
    #: Learners whose space is the user's own, which no answer may leave.
    own_spaces: tuple[str, ...] = ()
    #: The marks of the keys by which real parties chose rows when the run was begun.
    keys: dict[str, str] = {}
    compare_by: CompareBy = "parties"  # as before there was a choice: files may not say it
    judge: JudgedBy = "local"
    #: The one of the folds whose rows are held out: the parties learn from their others.
    fold: int | None = None

    @property
    def task(self) -> TaskKind:
        return self.schema.task

    @property
    def weighs_classes(self) -> bool:
        """Whether a party weighs in means of losses by the classes of its rows."""
        return self.compare_by == "federation" and self.metric_name == "balanced_accuracy"

    @cached_property
    def metric(self) -> Metric:
        return metric(self.metric_name)

    @cached_property
    def digest(self) -> str:
        """Names the problem: the same for the same statement, on every machine."""
        return hashlib.blake2b(msgspec.msgpack.encode(self), digest_size=12).hexdigest()

    def space(self, learner: str) -> Space:
        if learner not in self.spaces:
            raise UsageError(choices(learner, "learner of this run", self.spaces))
        return Space.from_json(self.spaces[learner])

    def defaults(self, learner: str) -> dict[str, Any]:
        """The papers' untuned configuration of the learner, with what the user fixed."""
        from cotune import learners

        space = self.space(learner)
        domains = {name: space[name] for name in space}
        fixed = {name: d.value for name, d in domains.items() if isinstance(d, Fixed)}
        return learners.learner(learner).defaults(self.task) | fixed

    def default(self, learner: str) -> dict[str, Any]:
        """What a search must beat, and may answer: the learner's own default, wherever it lies.

        A space of the user's own is kept to: there it is the nearest configuration.
        """
        beside = self.beside(learner)
        return self.space(learner).clip(self.defaults(learner)) if beside is None else beside

    def beside(self, learner: str) -> dict[str, Any] | None:
        """The learner's default if its space does not hold it: an L2 of 0, an unlimited depth.

        It is evaluated beside the search. Samplers and surrogates are never given it: it lies
        outside of their space.
        """
        default = self.defaults(learner)
        if learner in self.own_spaces or self.alike(
            learner, default, self.space(learner).clip(default)
        ):
            return None
        return default

    def alike(self, learner: str, one: dict[str, Any], other: dict[str, Any]) -> bool:
        """Whether two configurations are one model: what is left out is the library's default."""
        from cotune import learners

        chosen = learners.learner(learner)
        usual = chosen.defaults(self.task)

        def settings(params: dict[str, Any]) -> dict[str, Any]:
            estimator: Any = chosen.estimator(
                params, task=self.task, seed=self.seed, schema=self.schema
            )
            found = estimator.get_params() if hasattr(estimator, "get_params") else params
            return usual | {name: value for name, value in found.items() if value is not None}

        return one == other or settings(one) == settings(other)

    def search(self, learner: str, sampler: str = "tpe", trials: int | None = None) -> Search:
        """An ask-and-tell search of the learner's space that asks its defaults first."""
        from cotune.space.search import Search

        return Search(
            self.space(learner),
            sampler=sampler,
            seed=seed_of(self.seed, learner),
            first=self.defaults(learner),
            trials=trials,
        )


def seed_of(seed: int, *names: object) -> int:
    """A seed for the named part of a run: different names, independent seeds.

    >>> seed_of(0, "hgb") == seed_of(0, "hgb"), seed_of(0, "hgb") == seed_of(0, "svm")
    (True, False)
    """
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


def heaviest(problem: Problem | None) -> float:
    """More than the largest weight that any party can have: a party may have been away so far."""
    return 1.0 if problem is None or problem.weights == "equal" else most_rows(problem)


def most_rows(problem: Problem) -> float:
    """More rows than any party can have that was not there when they were counted."""
    return max(8.0 * problem.schema.rows, 2.0**20)
