"""Neural networks of PyTorch: the papers' own, and any that a user registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from cotune.data.encode import dense_width
from cotune.errors import UsageError, choices
from cotune.learners import register_learner, require
from cotune.learners.contract import Learner, SpaceName
from cotune.learners.declared import Table, table
from cotune.networks.parts import Count, Local, Server
from cotune.space import Space

if TYPE_CHECKING:
    from cotune.data.schema import Schema, TaskKind
    from cotune.networks.flat import Network
    from cotune.networks.one_client import OneClient

#: FedEx, appendix D.2: settings of the local training ... (the paper's space has FedProx's mu, too)
_CLIENT = table(
    lr=(1e-4, 1.0, "log"),
    momentum=(0.0, 1.0),
    weight_decay=(1e-5, 1e-1, "log"),
    epochs=(1, 5),
    batch_size=(8, 128, "log"),
    dropout=(0.0, 0.5),
    mu=0.0,
    personal_mu=0.0,
)
#: ... and of the aggregation.
_SERVER = table(
    server="sgd",
    server_lr=(1e-1, 1e1, "log"),
    server_momentum=(0.0, 0.9),
    server_decay=(1e-4, 1e-2, "log"),
    scaffold=False,
)
#: FedAvg as it is mostly run.
_PLAIN = table(
    lr=0.1,
    momentum=0.0,
    weight_decay=0.0,
    epochs=1,
    batch_size=32,
    dropout=0.0,
    mu=0.0,
    personal_mu=0.0,
    server="sgd",
    server_lr=1.0,
    server_momentum=0.0,
    server_decay=0.0,
    scaffold=False,
)


class NetworkLearner(Learner):
    """A network that parties train by turns of local descent and aggregation.

    Its space has three parts: `rounds`, which a training outside `fedex` takes; the settings of
    the local training and of the aggregation (`cotune.networks.parts.Local`,
    `cotune.networks.parts.Server` say what they are); and those of the `factory` that makes the
    module. A local fit, as in cross-validation, is the same training with one client.
    """

    features = "tensor"
    library = "torch"
    extra = "torch"
    trained_by = "rounds"
    most_probable = True
    #: Where the function is that makes the module, or the function itself.
    factory: ClassVar[Any]
    #: Whether rows are codes of characters; None if both they and numbers are taken.
    codes: ClassVar[bool | None] = None
    #: The factory's own settings.
    settings: ClassVar[Table]
    #: Those that the default space searches as well.
    searched: ClassVar[Table] = table()

    def space(self, task: TaskKind, which: SpaceName = "default") -> Space:
        if which not in ("paper", "default"):
            raise UsageError(choices(which, "space", ("paper", "default")))
        own = dict(self.settings) | (dict(self.searched) if which == "default" else {})
        space = {"rounds": 20, **_CLIENT, **_SERVER, **own}
        if which == "paper":
            space["mu"] = (1e-5, 1.0, "log")
        return Space(space)

    def defaults(self, task: TaskKind) -> dict[str, Any]:
        return {"rounds": 20, **_PLAIN, **self.settings}

    def estimator(
        self, params: Mapping[str, Any], *, task: TaskKind, seed: int, schema: Schema
    ) -> OneClient:
        from cotune.networks.one_client import OneClient

        require(self)
        known = self.defaults(task)
        for name in params:
            if name not in known:
                raise UsageError(choices(name, f"{self.name} parameter", known))
        whole = known | dict(params)
        try:
            Local.of(whole), Server.of(whole), msgspec.convert(whole["rounds"], Count)
        except msgspec.ValidationError as error:
            raise UsageError(f"a parameter of {self.name} is wrong: {error}") from error
        return OneClient(self, whole, schema, seed)

    def check(self, space: Space, schema: Schema) -> None:
        """Every end of every domain is tried, and a module of each size."""
        usual = space.clip({})
        self.estimator(usual, task=schema.task, seed=0, schema=schema)
        if self.codes is not None and self.codes != bool(schema.array and schema.array.codes):
            takes = "characters (text:FILE)" if self.codes else "numbers, not characters"
            raise UsageError(f"{self.name} takes {takes}: use another learner for these rows")
        self.size(usual, schema)
        for name in space:
            for value in space[name].points(2):
                tried = usual | {name: value}
                self.estimator(tried, task=schema.task, seed=0, schema=schema)
                if name in self.settings:
                    self.size(tried, schema)

    def network(
        self, params: Mapping[str, Any], schema: Schema, seed: int, classes: int | None = None
    ) -> Network:
        """The module of a configuration with its first weights, which the seed decides.

        It knows the schema's classes, or only the first `classes` of them.
        """
        import torch

        from cotune.networks.flat import Network

        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return Network(self._module(params, schema, classes), schema)

    def size(self, params: Mapping[str, Any], schema: Schema) -> int:
        """The number of weights, without the memory for them."""
        import torch

        try:
            with torch.device("meta"):
                module = self._module(params, schema)
        except (TypeError, ValueError, RuntimeError) as error:
            own = {name: params.get(name, value) for name, value in self.settings.items()}
            raise UsageError(f"{self.name} cannot be built with {own}: {error}") from error
        held = (*module.parameters(), *module.buffers())
        return sum(part.numel() for part in held if part.is_floating_point())

    def _module(self, params: Mapping[str, Any], schema: Schema, classes: int | None = None) -> Any:
        make = resolve_name(self.factory) if isinstance(self.factory, str) else self.factory
        own = {name: params.get(name, value) for name, value in self.settings.items()}
        outputs = (classes or len(schema.classes)) if schema.task == "classification" else 1
        return make(_shape(schema), outputs, **own)


def _shape(schema: Schema) -> tuple[int, ...]:
    """Of one row, as a network gets it."""
    column = schema.columns[0]
    if column.kind == "array":
        return column.shape
    return (dense_width(schema),)


class Perceptron(NetworkLearner):
    """Fully connected layers, for tables and for small images."""

    name = "torch_mlp"
    codes = False
    factory = "cotune.networks.modules:perceptron"
    settings = table(hidden=200, layers=2)
    searched = table(hidden=(16, 256, "log"), layers=(1, 3))


class Convolutional(NetworkLearner):
    """FedEx's convolutional networks, for images."""

    name = "cnn"
    codes = False
    tasks = ("classification",)
    shape = (8, 8)
    factory = "cotune.networks.modules:convolutional"
    settings = table(network="cifar", channels=32, hidden=64)


