"""Outcomes, comparisons and runs as tables for a terminal of 80 columns."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from cotune.run.outcome import ONE_SIDED
from cotune.run.progress import named
from cotune.training.blind import what_is_blind

if TYPE_CHECKING:
    from cotune.coordinator.ledger import Failure, Ledger
    from cotune.run.joined import Assessment, Judged
    from cotune.run.outcome import Headline, Of, Outcome

#: More failures than this are counted, not listed.
MOST_FAILURES = 10
#: More parties than this are counted, not listed.
MOST_PARTIES = 10
#: What a run's figure is made of (`Outcome.headline`), for a narrow column.
SHORT: dict[Of, str] = {
    "rows set aside": "held out",
    "federated cross-validation": "fed. folds",
    "cross-validation": "folds",
    "validation rows": "few rows",
    "prediction": "guess",
}
#: Columns for the names of facts, the longest being "ended early".
MARGIN = 11


def show_outcome(outcome: Outcome, console: Console | None = None) -> None:
    """The learners, the best configuration, what it cost and what it disclosed."""
    console = console or _console()
    console.print("", _headline(outcome), "", _leaderboard(outcome), "", sep="\n")
    facts = _Facts()
    if outcome.held_out is not None:
        facts.add("search", _said(outcome.searched_for))
    facts.add("best", _configuration({"learner": outcome.best_learner, **outcome.best_params}))
    facts.add("compared by", _compared_by(outcome))
    if outcome.differing is not None:
        by_folds = outcome.headline.of == "federated cross-validation"
        facts.add("parties", _bullets(outcome.differing.sentences(outcome.problem, by_folds)))
    if outcome.finalists:
        facts.add("finalists", _finalists(outcome))
    if outcome.joined is not None:
        lines = _joining(outcome.joined)
        one_class = outcome.differing is not None and outcome.differing.one_class
        if one_class and outcome.problem.metric_name != "roc_auc":
            lines.append("a party with one class is always right alone, and only on its own rows")
        facts.add("joining", _bullets(lines))
    facts.add("cost", cost_line(outcome.ledger))
    if outcome.epsilon is not None:
        figures = f"{outcome.epsilon:.3g} at delta {outcome.delta:g}, for one party"
        facts.add("epsilon", f"{figures}; without the first rounds")
    facts.add("disclosed", _bullets(outcome.ledger.disclosed))
    if outcome.report:
        facts.add("report", _bullets(_figures(outcome.report)))
    if outcome.ended != "finished":
        facts.add("ended early", outcome.ended)
    console.print(facts.table)
    if outcome.run is not None:
        _print_unbroken(console, "run", outcome.run)
    if outcome.model_folder is not None:
        _print_unbroken(console, "model", outcome.model_folder)
    if outcome.report.get("online"):
        _show_curve(console, outcome.report["online"])
    _show_failures(console, outcome.ledger.failures)


def _show_curve(console: Console, points: Sequence[Mapping[str, Any]]) -> None:
    """FedEx's figure 4 as a table: what the best arm so far loses on rows that were set aside."""
    table = _table(numbers=("rounds", "arm", "global", "personalized"))
    table.title = "test loss against rounds of training"
    for point in points:
        losses = (figure(point["global"]), figure(point["personalized"]))
        table.add_row(str(point["rounds"]), str(point["arm"]), *losses)
    console.print(table)


def _figures(report: Mapping[str, Any]) -> list[str]:
    """A method's own figures in a line each; of those that are tables only the names."""
    lines = []
    for name, value in report.items():
        if isinstance(value, Mapping) and not any(
            isinstance(v, list | Mapping) for v in value.values()
        ):
            shown = ", ".join(f"{key} {_written(each)}" for key, each in value.items())
        else:
            shown = (
                "see `report` in --json" if isinstance(value, list | Mapping) else _written(value)
            )
        lines.append(f"{name}: {shown}")
    return lines


