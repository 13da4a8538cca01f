"""The tasks of federated training, a file for each way of training."""

from cotune.party.task import Task
from cotune.party.train import (
    assess,
    averaging,
    ensemble,
    forest,
    histogram,
    linear,
    merging,
    network,
)

TASKS: tuple[type[Task], ...] = (
    *linear.TASKS,
    *histogram.TASKS,
    *merging.TASKS,
    *forest.TASKS,
    *averaging.TASKS,
    *network.TASKS,
    *ensemble.TASKS,
    *assess.TASKS,
)
