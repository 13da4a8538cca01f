"""Whatever a message's fields hold, a party answers or says what is wrong with them."""

from __future__ import annotations

import copy
import logging
import math
import random
import resource
import time
from collections import Counter

import msgspec
import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

from cotune.data.encode import dense_width
from cotune.errors import CotuneError
from cotune.learners import learner
from cotune.model.model import Model
from cotune.party.closed_list import TASKS
from cotune.party.differ import Differ
from cotune.party.keys import (
    Acquaint,
    Adopt,
    Deal,
    Decrypt,
    Introduce,
    Keyed,
    Refresh,
    Relinearise,
    Reveal,
    Switch,
)
from cotune.party.moments import Moments, Tally
from cotune.party.propose import Count, Explore, Propose, Vote
from cotune.party.ration import BASE
from cotune.party.task import Configuration
from cotune.party.tasks import (
    Candidates,
    Evaluate,
    Inspect,
    Marginals,
    Measure,
    Place,
    Predict,
    Search,
)
from cotune.party.train.assess import Assess, Score
from cotune.party.train.averaging import Epochs, flat, untrained
from cotune.party.train.bins import Bins
from cotune.party.train.ensemble import FitOwn
from cotune.party.train.forest import GrowTrees, Weigh
from cotune.party.train.grow import Split, Start, Tree
from cotune.party.train.histogram import Crowd, Grow
from cotune.party.train.linear import Fourier, Slope
from cotune.party.train.merging import Boost
from cotune.party.train.network import Arms, Improve, Judge
from cotune.privacy.agent.messages import Scheme
from cotune.privacy.client import Agent
from cotune.privacy.doctor import diagnose
from cotune.privacy.masks import Pairs, name_of
from cotune.privacy.protection import Protection
from cotune.protocol.wire import Refusal, Request, decode_body, decode_reply, encode
from cotune.training.rounds import fresh
from tests.parts import party_of, people, problem_of
from tests.soak import times

#: Learners that are quick, and one of each way of training.
LEARNERS = ("decision_tree", "hgb", "torch_mlp", "random_forest", "mlp")
TREE = Configuration("decision_tree", {"max_depth": 2})
MLP = {"hidden": 16, "layers": 1}
SEARCH = Search(("decision_tree",), 2)


ROWS = people(40)
#: Tasks that need another party's answer to go well; and a model that may not leave its party.
LACKING = {"acquaint", "reveal", "relinearise", "adopt", "refresh", "decrypt", "switch", "deal"}
LACKING |= {"fitown"}
#: Tasks that a party cannot do without its key agent.
OF_AGENT = (Deal, Switch, Relinearise, Adopt, Refresh, Decrypt)
#: What a field can be changed to. What is legal, but would take long, is left out.
NUMBERS = (-(2**63), -(2**31), -257, -2, -1, 0, 1, 2, 3, 5, 7, 16, 2**20, 2**31, 2**63 - 1)
FLOATS = (math.nan, math.inf, -math.inf, -1e300, -1.0, -0.0, 5e-324, 0.3, 1.0, 2.5, 1e18, 1e300)
TEXTS = ("", "a", "city", "age", "target", "hgb", "svm", "\x00", "x" * 300, "n\u00e9", "../up")
OTHERS = (None, True, False, b"", "", 0, 1.5, [], {})


def problems():
    """Of a classification and a regression, with all learners that the tasks below name."""
    settings = {"learners": LEARNERS, "folds": 2, "holdout": 0.2}
    classes = problem_of(ROWS, metric="log_loss", **settings)
    return classes, problem_of(ROWS.dropna(subset=["age"]), target="age", **settings)


