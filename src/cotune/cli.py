"""The command line: `cotune demo | tune | compare | resume | runs | show | completion`.

Only click and the standard library are imported here at the top; each command imports what it
needs when it is called, so that help and completion answer at once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class

from cotune import __version__
from cotune.errors import CotuneError, DataError, UsageError

if TYPE_CHECKING:
    from cotune.outcome import Outcome

COMPARISON = "compare.json"
METRICS = ("balanced_accuracy", "accuracy", "log_loss", "roc_auc", "f1", "rmse", "mae", "r2")
SAMPLERS = ("tpe", "random", "gp", "cmaes", "grid")

#: Options that say how the federation is made; the seed is the tuning's too.
FEDERATION = ("target", "parties", "split", "seed", "quorum", "timeout", "processes")
#: Options of methods, which not every method has.
OPTIONS = ("sampler",)

#: What the system says when nothing more can be written.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)

Command = TypeVar("Command", bound=Callable[..., Any])


# How commands end


class Stopped(KeyboardInterrupt):
    """Ctrl-C (SIGINT) or SIGTERM, with the exit code that shells know them by.

    A plain KeyboardInterrupt will not do: once one has passed through a library's `exec`, Python
    ends itself by the signal, whatever exit code was asked for.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


class Commands(click.Group):
    """Commands in the order of their definition; every error is one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except (Exception, Stopped) as error:
            if ctx.params["debug"]:
                traceback.print_exc()
            code, sentence = _explained(error)
            _say(sentence)
            ctx.exit(code)


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


# What `tune` and `compare` are asked


@dataclass(frozen=True)
class Plan:
    """What the user asked: of `cotune.simulate`, of `cotune.tune`, and by which methods."""

    data: list[str]
    methods: list[str]
    federation: dict[str, Any]
    settings: dict[str, Any]
    options: dict[str, Any]

    @classmethod
    def of(cls, data: Sequence[str], methods: Sequence[str], given: Mapping[str, Any]) -> Plan:
        """Sort the given options by whom they concern; refuse what no method understands."""
        plan = cls(
            data=[os.path.abspath(source) if os.path.exists(source) else source for source in data],
            methods=list(dict.fromkeys(methods)),
            federation={name: given[name] for name in FEDERATION},
            settings={k: v for k, v in given.items() if k not in (*FEDERATION, *OPTIONS)},
            options={name: given[name] for name in OPTIONS if given[name] is not None},
        )
        plan.settings["seed"] = given["seed"]
        plan.check()
        return plan

    def check(self) -> None:
        """A comparison must not fail over the name of its last method after hours."""
        understood = {option for method in self.methods for option in self.options_of(method)}
        for option in self.options.keys() - understood:
            raise UsageError(f"--{option} is not an option of {', '.join(self.methods)}: omit it")

    def options_of(self, method: str) -> dict[str, Any]:
        """Those of the given options that the method understands."""
        from inspect import signature

        from cotune.methods import method as find_method

        understood = signature(find_method(method)).parameters
        return {name: value for name, value in self.options.items() if name in understood}

    def start(self, method: str, folder: Path, quiet: bool) -> Outcome:
        """Make the federation and run one method over it from the beginning."""
        import cotune

        data = self.data[0] if len(self.data) == 1 else self.data
        with (
            _discarded_if_refused(folder),
            cotune.simulate(data, state=folder / "parties", **self.federation) as federation,
        ):
            return cotune.tune(
                federation,
                method,
                run=folder,
                progress=False if quiet else None,
                **self.settings,
                **self.options_of(method),
            )

    def compare(self, folder: Path, quiet: bool) -> list[Outcome]:
        """Every method's outcome: as it was, resumed, or from a run that is started now."""
        return [
            _resumed(folder / method, quiet)
            if (folder / method / "run.json").exists()
            else self.start(method, folder / method, quiet)
            for method in self.methods
        ]

    def save(self, folder: Path) -> None:
        """Write the plan down, so that a comparison can be resumed whichever run it died in."""
        for name in ("run.json", COMPARISON):
            if (folder / name).exists():
                raise UsageError(
                    f"{folder} holds a run already: `cotune resume {folder}` goes on with it, "
                    "another --run starts a new one"
                )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / COMPARISON).write_text(json.dumps(asdict(self), indent=2))
        except OSError as error:
            raise UsageError(
                f"the run folder {folder} cannot be written ({error.strerror}): free space there, "
                "or give another with --run"
            ) from error

    @classmethod
    def load(cls, folder: Path) -> Plan:
        try:
            return cls(**json.loads((folder / COMPARISON).read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(
                f"{folder / COMPARISON} cannot be read: start the comparison anew"
            ) from error


def _fixes(_ctx: object, _param: object, given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`hgb.max_iter=50` and the like by learner; a value that is no JSON is a text."""
    fixed: dict[str, dict[str, Any]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        learner, dot, parameter = name.partition(".")
        if not (equals and dot and learner and parameter):
            raise UsageError(f"--fix {text!r}: write LEARNER.PARAM=VALUE, say hgb.max_iter=50")
        try:
            fixed.setdefault(learner, {})[parameter] = json.loads(value)
        except ValueError:
            fixed.setdefault(learner, {})[parameter] = value
    return fixed


def _no_training(_ctx: object, _param: object, wanted: bool) -> None:
    if wanted:
        raise UsageError("training of the final model is not available yet: leave --train out")


def _completes(names: Callable[[], tuple[str, ...]]) -> Callable[..., list[CompletionItem]]:
    def complete(_ctx: object, _param: object, begun: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in names() if name.startswith(begun)]

    return complete


def _learner_names() -> tuple[str, ...]:
    from cotune.learners import learner_names

    return learner_names()


def _method_names() -> tuple[str, ...]:
    from cotune.methods import method_names

    return method_names()


_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
_quiet = click.option("--quiet", is_flag=True, help="Show no progress.")
_run = click.option(
    "--run",
    type=click.Path(path_type=Path),
    metavar="DIR",
    show_default="a new folder in runs/",
    help="Where the run is kept.",
)
_tuning = (
    click.argument("data", nargs=-1, required=True, type=click.Path(), metavar="DATA..."),
    click.option("--target", default="target", metavar="COL", help="The column to predict."),
    click.option(
        "--parties",
        type=int,
        metavar="N",
        show_default="3, or one per file or value",
        help="How many parties share the rows.",
    ),
    click.option(
        "--split",
        metavar="SPEC",
        show_default="iid",
        shell_complete=_completes(lambda: ("iid", "dirichlet:", "quantity:", "noise:", "by:")),
        help="iid, dirichlet:ALPHA (label skew), quantity:BETA, noise:BETA (feature skew) or "
        "by:COLUMN (one party per value).",
    ),
    click.option(
        "--learner",
        "learners",
        multiple=True,
        metavar="NAME",
        show_default="hgb, random_forest, logistic_regression",
        shell_complete=_completes(_learner_names),
        help="What to tune, repeatable: hgb, svm, mlp, random_forest, decision_tree, extra_tree, "
        "extra_trees, logistic_regression, xgboost, lightgbm, or your own.",
    ),
    click.option(
        "--trials",
        type=int,
        metavar="N",
        show_default="the method's own, 50 for dash",
        help="Configurations per learner.",
    ),
    click.option("--folds", type=int, default=5, metavar="K", help="Of the cross-validation."),
    click.option(
        "--metric",
        metavar="NAME",
        show_default="balanced_accuracy or rmse",
        shell_complete=_completes(lambda: METRICS),
        help=f"{', '.join(METRICS[:-1])} or {METRICS[-1]}.",
    ),
    click.option(
        "--task",
        type=click.Choice(["classification", "regression"]),
        show_default="the target decides",
        help="What kind of target it is.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        metavar="S",
        help="Of everything random.",
    ),
    click.option(
        "--space",
        type=click.Choice(["default", "paper"]),
        default="default",
        help="The wide search spaces, or the published ones.",
    ),
    click.option(
        "--fix",
        "fixed",
        multiple=True,
        callback=_fixes,
        metavar="LEARNER.PARAM=VALUE",
        help="A parameter that is not to be searched, repeatable.",
    ),
    click.option(
        "--drop", multiple=True, metavar="COLUMN", help="A column not to be used, repeatable."
    ),
    click.option(
        "--weights",
        type=click.Choice(["rows", "equal"]),
        default="rows",
        help="Whether parties count by their rows or equally in the mean loss.",
    ),
    click.option(
        "--sampler",
        type=click.Choice(SAMPLERS),
        show_default="the method's own, tpe for dash",
        help="How configurations are chosen.",
    ),
    click.option("--max-rounds", "rounds", type=int, metavar="N", help="Budget in rounds."),
    click.option("--max-fits", "fits", type=int, metavar="N", help="Budget in model fits."),
    click.option("--max-seconds", "seconds", type=float, metavar="S", help="Budget in seconds."),
    click.option("--max-bytes", "bytes", type=int, metavar="N", help="Budget in bytes sent."),
    click.option(
        "--quorum",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="Share of the parties that must answer a round.",
    ),
    click.option(
        "--timeout",
        type=float,
        metavar="S",
        show_default="none",
        help="Seconds that a round may take.",
    ),
    click.option(
        "--processes",
        type=click.IntRange(min=1),
        metavar="N",
        show_default="one per core",
        help="Worker processes.",
    ),
    click.option(
        "--train/--no-train",
        callback=_no_training,
        expose_value=False,
        help="Train the final model (not available yet).",
    ),
    _run,
    _quiet,
    _json,
)


def tuning_options(command: Command) -> Command:
    """The arguments that `tune` and `compare` share."""
    for option in reversed(_tuning):
        command = option(command)
    return command


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


@cli.command()
@_run
@_quiet
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
    click.echo(f"  cotune show {folder} --trials")
    click.echo(f"  cotune compare {data} --learner svm --learner decision_tree")


@cli.command()
@click.option(
    "--method",
    default="dash",
    metavar="NAME",
    shell_complete=_completes(_method_names),
    help="dash or defaults.",
)
@tuning_options
def tune(
    data: tuple[str, ...], method: str, run: Path | None, quiet: bool, as_json: bool, **given: Any
) -> None:
    """Find the best learner and configuration for DATA.

    DATA is a file (CSV, TSV, Parquet, ARFF), sklearn:NAME or openml:ID, and is split over
    simulated parties; several are one party's each. The run is kept, and `cotune resume` goes on
    with it if it is stopped.

    \b
    Examples:
      cotune tune sklearn:digits --learner hgb --trials 20
      cotune tune north.csv south.csv --target outcome --metric roc_auc
      cotune tune all.parquet --target outcome --split by:hospital --json
      cotune tune sklearn:wine --split dirichlet:0.5 --fix hgb.max_iter=50
    """
    plan = Plan.of(data, [method], given)
    folder = run or _new_folder(plan, method)
    with _under_way(f"tuning {', '.join(data)} with {method}", folder, quiet):
        outcome = plan.start(method, folder, quiet)
    _report(outcome, as_json)


@cli.command()
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("defaults", "dash"),
    metavar="NAME",
    shell_complete=_completes(_method_names),
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
    that none profits from what the parties computed for another.

    \b
    Examples:
      cotune compare sklearn:digits --method defaults --method dash --learner hgb
      cotune compare patients.csv --target outcome --trials 30 --json
    """
    plan = Plan.of(data, methods, given)
    folder = run or _new_folder(plan, "compare")
    with _discarded_if_refused(folder):
        plan.save(folder)
        with _under_way(f"comparing {', '.join(plan.methods)} on {', '.join(data)}", folder, quiet):
            outcomes = plan.compare(folder, quiet)
    _report_comparison(plan, outcomes, folder, as_json)


@cli.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@_quiet
@_json
def resume(folder: Path, quiet: bool, as_json: bool) -> None:
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
            outcome = _resumed(folder, quiet)
        _report(outcome, as_json)


@cli.command()
@click.argument("folder", metavar="[DIR]", default="runs", type=click.Path(path_type=Path))
@_json
def runs(folder: Path, as_json: bool) -> None:
    """List the runs in DIR, the folder runs/ by default.

    \b
    Examples:
      cotune runs
      cotune runs experiments --json
    """
    from cotune.run import run_folders

    rows = [_row(found) for found in run_folders(folder)]
    if as_json:
        _print_json(rows)
    elif not rows:
        click.echo(f"There are no runs in {folder}/ yet: `cotune demo` starts one.")
    else:
        from cotune.show import show_runs

        show_runs(rows, folder)


@cli.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--trials", is_flag=True, help="List every trial.")
@_json
def show(folder: Path, trials: bool, as_json: bool) -> None:
    """Show how a run ended, or how far it is.

    \b
    Examples:
      cotune show runs/20250131-120000-digits-dash
      cotune show runs/20250131-120000-digits-dash --trials --json
    """
    if (folder / COMPARISON).exists():
        _show_comparison(folder, as_json)
    elif not (folder / "outcome.json").exists():
        _show_unfinished(folder, as_json)
    else:
        _report(_ended(folder), as_json, trials)


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


def _new_folder(plan: Plan, kind: str) -> Path:
    from cotune.run import new_folder
    from cotune.simulation import data_name

    return new_folder(f"{data_name(plan.data)}-{kind}")


@contextmanager
def _under_way(what: str, folder: Path, quiet: bool) -> Iterator[None]:
    """Say on standard error that work begins and ends; if it is stopped, how to go on."""
    if not quiet:
        _say(f"{what} in {folder}")
    began = time.monotonic()
    try:
        yield
    except Stopped as stop:
        if not any((folder / name).exists() for name in ("run.json", COMPARISON)):
            raise
        _say(f"stopped; the run is kept: `cotune resume {folder}` goes on with it")
        raise click.exceptions.Exit(stop.exit_code) from stop
    if not quiet:
        _say(f"finished in {time.monotonic() - began:.1f} s")


@contextmanager
def _discarded_if_refused(folder: Path) -> Iterator[None]:
    """A folder that was made for what turned out to be wrong input holds nothing to resume."""
    existed = folder.exists()
    try:
        yield
    except (UsageError, DataError):
        if not existed and not any(folder.glob("**/outcome.json")):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _resumed(folder: Path, quiet: bool) -> Outcome:
    import cotune

    return _at(folder, cotune.resume(folder, progress=False if quiet else None))


def _ended(folder: Path) -> Outcome:
    from cotune.outcome import Outcome

    return _at(folder, Outcome.load(folder))


def _at(folder: Path, outcome: Outcome) -> Outcome:
    """The outcome with the folder as it is named now: the run may have been moved."""
    from msgspec.structs import replace

    return replace(outcome, run=str(folder))


def _report(outcome: Outcome, as_json: bool, trials: bool = False) -> None:
    if as_json:
        from msgspec import to_builtins

        every = {"all_trials": to_builtins(outcome.trials)} if trials else {}
        _print_json(outcome.summary() | every)
        return
    from cotune.show import show_outcome, show_trials

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
        from cotune.show import show_comparison

        show_comparison(outcomes, str(folder))


def _show_comparison(folder: Path, as_json: bool) -> None:
    plan = Plan.load(folder)
    ended = [m for m in plan.methods if (folder / m / "outcome.json").exists()]
    if ended or as_json:
        _report_comparison(plan, [_ended(folder / method) for method in ended], folder, as_json)
    if len(ended) < len(plan.methods):
        waiting = ", ".join(method for method in plan.methods if method not in ended)
        _say(f"{waiting} did not end yet: `cotune resume {folder}` goes on with it")


def _show_unfinished(folder: Path, as_json: bool) -> None:
    from cotune.run import read_record

    read_record(folder)
    row = _row(folder)
    if as_json:
        _print_json(row)
    else:
        from cotune.show import show_unfinished

        show_unfinished(row)


def _row(folder: Path) -> dict[str, Any]:
    """What `cotune runs` says of a run: finished, interrupted, running, or unreadable."""
    from cotune.run import read_record

    row: dict[str, Any] = dict.fromkeys(
        ("method", "data", "rounds", "metric", "value", "learner", "began")
    )
    row |= {"run": str(folder), "state": "unreadable"}
    try:
        record = read_record(folder)
        row |= {"method": record.settings.method, "began": record.began}
        row["data"] = _named(record.origin.get("source"))
        if not (folder / "outcome.json").exists():
            state = "running" if _is_locked(folder) else "interrupted"
            return row | {"state": state, "rounds": _finished_rounds(folder)}
        outcome = _ended(folder)
    except CotuneError:
        return row
    return row | {
        "state": "finished",
        "rounds": outcome.ledger.rounds,
        "metric": outcome.problem.metric_name,
        "value": outcome.best_value,
        "learner": outcome.best_learner,
    }


def _named(source: Any) -> str | None:
    """The data of a run in a few letters."""
    if source is None or isinstance(source, str):
        return source and Path(source).name
    first, *others = source
    return f"{Path(first).name} +{len(others)}"


def _is_locked(folder: Path) -> bool:
    """Whether a process works on the run."""
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _finished_rounds(folder: Path) -> int:
    from cotune.federation.journal import Journal

    path = folder / "journal.sqlite"
    if not path.exists():
        return 0
    journal = Journal(path)
    try:
        return len(journal)
    finally:
        journal.close()


def _print_json(value: object) -> None:
    click.echo(json.dumps(value))


def main() -> None:
    """Where the console script starts."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _stop)
    cli(prog_name="cotune")


def _stop(number: int, _frame: object) -> None:
    raise Stopped(number)


if __name__ == "__main__":
    main()
