"""a party's part in growing trees: bin edges and histograms."""

from __future__ import annotations

from cotune.party.task import Task

TASKS: tuple[type[Task], ...] = ()
