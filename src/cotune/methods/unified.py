"""FLoRA's unified surface over a federation: summed at the parties, or built from their pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import msgspec
import numpy as np

from cotune.coordinator.federation import Federation, Sums
from cotune.methods.bound import gamma_p, optimality_gap
from cotune.methods.evaluate import evaluate, evaluate_openly
from cotune.methods.surfaces import Evidence, Params, Surface, surface
from cotune.party.marginals import wasserstein as distance
from cotune.party.predict import bounded, judged_pairs, soft_maximum, surrogate_seed
from cotune.party.task import Configuration
from cotune.party.tasks import Candidates, Distributions, Marginals, Pair, Predict, Search, Searches
from cotune.problem import Problem
from cotune.trial import Trial, mean_of

#: Of the soft maximum: the share of candidates below its ceiling, how much lower a next ceiling
#: must be to be worth a round, and the lowest one, in the metric's unit.
BELOW, WORTH, LOWEST = 0.25, 0.8, 0.01


def inside(problem: Problem, shot: Sequence[Configuration]) -> list[Configuration]:
    """Those that lie in their spaces: all but a default outside, which surfaces do not reach."""
    beside = {learner: problem.beside(learner) for learner in problem.learners}
    return [one for one in shot if one.params != beside[one.learner]]


class Unified(ABC):
    """The unified surface's values at candidates, wherever they are computed; and the cost."""

    parties: int = 0
    weight: float = 0.0
    fits: dict[str, int]
    cpu_seconds: dict[str, float]

    def __init__(self, federation: Federation, problem: Problem, search: Search, kind: str) -> None:
        self._federation, self._problem = federation, problem
        self._search, self._kind = search, kind

    @abstractmethod
    def __call__(self, asked: Sequence[Candidates]) -> list[np.ndarray]:
        """One vector per learner."""

    def judge(self, shot: Sequence[Configuration], shuffles: Sequence[int]) -> list[Trial]:
        """All parties judge configurations, and the surface learns from those inside the space.

        Each is judged once for every way of shuffling the folds; the trials are the means.
        """
        asked = [msgspec.structs.replace(one, shuffle=s) for one in shot for s in shuffles]
        trials = self._judge(asked)
        return [
            mean_of(trials[begin : begin + len(shuffles)])
            for begin in range(0, len(trials), len(shuffles))
        ]

    @abstractmethod
    def _judge(self, shot: Sequence[Configuration]) -> Sequence[Trial]: ...

    def report(self, chosen: Trial) -> dict[str, Any]:
        """Diagnostics of the choice, as far as what was disclosed allows them."""
        return {}

    def trials(self, best: dict[str, tuple[Params, float]]) -> list[Trial]:
        """The surface's word on one configuration of each learner, with the search's cost."""
        return [
            Trial(
                learner=learner,
                params=params,
                loss=value,
                parties=self.parties,
                weight=self.weight,
                fits=self.fits[learner],
                cpu_seconds=self.cpu_seconds[learner],
                predicted=True,
            )
            for learner, (params, value) in best.items()
        ]


class Summed(Unified):
    """APLM: the parties predict, the coordinator learns the mean of the predictions."""

    _searched = False
    _judged: tuple[Configuration, ...] = ()
    _ceilings: tuple[float, ...] = ()

    def _judge(self, shot: Sequence[Configuration]) -> Sequence[Trial]:
        self._judged += tuple(inside(self._problem, shot))
        return evaluate(self._federation, shot)

    def __call__(self, asked: Sequence[Candidates]) -> list[np.ndarray]:
        task = Predict(
            self._search,
            tuple(asked),
            self._kind,
            judged=self._judged,
            anew=not self._searched,
            ceilings=self._ceilings,
        )
        sums = self._federation.sum(task)
        self.parties, self.weight = sums.parties, sums.weight
        if not self._searched:
            learners, self._searched = self._problem.learners, True
            self.fits = dict(zip(learners, sums.sum("fits").astype(int).tolist(), strict=True))
            self.cpu_seconds = dict(zip(learners, sums.sum("cpu_seconds").tolist(), strict=True))
        counts = [candidates.count for candidates in asked]
        return self._values(sums, np.cumsum(counts)[:-1])

    def _values(self, sums: Sums, ends: np.ndarray) -> list[np.ndarray]:
        return np.split(sums.mean("losses"), ends)


