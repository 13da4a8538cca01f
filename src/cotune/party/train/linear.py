"""sums of the gradient and the curvature over a party's rows."""

from __future__ import annotations

from cotune.party.task import Task

TASKS: tuple[type[Task], ...] = ()
