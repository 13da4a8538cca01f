"""a party's local epochs of a network."""

from __future__ import annotations

from cotune.party.task import Task

TASKS: tuple[type[Task], ...] = ()
