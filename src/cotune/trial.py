"""What methods yield: trials, and how far they have come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec


class Trial(msgspec.Struct, frozen=True):
    """A configuration that the parties judged together.

    `loss` is that over all rows of the `parties` that answered, whose weights add up to `weight`,
    or, where parties are compared, the weighted mean of theirs; `fits` and `cpu_seconds` are totals
    over them; `reasons` says where fits failed, with the number of parties. The parties used a
    `fraction` of their rows. A `predicted` loss is a surface's value and was not observed. `error`
    is the standard error of the loss, from the same totals or, where parties are compared, as far
    as it varies between folds; 0 where that is not known. `left_out` are rows of classes of which
    their party has too few to say how they fared. `validation` is the number of rows that a loss
    rests on which is no cross-validation but that of one round of training (0 if parties count
    alike); else None.
    """

    learner: str
    params: dict[str, Any]
    loss: float
    parties: int
    weight: float
    fits: int
    cpu_seconds: float
    reasons: dict[str, int] = {}
    fraction: float = 1.0
    predicted: bool = False
    error: float = 0.0
    left_out: int = 0
    validation: int | None = None


class HeldOut(msgspec.Struct, frozen=True):
    """A model's loss on the rows that parties set aside before anything else.

    It is that over all `rows` (0 if the parties count alike) of the `parties` that answered, but
    for those that were `left_out`: of classes of which their party has too few to say how they
    fared. `error` is its standard error, 0 where that is not known. `personalized` is the loss of
    the models that parties make of it by training on their own rows. If the model was chosen among
    several by these rows, `crossed` is the loss without the luck in that: of either half of them,
    of the model that the other half chooses. Where no rows were set aside so, it is that of a
    cross-validation, each row predicted by a model that the federation trained without its fold: of
    so many `folds`. `blind` is what a prediction that uses no column loses on the same rows.
    """

    loss: float
    rows: int
    parties: int
    personalized: float | None = None
    error: float = 0.0
    left_out: int = 0
    crossed: float | None = None
    folds: int = 0
    blind: float | None = None


class Finalist(msgspec.Struct, frozen=True):
    """A configuration that the federation trained in the end, and how its model did.

    `searched` is its loss in the search, None where that did not evaluate it; `default` says that
    it is its learner's default settings. `held_out` is the model's loss on the rows set aside, None
    if the training failed or nobody could say. `failed` says why it was given up: its training went
    wrong, or its model is no better there than the class shares. The rest is what training took.
    """

    learner: str
    params: dict[str, Any]
    searched: float | None
    default: bool = False
    held_out: HeldOut | None = None
    failed: str = ""
    rounds: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


def best_of(trials: Sequence[Trial]) -> Trial:
    """The trial of least loss among those that can be compared; the earliest of equals.

    An observed loss counts before any that was only predicted, and a loss on more of the rows
    before one on fewer. A loss over fewer parties is a loss over other rows: a trial must not win
    because a difficult party was late. So only those count that were judged with the most usual
    total weight (of equally usual ones, the larger).
    """
    trained = [trial for trial in trials if trial.weight] or trials  # others no party could judge
    seen = [trial for trial in trained if not trial.predicted] or trained
    fraction = max(trial.fraction for trial in seen)
    alike = [trial for trial in seen if trial.fraction == fraction]
    usual = Counter(trial.weight for trial in alike)
    weight = max(usual, key=lambda weight: (usual[weight], weight))
    return min((t for t in alike if t.weight == weight), key=lambda trial: trial.loss)


def mean_of(trials: Sequence[Trial]) -> Trial:
    """One configuration's trials in one round, on folds that were shuffled otherwise, as one."""
    first = trials[0]
    reasons: Counter[str] = Counter()
    for trial in trials:
        reasons |= Counter(trial.reasons)  # of parties: in each trial the same ones
    return msgspec.structs.replace(
        first,
        loss=sum(trial.loss for trial in trials) / len(trials),
        error=sum(trial.error for trial in trials) / len(trials),  # of the same rows: no smaller
        fits=sum(trial.fits for trial in trials),
        cpu_seconds=sum(trial.cpu_seconds for trial in trials),
        reasons=dict(reasons),
    )


class Step(msgspec.Struct, frozen=True):
    """One step of a method: the trials it finished, and that it is at `done` of `of` steps.

    `report` holds figures of the method's own, by their names; they end up in `Outcome.report`.
    `chosen` is the trial that the method settles on, where that is not for `best_of` to say: the
    least of many noisy losses is often just the luckiest.
    """

    trials: tuple[Trial, ...]
    done: int
    of: int
    report: dict[str, Any] = {}
    chosen: Trial | None = None
    #: What the method has trained on the way, if it has: a fitted estimator. None is trained then.
    model: Any = None
    #: That model's loss on rows that were set aside, if the method has asked for it.
    held_out: HeldOut | None = None
