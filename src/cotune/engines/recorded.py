"""The recorded engine: parties that answer from tables of recorded evaluations, without rows."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from cotune.errors import DataError, FederationError, UsageError, choices
from cotune.learners import learner_names
from cotune.party.evaluate import Evaluation
from cotune.party.party import Party, Refuse
from cotune.party.task import Configuration
from cotune.party.tasks import Found, Pair, Search
from cotune.party.workers import Workers
from cotune.problem import Problem, seed_of
from cotune.protocol.engine import Engine
from cotune.protocol.wire import Refusal
from cotune.space import Params, Space
from cotune.space.domain import Integer, Real
from cotune.space.surrogate import Surrogate

ANSWERS: dict[str, str] = {"nearest": "by the nearest", "interpolated": "by a forest of them"}
#: Parties must agree on a schema, whoever answers: two classes, and rows for any number of folds.
STAND_IN = pd.DataFrame({"recorded": np.arange(1000) % 2 / 2, "target": np.arange(1000) % 2})


class RecordedEngine(Engine):
    """Answers from recorded evaluations, to check methods against experiments in seconds.

    Nothing is fitted, and every round of the ledger says so. A party's search is what it recorded
    inside the problem's space, whatever the sampler.

    Parameters
    ----------
    tables
        By party, its evaluations in the order of its search: columns `learner`, `loss`, and the
        parameters under cotune's names, empty where there is none. Fixed ones may be left out.
    weights
        How many rows each party had; by default all count the same.
    answer
        Whether a configuration's loss is that of the `nearest` recorded one by `Space.distance`
        (of equals, the first) or `interpolated` by a forest. Both look beyond the space's bounds.
        A default that was not recorded, as one outside of the space, is answered in the same way.
    """

    def __init__(
        self,
        tables: Mapping[str, pd.DataFrame],
        *,
        weights: Mapping[str, int] | None = None,
        answer: Literal["nearest", "interpolated"] = "nearest",
    ) -> None:
        if not tables:
            raise FederationError("a federation needs at least 1 party")
        if answer not in ANSWERS:
            raise UsageError(choices(answer, "answer", ANSWERS))
        rows = dict.fromkeys(tables, 1) if weights is None else weights
        whole = all(1 <= count < 2**31 and count % 1 == 0 for count in rows.values())
        if not whole or set(rows) != set(tables):
            raise UsageError(f"the weights are {rows}: give each party's number of rows")
        checked = {name: _checked(name, tables[name]) for name in sorted(tables)}
        self.has_rows = False
        self.remark = f"answered from recorded evaluations, {ANSWERS[answer]}: no rows, no fits"
        scratch = Path(tempfile.mkdtemp(prefix="cotune-"))
        self._close = weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
        self._parties = {
            name: _RecordedParty(name, table, rows[name], answer, scratch)
            for name, table in checked.items()
        }

    def parties(self) -> list[str]:
        return list(self._parties)

    def call(
        self, messages: Mapping[str, bytes], timeout: float | None
    ) -> dict[str, bytes | Refusal]:
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        late = Refusal("timeout", "the time was over before the party was asked")
        return {
            name: late if time.monotonic() > deadline else self._parties[name].perform(message)
            for name, message in messages.items()
        }

    def close(self) -> None:
        self._close()


class _RecordedParty(Party):
    """A party that looks up what others fit."""

    def __init__(self, name: str, table: pd.DataFrame, rows: int, answer: str, scratch: Path):
        super().__init__(name, STAND_IN, "target", workers=Workers(), scratch=scratch)
        self._counted, self._how = rows, answer
        self._tables = {str(learner): own for learner, own in table.groupby("learner")}
        self._lookups: dict[tuple[str, str], _Lookup] = {}  # of the last problem

    @property
    def weight(self) -> float:
        equal = self._problem is not None and self._problem.weights == "equal"
        return 1.0 if equal else float(self._counted)

    def require(self, learner: str) -> None:
        if learner not in self._tables or learner not in self.problem.spaces:
            raise Refuse("unknown_learner", f"no evaluation of {learner!r} was recorded")

    def evaluate(self, configurations: Sequence[Configuration]) -> list[Evaluation]:
        lookups = [(self._lookup(asked.learner, asked.fraction), asked) for asked in configurations]
        return [Evaluation(lookup.loss(asked.params)) for lookup, asked in lookups]

    def searched(self, task: Search) -> tuple[Found, ...]:
        lookups = [self._lookup(learner, task.fraction) for learner in task.learners]
        return tuple(task.kept(Found(one.searched(task.trials), 0, 0.0)) for one in lookups)

    def _lookup(self, learner: str, fraction: float) -> _Lookup:
        self.require(learner)
        if fraction != 1.0:
            raise DataError("the recorded losses are of all rows: there are none of a fraction")
        key = self.problem.digest, learner
        if key not in self._lookups:
            self._lookups = {k: known for k, known in self._lookups.items() if k[0] == key[0]}
            self._lookups[key] = _Lookup(self.problem, learner, self._tables[learner], self._how)
        return self._lookups[key]


class _Lookup:
    """A party's recorded evaluations of one learner, as one problem's space sees them."""

    def __init__(self, problem: Problem, learner: str, table: pd.DataFrame, answer: str) -> None:
        self._space = space = problem.space(learner)
        worst = problem.metric.worst(problem.schema)
        slack = problem.metric.resolution(problem.schema)
        if not table["loss"].between(-slack, worst + slack).all():
            raise DataError(f"{problem.metric_name} has losses from 0 to {worst:g}, the table not")
        self._near: list[Pair] = []
        self._inside: list[Pair] = []
        why = ""
        rows = table.drop(columns=["learner", "loss"]).to_dict("records")
        for row, loss in zip(rows, table["loss"].tolist(), strict=True):
            params = {str(name): value for name, value in row.items() if not pd.isna(value)}
            try:
                self._near.append(Pair(_place(space, params, exact=True), loss))
                self._inside.append(Pair(space.validate(params), loss))
            except UsageError as error:
                why = str(error)
        self._none = f"no recorded evaluation of {learner!r} lies in the problem's space: {why}"
        if not self._near:
            raise DataError(self._none)
        forest = Surrogate(space, "forest", seed_of(problem.seed, "recorded", learner))
        places, losses = zip(*((pair.params, pair.loss) for pair in self._near), strict=True)
        self._forest = forest.fit(places, losses) if answer == "interpolated" else None

    def searched(self, trials: int) -> tuple[Pair, ...]:
        if not self._inside:
            raise DataError(self._none)
        return tuple(self._inside[:trials])

    def loss(self, params: Params) -> float:
        asked = _place(self._space, params)
        if self._forest is not None:
            return float(self._forest.predict([asked])[0][0])
        return min(self._near, key=lambda pair: self._space.distance(asked, pair.params)).loss


def _place(space: Space, params: Params, exact: bool = False) -> Params:
    """Where a configuration lies: only numbers may be out of bounds; if `exact`, all else is given.

    What is off a logarithmic scale, as a default of 0, is put at the bound.
    """
    inside = space.clip(params)
    placed, moved = dict(inside), dict(params)
    for name, within in inside.items():
        domain, value = space[name], params.get(name)
        if isinstance(domain, Real | Integer) and isinstance(value, int | float):
            moved[name] = within
            placed[name] = value if value > 0 or not domain.log else within
    if exact:
        space.validate(moved)
    return placed


def _checked(party: str, table: pd.DataFrame) -> pd.DataFrame:
    for column in ("learner", "loss"):
        if column not in table:
            raise DataError(f"{party}: the table of evaluations has no column {column!r}")
    if table.empty:
        raise DataError(f"{party}: the table has no evaluations")
    for learner in sorted(set(table["learner"]) - set(learner_names()), key=str):
        raise DataError(f"{party}: {choices(learner, 'learner', learner_names())}")
    losses = pd.to_numeric(table["loss"], errors="coerce").to_numpy(float, na_value=np.nan)
    if not np.isfinite(losses).all():
        raise DataError(f"{party}: loss {1 + np.isfinite(losses).argmin()} is not a finite number")
    return table.assign(loss=losses)
