"""a party's share of a forest's trees."""

from __future__ import annotations

from cotune.party.task import Task

TASKS: tuple[type[Task], ...] = ()
