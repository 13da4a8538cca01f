"""FedEx in a wrapper: random search or halving over the aggregation's settings, FedEx within."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from cotune.coordinator.federation import BudgetSpent, Federation
from cotune.errors import UsageError, choices
from cotune.methods.exponentiated import Instance, JudgeBy, Options, StepSizes, entropy, some_of
from cotune.methods.halving import WRAPPERS, Job, Schedule
from cotune.party.train.network import Objective
from cotune.problem import Problem, seed_of
from cotune.training.checkpoint import read, write
from cotune.training.rounds import EVERY, fresh, network_learner
from cotune.trial import HeldOut, Step, Trial

#: Parties that judge while the tuning goes on; in the end all do.
JUDGES = 100


def fedex(
    federation: Federation,
    problem: Problem,
    *,
    wrapper: str = "sha",
    rounds: int = 800,
    max_rounds: int | None = None,
    eta: int = 3,
    eliminations: int = 3,
    clients_per_round: int = 10,
    objective: Objective = "personalized",
    arms: int = 27,
    epsilon: float = 0.1,
    step_size: StepSizes = "aggressive",
    baseline: float | None = None,
    first_baseline: bool = True,
    floor: float = 0.0,
    entropy_stop: float = 0.0,
    product: bool = False,
    score_discount: float = 0.0,
    judge_by: JudgeBy = "mode",
    validation: float = 0.1,
    curve: int = 20,
) -> Iterator[Step]:
    """Weight sharing: clients draw their settings from a distribution that learns with the network.

    Khodak et al., Federated Hyperparameter Tuning: Challenges, Baselines, and Connections to
    Weight-Sharing (2021): Algorithm 2, inside a wrapper that draws the settings of the aggregation
    (Algorithm 3). With `arms=1` it is the wrapper alone (Algorithm 1).

    Clients are drawn without replacement, unlike in the authors' code. What a round tells, it tells
    by `sum`: the mean update, and for each arm the weighted loss and the rows behind it.

    Parameters
    ----------
    wrapper
        `sha` (successive halving), `rs` (random search), `hyperband`, `asha`, or `grid`: each point
        of the finest grid that the rounds allow, to its end. With `arms=1` that is the federated
        grid search (GHO) which PrivTuna takes for the ground truth.
    rounds
        Of training, over all configurations of the wrapper. Judging by test rows comes on top.
    max_rounds
        Of one configuration, M of appendix D.1; a fifth of `rounds` by default, as in the paper.
    eta, eliminations
        The wrapper's elimination rate and the number R of its eliminations.
    clients_per_round
        B: how many parties a round asks.
    objective
        Whether the wrapper judges the model after local training (`personalized`, equation 2) or
        before it (`global`, equation 1). Arms are always judged after it.
    arms
        k: configurations of the local training in each instance of FedEx.
    epsilon
        Size of the neighbourhood that all but the first are drawn from, in the space's own scale.
    step_size
        Of the exponentiated gradient: `aggressive`, `adaptive` or `constant` (appendix F).
    baseline
        gamma of appendix C.3; drawn for each instance by default, as in the authors' code.
    first_baseline
        Whether the first round, which has no past, takes its own mean loss as the baseline. With 0
        in its place, as published, the arms that are drawn first are always pushed down.
    floor
        The share of theta that is spread over all arms after each update; 0 as published.
    entropy_stop
        theta stays as it is once its entropy (in nats) falls below; 0 is never.
    product
        Whether theta has a distribution for each parameter instead of one over configurations.
    score_discount
        The wrapper's score is a mean over an arm's past rounds, discounted by this for each round
        back; 0 takes the last round alone, as published (figure 2).
    judge_by
        Whether a client that judges fine-tunes by the `mode` of theta or by `sampling`.
    validation
        The share of each client's rows that losses are taken from.
    curve
        Points of the test error against rounds (figure 4), for which up to 100 parties are asked.
        Without rows that are set aside (`holdout`) there is none.
    """
    options = Options(
        clients_per_round, objective, arms, epsilon, step_size, baseline, first_baseline, floor,
        entropy_stop, product, score_discount, judge_by, validation,
    )  # fmt: skip
    _check(options, wrapper, rounds, max_rounds, eta, eliminations, curve)
    for learner in problem.learners:
        network_learner(learner)
    most = max(1, rounds // 5) if max_rounds is None else max_rounds
    if wrapper == "grid":
        options, rounds = _on_grid(problem, options, rounds, most)
    schedule = WRAPPERS[wrapper](rounds, most, eta, eliminations)
    curve = curve if problem.holdout else 0
    yield from _Run(federation, problem, schedule, rounds, most, curve, options).steps()


def _on_grid(problem: Problem, options: Options, rounds: int, most: int) -> tuple[Options, int]:
    """As many points of a grid as the rounds allow, equally many of each learner."""
    allowed = rounds // most // len(problem.learners)
    sizes = [len(problem.space(learner).finest_grid(allowed)) for learner in problem.learners]
    if not min(sizes):
        raise UsageError(
            f"{rounds} rounds are too few for a grid of configurations of {most} each: give more "
            "(--rounds), or fix parameters that are not to be searched"
        )
    points = min(sizes) * len(problem.learners)
    return msgspec.structs.replace(options, grid=allowed), points * most


class Known(msgspec.Struct):
    """The small part of a checkpoint: what the wrapper has seen, and how the curve goes.

    `arms`, `ends` and `scores` are those of the finished jobs, in their order.
    """

    trained: int = 0
    arms: list[int] = []
    ends: list[int] = []
    scores: list[float] = []
    trials: list[Trial] = []
    online: list[dict[str, Any]] = []


class _Run:
    """The wrapper at work. Only one instance is in memory; the others wait in the journal."""

    def __init__(
        self,
        federation: Federation,
        problem: Problem,
        schedule: Schedule,
        rounds: int,
        most: int,
        curve: int,
        options: Options,
    ) -> None:
        self._federation, self._problem, self._options = federation, problem, options
        self._schedule, self._rounds, self._most = schedule, rounds, most
        self._every = -(-rounds // curve) if curve else None
        restored = federation.restored()
        self._known = read(restored, Known) if restored else Known()

    def steps(self) -> Iterator[Step]:
        """Algorithm 3: train what the schedule asks for, and tell it the score."""
        known = self._known
        if known.trials:
            yield Step(tuple(known.trials), known.trained, self._rounds)
        try:
            for job in self._jobs():
                instance = self._instance(job.arm)
                yield from self._trained(instance, job)
                yield self._finished(instance)
        except BudgetSpent:
            if not known.trials and not instance.common.round:
                raise
            if not known.trials:
                yield self._finished(instance)
        yield self._ended()

    def _finished(self, instance: Instance) -> Step:
        """A job is done. An arm that nobody could judge is as bad as can be."""
        known, worst = self._known, self._problem.metric.worst(self._problem.schema)
        score = instance.scores.mean
        known.arms.append(instance.number)
        known.ends.append(instance.common.round)
        known.scores.append(worst if score is None else score)
        known.trials.append(self._trial(instance))
        self._checkpoint(instance)
        return Step((known.trials[-1],), known.trained, self._rounds)

    def _jobs(self) -> Iterator[Job]:
        """The schedule's jobs; in a resumed run it is told the earlier scores again."""
        scores = self._known.scores
        told = 0
        try:
            job = next(self._schedule)
            while True:
                if told == len(scores):
                    yield job
                job = self._schedule.send(scores[told])
                told += 1
        except StopIteration:
            return

    def _trained(self, instance: Instance, job: Job) -> Iterator[Step]:
        """Train an instance up to the job's end, with checkpoints and points of the curve."""
        known = self._known
        while instance.common.round < job.until:
            instance.round(self._federation, self._problem, self._options)
            known.trained += 1
            if self._every and known.trained % self._every == 0:
                self._point(instance)
            if known.trained % EVERY == 0:
                self._checkpoint(instance)
                yield Step((), known.trained, self._rounds)

    def _instance(self, number: int) -> Instance:
        """The arm as it was left, or a new one."""
        kept = self._federation.part(f"arm-{number}")
        if kept is not None:
            return read(kept, Instance)
        return Instance.drawn(self._problem, number, self._options)

    def _checkpoint(self, instance: Instance) -> None:
        self._federation.checkpoint(write(self._known), {f"arm-{instance.number}": write(instance)})

    def _point(self, instance: Instance) -> None:
        """A point of figure 4: the test error of the best arm so far, or of one that is farther."""
        known, shown = self._known, instance
        if known.scores:
            best = self._leader()
            if known.arms[best] != instance.number and instance.common.round <= known.ends[best]:
                shown = self._instance(known.arms[best])
        rng = np.random.default_rng(seed_of(self._problem.seed, "judges"))
        judges = some_of(self._federation.parties, JUDGES, rng)
        found = shown.judged(self._federation, self._problem, judges, self._options)
        if found is not None:
            point = {"rounds": known.trained, "arm": shown.number}
            known.online.append(point | _figures(found))

    def _leader(self) -> int:
        """The position of the best job so far: of those that came farthest, the lowest score."""
        known = self._known
        return min(range(len(known.scores)), key=lambda n: (-known.ends[n], known.scores[n], n))

    def _trial(self, instance: Instance) -> Trial:
        """A finished job; its `fraction` is that of the rounds which an arm can have."""
        params = instance.params | instance.client
        return Trial(
            learner=instance.learner,
            params={name: params[name] for name in self._problem.space(instance.learner)},
            loss=self._known.scores[-1],
            parties=min(self._options.clients_per_round, len(self._federation.parties)),
            weight=1.0,
            fits=instance.fits,
            cpu_seconds=instance.cpu_seconds,
            fraction=min(1.0, self._known.ends[-1] / self._most),
            validation=0 if self._problem.weights == "equal" else instance.validation,
        )

    def _ended(self) -> Step:
        """The winner with its network, judged by all parties' test rows."""
        known, problem = self._known, self._problem
        position = self._leader()
        winner = self._instance(known.arms[position])
        report: dict[str, Any] = {
            "arms": len(set(known.arms)),
            "trained_rounds": known.trained,
            "client": winner.client,
            "configurations": list(winner.configurations),
            "theta": winner.thetas,
            "entropy": entropy(winner.theta),
            "online": known.online,
        }
        held_out: HeldOut | None = None
        if problem.holdout:
            with suppress(BudgetSpent):
                held_out = winner.judged(
                    self._federation, problem, self._federation.parties, self._options
                )
            report["test"] = None if held_out is None else _figures(held_out)
        network = fresh(problem, winner.learner, winner.params, problem.seed)
        network.load(winner.common.weights.astype(np.float32))
        chosen = known.trials[position]
        return Step((), known.trained, self._rounds, report, chosen, network, held_out)


