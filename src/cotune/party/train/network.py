"""A client's part in FedEx: draw an arm, train by it from the common weights, and be judged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np

from cotune.errors import Malformed
from cotune.files import make_folder, private
from cotune.networks.parts import FARTHEST
from cotune.party.rows import held_back, validated
from cotune.party.task import RESOLUTION, Label, Reply, Task, Term, most_summed_bytes

if TYPE_CHECKING:
    from cotune.learners.torch import NetworkLearner
    from cotune.networks.flat import Network
    from cotune.networks.parts import Local
    from cotune.party.party import Party
    from cotune.problem import Problem

#: Clients whose rows a worker keeps at hand.
CACHED = 32

T = TypeVar("T")
Params = dict[str, bool | int | float | str | None]
Objective = Literal["personalized", "global"]
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Arms(msgspec.Struct, frozen=True):
    """What a client draws its configuration from: D_theta.

    `theta` has one distribution over the configurations; or one for each of the parameters `names`,
    over the values that the configurations have of it: a product of simplices.
    """

    configurations: tuple[Params, ...]
    theta: tuple[tuple[float, ...], ...]
    names: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        return sum(len(simplex) for simplex in self.theta)

    def check(self) -> None:
        count = len(self.configurations)
        if not count or any(name not in one for one in self.configurations for name in self.names):
            raise Malformed("there is no configuration, or one without a parameter that is drawn")
        if len(self.theta) != max(1, len(self.names)) or any(len(s) != count for s in self.theta):
            raise Malformed("the distribution does not fit the configurations")
        if not all(min(s) >= 0 and abs(sum(s) - 1.0) <= 1e-6 for s in self.theta):
            raise Malformed("the distribution over the configurations is none")

    def draw(self, rng: np.random.Generator) -> list[int]:
        """The position of what is drawn, in each simplex."""
        return [int(rng.choice(len(s), p=np.array(s) / sum(s))) for s in self.theta]

    @property
    def mode(self) -> list[int]:
        return [int(np.argmax(simplex)) for simplex in self.theta]

    def configuration(self, drawn: list[int]) -> Params:
        if not self.names:
            return self.configurations[drawn[0]]
        chosen = {
            name: self.configurations[position][name]
            for name, position in zip(self.names, drawn, strict=True)
        }
        return self.configurations[0] | chosen

    def marks(self, drawn: list[int]) -> np.ndarray:
        """1 where something was drawn, 0 elsewhere; the simplices one after the other."""
        marks = np.zeros((len(self.theta), len(self.configurations)))
        marks[np.arange(len(drawn)), drawn] = 1.0
        return marks.ravel()


class Improvement(Reply, frozen=True):
    """How a client's training moved the weights, and how good they were. Sums of one client.

    `losses` are weighted by validation rows and stand at the arm that was drawn, as do the rows;
    `before` is the loss of the common weights, weighted alike. `control` is how the client's
    control variate changed.
    """

    update: np.ndarray
    losses: np.ndarray
    rows: np.ndarray
    before: np.ndarray
    failed: np.ndarray
    control: np.ndarray


class Improve(Task, frozen=True):
    """Train a network from the common weights, by a configuration that the client draws.

    The loop's body of Algorithms 1, 2 and 3 of FedEx: sample c, run Loc_c, tell w_i - w and the
    validation loss of w_i (of w, if the objective is `global`).

    Parameters
    ----------
    learner, params
        The network; of the parameters the wrapper's own ones count here.
    label
        Which training it belongs to: several may be under way.
    round
        Of that training, from 0.
    weights
        Float32, little-endian.
    control
        SCAFFOLD's c, likewise; empty without.
    since
        The client may forget what it kept in rounds before this one, but the newest.
    validation
        The share of the client's rows that are not trained on, but judged by.
    """

    discloses = (
        "how far a network's weights moved in some epochs of training on its rows (which may tell "
        "of single rows, if they are few), which of several configurations it drew for that, the "
        "loss on rows that it held back from training, and how many these are; of a configuration "
        "that no other party drew, a total of these two is its own, and who drew which follows "
        "from the run's seed"
    )
    reply = Improvement
    gathered = False

    learner: str
    params: Params
    arms: Arms
    label: Label
    round: Number
    weights: bytes = b""
    objective: Objective = "personalized"
    validation: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.1
    control: bytes = b""
    since: Number = 0

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        assert problem is not None
        metric, schema = problem.metric, problem.schema
        worst, step = metric.worst(schema), metric.resolution(schema)
        length, arms = len(self.weights) // 4, self.arms.length
        return {
            "update": Term(length, -FARTHEST, FARTHEST, RESOLUTION, weighted=True),
            "losses": Term(arms, 0.0, worst * 2.0**20, step),
            "rows": Term(arms, 0.0, 2.0**20, 1.0),
            "before": Term(2, 0.0, max(worst, 1.0) * 2.0**20, min(step, 1.0)),
            "failed": Term(1, 0.0, 1.0, 1.0),
            "control": Term(len(self.control) // 4, -FARTHEST, FARTHEST, RESOLUTION, weighted=True),
        }

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))

    def most_fits(self, problem: Problem) -> int:
        return 1

    def weight(self, party: Party) -> float:
        """Training rows, as in equation 11."""
        if party.problem.weights == "equal":
            return 1.0
        rows = len(party.frame)
        return float(rows - party.key.left_out(rows, held_back(rows, self.validation)))

    def perform(self, party: Party) -> Improvement:
        from cotune import learners

        party.require(self.learner)
        party.key.check(self.validation, "validation")
        learner = learners.learner(self.learner)
        if learner.features != "tensor":
            raise Malformed(f"the learner {self.learner!r} is no network")
        self.arms.check()
        seed = party.key.seed("improve", self.label, self.round, party.name)
        folder, keep = party.folder("tensor"), party.kept(f"network-{self.label}")
        told: Improvement
        told, seconds = party.compute(alone, improve, folder, learner, self, seed, keep)
        party.bill(1, seconds)
        return told


class Judgement(Reply, frozen=True):
    """Losses on the rows set aside, times their number: of common weights, of fine-tuned ones."""

    common: list[float]
    personal: list[float]
    rows: list[float]


class Judge(Task, frozen=True):
    """Judge common weights by the rows that the client set aside, before and after fine-tuning.

    Fine-tuning is the local training by a configuration that is drawn, or by the most likely one.
    """

    discloses = (
        "the losses of a network on the rows that it set aside, as it is and after some epochs of "
        "training on its own rows, and how many these are"
    )
    reply = Judgement

    learner: str
    params: Params
    arms: Arms
    weights: bytes
    by: Literal["sampling", "mode"] = "mode"
    label: Label = ""
    round: Number = 0
    validation: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.1

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        assert problem is not None
        metric, schema = problem.metric, problem.schema
        worst, step = metric.worst(schema), metric.resolution(schema)
        return {
            "common": Term(1, 0.0, worst * 2.0**20, step),
            "personal": Term(1, 0.0, worst * 2.0**20, step),
            "rows": Term(1, 0.0, 2.0**20, 1.0),
        }

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))

    def most_fits(self, problem: Problem) -> int:
        return 1

    def perform(self, party: Party) -> Judgement:
        from cotune import learners

        party.require(self.learner)
        party.key.check(self.validation, "validation")
        learner = learners.learner(self.learner)
        if learner.features != "tensor":
            raise Malformed(f"the learner {self.learner!r} is no network")
        self.arms.check()
        if not len(party.held_out):
            return Judgement([0.0], [0.0], [0.0])
        folders = party.folder("tensor"), party.held_folder("tensor")
        told: Judgement
        told, seconds = party.compute(alone, judge, *folders, learner, self, party.name)
        party.bill(1, seconds)
        return told


_at_work = threading.Lock()


def alone(function: Callable[..., T], *arguments: Any) -> T:
    """One training at a time in a process: they share a network and PyTorch's random numbers."""
    from cotune.party.fit import as_asked

    with _at_work, as_asked():
        return function(*arguments)


