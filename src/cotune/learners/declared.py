"""Learners that are declared: estimator classes, two tables of parameters and a baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from cotune.errors import UsageError, choices
from cotune.learners import learner, learner_names, require
from cotune.learners.contract import Estimator, Learner, SpaceName
from cotune.space import Space

if TYPE_CHECKING:
    from cotune.data.schema import Schema, TaskKind

Table = Mapping[str, Any]


def table(**entries: Any) -> Table:
    """Parameters and their entries, in the notation of `Space`; nobody can change them later."""
    return MappingProxyType(entries)


@dataclass(frozen=True)
class Only:
    """A table's entry that exists for one kind of task."""

    task: TaskKind
    value: Any


class DeclaredLearner(Learner):
    """A learner over a library with scikit-learn's interface.

    `classifier` and `regressor` name the library's classes (``"module:Class"``, imported when an
    estimator is built); `paper`, `wide` and `baseline` are the tables behind `space` and
    `defaults`.
    """

    classifier: ClassVar[str]
    regressor: ClassVar[str]
    paper: ClassVar[Table]
    wide: ClassVar[Table]
    baseline: ClassVar[Table]
    most_probable = True

    def space(self, task: TaskKind, which: SpaceName = "default") -> Space:
        tables = {"paper": self.paper, "default": self.wide}
        if which not in tables:
            raise UsageError(choices(which, "space", tables))
        return Space(self._entries(tables[which], task))

    def defaults(self, task: TaskKind) -> dict[str, Any]:
        return self._entries(self.baseline, task)

    def estimator(
        self, params: Mapping[str, Any], *, task: TaskKind, seed: int, schema: Schema
    ) -> Estimator:
        self._check(task)
        require(self)
        build = resolve_name(self.classifier if task == "classification" else self.regressor)
        arguments, settings = self.translate(params), self.settings(seed, schema)
        allowed = _parameters(build) - settings.keys()
        for name in arguments:
            if name in settings:
                raise UsageError(f"cotune sets the {self.name} parameter {name!r}: leave it out")
            if name not in allowed:
                raise UsageError(choices(name, f"{self.name} parameter", sorted(allowed)))
        estimator: Estimator = build(**arguments, **settings)
        return estimator

    def settings(self, seed: int, schema: Schema) -> dict[str, Any]:
        """The arguments that cotune sets and no configuration may: seed, threads, column kinds."""
        return {"random_state": seed}

    def translate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The estimator's arguments for `params`; the same unless a parameter is cotune's own."""
        return dict(params)

    def _entries(self, table: Table, task: TaskKind) -> dict[str, Any]:
        self._check(task)
        return {
            name: entry.value if isinstance(entry, Only) else entry
            for name, entry in table.items()
            if not isinstance(entry, Only) or entry.task == task
        }

    def _check(self, task: TaskKind) -> None:
        if task not in self.tasks:
            able = ", ".join(name for name in learner_names() if task in learner(name).tasks)
            raise UsageError(f"learner {self.name!r} cannot do {task}: choose among {able}")


@cache
def _parameters(build: Callable[[], Any]) -> frozenset[str]:
    return frozenset(build().get_params())


def categorical(schema: Schema) -> list[bool]:
    """For each column of the schema, whether it holds category codes."""
    return [column.kind == "categorical" for column in schema.columns]