def _figures(found: HeldOut) -> dict[str, Any]:
    """Test losses as the report has them."""
    return {"global": found.loss, "personalized": found.personalized}


def _check(
    options: Options,
    wrapper: str,
    rounds: int,
    max_rounds: int | None,
    eta: int,
    cuts: int,
    curve: int,
) -> None:
    """Refuse what cannot be meant, before any work is done."""
    if wrapper not in WRAPPERS:
        raise UsageError(choices(wrapper, "wrapper", WRAPPERS))
    for name, value, allowed in (
        ("objective", options.objective, ("personalized", "global")),
        ("step_size", options.step_size, ("aggressive", "adaptive", "constant")),
        ("judge_by", options.judge_by, ("mode", "sampling")),
    ):
        if value not in allowed:
            raise UsageError(choices(value, name, allowed))
    for name, count, least in (
        ("rounds", rounds, 1),
        ("max_rounds", 1 if max_rounds is None else max_rounds, 1),
        ("arms", options.arms, 1),
        ("clients_per_round", options.clients_per_round, 1),
        ("eta", eta, 2),
        ("eliminations", cuts, 1),
        ("curve", curve, 0),
    ):
        if not isinstance(count, int) or count < least:
            raise UsageError(f"{name} is {count!r}: give a whole number of at least {least}")
    if max_rounds is not None and max_rounds > rounds:
        raise UsageError(f"max_rounds is {max_rounds}, more than the {rounds} rounds in all")
    shares = {
        "epsilon": options.epsilon, "floor": options.floor, "baseline": options.baseline or 0.0,
        "score_discount": options.score_discount,
    }  # fmt: skip
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise UsageError(f"{name} is {share}: give a number from 0 to 1")
    if not 0 < options.validation < 1:
        raise UsageError(f"validation is {options.validation}: give a share between 0 and 1")
    if options.entropy_stop < 0:
        raise UsageError(f"entropy_stop is {options.entropy_stop}: give a number of at least 0")