class Highest(Summed):
    """MPLM as a soft maximum: the parties tell exponentials of their predictions.

    The soft maximum is too high by ln(N) / 25 of a ceiling at most, for N parties (see `Predict`);
    above the ceiling all losses are alike. So the first candidates are asked for several times:
    with the worst loss as the ceiling, and then with the soft maximum of the best quarter of them,
    until that falls no further. It is an upper bound, so none of these is cut.
    """

    _settled = False

    def __init__(self, federation: Federation, problem: Problem, search: Search, kind: str) -> None:
        super().__init__(federation, problem, search, kind)
        self._ceilings = (problem.metric.worst(problem.schema),) * len(problem.learners)

    def __call__(self, asked: Sequence[Candidates]) -> list[np.ndarray]:
        values = super().__call__(asked)
        lowest = LOWEST * self._problem.metric.unit(self._problem.schema)
        while not self._settled:
            lower = tuple(max(lowest, float(np.quantile(own, BELOW))) for own in values)
            steps = zip(lower, self._ceilings, strict=True)
            self._settled = all(new > WORTH * old for new, old in steps)
            if not self._settled:
                self._ceilings = tuple(map(min, lower, self._ceilings))
                values = super().__call__(asked)
        return values

    def _values(self, sums: Sums, ends: np.ndarray) -> list[np.ndarray]:
        totals = np.split(sums.sum("losses"), ends)
        return list(map(soft_maximum, totals, self._ceilings))


class Gathered(Unified):
    """Any surface: the parties tell their pairs, the coordinator fits the surrogates."""

    def __init__(
        self,
        federation: Federation,
        problem: Problem,
        search: Search,
        kind: str,
        name: str,
        alpha: float,
        wasserstein: bool,
    ) -> None:
        super().__init__(federation, problem, search, kind)
        self._name, self._alpha, self._wasserstein = name, alpha, wasserstein
        replies = cast("dict[str, Searches]", federation.gather(search))  # lines 2-5
        self.parties, self.weight = len(replies), sum(reply.weight for reply in replies.values())
        self._weights = {party: reply.weight for party, reply in replies.items()}
        self._pairs: dict[str, dict[str, list[Pair]]] = {}
        self.fits, self.cpu_seconds = {}, {}
        for i, learner in enumerate(problem.learners):
            found = {party: reply.found[i] for party, reply in replies.items()}
            self._pairs[learner] = {party: list(one.pairs) for party, one in found.items()}
            self.fits[learner] = sum(one.fits for one in found.values())
            self.cpu_seconds[learner] = sum(one.cpu_seconds for one in found.values())
        self._judged: dict[str, list[tuple[Configuration, float]]] = {}
        self._surfaces = self._built()

    def _judge(self, shot: Sequence[Configuration]) -> Sequence[Trial]:
        trials, losses = evaluate_openly(self._federation, shot)
        learnt = inside(self._problem, shot)
        for party, told in losses.items():
            known = self._judged.setdefault(party, [])
            known += [(one, loss) for one, loss in zip(shot, told, strict=True) if one in learnt]
        self._surfaces = self._built()
        return trials

    def __call__(self, asked: Sequence[Candidates]) -> list[np.ndarray]:
        return [
            self._surfaces[learner](candidates.drawn(self._problem.space(learner)))
            for learner, candidates in zip(self._problem.learners, asked, strict=True)
        ]

    def _built(self) -> dict[str, Surface]:
        """Line 6: one unified surface per learner."""
        return {
            learner: surface(
                self._name,
                self._problem.space(learner),
                self._evidence(learner),
                surrogate=self._kind,
                alpha=self._alpha,
                seed=surrogate_seed(self._problem, learner),
                bounded=partial(bounded, self._problem),
            )
            for learner in self._pairs
        }

    def _evidence(self, learner: str) -> list[Evidence]:
        """Every party's pairs, in the order of the names."""
        evidence = []
        for party, searched in sorted(self._pairs[learner].items()):
            pairs = [*searched, *judged_pairs(learner, self._judged.get(party, ()))]
            evidence.append(
                Evidence(
                    [pair.params for pair in pairs],
                    [pair.loss for pair in pairs],
                    self._weights[party],
                    [pair.doubt for pair in pairs],
                )
            )
        return evidence

    def report(self, chosen: Trial) -> dict[str, Any]:
        """gamma_p (section 3) of every learner, and the bound of Theorem C.6 for the chosen one.

        There is no bound for a default outside of its space, where there is no surface.
        """
        problem = self._problem
        evidence = {learner: self._evidence(learner) for learner in self._pairs}
        report: dict[str, Any] = {}
        if problem.metric.worst(problem.schema) == 1.0:  # losses are shares
            report["gamma_p"] = {learner: gamma_p(pairs) for learner, pairs in evidence.items()}
        within = chosen.params != problem.beside(chosen.learner)
        if within and self._name in ("aplm", "mplm"):
            gap = optimality_gap(
                problem.space(chosen.learner),
                evidence[chosen.learner],
                chosen.params,
                surface=self._name,
                surrogate=self._kind,
                seed=surrogate_seed(problem, chosen.learner),
                distances=self._distances(sorted(self._weights)),
            )
            report["optimality_gap"] = msgspec.to_builtins(gap)
        return report

    def _distances(self, parties: Sequence[str]) -> np.ndarray | None:
        """1-Wasserstein distances between the parties, if all of them tell their marginals."""
        if not self._wasserstein:
            return None
        told = cast("dict[str, Distributions]", self._federation.gather(Marginals()))
        if not told.keys() >= set(parties):
            return None
        return np.array([[distance(told[i], told[j]) for j in parties] for i in parties])