def show_comparison(
    outcomes: Sequence[Outcome], run: str | None = None, console: Console | None = None
) -> None:
    """One row per method, the best first, with the full price of each."""
    console = console or _console()
    ranked = sorted(outcomes, key=lambda outcome: outcome.headline.loss)
    metric = ranked[0].problem.metric_name.replace("_", "\n")
    costs = ("rounds", "kB\nup", "kB\ndown", "fits", "CPU\ns", "s")
    table = _table("method", "learner", numbers=(metric, *costs))
    for outcome in ranked:
        ledger = outcome.ledger
        table.add_row(
            escape(outcome.method),
            escape(outcome.best_learner),
            figure(outcome.headline.value),
            str(ledger.rounds),
            f"{ledger.bytes_up / 1000:.1f}",
            f"{ledger.bytes_down / 1000:.1f}",
            str(ledger.fits),
            f"{ledger.cpu_seconds:.1f}",
            f"{ledger.seconds:.1f}",
        )
    facts = _Facts()
    facts.add("figures", _bullets(f"{o.method}: {_said(o.headline)}" for o in ranked))
    facts.add("disclosed", _bullets(_disclosed_by(ranked)))
    for outcome in ranked:
        if outcome.ended != "finished":
            facts.add("ended early", f"{outcome.method}: {outcome.ended}")
    console.print("", table, "", facts.table, sep="\n")
    if run is not None:
        _print_unbroken(console, "run", run)


def show_assessment(assessment: Assessment, console: Console | None = None) -> None:
    """One row per party: the joint model, its own, and what joining gained."""
    metric = _words(assessment.metric)
    table = _table("party", numbers=("rows", f"joint {metric}", "its own", "gained"))
    for row in (*assessment.parties, assessment.total):
        gain = assessment.gain(row)
        table.add_row(
            escape(row.party),
            str(row.rows),
            *(_or_why_not(value, assessment) for value in (row.joint, row.own)),
            "" if gain is None else f"{gain:+.4f}",
        )
    console = console or _console()
    console.print("", table, "", sep="\n")


def show_trials(outcome: Outcome, console: Console | None = None) -> None:
    """Every trial in the order of the run."""
    table = _table("trial", "learner", "configuration", numbers=("value", "fits", "CPU s"))
    for number, trial in enumerate(outcome.trials):
        params = ", ".join(f"{name} {_written(value)}" for name, value in trial.params.items())
        reasons = "".join(f"; failed: {reason}" for reason in trial.reasons)
        reasons += f"; on {100 * trial.fraction:.3g} % of the rows" if trial.fraction < 1 else ""
        reasons += "; predicted" if trial.predicted else ""
        table.add_row(
            str(number),
            escape(trial.learner),
            escape(params + reasons),
            figure(outcome.problem.metric.value(trial.loss)),
            str(trial.fits),
            f"{trial.cpu_seconds:.1f}",
        )
    (console or _console()).print(table)


def show_runs(
    rows: Iterable[Mapping[str, Any]], root: Path, console: Console | None = None
) -> None:
    """A table of the runs below `root`, as `cotune runs` lists them."""
    console = console or _console()
    table = _table("run", "method", "data", "state", "best", "began")
    table.columns[4].justify = "right"
    for row in rows:
        table.add_row(
            escape(_folded(os.path.relpath(row["run"], root), console.width - 61)),
            escape(row["method"] or ""),
            escape((row["data"] or "").removeprefix("sklearn:")),
            _state(row).replace(", ", "\n"),
            _headed(row),
            (row["began"] or "")[5:16].replace("T", " "),
        )
    console.print(table)


def show_unfinished(row: Mapping[str, Any], console: Console | None = None) -> None:
    """The state of a run that has no outcome yet, and how to get one."""
    console = console or _console()
    for name in ("method", "data", "began"):
        _print_unbroken(console, name, str(row[name] or "unknown"))
    _print_unbroken(console, "state", _state(row))
    _print_unbroken(console, "run", row["run"])
    if row["state"] == "interrupted":
        _print_unbroken(console, "go on with", f"cotune resume {row['run']}")


def cost_line(ledger: Ledger) -> str:
    """All that a run spent, in one line."""
    return (
        f"{_counted(ledger.rounds, 'round')}, {human_bytes(ledger.bytes_up)} up, "
        f"{human_bytes(ledger.bytes_down)} down, {ledger.fits} fits, "
        f"{ledger.cpu_seconds:.1f} CPU s, {ledger.seconds:.1f} s"
    )


