"""What the user asks of a run, as it is checked and written down before any work starts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from cotune import learners as known_learners
from cotune import methods, training
from cotune.data.schema import Schema, TaskKind
from cotune.errors import UsageError, choices
from cotune.party.tasks import ENOUGH_ROWS
from cotune.privacy import protection
from cotune.privacy.sums import MODES, Privacy, ready
from cotune.problem import METRICS, Budget, CompareBy, JudgedBy, Problem, Scaling, Weights, metric
from cotune.run.differences import may_be_shown
from cotune.space import Space
from cotune.space.domain import Fixed

#: Tuned when the user names no learner: one boosted, one bagged, one linear.
USUAL_LEARNERS = ("hgb", "random_forest", "logistic_regression")
USUAL_METRIC: dict[TaskKind, str] = {"classification": "balanced_accuracy", "regression": "rmse"}
#: What `fedex` takes instead: it trains networks, is judged by error, and shows that on test rows.
OF_NETWORKS = ("torch_mlp",)
METRIC_OF_NETWORKS: dict[TaskKind, str] = {"classification": "accuracy", "regression": "rmse"}
HOLDOUT_OF_NETWORKS = 0.1
#: Configurations that are trained in the end where rows are set aside to compare them by; methods
#: that show what all rows in one place would give answer with their own.
FINALISTS = 3
REFERENCES = ("central", "multishot")
#: The share of the rows that is set aside by default, where every party has enough.
USUAL_HOLDOUT = 0.2
#: The largest share of the rows that can be set aside.
MOST_HELD_OUT = 0.9


class Settings(msgspec.Struct, frozen=True):
    """All of `tune`'s arguments but the federation; `tune` documents them."""

    method: str = "dash"
    learners: tuple[str, ...] = ()
    metric: str | None = None
    task: TaskKind | None = None
    folds: int = 5
    space: Literal["default", "paper"] = "default"
    spaces: dict[str, dict[str, Any]] = {}
    fixed: dict[str, dict[str, Any]] = {}
    drop: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    weights: Weights = "rows"
    compare_by: CompareBy | None = None
    judge: JudgedBy = "local"
    scaling: Scaling = "standard"
    seed: int = 0
    train: bool = True
    merge_every: int | None = None
    holdout: float | None = None
    finalists: int | None = None
    privacy: Privacy = "plain"
    noise: float | None = None
    clip: float | None = None
    delta: float = 1e-5
    budget: Budget = msgspec.field(default_factory=Budget)
    options: dict[str, Any] = {}

    def __post_init__(self) -> None:
        methods.options_of(self.method, self.options)
        for name in (*self.learners, *self.spaces, *self.fixed):
            known_learners.require(known_learners.learner(name))
        if self.privacy not in MODES:
            raise UsageError(choices(self.privacy, "privacy", MODES))
        methods.check_privacy(self.method, self.privacy, self.options)
        ready(self.privacy)
        protection.check(
            self.noise,
            self.clip,
            self.delta,
            private=self.privacy != "plain",
            equal=self.weights == "equal",
            method=self.method,
            budget=self.budget,
        )
        self._check_training()
        self._check_classes()
        if self.metric is not None and self.task not in (None, metric(self.metric).task):
            raise UsageError(f"the metric {self.metric!r} is not one for {self.task}")
        if not isinstance(self.folds, int) or self.folds < 2:
            raise UsageError(f"folds is {self.folds!r}: cross-validation needs at least 2")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise UsageError(f"the seed is {self.seed!r}: give a whole number from 0 to 2**32 - 1")
        if self.holdout is not None and not (
            isinstance(self.holdout, int | float) and 0 <= self.holdout <= MOST_HELD_OUT
        ):
            raise UsageError(
                f"the holdout is {self.holdout!r}: give a share of the rows from 0 to "
                f"{MOST_HELD_OUT}"
            )
        self._check_finalists()
        if self.merge_every is not None:
            if not self.train:
                raise UsageError("merge_every is about training: let the model be trained, too")
            if self.privacy != "plain":
                raise UsageError(
                    "with merge_every each party tells trees of its own, which private sums rule "
                    "out: leave it out"
                )
            training.check_merging(self.merge_every, self.learners or self.usual_learners)
        if self.weights not in ("rows", "equal"):
            raise UsageError(choices(self.weights, "weights", ("rows", "equal")))
        self._check_compare_by()
        self._check_judge()
        if self.scaling not in ("standard", "none"):
            raise UsageError(choices(self.scaling, "scaling", ("standard", "none")))
        if self.space not in ("default", "paper"):
            raise UsageError(choices(self.space, "space", ("default", "paper")))

    def _check_finalists(self) -> None:
        if self.finalists is None:
            return
        whole = isinstance(self.finalists, int) and not isinstance(self.finalists, bool)
        if not whole or self.finalists < 0:
            raise UsageError(
                f"finalists is {self.finalists!r}: give how many configurations are trained and "
                "compared in the end, 0 for the search's answer alone"
            )
        if self.finalists < 2:
            return
        alone = "leave finalists out, or ask for 0"
        if self.method == "fedex":
            raise UsageError(f"fedex trains while it searches, and has its model then: {alone}")
        if not self.train:
            raise UsageError(f"finalists are trained: let the model be trained, or {alone}")
        if self.noise is not None:
            raise UsageError(f"finalists cannot be compared under noise: {alone}")

    def _check_classes(self) -> None:
        if not self.classes:
            return
        if self.expected_task == "regression":
            raise UsageError("classes are listed, but a regression has none: leave one of them out")
        if len(set(self.classes)) < max(2, len(self.classes)) or not all(self.classes):
            raise UsageError(
                f"the classes are {', '.join(self.classes)!r}: list two or more, each once"
            )

    def _check_compare_by(self) -> None:
        if self.compare_by not in (None, "federation", "parties"):
            raise UsageError(choices(self.compare_by, "compare_by", ("federation", "parties")))
        if self.compare_by != "federation":
            return
        if self.weights == "equal":
            raise UsageError(
                "figures over all parties' rows count parties by their rows: leave weights='equal' "
                "out, or compare by parties (--compare-by parties)"
            )
        if self.method == "fedex":
            raise UsageError(
                "fedex compares by the clients' losses on their validation rows: leave compare_by "
                "out"
            )

    def _check_judge(self) -> None:
        if self.judge not in ("local", "federated"):
            raise UsageError(choices(self.judge, "judge", ("local", "federated")))
        if self.judge == "local":
            return
        alone = "leave judge out"
        methods.check_judge(self.method)
        if self.noise is not None:
            raise UsageError(f"models that are trained under noise cannot be compared: {alone}")
        if self.compares_by != "federation":
            raise UsageError(
                f"a model of all parties has a figure over all of their rows: {alone}, or weights "
                "and compare_by"
            )
        if self.merge_every is not None:
            raise UsageError(f"merge_every is about the last training only: {alone}, or that")

    def _check_training(self) -> None:
        if not (self.train or self.judge == "federated"):
            return
        for name in self.learners or self.usual_learners:
            try:
                training.check(name, self.privacy != "plain")
            except UsageError as error:
                if self.judge != "federated":
                    raise
                reason, _, _ = str(error).partition(":")  # what it advises is not to train at all
                raise UsageError(
                    f"{reason}, and judge='federated' trains every configuration: leave {name!r} "
                    "out, or judge"
                ) from error

    @property
    def compares_by(self) -> CompareBy:
        """What is compared: with equal weights (and noise, which needs them) and fedex, parties."""
        if self.compare_by is not None:
            return self.compare_by
        return "parties" if self.weights == "equal" or self.method == "fedex" else "federation"

    @property
    def protection(self) -> protection.Protection | None:
        """What hides a party in a sum, if anything does."""
        return None if self.noise is None else protection.Protection(self.noise, self.clip)

    @property
    def usual_learners(self) -> tuple[str, ...]:
        """Tuned when the user names none."""
        if self.method == "fedex":
            return OF_NETWORKS
        private = self.privacy != "plain"
        return tuple(n for n in USUAL_LEARNERS if not private or training.by_sums(n))

    @property
    def least_rows(self) -> int:
        """That a party must have: one for each fold; `fedex` has no folds."""
        return 1 if self.method == "fedex" else self.folds

    def held(self, enough: bool) -> float:
        """The share of every party's rows that is set aside; `enough` is whether all have many."""
        if self.holdout is not None:
            return float(self.holdout)  # as it is read from a message: the problem's digest has it
        if self.method == "fedex":
            return HOLDOUT_OF_NETWORKS
        return USUAL_HOLDOUT if enough and self._judges_in_the_end else 0.0

    @property
    def _judges_in_the_end(self) -> bool:
        """Whether rows that are set aside are of use, and not against what was published."""
        of_references = self.method in REFERENCES
        return self.train and self.noise is None and self.finalists != 0 and not of_references

    def why_held(self, few: int, parties: int) -> str:
        """In a line, whether rows are set aside, and why; nothing where that is no question."""
        share = self.held(not few)
        if self.holdout is not None or self.method == "fedex":
            return f"{100 * share:.3g} % of every party's rows are set aside" if share else ""
        if share:
            return (
                f"{100 * share:.3g} % of every party's rows are set aside to evaluate the trained "
                f"models, as every party has {ENOUGH_ROWS} or more (another share: --holdout)"
            )
        if not self._judges_in_the_end:
            return ""
        shown = self.privacy == "plain" or may_be_shown(few, parties)
        who = f"{few} of {parties} parties have" if shown else "not every party has"
        least = f"fewer than {ENOUGH_ROWS}" if shown else f"{ENOUGH_ROWS} or more"
        return f"no rows are set aside, as {who} {least} (--holdout SHARE sets some aside)"

    @property
    def trained(self) -> int:
        """How many configurations are trained in the end, if rows were set aside to compare by."""
        if self.finalists is not None:
            return max(1, self.finalists)
        return 1 if self.method in REFERENCES else FINALISTS

    @property
    def trained_by_folds(self) -> bool:
        """Whether several are to be compared also where no rows were set aside."""
        return self.finalists is not None and self.finalists > 1

    @property
    def expected_task(self) -> TaskKind | None:
        """Classification or regression, as far as the user said so, by the metric at least."""
        said = self.task or (metric(self.metric).task if self.metric else None)
        return said or ("classification" if self.classes else None)

    def problem(
        self, schema: Schema, keys: Mapping[str, str] = MappingProxyType({}), enough: bool = False
    ) -> Problem:
        """The problem that follows from these settings once the schema is agreed.

        `keys` are the marks of those by which real parties choose rows; `enough` is whether every
        party has so many that some are set aside by default.
        """
        usual = METRIC_OF_NETWORKS if self.method == "fedex" else USUAL_METRIC
        chosen = self.metric or usual[schema.task]
        if metric(chosen).task != schema.task:
            fitting = [m.name for m in METRICS.values() if m.task == schema.task]
            raise UsageError(f"{chosen} is not a metric for {schema.task}: {', '.join(fitting)}")
        names = self.learners or self._usual_for(schema)
        _check_arrays(schema, names)
        for name in (*self.spaces, *self.fixed):
            if name not in names:
                raise UsageError(f"a space is given for {name!r}, which is not tuned: add it")
        return Problem(
            schema=schema,
            learners=names,
            spaces={name: self._space(name, schema).to_json() for name in names},
            metric_name=chosen,
            folds=self.folds,
            weights=self.weights,
            scaling=self.scaling,
            seed=self.seed,
            holdout=self.held(enough),
            privacy=self.privacy,
            own_spaces=tuple(name for name in names if name in self.spaces),
            keys=dict(keys),
            compare_by=self.compares_by,
            judge=self.judge,
        )

    def _space(self, name: str, schema: Schema) -> Space:
        learner, task = known_learners.learner(name), schema.task
        if task not in learner.tasks:
            able = [
                n for n in known_learners.learner_names() if task in known_learners.learner(n).tasks
            ]
            raise UsageError(f"the learner {name!r} cannot do {task}: use {', '.join(able)}")
        space = learner.space(task, self.space)
        if name in self.spaces:
            space = Space.from_json(self.spaces[name])
        fixed = self.fixed.get(name, {})
        fixed_anew = [n for n in fixed if n in space and isinstance(space[n], Fixed)]
        space = space.fix(**fixed)
        if name in self.spaces or fixed_anew:  # does the learner know them?
            learner.estimator(space.clip({}), task=task, seed=0, schema=schema)
        learner.check(space, schema)
        return space

    def _usual_for(self, schema: Schema) -> tuple[str, ...]:
        """Tuned when the user names none; of networks the one that the rows are for."""
        if self.method == "fedex" and schema.array is not None:
            if schema.array.codes:
                return ("char_lstm",)
            return ("cnn",) if len(schema.array.shape) > 1 else OF_NETWORKS
        able = (n for n in self.usual_learners if schema.task in known_learners.learner(n).tasks)
        return tuple(able)


def _check_arrays(schema: Schema, names: tuple[str, ...]) -> None:
    """Learners of tables are not given arrays."""
    if schema.array is None:
        return
    known = {n: known_learners.learner(n).features for n in known_learners.learner_names()}
    able = [name for name, features in known.items() if features == "tensor"]
    for name in names:
        if known[name] != "tensor":
            raise UsageError(
                f"the data hold arrays (column {schema.array.name!r}), which the learner {name!r} "
                f"does not take: use {', '.join(able) or 'one with features = tensor'}"
            )


def spaces_as_json(spaces: Mapping[str, Space | Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The user's own spaces, given as `Space` objects or as literals, in JSON form."""
    return {
        name: (space if isinstance(space, Space) else Space(space)).to_json()
        for name, space in spaces.items()
    }
