"""Cross-validation of configurations on a party's rows, spread over its workers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future

import msgspec
import numpy as np
from scipy.special import stdtr

from cotune.learners import learner
from cotune.party.fit import Fitted, Job, judged_targets, kept_classes
from cotune.party.memory import Batch, Losses, Memory, key
from cotune.party.rows import Rows
from cotune.party.task import Configuration
from cotune.party.workers import Workers
from cotune.problem import Problem
from cotune.protocol.tally import UNDEFINED, Tally, added, statistic

#: Folds are sent to the workers in jobs of at least this many CPU seconds, as far as the
#: learner's earlier fits tell, so that sending costs little beside fitting.
SHORTEST_JOB = 0.02
#: Folds between two looks at whether a configuration can still be the best; as few as a test of
#: differences can do with.
STAGE = 2
#: How likely a configuration that is as good as the incumbent may be to seem worse, at each look.
#: Losing one that is as good costs nothing.
SIGNIFICANCE = 0.2
#: How many differences of an entrant's own the spread of earlier entrants' differences counts for.
PRIOR = 4


class Entrant(msgspec.Struct, frozen=True):
    """A configuration to judge.

    `free` are smaller numbers of its iterations, to be judged by the same fits. `incumbent` has
    the losses by fold of the configuration to beat: once this one is clearly worse, it is spared
    its remaining folds. Without an incumbent it gets all of them. `usual_spread` is the usual
    deviation of such differences from their mean, if that is known.
    """

    configuration: Configuration
    free: tuple[int, ...] = ()
    incumbent: Losses | None = None
    usual_spread: float | None = None


class Evaluation(msgspec.Struct, frozen=True):
    """A configuration's judgement: its loss, why it failed, what it cost.

    `losses` are those of the folds that it got: of all of them if it is `whole`. `free` are the
    judgements of smaller numbers of its iterations, as far as its fits told them. `tally` is that
    of all judged rows, where the run compares by the federation's figures: if any fit failed, all
    are counted as predicted wrong.
    """

    loss: float
    fits: int = 0
    cpu_seconds: float = 0.0
    reason: str | None = None
    losses: Losses = ()
    whole: bool = False
    free: dict[int, Evaluation] = {}
    tally: Tally | None = None

    def variance(self, unit: float) -> float:
        """That of the loss, a mean over folds, if these were independent; 0 of fewer than two."""
        defined = [loss / unit for loss in self.losses if loss is not None]
        if len(defined) < 2:
            return 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            found = float(np.var(defined, ddof=1)) / len(defined)
        return found if math.isfinite(found) else math.inf  # losses beyond all measure


class Evaluator:
    """Judges configurations for one problem and remembers what it fitted.

    Which folds a configuration gets depends on losses alone, not on which of them are remembered:
    memory may spare fits, but never changes a judgement. So a round that is repeated, even after
    later rounds fitted the folds that it had spared, comes to the same answer.
    """

    def __init__(
        self, problem: Problem, rows: Rows, workers: Workers, memory: Memory, smallest: int = 1
    ) -> None:
        self._problem = problem
        self._smallest = smallest
        self._rows = rows
        self._workers = workers
        self._memory = memory
        self._worst = problem.metric.worst(problem.schema)
        self._fit_seconds: dict[str, float] = {}
        self._round = 0
        self._given_up = workers.given_up
        self._billed: set[tuple[str, tuple[int, ...]]] = set()

    def must_fit(self, entrants: Sequence[Entrant]) -> bool:
        """Whether something has to be fitted to judge these, before anything is."""
        return bool(self._waiting(entrants))

    def begin(self, round_number: int, given_up: Future[None]) -> None:
        """Start a reply: what is fitted or recalled from now on belongs to this round."""
        self._round = round_number
        self._given_up = given_up
        self._billed = set()

    def evaluate(self, configurations: Iterable[Configuration]) -> list[Evaluation]:
        """One evaluation per configuration, on all folds; what is new is fitted side by side."""
        return self.race([Entrant(configuration) for configuration in configurations])

    def race(self, entrants: Sequence[Entrant]) -> list[Evaluation]:
        """One evaluation per entrant; each stage of all that are still in is fitted at once."""
        while waiting := self._waiting(entrants):
            self._fit(waiting)
        return [self._recall(entrant) for entrant in entrants]

    def _waiting(self, entrants: Sequence[Entrant]) -> list[tuple[Entrant, tuple[int, ...]]]:
        """The entrants that need folds which are not known, and these folds."""
        distinct = {key(entrant.configuration): entrant for entrant in entrants}
        missing = ((entrant, self._missing(entrant)) for entrant in distinct.values())
        return [(entrant, folds) for entrant, folds in missing if folds]

    def _missing(self, entrant: Entrant) -> tuple[int, ...]:
        known = self._memory.get(entrant.configuration)
        reached = range(self._reach(entrant))
        if _reason([known[fold] for fold in reached if fold in known]):
            return ()
        return tuple(fold for fold in reached if fold not in known)

    def _reach(self, entrant: Entrant) -> int:
        """How many folds the entrant gets, as far as is known.

        To the end of the first stage that is not all fitted, that has a failed fit, or after
        which the entrant is clearly worse than the incumbent and none of its free counts is ahead:
        the luckiest of several, judged on few folds, must not pass for the best.
        """
        folds = self._problem.folds
        if entrant.incumbent is None:
            return folds
        known = self._memory.get(entrant.configuration)
        for reached in range(STAGE, folds, STAGE):
            told = {fold: known[fold] for fold in range(reached) if fold in known}
            if len(told) < reached or _reason(told.values()):
                return reached
            if clearly_worse(_losses(told), entrant.incumbent, entrant.usual_spread) and not any(
                _differences(_losses(told, count), entrant.incumbent).sum() < 0.0
                for count in _free_counts(entrant, told.values())
            ):
                return reached
        return folds

    def _fit(self, waiting: list[tuple[Entrant, tuple[int, ...]]]) -> None:
        # The long ones last would end alone.
        waiting.sort(key=lambda one: self._expected_seconds(one[0]), reverse=True)
        jobs = [self._jobs(entrant, folds) for entrant, folds in waiting]
        fitted = iter(self._workers.run([job for some in jobs for job in some], self._given_up))
        for (entrant, folds), some in zip(waiting, jobs, strict=True):
            results = [next(fitted) for _ in some]
            self._memory.put(entrant.configuration, self._batch(entrant, folds, results))

    def _jobs(self, entrant: Entrant, folds: tuple[int, ...]) -> list[Job]:
        chosen = learner(entrant.configuration.learner)
        self._rows.prepare(chosen.features)
        together = self._folds_per_job(chosen.name, len(folds))
        return [
            Job(
                self._rows.folder,
                chosen,
                entrant.configuration,
                folds[start : start + together],
                entrant.free,
                self._smallest,
            )
            for start in range(0, len(folds), together)
        ]

    def _expected_seconds(self, entrant: Entrant) -> float:
        return self._fit_seconds.get(entrant.configuration.learner, math.inf)

    def _folds_per_job(self, name: str, folds: int) -> int:
        seconds = self._fit_seconds.get(name)
        if seconds is None:
            return 1
        return min(folds, max(1, math.ceil(SHORTEST_JOB / max(seconds, 1e-6))))

    def _batch(self, entrant: Entrant, folds: tuple[int, ...], results: Sequence[Fitted]) -> Batch:
        chosen = learner(entrant.configuration.learner)
        losses = _defined(loss for result in results for loss in result.losses)
        reason = next((result.reason for result in results if result.reason), None)
        seconds = sum(result.cpu_seconds for result in results)
        fits = len(folds)  # failed ones too, however they were grouped into jobs
        self._fit_seconds[chosen.name] = seconds / fits
        free = [losses for result in results for losses in result.free if losses]
        told = {}
        if reason is None and len(free) == fits:
            columns = zip(*free, strict=True)
            told = dict(zip(entrant.free, map(_defined, columns), strict=True))
        tallies = tuple(tally for result in results for tally in result.tallies)
        free_tallies = zip(*(own for result in results for own in result.free_tallies), strict=True)
        return Batch(
            folds,
            losses,
            fits,
            seconds,
            self._round,
            reason,
            chosen.iterations,
            told,
            tallies,
            dict(zip(entrant.free, free_tallies, strict=True)) if told else {},
        )

    def _recall(self, entrant: Entrant) -> Evaluation:
        """The judgement by what is known; its cost once, in a reply to the round that paid."""
        known = self._memory.get(entrant.configuration)
        told = {fold: known[fold] for fold in range(self._reach(entrant)) if fold in known}
        fits, seconds = self._bill(entrant.configuration, told.values())
        reason = _reason(told.values())
        if reason:
            tally = self._worst_tally(entrant.configuration)
            return Evaluation(self._worst, fits, seconds, reason, tally=tally)
        free = {
            count: self._judge(_losses(told, count), entrant.incumbent)
            for count in _free_counts(entrant, told.values())
        }
        judged = self._judge(_losses(told), entrant.incumbent)
        tally = self._tally(told) if judged.whole else None
        return msgspec.structs.replace(
            judged, fits=fits, cpu_seconds=seconds, free=free, tally=tally
        )

    def _tally(self, told: Mapping[int, Batch]) -> Tally | None:
        tallies = [batch.tally(fold) for fold, batch in sorted(told.items())]
        known = [tally for tally in tallies if tally is not None]
        if len(known) < len(tallies):
            return None
        return statistic(self._problem).disclosed(added(known), self._smallest)

    def _worst_tally(self, configuration: Configuration) -> Tally | None:
        if self._problem.compare_by == "parties":
            return None
        judged = self._rows.folder, configuration.fraction
        wrong = statistic(self._problem).worst(
            judged_targets(*judged), kept_classes(*judged, self._smallest)
        )
        return statistic(self._problem).disclosed(wrong, self._smallest)

    def _bill(self, configuration: Configuration, batches: Iterable[Batch]) -> tuple[int, float]:
        fits, seconds = 0, 0.0
        for batch in batches:
            bill = key(configuration), batch.folds
            if batch.round == self._round and bill not in self._billed:
                self._billed.add(bill)
                fits, seconds = fits + batch.fits, seconds + batch.cpu_seconds
        return fits, seconds

    def _judge(self, losses: Losses, incumbent: Losses | None) -> Evaluation:
        """The mean of all folds' losses; of some folds only, a paired estimate of it.

        Folds differ more than configurations do, so the mean of a few folds could not be compared
        with that of all. The incumbent's mean, plus by how much its losses were missed on the
        folds that were fitted, can.
        """
        if len(losses) == self._problem.folds:
            return Evaluation(min(self._worst, _mean(losses)), losses=losses, whole=True)
        assert incumbent is not None
        estimate = _mean(incumbent) + float(_differences(losses, incumbent).mean())
        return Evaluation(min(self._worst, max(0.0, estimate)), losses=losses)


def clearly_worse(losses: Losses, incumbent: Losses, usual_spread: float | None = None) -> bool:
    """Whether the folds done say that the mean of all would be above the incumbent's.

    A one-sided paired t-test. Optuna's `WilcoxonPruner` asks the same question by ranks, which
    takes more folds: two differences are both positive by chance in one case of four, three in one
    of eight. The t-test also looks at how far apart the losses are, and can tell at the second.
    Two differences say little of their own spread, so that of earlier entrants counts too, as
    much as `PRIOR` differences would: the moderated t-test of gene expression studies.
    """
    differences = _differences(losses, incumbent)
    count = len(differences)
    if count < STAGE:
        return False
    mean, variance, degrees = float(differences.mean()), float(differences.var(ddof=1)), count - 1
    if usual_spread is not None:
        variance = (PRIOR * usual_spread**2 + degrees * variance) / (PRIOR + degrees)
        degrees += PRIOR
    if mean <= 0.0 or variance == 0.0:
        return mean > 0.0
    t = mean / math.sqrt(variance / count)
    return bool(stdtr(degrees, -t) < SIGNIFICANCE)


def spread(losses: Losses, incumbent: Losses) -> float | None:
    """The standard deviation of the differences by fold; None of fewer than two."""
    differences = _differences(losses, incumbent)
    return float(differences.std(ddof=1)) if len(differences) > 1 else None


def _free_counts(entrant: Entrant, told: Iterable[Batch]) -> list[int]:
    """Those of the entrant's free counts that all of its folds tell of."""
    batches = list(told)
    return [count for count in entrant.free if all(count in batch.free for batch in batches)]


def _differences(losses: Losses, incumbent: Losses) -> np.ndarray:
    """By fold, where both are defined: above 0 is worse than the incumbent."""
    differences = np.array(losses, float) - np.array(incumbent[: len(losses)], float)
    defined: np.ndarray = differences[~np.isnan(differences)]
    return defined


def _mean(losses: Losses) -> float:
    defined = [loss for loss in losses if loss is not None]
    return float(np.mean(defined)) if defined else UNDEFINED


def _losses(told: Mapping[int, Batch], count: int | None = None) -> Losses:
    """By fold, after all iterations or the first `count` of them."""
    return tuple(batch.loss(fold, count) for fold, batch in told.items())


def _defined(losses: Iterable[float]) -> Losses:
    return tuple(None if math.isnan(loss) else loss for loss in losses)


def _reason(batches: Iterable[Batch]) -> str | None:
    return next((batch.reason for batch in batches if batch.reason), None)