def tasks_of(problem):
    """One valid message at least for every task of the closed list, as lists: the last is asked."""
    schema = problem.schema
    outputs = 1 if len(schema.classes) <= 2 else len(schema.classes)
    width = dense_width(schema) + 1
    weights = fresh(problem, "torch_mlp", MLP, 0).weights.astype("<f4").tobytes()
    numeric = tuple(i for i, c in enumerate(schema.columns) if c.kind == "numeric")
    edges = np.array([-0.5, 0.5, 30.0, 45.0], "<f4").tobytes()
    bins = Bins(
        tuple(5 if c.kind == "numeric" else len(c.categories) for c in schema.columns),
        tuple(edges if c.kind == "numeric" else None for c in schema.columns),
    )
    splits = (Split(0, numeric[0], 1, True), Split(1, numeric[-1], 2, False))
    grown = Tree((Split(0, numeric[0], 1, True),), ((1, 0.1), (2, -0.1)), (0.5,), (10.0,))
    start = Start("boost", bins, (0.0,), 0.8, 2, ((grown,),), ())
    cells = sum(bins.sizes) + len(bins.sizes)
    grow = Grow("", cells, cells, cells, wanted=(0,), start=start)
    next_grow = Grow(
        grow.digest, 2 * cells, 0, 2 * cells, splits, (), (3, 4), mask=b"\xff" * cells,
        squares=(3,) if schema.task == "regression" else (),
    )  # fmt: skip
    ended = Grow(next_grow.digest, cells, 0, 0, (), ((2, 0.5), (3, 0.1), (4, 0.0)), (0,))
    chained = [grow, next_grow, ended]
    hgb = {"max_iter": 2, "learning_rate": 0.1, "max_leaf_nodes": 3, "min_samples_leaf": 5}
    boost = Boost("", Configuration("hgb", hgb), 0, 2, bins, ((grown,),), start)
    arms = Arms(({"lr": 0.1}, {"lr": 0.01}), ((0.5, 0.5),), ("lr",))
    space = problem.space("decision_tree")
    unnamed = Candidates(4, 1, (space.clip({"max_depth": 3}),), 0.1)
    candidates = msgspec.structs.replace(
        unnamed, digest=unnamed.digest_of(space, unnamed.drawn(space))
    )
    dense = (b"\xff" * 600,)
    loss = "logistic" if schema.classes else "squared_epsilon"
    coefficients = np.zeros(outputs * width).tobytes()
    fourier = np.zeros(outputs * 9).tobytes()
    forest = Configuration("random_forest", {"max_depth": 2})
    scheme = Scheme("sum", 3, 20)
    mlp = Configuration("mlp", {"hidden_layer_sizes": 16})
    network = untrained(problem, learner("mlp"), mlp, width - 1)
    model = Model(
        "svm", {}, schema, problem.scaling, "dense", problem.metric_name, judged(schema, width), {}
    )
    asked: list = [
        Inspect(2, drop=("rare",)),
        Differ(),
        Measure(schema, tuple(Place(0.0, 7) for _ in schema.columns), Place(0.0, 7)),
        Evaluate((TREE,)),
        SEARCH,
        msgspec.structs.replace(SEARCH, keep=1, free_pairs=True, pruning=True),
        Predict(SEARCH, (candidates,), judged=(TREE,), ceilings=(0.5,)),
        Marginals(),
        Explore(SEARCH),
        Vote((TREE, Configuration("decision_tree", {"max_depth": 3})), 1),
        Tally(SEARCH),
        Slope(loss, coefficients, "block"),
        Slope(loss, fourier, "whole", True, 0.1, Fourier(0.5, 4, 7)),
        Crowd(numeric, (edges,) * len(numeric)),
        boost,
        Weigh(),
        GrowTrees(forest, {"party-1": 2}, 1),
        Epochs(mlp, flat(network).astype("<f4").tobytes(), 0, 1),
        Improve("torch_mlp", MLP, arms, "train", 0, weights, control=weights),
        Judge("torch_mlp", MLP, arms, weights),
        FitOwn(Configuration("logistic_regression", {}) if schema.classes else mlp),
        Assess("svm", {"kernel": "linear"}, model.packed()),
        Score("svm", model.packed()),
        Introduce(),
        Acquaint({"party-1": b"1" * 32, "party-2": b"2" * 32}),
        Reveal("session", 1, ("party-2",)),
        Deal("session", scheme),
        Switch("session"),
        Relinearise("session", b"joined"),
        Adopt("session", b"public"),
        Refresh("session", (b"asked",), (b"common",)),
        Decrypt("session", (b"ciphertext",)),
    ]
    if _AGENT is None:
        asked = [task for task in asked if not isinstance(task, OF_AGENT)]
    searched = (
        Count(SEARCH), Propose(SEARCH, "good", dense), Moments(SEARCH, (0.5,), (TREE,)),
        Predict(SEARCH, (candidates,), anew=False),
    )  # fmt: skip
    return [
        *([task] for task in asked),
        *([Explore(SEARCH), task] for task in searched),
        *(chained[:count] for count in (1, 2, 3)),
    ]


