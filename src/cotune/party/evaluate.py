"""Cross-validation of configurations on a party's rows, spread over its workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from cotune.learners import learner
from cotune.party.fit import Fitted, Job
from cotune.party.memory import Evaluation, Memory, key
from cotune.party.rows import Rows
from cotune.party.tasks import Configuration
from cotune.party.workers import Workers
from cotune.problem import Problem

#: Folds are sent to the workers in jobs of at least this many CPU seconds, as far as the
#: learner's earlier fits tell, so that sending costs little beside fitting.
SHORTEST_JOB = 0.02
#: The loss where no fold defines the metric: a party of one class has no ROC curve to speak of,
#: and chance is what any configuration would do there.
UNDEFINED = 0.5


class Evaluator:
    """Judges configurations for one problem and remembers what it judged."""

    def __init__(self, problem: Problem, rows: Rows, workers: Workers, memory: Memory) -> None:
        self._problem = problem
        self._rows = rows
        self._workers = workers
        self._memory = memory
        self._fit_seconds: dict[str, float] = {}
        self._round = 0
        self._given_up = workers.given_up
        self._billed: set[str] = set()

    def begin(self, round_number: int, given_up: Future[None]) -> None:
        """Start a reply: what is fitted or recalled from now on belongs to this round."""
        self._round = round_number
        self._given_up = given_up
        self._billed = set()

    def evaluate(self, configurations: Sequence[Configuration]) -> list[Evaluation]:
        """One evaluation per configuration; all that are new are fitted side by side."""
        distinct = {key(configuration): configuration for configuration in configurations}
        new = [
            (configuration, self._jobs(configuration))
            for configuration in distinct.values()
            if self._memory.get(configuration) is None
        ]
        new.sort(key=self._expected_seconds, reverse=True)  # the long ones last would end alone
        jobs_of_all = [job for _, jobs in new for job in jobs]
        fitted = iter(self._workers.run(jobs_of_all, self._given_up))
        for configuration, jobs in new:
            results = [next(fitted) for _ in jobs]
            self._memory.put(configuration, self._judge(configuration, results))
        return [self._recall(configuration) for configuration in configurations]

    def _jobs(self, configuration: Configuration) -> list[Job]:
        chosen = learner(configuration.learner)
        self._rows.prepare(chosen.features)
        folds = range(self._problem.folds)
        together = self._folds_per_job(configuration.learner)
        return [
            Job(self._rows.folder, chosen, configuration, tuple(folds[start : start + together]))
            for start in range(0, len(folds), together)
        ]

    def _expected_seconds(self, new: tuple[Configuration, list[Job]]) -> float:
        return self._fit_seconds.get(new[0].learner, math.inf)

    def _folds_per_job(self, name: str) -> int:
        seconds = self._fit_seconds.get(name)
        if seconds is None:
            return 1
        return min(self._problem.folds, max(1, math.ceil(SHORTEST_JOB / max(seconds, 1e-6))))

    def _judge(self, configuration: Configuration, results: Sequence[Fitted]) -> Evaluation:
        losses = [loss for result in results for loss in result.losses]
        reason = next((result.reason for result in results if result.reason), None)
        seconds = sum(result.cpu_seconds for result in results)
        fits = self._problem.folds  # failed ones too, however they were grouped into jobs
        self._fit_seconds[configuration.learner] = seconds / fits
        worst = self._problem.metric.worst(self._problem.schema)
        defined = [loss for loss in losses if not math.isnan(loss)]
        mean = float(np.mean(defined)) if defined else UNDEFINED
        loss = worst if reason else min(worst, mean)
        return Evaluation(loss, fits, seconds, self._round, reason)

    def _recall(self, configuration: Configuration) -> Evaluation:
        """The remembered judgement; its cost once, in a reply to the round that paid for it."""
        known = self._memory.get(configuration)
        assert known is not None
        if known.round == self._round and key(configuration) not in self._billed:
            self._billed.add(key(configuration))
            return known
        return Evaluation(known.loss, 0, 0.0, known.round, known.reason)
