"""The contract of a learner: something that can be tuned and fitted on one party's rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np

    from cotune.data.schema import Schema, TaskKind
    from cotune.space import Space

SpaceName = Literal["paper", "default"]


class Estimator(Protocol):
    """What `Learner.estimator` returns: scikit-learn's fit and predict."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Any: ...

    def predict(self, X: np.ndarray) -> np.ndarray: ...


class Learner(ABC):
    """A family of models that cotune can tune.

    Subclass it, set `name` and `features`, write `space`, `defaults` and `estimator`, and
    register it: `cotune.register_learner(MyLearner())`, or an entry point in the group
    `cotune.learners`. `cotune.testing.check_learner(MyLearner())` says what is missing.

    `features` says how the rows arrive:

    - ``"codes"``: a float matrix with one column per feature; categories are codes 0, 1, ... (the
      most frequent first, at most 255 of them), missing values are NaN. For trees.
    - ``"dense"``: numeric columns standardised by the federation's mean and deviation, missing
      values filled with the mean (0), categories one-hot. For everything that measures distances.
    - ``"tensor"``: the arrays of the schema's array column, one row after the other: codes of
      characters as uint8, amounts as float32, standardised. Of a table, ``"dense"`` as float32.
      For neural networks. Learners of other features are not given arrays.
    """

    name: ClassVar[str]
    features: ClassVar[Literal["codes", "dense", "tensor"]]
    tasks: ClassVar[tuple[TaskKind, ...]] = ("classification", "regression")
    #: The shape of some row that the learner takes, if it takes arrays only: images, or characters.
    shape: ClassVar[tuple[int, ...] | None] = None
    #: The package that must be importable (its top-level name), None if cotune itself needs it.
    library: ClassVar[str | None] = None
    #: The extra of cotune that brings the library, for the error when it is not installed.
    extra: ClassVar[str | None] = None
    #: How the federation trains it: a name in `cotune.training.TRAINERS`; `ensemble`, which works
    #: for any learner, lets every party fit a model and averages what they predict.
    trained_by: ClassVar[str] = "ensemble"
    #: Whether a fitted model holds rows it was fitted on (nearest neighbours, support vectors).
    #: Such a model does not leave its party.
    keeps_rows: ClassVar[bool] = False
    #: The parameter that counts iterations (trees, rounds), if the first ones of a fit are the
    #: model that a fit with fewer would give; `truncated` then shows that model.
    iterations: ClassVar[str | None] = None
    #: Whether the class that a fitted model predicts is always that of its highest probability.
    #: Otherwise a party whose class shares are not the federation's has both predicted, which takes
    #: longer.
    most_probable: ClassVar[bool] = False

    @abstractmethod
    def space(self, task: TaskKind, which: SpaceName = "default") -> Space:
        """The search space: the papers' own (`paper`) or a wider one (`default`).

        Parameters carry the estimator's own names, so that what was found can be pasted into the
        library.
        """

    @abstractmethod
    def defaults(self, task: TaskKind) -> dict[str, Any]:
        """The configuration that the papers use as the untuned baseline.

        It may lie outside the space (a regularisation of 0, an unlimited depth). What the papers
        leave open is the library's own default.
        """

    @abstractmethod
    def estimator(
        self, params: Mapping[str, Any], *, task: TaskKind, seed: int, schema: Schema
    ) -> Estimator:
        """An unfitted scikit-learn style estimator for `params`, on one thread.

        Classifiers get labels 0..k-1 without gaps and must offer `predict_proba` or
        `decision_function`. Heavy libraries are imported here, not at the module's top.
        """

    def check(self, space: Space, schema: Schema) -> None:  # noqa: B027 - nothing by default
        """Refuse with a `UsageError`, before any work, rows or a space that it cannot take."""

    def truncated(self, estimator: Any, count: int) -> Estimator | None:
        """A view of a fitted estimator that predicts with its first `count` iterations only.

        Its predictions are those of a fit with that count and the same seed, and the estimator
        stays as it is. None where this fit cannot tell. Asked only if `iterations` is set.
        """
        raise NotImplementedError(f"learner {self.name!r} does not count iterations")