def human_bytes(count: int) -> str:
    """A size in the unit that keeps it short.

    >>> human_bytes(999), human_bytes(3207), human_bytes(12_000_000)
    ('999 B', '3.2 kB', '12.0 MB')
    """
    size, units = float(count), iter(("B", "kB", "MB", "GB"))
    unit = next(units)
    while size >= 999.95 and unit != "GB":
        size, unit = size / 1000, next(units)
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def figure(value: float) -> str:
    """A metric's value with four decimals, or four digits where those would say nothing.

    >>> figure(0.95432), figure(54.2), figure(0.0000123), figure(123456.7)
    ('0.9543', '54.2000', '1.23e-05', '1.235e+05')
    """
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.4g}"


class _Facts:
    """Names at the left, what is to be said of them at the right."""

    def __init__(self) -> None:
        self.table = Table.grid(padding=(0, 2, 0, 0))
        self.table.add_column(style="bold", no_wrap=True, width=MARGIN)
        self.table.add_column(overflow="fold")

    def add(self, name: str, said: RenderableType) -> None:
        self.table.add_row(name, escape(said) if isinstance(said, str) else said)


def _print_unbroken(console: Console, name: str, line: str) -> None:
    """A fact that is copied and pasted, so that it must not be folded."""
    console.print(f"[bold]{name:<{MARGIN}}[/bold]  {escape(line)}", soft_wrap=True)


def _console() -> Console:
    return Console(highlight=False)


def _table(*texts: str, numbers: Sequence[str] = ()) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False,
        header_style="bold",
    )  # fmt: skip
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _headline(outcome: Outcome) -> str:
    problem = outcome.problem
    best = f"[bold]{_words(problem.metric_name)} {_spread(outcome.headline)}[/bold]"
    parties = _counted(len(outcome.parties), "party", "parties")
    how = f"{outcome.method} over {parties}, {_counted(len(outcome.trials), 'trial')}"
    return f"{best} by {escape(outcome.best_learner)} ({escape(how)})\n{outcome.headline.words}"


def _spread(headline: Headline) -> str:
    """The figure with its standard error, where that is known."""
    if headline.interval is not None:
        low, high = map(figure, headline.interval)
        return f"{figure(headline.value)} (90 %: {low} to {high})"
    error = f" +- {figure(headline.error)}" if headline.error else ""
    return figure(headline.value) + error


def _said(headline: Headline) -> str:
    return f"{_spread(headline)} {headline.words}"


def _compared_by(outcome: Outcome) -> str:
    if outcome.problem.compare_by == "parties":
        return "the mean of the parties' own losses"
    left_out = ""
    if outcome.best.left_out:
        rows = _counted(outcome.best.left_out, "row")
        left_out = f" but {rows} of classes of which a party has too few to say how they fared"
    return f"the figure over all parties' rows{left_out}; +- is its standard error"


def _finalists(outcome: Outcome) -> RenderableType:
    """What each had in the search and as trained, and whether tuning gained anything."""
    value = outcome.problem.metric.value
    lines = []
    for one in outcome.finalists:
        searched = "-" if one.searched is None else figure(value(one.searched))
        found = one.held_out
        trained = "no party could say" if outcome.problem.holdout else "not judged"
        if found is not None:
            trained = figure(value(found.loss)) + (
                f" +- {figure(found.error)}" if found.error else ""
            )
        if one.failed:
            trained = f"given up, {one.failed}"
        else:
            trained += " as trained"
        lines.append(f"{named(one)}: {searched} in the search, {trained}")
    if all(one.failed for one in outcome.finalists):
        lines.append(f"no model is clearly better than {what_is_blind(outcome.problem)}")
    gained = gain_of_tuning(outcome)
    return _bullets([*lines, gained] if gained else lines)


