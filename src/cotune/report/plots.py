"""How a run went, as a picture: needs matplotlib (`pip install 'cotune[report]'`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cotune.errors import UsageError

if TYPE_CHECKING:
    from cotune.run.outcome import Outcome

#: What matplotlib can write without anything else.
KINDS = (".png", ".svg", ".pdf")


def plot(outcome: Outcome, path: str | Path) -> None:
    """Write a picture of a run; the file's ending says of which kind.

    Of `fedex` it shows the test loss against rounds, as figure 4 of its paper, and how the
    distribution over the winner's arms changed. Of other methods it shows the trials' losses, and
    the least so far.
    """
    path = Path(path)
    if path.suffix not in KINDS:
        raise UsageError(f"{path} must end in one of {', '.join(KINDS)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "pictures need a package that is not installed: pip install 'cotune[report]'"
        ) from error
    figure = Figure(figsize=(10, 4), layout="constrained")
    if outcome.report.get("theta"):
        left, right = figure.subplots(1, 2)
        _curve(left, outcome)
        _theta(right, outcome.report)
    else:
        _trials(figure.subplots(), outcome)
    figure.savefig(path)


def _curve(axes: Any, outcome: Outcome) -> None:
    """Figure 4: what the best arm so far would lose on rows that were set aside."""
    points = outcome.report["online"]
    for objective in ("global", "personalized"):
        losses = [point[objective] for point in points]
        axes.plot([point["rounds"] for point in points], losses, marker=".", label=objective)
    axes.set(xlabel="rounds of training", ylabel=_lost(outcome) + " on test rows")
    axes.legend()


def _theta(axes: Any, report: dict[str, Any]) -> None:
    """The share of each arm after each round of the winner, one above the other."""
    shares = np.array(report["theta"]).T
    shares /= shares.sum(axis=0)  # of a product of simplices each has its part
    axes.stackplot(np.arange(1, shares.shape[1] + 1), shares)
    axes.set(xlabel="rounds of the winner", ylabel="theta: share of each arm")
    axes.margins(0)


def _trials(axes: Any, outcome: Outcome) -> None:
    losses = np.array([trial.loss for trial in outcome.trials])
    numbers = np.arange(1, len(losses) + 1)
    axes.plot(numbers, losses, ".", label="trial")
    axes.step(numbers, np.minimum.accumulate(losses), where="post", label="least so far")
    axes.set(xlabel="trial", ylabel=_lost(outcome))
    axes.legend()


def _lost(outcome: Outcome) -> str:
    """What a loss is, in words."""
    metric = outcome.problem.metric
    return f"1 - {metric.name}" if metric.shown == "higher" else metric.name
