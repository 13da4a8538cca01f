"""Minimise a convex loss of all parties' rows: each step is one round of sums."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from cotune.party.train.linear import Curvature, Slope
from cotune.training import Stage
from cotune.training.checkpoint import read, write
from cotune.training.watch import check_loss

if TYPE_CHECKING:
    from cotune.coordinator.federation import Federation

#: Steps that L-BFGS remembers.
MEMORY = 20
#: Rounds between two checkpoints, which may have the size of a curvature (4 MB).
EVERY = 10
#: Sums are rounded: a mean loss that differs by less is the same.
SLACK = 1e-9
#: Newton's steps double the digits that are right. After one below this, relative to the largest
#: coefficient, more rounds change nothing.
PRECISE = 1e-5
#: A step that had to be shortened below this is no step.
SHORTEST = 2.0**-20

#: Divides a vector by a curvature.
Solve = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Aim:
    """What is minimised, and when it is enough.

    The loss is that of `task`, averaged over the rows by their weights, plus ``|w|^2 / (2 C m)``,
    where m is the sum of these weights: scikit-learn's C. Intercepts are free.

    Parameters
    ----------
    shape
        Of the coefficients: outputs, and columns with the intercept.
    curvature
        `whole` is told in every round, for Newton's method; a `block`, of one output, in the first
        round only, for L-BFGS to start from.
    tol
        The largest component that the gradient may have in the end, as in scikit-learn.
    gain
        Or: the share of the loss that the next step may promise in the end (L-BFGS only).
    most
        Rounds, at most.
    """

    task: Slope
    shape: tuple[int, int]
    curvature: Curvature
    C: float
    tol: float
    gain: float
    most: int

    @property
    def penalised(self) -> np.ndarray:
        """1 for the coefficients, 0 for the intercepts."""
        kept = np.ones(self.shape)
        kept[:, -1] = 0.0
        return kept.ravel()


class Seen(msgspec.Struct, frozen=True):
    """The loss at a point, over the rows of the parties that answered; all per unit of weight."""

    at: np.ndarray
    loss: float
    gradient: np.ndarray
    parties: tuple[str, ...]


class State(msgspec.Struct, frozen=True):
    """Between two rounds: the next point to ask, `step` times `direction` from one that was seen.

    `pairs` are L-BFGS's: steps, and how the gradient changed over them.
    """

    rounds: int
    trial: np.ndarray
    seen: Seen | None = None
    direction: np.ndarray = np.empty(0)
    step: float = 1.0
    pairs: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    block: np.ndarray = np.empty(0)


def descend(federation: Federation, aim: Aim) -> Generator[Stage, None, tuple[np.ndarray, int]]:
    """The coefficients with the least loss, and the rounds that it took.

    Newton's method with the whole curvature, else L-BFGS (Nocedal and Wright, Numerical
    Optimization, algorithm 7.4). Steps are shortened until the loss falls (Armijo's rule).

    A party may be missing for some rounds. Losses over different parties' rows do not compare, so
    where the parties change, the descent begins anew from the point that it has come to.
    """
    restored = federation.restored()
    state = read(restored, State) if restored else State(0, np.zeros(aim.shape).ravel())
    solve = _solver(state.block)
    while True:
        wanted = aim.curvature if aim.curvature == "whole" or not state.rounds else "none"
        seen, square = _ask(federation, aim, state.trial, wanted)
        check_loss([seen.loss])  # it cannot rise for long: steps are shortened until it falls
        if square is not None:
            solve = _solver(square)
        state = _advanced(aim, state, seen, solve)
        if aim.curvature == "block" and square is not None:
            state = msgspec.structs.replace(state, block=square.ravel())
        yield Stage(min(state.rounds, aim.most), aim.most)
        assert state.seen is not None
        if state.seen is seen and _finished(aim, state):
            end = seen.at + state.direction if aim.curvature == "whole" else seen.at
            return end.reshape(aim.shape), state.rounds
        if state.rounds >= aim.most or state.step < SHORTEST:
            return state.seen.at.reshape(aim.shape), state.rounds
        if state.rounds % EVERY == 0:
            federation.checkpoint(write(state))


def _ask(
    federation: Federation, aim: Aim, at: np.ndarray, wanted: Curvature
) -> tuple[Seen, np.ndarray | None]:
    """One round: the loss at a point, and its curvature if that is wanted."""
    coefficients = at.astype("<f8").tobytes()
    task = msgspec.structs.replace(aim.task, coefficients=coefficients, curvature=wanted)
    sums = federation.sum(task)
    mass = float(sums.sum("mass")[0])
    penalty = aim.penalised / (aim.C * mass)
    seen = Seen(
        at,
        float(sums.sum("loss")[0]) / mass + 0.5 * float(penalty @ at**2),
        sums.sum("gradient") / mass + penalty * at,
        federation.ledger.last.heard,
    )
    if wanted == "none":
        return seen, None
    side = aim.shape[1] if wanted == "block" else len(at)
    upper = np.zeros((side, side))
    upper[np.triu_indices(side)] = sums.sum("curvature") / mass
    return seen, upper + np.triu(upper, 1).T + np.diag(penalty[:side])


def _advanced(aim: Aim, state: State, seen: Seen, solve: Solve) -> State:
    """The next point to ask, now that the last one was seen."""
    rounds, before = state.rounds + 1, state.seen
    pairs = state.pairs
    if before is None or before.parties != seen.parties:
        pairs = ()
    else:
        slope = float(before.gradient @ state.direction)
        if seen.loss > before.loss + 1e-4 * state.step * slope + SLACK:
            step = _shorter(state.step, slope, seen.loss - before.loss)
            trial = before.at + step * state.direction
            return msgspec.structs.replace(state, rounds=rounds, trial=trial, step=step)
        moved, turned = seen.at - before.at, seen.gradient - before.gradient
        curved = moved @ turned > 1e-12 * np.linalg.norm(moved) * np.linalg.norm(turned)
        if aim.curvature != "whole" and curved:
            pairs = (*pairs, (moved, turned))[-MEMORY:]
    direction = -_divided(seen.gradient, pairs, solve)
    return State(rounds, seen.at + direction, seen, direction, 1.0, pairs, state.block)


def _shorter(step: float, slope: float, rise: float) -> float:
    """To the least of the parabola through what is known, within a tenth and a half."""
    least = -slope * step**2 / (2.0 * (rise - slope * step))
    return float(np.clip(least, 0.1 * step, 0.5 * step))


def _finished(aim: Aim, state: State) -> bool:
    assert state.seen is not None
    gradient, direction = state.seen.gradient, state.direction
    flat = float(np.abs(gradient).max()) <= aim.tol
    if aim.curvature == "whole":
        largest = float(np.abs(aim.penalised * direction).max())
        return flat and largest <= PRECISE * (1.0 + float(np.abs(state.seen.at).max()))
    return flat or -float(gradient @ direction) <= aim.gain * state.seen.loss


def _divided(
    gradient: np.ndarray, pairs: tuple[tuple[np.ndarray, np.ndarray], ...], solve: Solve
) -> np.ndarray:
    """The gradient divided by the curvature, as far as the pairs tell it: L-BFGS's two loops."""
    shares = []
    rest = gradient
    for moved, turned in reversed(pairs):
        shares.append(float(moved @ rest) / float(moved @ turned))
        rest = rest - shares[-1] * turned
    result = solve(rest)
    if pairs:
        moved, turned = pairs[-1]
        result = result * (float(moved @ turned) / float(turned @ solve(turned)))
    for (moved, turned), share in zip(pairs, reversed(shares), strict=True):
        result = result + (share - float(turned @ result) / float(moved @ turned)) * moved
    return result


def _solver(square: np.ndarray) -> Solve:
    """Divides by a curvature, or by one block for every output; by 1 if none is known."""
    if not square.size:
        return lambda vector: vector
    side = int(np.sqrt(square.size))
    factor = _factor(square.reshape(side, side))

    def solve(vector: np.ndarray) -> np.ndarray:
        divided: np.ndarray = cho_solve(factor, vector.reshape(-1, side).T).T.ravel()
        return divided

    return solve


def _factor(square: np.ndarray) -> Any:
    """Cholesky's factor, of a little more where the rows do not tell all directions apart."""
    for ridge in 10.0 ** np.arange(-10, 3):
        try:
            return cho_factor(square + ridge * square.diagonal().max() * np.eye(len(square)))
        except LinAlgError:
            continue
    raise AssertionError("a curvature is symmetric, and none of its values is below 0")
