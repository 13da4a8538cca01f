"""The command line: `cotune demo | tune | compare | resume | predict | evaluate | runs | show ...`.

Only click and the standard library are imported here at the top; each command imports what it
needs when it is called, so that help and completion answer at once.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from click.shell_completion import get_completion_class

from cotune import __version__
from cotune.cli.comparison import COMPARISON, Plan, discarded_if_refused, resumed
from cotune.cli.options import (
    completes,
    json_option,
    known_methods,
    quiet_option,
    run_option,
    tuning_options,
)
from cotune.cli.sites import federation, party
from cotune.errors import CotuneError, DataWarning, UsageError

if TYPE_CHECKING:
    from cotune.run.outcome import Outcome

#: What the system says when nothing more can be written.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


# How commands end


class Stopped(KeyboardInterrupt):
    """Ctrl-C (SIGINT) or SIGTERM, with the exit code that shells know them by.

    A plain KeyboardInterrupt will not do: once one has passed through a library's `exec`, Python
    ends itself by the signal, whatever exit code was asked for.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


#: Those that were raised. A library that is amid its import may raise another error instead.
_stops: list[Stopped] = []


class Commands(click.Group):
    """Commands in the order of their definition; every error is one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            code, sentence = _explained(error)
            _say(sentence)
            ctx.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except (Exception, Stopped) as error:
            if ctx.params["debug"]:
                traceback.print_exc()
            code, sentence = _explained(_stop_behind(error) or error)
            _say(sentence)
            ctx.exit(code)


def _stop_behind(error: BaseException) -> Stopped | None:
    """What stopped the command, if that is why it failed."""
    if isinstance(error, Stopped):
        return error
    return _stops[-1] if _stops and not isinstance(error, CotuneError) else None


def _explained(error: BaseException) -> tuple[int, str]:
    """The exit code for an error, and the sentence that a user can act on."""
    match error:
        case CotuneError():
            return error.exit_code, str(error)
        case click.ClickException():
            context = getattr(error, "ctx", None)
            path = context.command_path if context else "cotune"
            return error.exit_code, f"{error.format_message()} See `{path} --help`"
        case Stopped():
            return error.exit_code, "stopped before anything was begun"
        case OSError(errno=number) if number in DISK_FULL:
            place = f" at {error.filename}" if error.filename else ""
            return 4, f"the disk is full{place}: free some space, then `cotune resume` the run"
        case OSError(errno=number) if number in READ_ONLY:
            return 4, f"{error.filename} cannot be written: make it writable or give another --run"
    text = f"{type(error).__name__}: {error}"
    hint = "run with `cotune --debug` (or COTUNE_DEBUG=1) for the traceback"
    return 1, f"unexpected error: {text}; {hint}"


def _say(sentence: str) -> None:
    click.echo("cotune: " + " ".join(sentence.split()), err=True)


class _Lines(logging.Handler):
    """What the library logs, one line each; with tracebacks when debugging only."""

    def __init__(self, debug: bool) -> None:
        super().__init__()
        self._debug = debug

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        cause = f": {type(error).__name__}: {error}" if error else ""
        _say(record.getMessage() + cause)
        if error and self._debug:
            traceback.print_exception(error)


@contextmanager
def _warnings_in_lines() -> Iterator[None]:
    """What is doubtful about the rows is one line each, and said once also by a comparison."""
    said: set[str] = set()
    usual = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, DataWarning):
            usual(message, category, filename, lineno, file, line)
        elif str(message) not in said:
            said.add(str(message))
            _say(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        warnings.showwarning = show
        yield


# The commands


@click.group(
    cls=Commands, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="cotune")
@click.option(
    "--debug", is_flag=True, envvar="COTUNE_DEBUG", help="Show the traceback of an error."
)
def cli(debug: bool) -> None:
    """Tune machine learning over data that may not leave its owners.

    \b
    Examples:
      cotune demo
      cotune tune patients.csv --target outcome --parties 5
      cotune COMMAND --help
    """
    logging.getLogger("cotune").handlers = [_Lines(debug)]
    click.get_current_context().with_resource(_warnings_in_lines())


@cli.command()
@run_option
@quiet_option
def demo(run: Path | None, quiet: bool) -> None:
    """Tune three learners over three parties, in about a minute.

    \b
    Example:
      cotune demo
    """
    data = "sklearn:breast_cancer"
    settings = {"learners": ("hgb", "random_forest", "logistic_regression"), "trials": 10}
    plan = Plan([data], ["dash"], {"parties": 3}, settings, {})
    folder = run or _new_folder(plan, "demo")
    with _under_way(f"tuning three learners on {data}, split over 3 parties", folder, quiet):
        outcome = plan.start("dash", folder, quiet)
    _report(outcome, as_json=False)
    click.echo("\ntry next")
    click.echo(f"  {_command()} show {folder} --trials")
    click.echo(f"  {_command()} compare {data} --learner svm --learner decision_tree")


@cli.command()
@click.option(
    "--method",
    default="dash",
    metavar="NAME",
    shell_complete=completes(known_methods),
    help="flora, dash, flash, fedex or defaults; central and multishot are for simulations.",
)
@tuning_options
def tune(
    data: tuple[str, ...], method: str, run: Path | None, quiet: bool, as_json: bool, **given: Any
) -> None:
    """Find the best learner and configuration for DATA, and train the model.

    DATA is a file (CSV, TSV, Parquet, ARFF, images as NPZ), text:FILE, sklearn:NAME or openml:ID,
    and is split over simulated parties; several are one party's each. With --federation the real
    parties of a federation have the data instead. The run is kept, and `cotune resume` goes on
    with it if it is stopped.

    \b
    Examples:
      cotune tune sklearn:digits --learner hgb --trials 20
      cotune tune north.csv south.csv --target outcome --metric roc_auc
      cotune tune all.parquet --target outcome --split by:hospital --json
      cotune tune sklearn:wine --split dirichlet:0.5 --fix hgb.max_iter=50
      cotune tune --federation anna --method flora --privacy masked
    """
    plan = Plan.of(data, [method], given | {"train": given["train"] is not False})
    folder = run or _new_folder(plan, method)
    with _under_way(f"tuning {plan.about} with {method}", folder, quiet):
        outcome = plan.start(method, folder, quiet)
    _report(outcome, as_json)


@cli.command()
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("defaults", "dash"),
    metavar="NAME",
    shell_complete=completes(known_methods),
    help="What to compare, repeatable.",
)
@tuning_options
def compare(
    data: tuple[str, ...],
    methods: tuple[str, ...],
    run: Path | None,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Run several methods on the same parties and rank them.

    Takes what `cotune tune` takes. Each method has a run of its own in a folder of its name, so
    that none profits from what the parties computed for another. Models are trained only with
    --train.

    \b
    Examples:
      cotune compare sklearn:digits --method defaults --method dash --learner hgb
      cotune compare patients.csv --target outcome --trials 30 --json
    """
    plan = Plan.of(data, methods, given | {"train": bool(given["train"])})
    folder = run or _new_folder(plan, "compare")
    with discarded_if_refused(folder):
        plan.save(folder)
        with _under_way(f"comparing {', '.join(plan.methods)} on {plan.about}", folder, quiet):
            outcomes = plan.compare(folder, quiet)
    _report_comparison(plan, outcomes, folder, as_json)