class CharacterLSTM(NetworkLearner):
    """FedEx's and FedAvg's network for the next character of a text."""

    name = "char_lstm"
    codes = True
    tasks = ("classification",)
    shape = (80,)
    factory = "cotune.networks.modules:CharacterLSTM"
    settings = table(embedding=8, hidden=256, layers=2)


def register_network(
    name: str, factory: Callable[..., Any], *, replace: bool = False, **settings: Any
) -> None:
    """Make a module of your own known as the learner `name`, with the spaces of the built-in ones.

    `factory(shape, outputs, **settings)` returns an untrained `torch.nn.Module`. It takes a batch
    of rows of that shape (float32, or uint8 codes of characters) and gives `outputs` numbers for
    each: scores of the classes, or the prediction in deviations from the target's mean. The
    settings are parameters of the learner, fixed unless a space of yours searches them.

    Every party that is to train the network registers it under the same name.

    >>> from torch import nn
    >>> def linear(shape, outputs, bias):
    ...     return nn.Sequential(nn.Flatten(), nn.Linear(*shape, outputs, bias=bias))
    >>> register_network("linear_net", linear, bias=True)
    """
    made = type(
        "Registered",
        (NetworkLearner,),
        {"name": name, "factory": staticmethod(factory), "settings": table(**settings)},
    )
    register_learner(made(), replace=replace)
