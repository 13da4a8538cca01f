"""The live display of a run on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cotune.coordinator.federation import Federation
from cotune.problem import Problem
from cotune.run.differences import Differing
from cotune.run.settings import Settings
from cotune.training import Stage
from cotune.trial import Finalist, Step, Trial, best_of


class Progress:
    """Told of each step; the silent one shows nothing."""

    def says(self, line: str) -> None:
        """A line that stays, unless it is empty."""

    def step(self, step: Step, trials: Sequence[Trial], problem: Problem) -> None:
        """A step of the method is done; `trials` are all so far."""

    def differing(self, found: Differing, problem: Problem, by_folds: bool) -> None:
        """So far do the parties differ."""

    def finalists(
        self, certain: Sequence[Finalist], count: int, folds: int, replaced: bool, joining: bool
    ) -> None:
        """These are trained and compared now, one after the other, and perhaps default settings.

        Each is trained once for each of the `folds`, if there are any. `replaced` is whether
        another takes the place of one that is given up, and `joining` whether the parties are asked
        at last what they gained.
        """

    def training(self, finalist: Finalist) -> None:
        """This one is trained now."""

    def stage(self, stage: Stage) -> None:
        """Its training is that far."""

    def given_up(self, finalist: Finalist) -> None:
        """Its training went wrong, or its model is good for nothing."""


class _Bar(Progress):
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task

    def says(self, line: str) -> None:
        if line:
            self._bar.console.print(line)

    def step(self, step: Step, trials: Sequence[Trial], problem: Problem) -> None:
        self._bar.update(self._task, completed=step.done, total=step.of, best="searching")
        if trials:
            best = best_of(trials)
            value = problem.metric.value(best.loss)
            self._bar.update(self._task, best=f"best {value:.4f} {best.learner}")

    def differing(self, found: Differing, problem: Problem, by_folds: bool) -> None:
        for sentence in found.sentences(problem, by_folds):
            self._bar.console.print(sentence, markup=False)

    def finalists(
        self, certain: Sequence[Finalist], count: int, folds: int, replaced: bool, joining: bool
    ) -> None:
        if count:
            line = announced(certain, count, folds, replaced, joining)
            self._bar.console.print(line, markup=False)

    def training(self, finalist: Finalist) -> None:
        self._bar.update(self._task, description="train", best=named(finalist))

    def given_up(self, finalist: Finalist) -> None:
        self._bar.console.print(f"given up: {named(finalist)}: {finalist.failed}", markup=False)

    def stage(self, stage: Stage) -> None:
        self._bar.update(self._task, completed=stage.done, total=stage.of)


def named(finalist: Finalist) -> str:
    """In a few words."""
    return f"{finalist.learner} (default settings)" if finalist.default else finalist.learner


def announced(
    certain: Sequence[Finalist], count: int, folds: int, replaced: bool, joining: bool
) -> str:
    """What is trained in the end, in how many trainings; see `Progress.finalists`."""
    names = [named(one) for one in certain]
    if count > 1 and not all(one.default for one in certain):
        learner = "the best one's learner" if len(certain) > 1 else "its learner"
        names.append(f"the default settings of {learner}")
    each, once = folds or 1, bool(folds)
    number, most = len(names) * each + once, (2 * len(certain) + (count > 1)) * each + once
    if count == 1:
        line = f"{names[0]} is trained and evaluated on the rows set aside, in 1 training"
        others = "another has to take its place"
    else:
        how = "trained and compared on the rows set aside"
        if folds:
            how = f"compared by {folds}-fold cross-validation, the best trained again on all rows"
        line = (
            f"finalists: {'; '.join(names)}: {how}, in up to {number} training{'s' * (number > 1)}"
        )
        others = "others have to take the place of those that go wrong"
    if replaced:
        line += f", or {most} if {others}"
    if joining:
        line += "; then a round and a fit at each party to compare the model with the parties' own"
    return line


@contextmanager
def display(wanted: bool | None, settings: Settings, federation: Federation) -> Iterator[Progress]:
    """A bar with rounds, fits, time left and the best figure so far, if wanted or at a terminal."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    class Fits(ProgressColumn):
        """Counts while a round is under way, so that a long round is seen to move."""

        def render(self, task: Any) -> Text:
            return Text(f"{federation.engine.progress()} fits", style="cyan")

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        Fits(),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[best]}"),
    )
    with RichProgress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(settings.method, total=None, best="agreeing")
        yield _Bar(bar, task)
