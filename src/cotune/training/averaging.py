"""Federated averaging of multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from cotune import learners
from cotune.data.encode import dense_width
from cotune.party.train.averaging import Epochs, flat, install, untrained
from cotune.training import Stage
from cotune.training.checkpoint import read, write
from cotune.training.watch import check_loss

if TYPE_CHECKING:
    from cotune.coordinator.federation import Federation
    from cotune.party.task import Configuration
    from cotune.problem import Problem

#: Epochs at each party between two averages. With 1, it took up to three times the rounds to the
#: same accuracy.
EPOCHS = 5
#: Rounds between two checkpoints.
EVERY = 5


class Seen(msgspec.Struct):
    """The rounds in which the same parties answered: losses over other rows do not compare.

    `best` are the weights of the `least` loss; `mark` is the last loss that was lower than the one
    before by more than `tol`.
    """

    parties: tuple[str, ...]
    best: np.ndarray
    rounds: int = 0
    least: float = float("inf")
    mark: float = float("inf")


class State(msgspec.Struct):
    """Between two rounds: the common weights, what was seen so far, and the loss of every round.

    `flat` counts the rounds since the loss last fell by more than `tol`.
    """

    weights: np.ndarray
    seen: list[Seen] = []
    losses: list[float] = []
    flat: int = 0

    def by(self, parties: tuple[str, ...]) -> Seen:
        """What was seen with these parties; something to be filled if they are new."""
        known = next((seen for seen in self.seen if seen.parties == parties), None)
        if known is None:
            known = Seen(parties, self.weights)
            self.seen.append(known)
        return known

    @property
    def judged(self) -> Seen:
        """By whom the weights are chosen: the parties that answered most of the rounds."""
        return max(self.seen, key=lambda seen: (seen.rounds, len(seen.parties)))


def averaging(
    federation: Federation, problem: Problem, configuration: Configuration
) -> Generator[Stage, None, Any]:
    """A fitted `MLPClassifier` or `MLPRegressor`, by federated averaging.

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data
    (2017), algorithm 1, with all parties in every round and scikit-learn's Adam at the parties.
    Adam begins afresh in each round. To average its moments as well gave the same accuracy
    (breast_cancer, digits, diabetes; 3 to 8 parties) with up to three times the rounds of three
    times the size; to keep them at the parties gave no more, and a restarted party would go on
    otherwise.

    `max_iter` and `n_iter_no_change` count rounds. A round's loss is that of the common weights, on
    rows that all parties held back; training ends as it does not fall by `tol` any more, with
    the weights that had the least.
    """
    learner = learners.learner(configuration.learner)
    network = untrained(problem, learner, configuration, dense_width(problem.schema))
    restored = federation.restored()
    state = read(restored, State) if restored else State(flat(network))
    while state.flat <= network.n_iter_no_change:
        done = len(state.losses)
        epochs = EPOCHS if done < network.max_iter else 0
        weights = state.weights.astype("<f4")
        sums = federation.sum(Epochs(configuration, weights.tobytes(), done, epochs))
        loss = float(sums.sum("loss")[0] / sums.sum("rows")[0])
        state.losses.append(loss)
        if federation.protection is None and not min(state.losses) < state.losses[0]:
            check_loss(state.losses)  # else there are better weights to return
        seen = state.by(federation.ledger.last.heard)
        seen.rounds += 1
        if loss < seen.least:
            seen.best, seen.least = weights.astype(float), loss
        if loss < seen.mark - network.tol:
            seen.mark, state.flat = loss, 0
        else:
            state.flat += 1
        if not epochs:
            break
        state.weights = sums.mean("weights")
        yield Stage(done + 1, network.max_iter)
        if (done + 1) % EVERY == 0:
            federation.checkpoint(write(state))
    return _fitted(problem, network, state)


def _fitted(problem: Problem, network: Any, state: State) -> Any:
    """The network with the best weights, for numbers in the target's own unit."""
    install(network, state.judged.best)
    if problem.task == "regression":
        network.coefs_[-1] *= problem.schema.target_scale
        network.intercepts_[-1] *= problem.schema.target_scale
        network.intercepts_[-1] += problem.schema.target_mean
    network.n_iter_ = min(len(state.losses), network.max_iter)
    network.loss_curve_ = state.losses
    network.loss_ = network.best_loss_ = state.judged.least
    for name in ("_best_coefs", "_best_intercepts", "_random_state"):
        vars(network).pop(name, None)  # they belong to its first weights
    return network