def improve(
    folder: Path,
    learner: NetworkLearner,
    task: Improve,
    seed: int,
    keep: Path,
) -> tuple[Improvement, float]:
    """The reply, and the CPU seconds it took. Runs on a worker."""
    began = time.thread_time()
    client = _client(folder)
    network = _network(learner, task.params, client.problem, task.weights)
    if len(task.control) not in (0, len(task.weights)):
        raise Malformed("the control variate has not as many numbers as the network")
    drawn = task.arms.draw(np.random.default_rng(seed))
    how = _local(task, drawn)
    X, y, judged = client.split(task.validation)
    before = client.judged(network, *judged) if task.objective == "global" else (0.0, 0.0)
    start, target = network.flat.clone(), network.target(y)
    variates = _Variates(task, keep)
    gradient = network.train(X, target, how, seed, variates.drift)
    update = (network.flat - start).numpy()
    change = np.empty(0) if gradient is None else variates.change(gradient.numpy())
    if how.personal_mu:
        network.flat.copy_(start)
        network.train(X, target, msgspec.structs.replace(how, mu=how.personal_mu), seed)
    loss, rows = client.judged(network, *judged)
    went_off = not (np.abs(update).max() <= FARTHEST and np.all(np.abs(change) <= FARTHEST))
    if went_off:  # the learning rate is too high: nothing is learnt, and the arm is blamed
        update, change = np.zeros_like(update), np.zeros_like(change)
        loss, rows = client.worst * client.weight(judged[1]), client.weight(judged[1])
    variates.keep(change)
    marks = task.arms.marks(drawn)
    reply = Improvement(
        update, marks * loss, marks * rows, np.array(before), np.array([float(went_off)]), change
    )
    return reply, time.thread_time() - began