def judged(schema, width):
    """A model that predicts anything."""
    if schema.classes:
        return LogisticRegression().fit(np.eye(width - 1)[:2], [0, 1])
    return LinearRegression().fit(np.eye(width - 1)[:2], [0.0, 1.0])


def requests_of(problem):
    """The messages of `tasks_of`, gathered and, where there are terms, added up."""
    found = []
    for tasks in tasks_of(problem):
        verbs = ["gather"]
        try:
            tasks[-1].terms(problem)
            verbs += ["sum", "masked"]
        except CotuneError:
            pass
        if not tasks[-1].gathered:
            verbs.remove("gather")
        for verb in verbs:
            run = "private" if verb == "masked" else "plain"
            keyed = Keyed("s", ("party-1", "party-2", "party-3")) if verb == "masked" else None
            protection = Protection(2.0, 1.0, 1) if verb == "masked" else None
            messages = [
                Request(run, i, verb, task, problem.digest, problem, keyed, protection)
                for i, task in enumerate(tasks)
            ]
            found.append([msgspec.msgpack.decode(encode(message)) for message in messages])
    return found


def places(tree, path=()):
    """Where all parts of a message are."""
    yield path
    if isinstance(tree, dict):
        for key in tree:
            yield from places(tree[key], (*path, key))
    elif isinstance(tree, list):
        for i, part in enumerate(tree):
            yield from places(part, (*path, i))


def part_of(tree, path):
    for step in path:
        tree = tree[step]
    return tree


