"""FedEx itself: a network that is trained while the settings of its local training are tuned."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
import numpy as np

from cotune.coordinator.federation import Federation, Sums
from cotune.errors import FederationError
from cotune.networks.parts import CLIENT, Common
from cotune.party.train.network import Arms, Improve, Judge, Objective
from cotune.problem import Problem, seed_of
from cotune.training.rounds import EVERY, advance, fresh, network_learner
from cotune.trial import HeldOut

StepSizes = Literal["aggressive", "adaptive", "constant"]
JudgeBy = Literal["mode", "sampling"]


class Options(msgspec.Struct, frozen=True):
    """How an instance learns; `cotune.methods.fedex.fedex` says what each means."""

    clients_per_round: int
    objective: Objective
    arms: int
    epsilon: float
    step_size: StepSizes
    baseline: float | None
    first_baseline: bool
    floor: float
    entropy_stop: float
    product: bool
    score_discount: float
    judge_by: JudgeBy
    validation: float
    #: Above 0: the aggregation's settings are points of a grid of at most so many, in its order.
    grid: int = 0


#: How often clients are drawn for a round, if too few of those drawn before answer.
DRAWS = 3
#: Losses lie between 0 and 1, or are not far from it, and are told to about 1e-9.
LEAST_GRADIENT = 1e-9

# The mathematics of Algorithm 2 and appendices C.3 and F


def gradient(
    losses: np.ndarray, rows: np.ndarray, theta: np.ndarray, baseline: float
) -> np.ndarray:
    """The stochastic gradient of Algorithm 2, from sums over the round's clients.

    `losses[j]` is the sum of |V_i| L_i over the clients that drew arm j, `rows[j]` that of |V_i|.
    Arms that nobody drew have 0.
    """
    drawn = (rows > 0) & (theta > 0)
    found = np.zeros_like(theta)
    found[drawn] = (losses[drawn] - baseline * rows[drawn]) / (theta[drawn] * rows.sum())
    return found


def step_of(kind: StepSizes, gradients: np.ndarray, squares: float) -> float:
    """eta_t of appendix F; `squares` adds up the largest entries squared, round t's with them.

    Gradients that are nothing but rounding errors have a step of 0: an aggressive one would make
    a difference of them.
    """
    base = math.sqrt(2.0 * math.log(len(gradients)))
    if kind == "constant":
        return base
    size = float(np.abs(gradients).max()) if kind == "aggressive" else math.sqrt(squares)
    return base / size if size > LEAST_GRADIENT else 0.0


def exponentiated(theta: np.ndarray, gradients: np.ndarray, step: float) -> np.ndarray:
    """theta * exp(-step * gradients), on the simplex again; by logarithms: nothing overflows.

    Of several distributions, one per row, each is moved by itself.
    """
    with np.errstate(divide="ignore"):
        powers = np.log(theta) - step * gradients
    grown = np.exp(powers - powers.max(axis=-1, keepdims=True))
    shares: np.ndarray = grown / grown.sum(axis=-1, keepdims=True)
    return shares


def entropy(theta: list[np.ndarray]) -> float:
    """In nats; a product's is the sum of its factors'."""
    return sum(float(-(t[t > 0] * np.log(t[t > 0])).sum()) for t in theta)


class Discounted(msgspec.Struct):
    """A mean of the past that forgets: lambda_t of appendix C.3, and the scores of figure 2."""

    discount: float
    total: float = 0.0
    weight: float = 0.0

    @property
    def mean(self) -> float | None:
        """None as long as there is no past."""
        return self.total / self.weight if self.weight else None

    def add(self, value: float) -> None:
        self.total = self.discount * self.total + value
        self.weight = self.discount * self.weight + 1.0


# A training under way


class Instance(msgspec.Struct):
    """One arm of the wrapper: the common weights, and the distribution over its own arms."""

    number: int
    learner: str
    params: dict[str, Any]
    configurations: tuple[dict[str, Any], ...]
    names: tuple[str, ...]
    theta: list[np.ndarray]
    common: Common
    baseline: Discounted
    scores: Discounted
    squares: list[float]
    fits: int = 0
    cpu_seconds: float = 0.0
    #: Validation rows of the last round (parties, where these count alike).
    validation: int = 0
    #: After each round: all of theta.
    thetas: list[list[float]] = []

    @classmethod
    def drawn(cls, problem: Problem, number: int, options: Options) -> Instance:
        """a = (b, c_1) from the whole space; c_2, ..., c_k from the neighbourhood of c_1."""
        learner = problem.learners[number % len(problem.learners)]
        space, rng = problem.space(learner), _rng(problem, "arm", number)
        params = space.sample(rng)
        if options.grid:
            params = space.finest_grid(options.grid)[number // len(problem.learners)]
        near = space.fix(**{name: value for name, value in params.items() if name not in CLIENT})
        drawn = [params]
        drawn += [near.perturb(params, rng, options.epsilon) for _ in range(options.arms - 1)]
        client = tuple({name: one[name] for name in one if name in CLIENT} for one in drawn)
        searched = tuple(name for name in client[0] if near[name].width)
        names = searched if options.product else ()
        params = network_learner(learner).defaults(problem.task) | params
        network = fresh(problem, learner, params, seed_of(problem.seed, "weights", number))
        return cls(
            number,
            learner,
            params,
            client,
            names,
            theta=[np.full(len(client), 1.0 / len(client)) for _ in range(max(1, len(names)))],
            common=Common(network.weights.astype(float), buffers=network.buffers),
            baseline=Discounted(rng.random() if options.baseline is None else options.baseline),
            scores=Discounted(options.score_discount),
            squares=[0.0] * max(1, len(names)),
        )

    def round(self, federation: Federation, problem: Problem, options: Options) -> None:
        """One communication round of Algorithm 2."""
        task = Improve(
            self.learner,
            self.params,
            self.arms,
            str(self.number),
            self.common.round,
            objective=options.objective,
            validation=options.validation,
            since=max(0, self.common.round - EVERY),
        )
        for attempt in range(DRAWS):
            again = (attempt,) if attempt else ()
            rng = _rng(problem, "clients", self.number, self.common.round, *again)
            clients = some_of(federation.parties, options.clients_per_round, rng)
            try:
                sums = advance(federation, task, self.common, clients)
                break
            except FederationError:  # too few of them answered
                if attempt == DRAWS - 1:
                    raise
        self.update(sums, options)
        cost = federation.ledger.last.cost
        self.fits, self.cpu_seconds = self.fits + cost.fits, self.cpu_seconds + cost.cpu_seconds

    def update(self, sums: Sums, options: Options) -> None:
        """The last lines of Algorithm 2: baseline, gradient, step size, theta."""
        losses = np.split(sums.sum("losses"), len(self.theta))
        rows = np.split(sums.sum("rows"), len(self.theta))
        if not rows[0].sum():  # no client could be judged
            return
        self.validation = int(rows[0].sum())
        mean = float(losses[0].sum() / rows[0].sum())
        level = self.baseline.mean
        if level is None:
            level = mean if options.first_baseline else 0.0
        if len(self.configurations) > 1 and entropy(self.theta) > options.entropy_stop:
            for h, theta in enumerate(self.theta):
                slope = gradient(losses[h], rows[h], theta, level)
                self.squares[h] += float(np.abs(slope).max()) ** 2
                step = step_of(options.step_size, slope, self.squares[h])
                moved = exponentiated(theta, slope, step)
                self.theta[h] = (1.0 - options.floor) * moved + options.floor / len(theta)
        self.baseline.add(mean)
        before = sums.sum("before")
        self.scores.add(float(before[0] / before[1]) if before[1] else mean)
        self.thetas.append([round(float(share), 6) for share in np.concatenate(self.theta)])

    def judged(
        self, federation: Federation, problem: Problem, judges: list[str], options: Options
    ) -> HeldOut | None:
        """The test loss of the common weights and of the fine-tuned ones, over these parties.

        None if no party has rows to judge by.
        """
        task = Judge(
            self.learner,
            self.params,
            self.arms,
            self.common.weights.astype("<f4").tobytes(),
            options.judge_by,
            str(self.number),
            self.common.round,
            options.validation,
        )
        sums = federation.sum(task, among=judges)
        rows = float(sums.sum("rows")[0])
        if not rows:
            return None
        return HeldOut(
            float(sums.sum("common")[0]) / rows,
            0 if problem.weights == "equal" else int(rows),
            sums.parties,
            float(sums.sum("personal")[0]) / rows,
        )

    @property
    def arms(self) -> Arms:
        theta = tuple(tuple(simplex.tolist()) for simplex in self.theta)
        return Arms(self.configurations, theta, self.names)

    @property
    def client(self) -> dict[str, Any]:
        """The most likely settings of the local training."""
        return self.arms.configuration(self.arms.mode)


def some_of(parties: list[str], count: int, rng: np.random.Generator) -> list[str]:
    """A draw without replacement, in the parties' own order."""
    drawn = rng.permutation(len(parties))[:count]
    return [parties[position] for position in sorted(drawn.tolist())]


def _rng(problem: Problem, *names: object) -> np.random.Generator:
    return np.random.default_rng(seed_of(problem.seed, *names))
