"""Small parties, problems, learners and engines that the tests of the core share."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes, load_iris, load_wine
from sklearn.tree import DecisionTreeClassifier

from cotune.coordinator.agree import agree
from cotune.coordinator.federation import Federation
from cotune.data.arrays import cells
from cotune.data.schema import Schema
from cotune.data.text import CODES
from cotune.engines.local import LocalEngine
from cotune.learners.contract import Learner
from cotune.party.party import Party
from cotune.party.workers import Workers
from cotune.problem import Problem
from cotune.protocol.engine import Engine
from cotune.protocol.wire import Request, decode_reply, encode
from cotune.run.settings import Settings
from cotune.space import Space

CANARY = "canary-7351"
TREE = {"max_depth": 3}


def iris(rows: int = 150) -> pd.DataFrame:
    frame = load_iris(as_frame=True).frame
    return frame.sample(rows, random_state=0).reset_index(drop=True)


def wine() -> pd.DataFrame:
    return load_wine(as_frame=True).frame.sample(frac=1.0, random_state=1).reset_index(drop=True)


def binary() -> pd.DataFrame:
    frame = iris()
    frame["target"] = np.where(frame["target"] == 1, "yes", "no")
    return frame


def diabetes() -> pd.DataFrame:
    return load_diabetes(as_frame=True).frame


def people(rows: int = 60, seed: int = 0, cities: str = "abc", labels: str = "xy") -> pd.DataFrame:
    """Mixed columns with gaps: a number, a number that is mostly missing, a category."""
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": np.where(random.random(rows) < 0.2, np.nan, random.normal(40, 10, rows)),
            "rare": np.where(random.random(rows) < 0.9, np.nan, random.normal(0, 1, rows)),
            "city": random.choice([*cities, None], rows),
            "target": random.choice(list(labels), rows),
        }
    )


def pictures(rows: int = 30, side: int = 4, dtype: object = np.uint8) -> pd.DataFrame:
    """Images of noise, and whether they are bright."""
    images = np.random.default_rng(0).integers(0, 200, (rows, side, side))
    images[::2] += 50
    bright = np.where(np.arange(rows) % 2, "no", "yes")
    return pd.DataFrame({"image": cells(images.astype(dtype)), "target": bright})


def letters(rows: int = 30) -> pd.DataFrame:
    """Sequences of ten characters, and the next one."""
    codes = np.random.default_rng(0).integers(0, CODES, (rows, 10)).astype(np.int8)
    return pd.DataFrame({"text": cells(codes), "target": np.where(codes[:, 0] % 2, "a", "?b")})


def parts(frame: pd.DataFrame, count: int = 3) -> dict[str, pd.DataFrame]:
    return {f"party-{i + 1}": frame.iloc[i::count].reset_index(drop=True) for i in range(count)}


def threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1)


def federation_of(tables: dict[str, pd.DataFrame], target: str = "target", **options) -> Federation:
    """Fits run on a thread of this process."""
    state = options.pop("state", None)
    engine = LocalEngine(tables, target, executor=threads(), state=state)
    return Federation(engine, **options)


def schema_of(*frames: pd.DataFrame, target: str = "target", task=None, folds: int = 2) -> Schema:
    tables = {f"party-{i + 1}": frame for i, frame in enumerate(frames)}
    with federation_of(tables, target) as federation:
        return agree(federation, folds=folds, task=task)


def problem_of(*frames: pd.DataFrame, target: str = "target", **settings) -> Problem:
    settings = Settings(**({"learners": ("decision_tree",), "folds": 3} | settings))
    schema = schema_of(*frames, target=target, task=settings.expected_task, folds=settings.folds)
    return settings.problem(schema)


def party_of(
    frame: pd.DataFrame,
    scratch: Path,
    *,
    name: str = "party-1",
    target: str = "target",
    workers: Workers | None = None,
    state: Path | None = None,
    agent=None,
) -> Party:
    workers = workers or Workers(threads())
    return Party(name, frame, target, workers=workers, scratch=scratch, state=state, agent=agent)


def ask(party: Party, task, problem: Problem | None = None, *, verb="gather", round=1, run="run"):
    """The decoded answer of a party to one request."""
    digest = problem.digest if problem else ""
    return decode_reply(party.perform(encode(Request(run, round, verb, task, digest, problem))))


class Unreliable(Engine):
    """A local engine whose replies a test can lose, delay or change.

    `change(call, party, reply)` is asked for every reply; calls count from 1.
    """

    def __init__(self, inner: Engine, change) -> None:
        self._inner = inner
        self._change = change
        self.calls: list[tuple[str, ...]] = []
        self.timeouts: list[float | None] = []

    def parties(self):
        return self._inner.parties()

    def call(self, messages, timeout):
        self.calls.append(tuple(messages))
        self.timeouts.append(timeout)
        replies = self._inner.call(messages, None)
        changed = {p: self._change(len(self.calls), p, reply) for p, reply in replies.items()}
        return {party: reply for party, reply in changed.items() if reply is not None}

    def close(self):
        self._inner.close()


def unreliable(tables, change, *, target="target", **options) -> Federation:
    engine = LocalEngine(tables, target, executor=threads())
    return Federation(Unreliable(engine, change), **options)


class OwnLearner(Learner):
    """A decision tree on which the learners below build; `depth` is its only parameter."""

    features = "codes"
    tasks = ("classification",)

    def space(self, task, which="default"):
        return Space({"depth": (1, 5)})

    def defaults(self, task):
        return {"depth": 2}

    def estimator(self, params, *, task, seed, schema):
        return DecisionTreeClassifier(max_depth=params["depth"], random_state=seed)


class SlowToStart(OwnLearner):
    """Whose library takes a second to import, in every process."""

    name = "slow_to_start"

    def estimator(self, params, **context):
        if not _STARTED:
            time.sleep(1.0)
            _STARTED.append(True)
        return super().estimator(params, **context)


_STARTED: list[bool] = []


class Counting(OwnLearner):
    """Counts its fits, of this process, by depth."""

    name = "counting"

    def __init__(self):
        self.fits: list[int] = []

    def estimator(self, params, *, task, seed, schema):
        self.fits.append(params["depth"])
        return super().estimator(params, task=task, seed=seed, schema=schema)


class Raising(OwnLearner):
    """Fails like a library that quotes a value of the data."""

    name = "raising"

    def estimator(self, params, *, task, seed, schema):
        raise ValueError(f"could not convert {CANARY} to float")


class NotANumber(OwnLearner):
    name = "not_a_number"

    class _Estimator(DecisionTreeClassifier):
        def predict(self, X):
            return np.full(len(X), np.nan)

    def estimator(self, params, *, task, seed, schema):
        return self._Estimator()


class Exiting(OwnLearner):
    """Ends its process at depth 1, as the kernel does when memory is short."""

    name = "exiting"

    def estimator(self, params, *, task, seed, schema):
        if params["depth"] == 1:
            os._exit(9)
        return super().estimator(params, task=task, seed=seed, schema=schema)


class Hanging(OwnLearner):
    """Does not come back at depth 1."""

    name = "hanging"

    def estimator(self, params, *, task, seed, schema):
        if params["depth"] == 1:
            time.sleep(600)
        return super().estimator(params, task=task, seed=seed, schema=schema)


class Nearest:
    """A surrogate that costs nothing: the loss of the nearest trial, the first of equals."""

    def __init__(self, space, kind, seed):
        self._space = space

    def fit(self, configurations, losses, doubts=None):
        self._trials, self._losses = list(configurations), np.array(losses)
        return self

    def predict(self, configurations):
        apart = [[self._space.distance(c, t) for t in self._trials] for c in configurations]
        mean = self._losses[np.argmin(apart, axis=1)]
        return mean, np.zeros(len(mean))