def _local(task: Improve | Judge, drawn: list[int]) -> Local:
    """How a client trains with the arm that was drawn."""
    from cotune.networks.parts import Local

    params = task.params | task.arms.configuration(drawn)
    try:
        return Local.of(params)
    except msgspec.ValidationError as error:
        raise Malformed(f"a network cannot be trained with these parameters: {error}") from error


def judge(
    folder: Path, held: Path, learner: NetworkLearner, task: Judge, party: str
) -> tuple[Judgement, float]:
    """Losses of the common and of the fine-tuned weights; runs on a worker."""
    began = time.thread_time()
    client, aside = _client(folder), _client(held)
    network = _network(learner, task.params, client.problem, task.weights)
    common, rows = aside.judged(network, aside.X, aside.y)
    seed = client.key.seed("judge", task.label, task.round, party)
    rng = np.random.default_rng(seed)
    drawn = task.arms.mode if task.by == "mode" else task.arms.draw(rng)
    how = _local(task, drawn)
    if how.personal_mu:
        how = msgspec.structs.replace(how, mu=how.personal_mu)
    X, y, _ = client.split(task.validation)
    network.train(X, network.target(y), how, seed)
    own, _ = aside.judged(network, aside.X, aside.y)
    return Judgement([common], [own], [rows]), time.thread_time() - began


