"""The closed list of tasks: a party performs these, and nothing else."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from cotune.party import differ, keys, moments, propose, tasks, train
from cotune.party.task import Task

TASKS: tuple[type[Task], ...] = (
    *tasks.TASKS,
    *differ.TASKS,
    *propose.TASKS,
    *moments.TASKS,
    *train.TASKS,
    *keys.TASKS,
)
any_task: Any = reduce(or_, TASKS)
