"""The settings c of Loc_c and b of Agg_b, and Agg_b itself: the coordinator's part of a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

#: Of FedAdam and FedYogi (Reddi et al., Adaptive Federated Optimization, 2021): the first moment
#: decays by the configuration's momentum, the second by this; and the degree of adaptivity.
BETA_2 = 0.99
TAU = 1e-3

#: No weight may move farther in one round: the private ways of adding need to know.
FARTHEST = 2.0**10

Above0 = Annotated[float, msgspec.Meta(gt=0)]
AtLeast0 = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**20)]


class Local(msgspec.Struct, frozen=True):
    """c: the settings of the local training, by the names that they have in a space.

    Attributes
    ----------
    lr, momentum, weight_decay
        Of the stochastic gradient descent, as in `torch.optim.SGD`.
    epochs
        Passes through the client's training rows.
    batch_size
        Rows of one step.
    dropout
        The share of units that are left out in a step.
    mu
        Weight of FedProx's proximal term mu/2 ||w - w_0||^2; 0 is FedAvg.
    personal_mu
        Ditto's: with it the client also trains a model of its own, held to the common one by this
        term, and is judged by that; the common one is updated as without. 0 is off.
    """

    lr: Above0
    momentum: Share = 0.0
    weight_decay: AtLeast0 = 0.0
    epochs: Count = 1
    batch_size: Count = 32
    dropout: Share = 0.0
    mu: AtLeast0 = 0.0
    personal_mu: AtLeast0 = 0.0

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Local:
        """Its own part of a configuration."""
        return msgspec.convert({name: params[name] for name in CLIENT if name in params}, cls)


#: The parameters that a client's training has: what FedEx tunes. All others are the wrapper's.
CLIENT = Local.__struct_fields__


class Server(msgspec.Struct, frozen=True):
    """b: the settings of the aggregation, by the names that they have in a space.

    Attributes
    ----------
    server
        `sgd` is equation 11 with momentum (FedAvg with rate 1 and none of it, Reptile with another
        rate); `adam` and `yogi` are FedAdam and FedYogi.
    server_lr
        alpha_0, the rate of the first round.
    server_momentum
        Of `sgd`; beta_1 of the others.
    server_decay
        1 - gamma: the rate of round t is server_lr * gamma^t, t from 0.
    scaffold
        Whether clients correct their gradients by SCAFFOLD's control variates.
    """

    server: Literal["sgd", "adam", "yogi"] = "sgd"
    server_lr: Above0 = 1.0
    server_momentum: Share = 0.0
    server_decay: Share = 0.0
    scaffold: bool = False

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Server:
        """Its own part of a configuration."""
        own = {name: params[name] for name in cls.__struct_fields__ if name in params}
        return msgspec.convert(own, cls)


class Common(msgspec.Struct):
    """What the coordinator has of a training: the weights, and the moments of their updates."""

    weights: np.ndarray
    #: The last ones of these are no parameters (running means, say): always the clients' mean.
    buffers: int = 0
    round: int = 0
    first: np.ndarray | None = None
    second: np.ndarray | None = None
    #: SCAFFOLD's c: the mean of the clients' control variates.
    control: np.ndarray | None = None
    #: The loss before each round, as far as it is watched, and how many rounds in a row every
    #: party's training went out of bounds.
    losses: list[float] = []
    failed: int = 0

    def take(self, update: np.ndarray, how: Server) -> None:
        """Move by the clients' mean update, weighted by their training rows: w_i - w."""
        averaged = (
            self.weights[len(self.weights) - self.buffers :]
            + (update[len(update) - self.buffers :])
        )
        rate = how.server_lr * (1.0 - how.server_decay) ** self.round
        momentum = how.server_momentum
        if how.server == "sgd":
            if momentum:
                update = update if self.first is None else momentum * self.first + update
                self.first = update
            self.weights = self.weights + rate * update
        else:
            if self.first is None or self.second is None:
                self.first, self.second = np.zeros_like(update), np.full_like(update, TAU**2)
            squares = update**2
            self.first = momentum * self.first + (1.0 - momentum) * update
            if how.server == "adam":
                self.second = BETA_2 * self.second + (1.0 - BETA_2) * squares
            else:
                signs = np.sign(self.second - squares)
                self.second = self.second - (1.0 - BETA_2) * squares * signs
            self.weights = self.weights + rate * self.first / (np.sqrt(self.second) + TAU)
        self.weights[len(self.weights) - self.buffers :] = averaged
        self.round += 1

    def take_control(self, change: np.ndarray, share: float) -> None:
        """Move c by the mean change of the sampled clients' c_i, which are a share of all."""
        self.control = change * share if self.control is None else self.control + share * change