class _Client:
    """A client's rows in a worker's memory, as networks take them."""

    def __init__(self, folder: Path) -> None:
        from cotune.networks.flat import as_tensor
        from cotune.party.rows import open_rows

        rows = open_rows(folder)
        self.problem, self.key = rows.problem, rows.key
        self.X, self.y = as_tensor(rows.features("tensor")), rows.y
        self.worst = self.problem.metric.worst(self.problem.schema)
        self._split: Any = None

    def split(self, share: float) -> tuple[Any, np.ndarray, tuple[Any, np.ndarray]]:
        """Rows and targets to train on, and those to be judged by; the same in every round."""
        if self._split is None or self._split[0] != share:
            train, held = validated(len(self.y), share, self.key)
            judged = self.X[held], self.y[held]
            self._split = share, self.X[train], self.y[train], judged
        _, X, y, judged = self._split
        return X, y, judged

    def judged(self, network: Network, X: Any, y: np.ndarray) -> tuple[float, float]:
        """The loss times its weight, and the weight: rows, or 1 where all parties count the same.

        Both are 0 where the rows do not define the metric.
        """
        from cotune.party.score import NotFinite, score

        weight = self.weight(y)
        if not weight:
            return 0.0, 0.0
        classes = np.arange(len(self.problem.schema.classes))
        try:
            loss = score(self.problem, network, classes, X, y)
        except NotFinite:
            loss = self.worst
        return min(loss, self.worst) * weight, weight

    def weight(self, y: np.ndarray) -> float:
        metric = self.problem.metric_name
        if (metric == "roc_auc" and len(np.unique(y)) < 2) or (metric == "r2" and len(y) < 2):
            return 0.0
        return 1.0 if self.problem.weights == "equal" else float(len(y))


_client = lru_cache(maxsize=CACHED)(_Client)


class _Variates:
    """SCAFFOLD's control variates at a client: the common c, and c_i, which outlives a round.

    c_i lies in a file for each round that changed it, because a resumed run may go back a few.
    """

    def __init__(self, task: Improve, folder: Path) -> None:
        self._task, self._folder = task, folder
        self.drift: Any = None
        if not task.control:
            return
        import torch

        self._common = np.frombuffer(task.control, "<f4").astype(float)
        known = [n for n in self._rounds() if n < task.round]
        self._own = np.load(self._file(max(known))) if known else np.zeros_like(self._common)
        self.drift = torch.from_numpy((self._common - self._own).astype(np.float32))

    def change(self, gradient: np.ndarray) -> np.ndarray:
        """Option II: c_i+ is the mean gradient of the steps, less the old c_i.

        For plain descent that is c_i - c + (w - w_i) / (K lr). Momentum carries the weights up to
        1 / (1 - momentum) times as far: taken from the distance, c_i would grow without end.
        """
        change: np.ndarray = gradient - self._own
        return change

    def keep(self, change: np.ndarray) -> None:
        if self.drift is None:
            return
        make_folder(self._folder)
        begun = self._folder / "begun.npy"
        with open(begun, "wb", opener=private) as file:
            np.save(file, (self._own + change).astype(np.float32))
        begun.replace(self._file(self._task.round))
        needless = sorted(n for n in self._rounds() if n < self._task.since)[:-1]
        for number in needless:
            self._file(number).unlink(missing_ok=True)

    def _rounds(self) -> list[int]:
        return [int(file.stem) for file in self._folder.glob("[0-9]*.npy")]

    def _file(self, number: int) -> Path:
        return self._folder / f"{number}.npy"


#: The network that a worker has built: clients of a run all train the same one.
_built: dict[Any, Network] = {}


def _network(learner: NetworkLearner, params: Params, problem: Problem, weights: bytes) -> Network:
    """The network with these weights. It is built once, and not if the weights are not its own."""
    import torch

    torch.set_num_threads(1)
    own = tuple((name, params.get(name)) for name in learner.settings)
    key = learner.name, str(learner.factory), own, problem.digest
    network = _built.get(key)
    size = learner.size(params, problem.schema) if network is None else len(network.flat)
    if len(weights) != 4 * size:
        raise Malformed("the weights are not as many as the network has")
    if network is None:
        _built.clear()
        network = _built[key] = learner.network(params, problem.schema, 0)
    network.load(np.frombuffer(weights, "<f4").copy())
    return network


TASKS: tuple[type[Task], ...] = (Improve, Judge)
