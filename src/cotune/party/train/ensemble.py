"""a party's own model, for learners that know no better way."""

from __future__ import annotations

from cotune.party.task import Task

TASKS: tuple[type[Task], ...] = ()
