"""Federated training of a network: rounds of local descent at the parties, and aggregation."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cotune import learners
from cotune.errors import Diverged, UsageError
from cotune.party.task import Configuration
from cotune.party.train.network import Arms, Improve
from cotune.training import Stage
from cotune.training.checkpoint import read, write
from cotune.training.watch import PATIENCE, check_loss

if TYPE_CHECKING:
    from cotune.coordinator.federation import Federation, Sums
    from cotune.learners.torch import NetworkLearner
    from cotune.networks.flat import Network
    from cotune.networks.parts import Common
    from cotune.problem import Problem

#: Rounds between two checkpoints.
EVERY = 10


def rounds(
    federation: Federation, problem: Problem, configuration: Configuration
) -> Generator[Stage, None, Any]:
    """The network of a configuration after its `rounds`, all parties taking part in each.

    With its default settings this is FedAvg (McMahan et al., 2017, algorithm 1); others make it
    FedProx, Reptile, SCAFFOLD, FedAdam or FedYogi: see `cotune.networks`.
    """
    from cotune.networks.parts import Common

    params = learners.learner(configuration.learner).defaults(problem.task) | configuration.params
    network = fresh(problem, configuration.learner, params, problem.seed)
    restored = federation.restored()
    common = (
        read(restored, Common)
        if restored
        else Common(network.weights.astype(float), buffers=network.buffers)
    )
    arms = Arms((dict(params),), ((1.0,),))
    while common.round < params["rounds"]:
        since = max(0, common.round - EVERY)
        task = Improve(
            configuration.learner, params, arms, "train", common.round, since=since,
            objective="global",
        )  # fmt: skip
        sums = advance(federation, task, common)
        if federation.protection is None:
            _check(common, sums)
        yield Stage(common.round, params["rounds"])
        if common.round % EVERY == 0:
            federation.checkpoint(write(common))
    network.load(common.weights.astype(np.float32))
    return network


def _check(common: Common, sums: Sums) -> None:
    """Stop a training that goes wrong.

    The loss is the metric's, of the common weights on rows held back: of one with an upper bound
    (accuracy) only a training that moves nothing any more is noticed.
    """
    loss, weight = sums.sum("before")
    if weight > 0:
        common.losses.append(float(loss / weight))
        check_loss(common.losses)
    common.failed = common.failed + 1 if sums.sum("failed")[0] == sums.parties else 0
    if common.failed == PATIENCE:
        raise Diverged(
            f"its training diverged: in {PATIENCE} rounds the weights went out of bounds at every "
            "party; a lower learning rate may help"
        )


def fresh(problem: Problem, learner: str, params: dict[str, Any], seed: int) -> Network:
    """The untrained network of a configuration."""
    return network_learner(learner).network(params, problem.schema, seed)


def network_learner(name: str) -> NetworkLearner:
    """The learner of that name, if it is a network."""
    from cotune.learners.torch import NetworkLearner

    learners.require(learners.learner(name))
    found = learners.learner(name)
    if not isinstance(found, NetworkLearner):
        raise UsageError(
            f"{name!r} is not trained in rounds of gradient descent: use torch_mlp, cnn, "
            "char_lstm or a network of your own (cotune.register_network)"
        )
    return found


def advance(
    federation: Federation, task: Improve, common: Common, among: Sequence[str] | None = None
) -> Sums:
    """One communication round: Loc_c at the clients, Agg_b here.

    The task is sent with the present weights; what it says of losses is returned.
    """
    import msgspec

    from cotune.networks.parts import Server

    server = Server.of(task.params)
    if server.scaffold and common.control is None:
        common.control = np.zeros_like(common.weights)
    sent = msgspec.structs.replace(
        task,
        weights=common.weights.astype("<f4").tobytes(),
        control=b"" if common.control is None else common.control.astype("<f4").tobytes(),
    )
    sums = federation.sum(sent, among=among)
    common.take(sums.mean("update"), server)
    if server.scaffold:
        common.take_control(sums.mean("control"), sums.parties / len(federation.parties))
    return sums