def _joining(found: Assessment) -> list[str]:
    """Alone -> together: over all parties, and for each that sends its own figures."""

    def line(name: str, one: Judged) -> str:
        own, joint = (_or_why_not(value, found) for value in (one.own, one.joint))
        return f"{name}: {own}" + ("" if one.joint is None else f" -> {joint}")

    lines = [line("all rows set aside, alone -> together", found.total)]
    if found.gained is not None and found.asked:
        lines[0] += f"; {found.gained} of {_counted(found.asked, 'party', 'parties')} gained"
    alone = found.better_alone
    lines += [f"{line(one.party, one)}: better alone" for one in alone[:MOST_PARTIES]]
    others = [one for one in found.parties if one not in alone]
    room = MOST_PARTIES - len(alone)
    lines += [line(one.party, one) for one in others[: max(0, room)]]
    left = len(found.parties) - MOST_PARTIES
    return [*lines, f"and {_counted(left, 'party', 'parties')} more: --json"] if left > 0 else lines


def _or_why_not(value: float | None, found: Assessment) -> str:
    """A figure, or why the rows do not define it."""
    if value is not None:
        return figure(value)
    return "one class only" if found.metric == "roc_auc" else "too few rows"


def gain_of_tuning(outcome: Outcome) -> str:
    """What the answer gained over its learner's default settings, on the rows set aside."""
    best = outcome.held_out
    if best is None:
        return ""
    for one in outcome.finalists:
        own = one.learner == outcome.best_learner
        if one.default and own and one.held_out is not None:
            if one.params == outcome.best_params:
                return "default settings were the best: tuning gained nothing here"
            gain = one.held_out.loss - best.loss
            error = math.hypot(one.held_out.error, best.error)
            says = f"tuning gained {figure(gain)} +- {figure(error)} over default settings"
            return says + (": within the noise" if abs(gain) < ONE_SIDED * error else "")
    return ""


def _leaderboard(outcome: Outcome) -> Table:
    metric = outcome.problem.metric_name
    table = _table("learner", numbers=(_words(metric), "trials", "failed", "fits", "CPU s"))
    for row in outcome.leaderboard().to_dict("records"):
        table.add_row(
            escape(row["learner"]),
            figure(row[metric]),
            str(row["trials"]),
            str(row["failed"]),
            str(row["fits"]),
            f"{row['cpu_seconds']:.1f}",
        )
    return table


def _configuration(params: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, value in params.items():
        table.add_row(escape(name), escape(_written(value)))
    return table


def _bullets(sentences: Iterable[str]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    for sentence in sentences:
        table.add_row("-", escape(sentence))
    return table


def _disclosed_by(outcomes: Sequence[Outcome]) -> list[str]:
    """What the methods disclosed; the ones that did are named where others did not."""
    by: dict[str, list[str]] = {}
    for outcome in outcomes:
        for sentence in outcome.ledger.disclosed:
            by.setdefault(sentence, []).append(outcome.method)
    return [
        sentence if len(methods) == len(outcomes) else f"{', '.join(methods)} only: {sentence}"
        for sentence, methods in by.items()
    ]


def _show_failures(console: Console, failures: Sequence[Failure]) -> None:
    if not failures:
        return
    table = _table("round", "party", "code", "what it said")
    for failure in failures[:MOST_FAILURES]:
        table.add_row(
            str(failure.round), escape(failure.party), failure.code, escape(failure.sentence)
        )
    console.print("[bold]parties that failed[/bold]", table)
    if len(failures) > MOST_FAILURES:
        console.print(f"and {len(failures) - MOST_FAILURES} more; --json lists them all")


def _headed(row: Mapping[str, Any]) -> str:
    """A run's figure, and below it what that is made of."""
    if row["value"] is None:
        return ""
    return "\n".join((figure(row["value"]), SHORT.get(row.get("of", ""), ""))).rstrip()


def _state(row: Mapping[str, Any]) -> str:
    if row["state"] in ("interrupted", "running"):
        return f"{row['state']}, {_counted(row['rounds'], 'round')}"
    return str(row["state"])


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _folded(name: str, width: int) -> str:
    """A long name over several lines, broken after a hyphen or a slash.

    >>> _folded("20250131-120000-digits-dash", 20).splitlines()
    ['20250131-120000-', 'digits-dash']
    """
    parts = re.sub(r"(?<=[-/])", " ", name)
    return "\n".join(line.replace(" ", "") for line in wrap(parts, max(width, 20)))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _written(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