def changed(part, others, rng):
    """Another value of, mostly, the same kind."""
    if rng.random() < 0.1:
        return rng.choice(OTHERS)
    if rng.random() < 0.15:
        alike = [other for other in others if type(other) is type(part)]
        return copy.deepcopy(rng.choice(alike)) if alike else None
    if isinstance(part, bool) or part is None:
        return rng.choice((True, False, None))
    if isinstance(part, int):
        return rng.choice((*NUMBERS, min(part + 1, 2**63), max(part - 1, -(2**63))))
    if isinstance(part, float):
        return rng.choice((*FLOATS, -part, part * 2))
    if isinstance(part, str):
        return rng.choice((*TEXTS, part[:-1], part + "a"))
    if isinstance(part, bytes):
        floats = np.array(rng.choices(FLOATS, k=len(part) // 8 or 1)).tobytes()
        return rng.choice((b"", part[:-1], part + b"1", part[: len(part) // 2], part * 2,
                           rng.randbytes(len(part)), b"\xff" * len(part), floats))  # fmt: skip
    if isinstance(part, list):
        at = rng.randrange(len(part) + 1)
        return rng.choice((part[:at], part[at:], part * 2, part[::-1], part[:at] + part[:1],
                           part[:at] + part[at + 1 :], part * 20))  # fmt: skip
    kept = dict(part)
    if kept and rng.random() < 0.5:
        kept.pop(rng.choice(list(kept)))
    elif kept:
        kept[rng.choice(TEXTS)] = kept.pop(rng.choice(list(kept)))
    return kept


def spoilt(message, rng):
    """The message with one to three fields changed; mostly of the task."""
    message = copy.deepcopy(message)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        top = rng.choice(("task",) * 12 + ("keyed", "protection", "verb", "round", "run"))
        paths = [
            path for path in places(message) if path[:1] == (top,) and path != ("task", "type")
        ]
        if not paths:
            continue
        path = rng.choice(paths)
        others = [part_of(message, other) for other in places(message["task"], ("task",))]
        if len(path) == 1 and top == "task":
            message["task"] = changed(message["task"], [], rng)
        else:
            part_of(message, path[:-1])[path[-1]] = changed(part_of(message, path), others, rng)
        if not isinstance(message["task"], dict):
            break
    return message


#: One for all parties, where there can be one.
_AGENT = Agent() if diagnose().ready else None


class Fuzzed:
    """A party that is asked spoilt messages, and counts what it answers."""

    def __init__(self, problem, folder) -> None:
        frame = ROWS if problem.task == "classification" else ROWS.dropna(subset=["age"])
        agent = None if _AGENT is None else lambda: _AGENT
        self.party = party_of(frame, folder, target=problem.schema.target, agent=agent)
        self.counts: Counter[str] = Counter()
        self.slowest = 0.0

    def agree(self) -> None:
        """Keys with two parties that are not there."""
        others = {name: Pairs(name).public for name in ("party-2", "party-3")}
        own = self._decoded(Introduce()).key
        self._decoded(Acquaint(roster := {"party-1": own, **others}))
        self._session = name_of(roster)

    def _decoded(self, task):
        reply = decode_reply(self.party.perform(encode(Request("", 0, "gather", task))))
        return decode_body(task, reply.body)

    def keyed(self, message):
        """The message with keys that the party has, if it needs any."""
        if message["verb"] != "masked":
            return message
        self.agree()
        return message | {"keyed": message["keyed"] | {"session": self._session}}

    def ask(self, messages, rng):
        """The last of them is spoilt; None if all is well."""
        self.party.training = {}  # what a spoilt beginning led to has the honest one's digest
        for message in messages[:-1]:
            before = self.answer(message)
            assert not isinstance(before, Refusal), before
        spoilt_one = spoilt(self.keyed(messages[-1]), rng)
        began = time.monotonic()
        answer = self._perform(spoilt_one)
        self.slowest = max(self.slowest, time.monotonic() - began)
        code = answer.code if isinstance(answer, Refusal) else "answered"
        self.counts[code] += 1
        return spoilt_one if code == "internal" else None

    def answer(self, message):
        return self._perform(self.keyed(message))

    def _perform(self, message):
        return decode_reply(self.party.perform(encode(message)))


@pytest.fixture(autouse=True)
def _quiet_log(caplog):
    caplog.set_level(logging.CRITICAL)


@pytest.fixture(scope="module", autouse=True)
def _bounded():
    """Fits run on a thread of this process, and may take no more memory than a worker."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (BASE, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


def test_every_task_is_fuzzed():
    for problem in problems():
        assert {type(task) for tasks in tasks_of(problem) for task in tasks} >= set(TASKS) - (
            set(OF_AGENT) if _AGENT is None else set()
        )


@pytest.mark.parametrize("kind", [0, 1], ids=["classification", "regression"])
def test_what_is_fuzzed_is_answered_as_it_is(kind, tmp_path):
    problem = problems()[kind]
    fuzzed = Fuzzed(problem, tmp_path)
    for messages in requests_of(problem):
        codes = {getattr(fuzzed.answer(message), "code", "answered") for message in messages}
        # No model of a regression may leave its party: those of trees and perceptrons are refused.
        refused = LACKING | ({"fitown"} if problem.task == "regression" else set())
        assert codes == {"answered"} or messages[-1]["task"]["type"] in refused


@pytest.mark.soak
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("kind", [0, 1], ids=["classification", "regression"])
def test_changed_fields_are_malformed_and_never_an_internal_error(kind, tmp_path):
    problem = problems()[kind]
    fuzzed, requests = Fuzzed(problem, tmp_path), requests_of(problem)
    rng = random.Random(kind)
    for number in range(times(300, 20_000)):
        failed = fuzzed.ask(requests[number % len(requests)], rng)
        assert failed is None, failed["task"]
    assert fuzzed.counts["malformed"] > 50
    assert fuzzed.slowest < 60