@cli.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--no-train", is_flag=True, help="Leave the training out; it may have failed.")
@quiet_option
@json_option
def resume(folder: Path, no_train: bool, quiet: bool, as_json: bool) -> None:
    """Go on with a run that was stopped.

    The outcome is that of a run which was never stopped. A finished run is shown again.

    \b
    Example:
      cotune resume runs/20250131-120000-digits-dash
    """
    if (folder / COMPARISON).exists():
        plan = Plan.load(folder)
        with _under_way("resuming the comparison", folder, quiet):
            outcomes = plan.compare(folder, quiet)
        _report_comparison(plan, outcomes, folder, as_json)
    else:
        with _under_way("resuming", folder, quiet):
            outcome = resumed(folder, quiet, train=not no_train)
        _report(outcome, as_json)


@cli.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("data", metavar="DATA")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    show_default="standard output, as CSV",
    help="A CSV or Parquet file to write.",
)
def predict(folder: Path, data: str, out: Path | None) -> None:
    """Predict the rows of DATA with the model of RUN.

    RUN is the folder of a run or of a model. One row of predictions per row of DATA: the
    `prediction`, and for classes a column with the probability of each.

    \b
    Examples:
      cotune predict runs/20250131-120000-digits-dash new.csv --out predicted.csv
      cotune predict runs/20250131-120000-digits-dash sklearn:digits
    """
    from cotune.data.load import load
    from cotune.model.model import Model

    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise UsageError(f"--out {out}: give a file that ends in .csv or .parquet")
    if out is not None and not out.absolute().parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {out.parent}")
    table = Model.load(folder).table(load(data))
    if out is None:
        click.echo(table.to_csv(index=False), nl=False)
    elif out.suffix == ".csv":
        table.to_csv(out, index=False)
    else:
        table.to_parquet(out, index=False)


@cli.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@quiet_option
@json_option
def evaluate(folder: Path, quiet: bool, as_json: bool) -> None:
    """Judge the model of RUN by the rows that each party set aside.

    Beside it stands what the party would have without the others: the same configuration, fitted
    on its own rows only. The run must have set rows aside (--holdout).

    \b
    Examples:
      cotune tune sklearn:digits --learner hgb --holdout 0.2 --run runs/digits
      cotune evaluate runs/digits
    """
    from cotune.run.evaluate import evaluate as assess

    with _under_way("judging the model", folder, quiet):
        assessment = assess(folder)
    if as_json:
        _print_json(assessment.summary())
    else:
        from cotune.report.show import show_assessment

        show_assessment(assessment)


@cli.command()
@click.argument("folder", metavar="[DIR]", default="runs", type=click.Path(path_type=Path))
@json_option
def runs(folder: Path, as_json: bool) -> None:
    """List the runs in DIR, the folder runs/ by default.

    \b
    Examples:
      cotune runs
      cotune runs experiments --json
    """
    from cotune.run.folder import run_folders, state_of

    rows = [state_of(found) for found in run_folders(folder)]
    if as_json:
        _print_json(rows)
    elif not rows:
        click.echo(f"There are no runs in {folder}/ yet: `cotune demo` starts one.")
    else:
        from cotune.report.show import show_runs

        show_runs(rows, folder)


@cli.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--trials", is_flag=True, help="List every trial.")
@click.option("--disclosures", is_flag=True, help="Tell who learnt what, for a privacy officer.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a picture of the run instead: a PNG, SVG or PDF file.",
)
@json_option
def show(folder: Path, trials: bool, disclosures: bool, plot: Path | None, as_json: bool) -> None:
    """Show how a run ended, or how far it is.

    \b
    Examples:
      cotune show runs/20250131-120000-digits-dash
      cotune show runs/20250131-120000-digits-dash --trials --json
      cotune show runs/20250131-120000-digits-fedex --plot curve.png
      cotune show runs/20250131-120000-digits-dash --disclosures
    """
    from cotune.run.outcome import Outcome

    if disclosures and (folder / "outcome.json").exists():
        from cotune.report.disclosure import as_text

        outcome = Outcome.load(folder)
        if as_json:
            _print_json(outcome.summary()["disclosures"])
        else:
            click.echo(as_text(outcome))
        return
    if plot is not None:
        from cotune.report.plots import plot as picture

        picture(Outcome.load(folder), plot)
        _say(f"written to {plot}")
    elif (folder / COMPARISON).exists():
        _show_comparison(folder, as_json)
    elif not (folder / "outcome.json").exists():
        _show_unfinished(folder, as_json)
    else:
        _report(Outcome.load(folder), as_json, trials)


@cli.group()
def agent() -> None:
    """See to the key agent, the process that holds a party's secret key share.

    It is needed for --privacy encrypted, and runs under a Python of its own.

    \b
    Example:
      cotune agent doctor --setup
    """


@agent.command()
@click.option("--setup", is_flag=True, help="Make the agent's environment if it has none.")
@json_option
def doctor(setup: bool, as_json: bool) -> None:
    """Say whether the key agent can run here, and what is missing.

    \b
    Examples:
      cotune agent doctor
      cotune agent doctor --setup
      COTUNE_AGENT_PYTHON=/opt/python3.12/bin/python cotune agent doctor --setup
    """
    from cotune.privacy.doctor import diagnose, set_up

    if setup and not diagnose().ready:
        _say("making an environment for the key agent; this may take a minute")
        set_up()
    found = diagnose()
    if as_json:
        _print_json({"ready": found.ready, "python": str(found.python), "says": found.sentence})
    elif found.ready:
        click.echo(found.sentence)
    if not found.ready:
        raise UsageError(found.sentence)


cli.add_command(federation)
cli.add_command(party)


@cli.command(short_help="Print your shell's completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that lets your shell complete cotune's commands and options.

    \b
    Examples (put the line in the file named at its end):
      eval "$(cotune completion bash)"      # ~/.bashrc
      eval "$(cotune completion zsh)"       # ~/.zshrc
      cotune completion fish | source       # ~/.config/fish/config.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "cotune", "_COTUNE_COMPLETE").source())


# What commands do and say


def _command() -> str:
    """How this command can be called again: by its name, or by its path if that is not found."""
    return "cotune" if shutil.which("cotune") else os.path.relpath(sys.argv[0])


def _new_folder(plan: Plan, kind: str) -> Path:
    from cotune.run.folder import new_folder

    return new_folder(f"{plan.name}-{kind}")


@contextmanager
def _under_way(what: str, folder: Path, quiet: bool) -> Iterator[None]:
    """Say on standard error that work begins and ends; if it is stopped, how to go on."""
    if not quiet:
        _say(f"{what} in {folder}")
    began = time.monotonic()
    try:
        yield
    except (Exception, Stopped) as error:
        stop = _stop_behind(error)
        if stop is None or not any((folder / n).exists() for n in ("run.json", COMPARISON)):
            raise
        _say(f"stopped; the run is kept: `cotune resume {folder}` goes on with it")
        raise click.exceptions.Exit(stop.exit_code) from stop
    if not quiet:
        _say(f"finished in {time.monotonic() - began:.1f} s")


def _report(outcome: Outcome, as_json: bool, trials: bool = False) -> None:
    if as_json:
        from msgspec import to_builtins

        every = {"all_trials": to_builtins(outcome.trials)} if trials else {}
        _print_json(outcome.summary() | every)
        return
    from cotune.report.show import show_outcome, show_trials

    if trials:
        show_trials(outcome)
    show_outcome(outcome)


def _report_comparison(
    plan: Plan, outcomes: Sequence[Outcome], folder: Path, as_json: bool
) -> None:
    if as_json:
        summaries = [outcome.summary() for outcome in outcomes]
        _print_json({"data": plan.data, "methods": summaries, "run": str(folder)})
    else:
        from cotune.report.show import show_comparison

        show_comparison(outcomes, str(folder))


def _show_comparison(folder: Path, as_json: bool) -> None:
    from cotune.run.outcome import Outcome

    plan = Plan.load(folder)
    ended = [m for m in plan.methods if (folder / m / "outcome.json").exists()]
    outcomes = [Outcome.load(folder / method) for method in ended]
    if ended or as_json:
        _report_comparison(plan, outcomes, folder, as_json)
    if len(ended) < len(plan.methods):
        waiting = ", ".join(method for method in plan.methods if method not in ended)
        _say(f"{waiting} did not end yet: `cotune resume {folder}` goes on with it")


def _show_unfinished(folder: Path, as_json: bool) -> None:
    from cotune.run.folder import unfinished

    row = unfinished(folder)
    if as_json:
        _print_json(row)
    else:
        from cotune.report.show import show_unfinished

        show_unfinished(row)


def _print_json(value: object) -> None:
    click.echo(json.dumps(value))


def main() -> None:
    """Where the console script starts."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _stop)
    cli(prog_name="cotune")


def _stop(number: int, _frame: object) -> None:
    _stops.append(Stopped(number))
    raise _stops[-1]
