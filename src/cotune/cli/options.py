"""The options of the command line that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from cotune.errors import UsageError

METRICS = ("balanced_accuracy", "accuracy", "log_loss", "roc_auc", "f1", "rmse", "mae", "r2")
SAMPLERS = ("tpe", "random", "gp", "cmaes", "grid")
SURFACES = ("sgm", "sgm+u", "mplm", "aplm")
SURROGATES = ("forest", "gp")
INNER = ("lbm", "lkbm", "rm")
WRAPPERS = ("rs", "sha", "hyperband", "asha", "grid")
OBJECTIVES = ("personalized", "global")
COMBINE = ("mean", "best-mean", "pf-dbscan", "median", "trimmed", "best-median", "dbscan")
EDITIONS = ("lean", "faithful")
PRIVACY = ("plain", "masked", "encrypted")
STEP_SIZES = ("aggressive", "adaptive", "constant")

Command = TypeVar("Command", bound=Callable[..., Any])


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


def _listed(_ctx: object, _param: object, given: str | None) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(name.strip() for name in given.split(",")) if given else ()


def completes(names: Callable[[], tuple[str, ...]]) -> Callable[..., list[CompletionItem]]:
    def complete(_ctx: object, _param: object, begun: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in names() if name.startswith(begun)]

    return complete


def known_learners() -> tuple[str, ...]:
    from cotune.learners import learner_names

    return learner_names()


def known_methods() -> tuple[str, ...]:
    from cotune.methods import method_names

    return method_names()


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
quiet_option = click.option("--quiet", is_flag=True, help="Show no progress.")
run_option = click.option(
    "--run",
    type=click.Path(path_type=Path),
    metavar="DIR",
    show_default="a new folder in runs/",
    help="Where the run is kept.",
)
target_option = click.option(
    "--target",
    metavar="COL",
    show_default="target; label, next for arrays",
    help="The column to predict.",
)
_tuning = (
    click.argument("data", nargs=-1, type=click.Path(), metavar="DATA..."),
    click.option(
        "--federation",
        "kit",
        type=click.Path(),
        metavar="KIT",
        help="Instead of DATA: the lead's start-up kit of a federation of real parties.",
    ),
    target_option,
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
        shell_complete=completes(lambda: ("iid", "dirichlet:", "quantity:", "noise:", "by:")),
        help="iid, dirichlet:ALPHA (label skew), quantity:BETA, noise:BETA (feature skew) or "
        "by:COLUMN (one party per value).",
    ),
    click.option(
        "--learner",
        "learners",
        multiple=True,
        metavar="NAME",
        show_default="hgb, random_forest, logistic_regression",
        shell_complete=completes(known_learners),
        help="What to tune, repeatable: hgb, svm, mlp, random_forest, decision_tree, extra_tree, "
        "extra_trees, logistic_regression, xgboost, lightgbm, torch_mlp, cnn, char_lstm, or your "
        "own. fedex takes networks only.",
    ),
    click.option(
        "--trials",
        type=int,
        metavar="N",
        show_default="the method's own, 100 for flora, else 50",
        help="Configurations per learner.",
    ),
    click.option("--folds", type=int, default=5, metavar="K", help="Of the cross-validation."),
    click.option(
        "--metric",
        metavar="NAME",
        show_default="balanced_accuracy (fedex: accuracy) or rmse",
        shell_complete=completes(lambda: METRICS),
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
        "--classes",
        callback=_listed,
        metavar="A,B,...",
        show_default="what the parties have",
        help="The names of all classes: parties with a class of few rows do not name their own.",
    ),
    click.option(
        "--weights",
        type=click.Choice(["rows", "equal"]),
        default="rows",
        help="Whether parties count by their rows or equally in means over them.",
    ),
    click.option(
        "--compare-by",
        type=click.Choice(["federation", "parties"]),
        show_default="federation; parties with equal weights, noise or fedex",
        help="What configurations are compared by: their figure over all parties' rows, or the "
        "mean of the parties' own losses, as published.",
    ),
    click.option(
        "--judge",
        type=click.Choice(["local", "federated"]),
        default="local",
        help="dash, defaults: whether configurations are evaluated by models that each party fits "
        "alone, or by one that the federation trains for each.",
    ),
    click.option(
        "--scaling",
        type=click.Choice(["standard", "none"]),
        default="standard",
        help="Of the columns that svm, mlp and logistic_regression get.",
    ),
    click.option(
        "--privacy",
        type=click.Choice(PRIVACY),
        default="plain",
        help="What the coordinator sees of a sum: every party's part, or the total only, by masks "
        "that cancel or by threshold encryption.",
    ),
    click.option(
        "--noise",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SIGMA",
        show_default="none",
        help="Differential privacy of the parties: Gaussian noise on private sums, in units of "
        "--clip; needs --privacy and --weights equal.",
    ),
    click.option(
        "--clip",
        type=click.FloatRange(min=0, min_open=True),
        metavar="NORM",
        show_default="what the bounds allow",
        help="The norm to which a party's part of a noised sum is cut.",
    ),
    click.option(
        "--delta",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        default=1e-5,
        metavar="D",
        help="Of differential privacy, at which epsilon is shown.",
    ),
    click.option(
        "--sampler",
        type=click.Choice(SAMPLERS),
        show_default="the method's own, tpe",
        help="How configurations are chosen.",
    ),
    click.option(
        "--surface",
        type=click.Choice(SURFACES),
        show_default="aplm",
        help="flora: the loss surface that the parties' results become.",
    ),
    click.option(
        "--single-shot",
        is_flag=True,
        default=None,
        help="flora, privtuna: as published, without further rounds.",
    ),
    click.option(
        "--few-shot",
        type=click.IntRange(min=1),
        metavar="K",
        show_default="20",
        help="flora: candidates that all parties judge in a further round.",
    ),
    click.option(
        "--repeats",
        type=click.IntRange(min=1),
        metavar="R",
        show_default="1",
        help="flora: how many such rounds.",
    ),
    click.option(
        "--surrogate",
        type=click.Choice(SURROGATES),
        show_default="gp, forest if single-shot",
        help="flora: what predicts losses.",
    ),
    click.option(
        "--keep",
        type=click.IntRange(min=1),
        metavar="N",
        show_default="all; flash: 3",
        help="flora: how many of its best pairs a party uses and tells; flash: K of lkbm.",
    ),
    click.option(
        "--disclose",
        is_flag=True,
        default=None,
        help="flora: parties tell their pairs even if the surface does not need them; adds the "
        "diagnostics.",
    ),
    click.option(
        "--wasserstein",
        is_flag=True,
        default=None,
        help="flora: parties also tell quantiles of their columns, for the diagnostics; implies "
        "--disclose.",
    ),
    click.option(
        "--free-pairs/--no-free-pairs",
        default=None,
        show_default="on, off if single-shot",
        help="flora, flash: a fit judges fewer iterations too.",
    ),
    click.option(
        "--pruning/--no-pruning",
        default=None,
        show_default="on, off if single-shot or reshuffled",
        help="flora, flash: poor configurations are spared their last folds.",
    ),
    click.option(
        "--reshuffle/--no-reshuffle",
        default=None,
        show_default="on below 1,000 rows per party, off if single-shot",
        help="flora: every trial of a search has folds of its own, and none is pruned.",
    ),
    click.option(
        "--inner",
        type=click.Choice(INNER),
        show_default="lkbm",
        help="flash: how the parties' searches are put together.",
    ),
    click.option(
        "--tolerance",
        type=click.FloatRange(min=0),
        metavar="DELTA",
        show_default="their standard error",
        help="flash: how far a learner's projected loss may lie behind the best one's.",
    ),
    click.option(
        "--combine",
        type=click.Choice(COMBINE),
        show_default="pf-dbscan",
        help="privtuna: how the parties' best configurations become one.",
    ),
    click.option(
        "--min-points",
        type=click.IntRange(1, 8),
        metavar="N",
        show_default="twice the numbers of the space",
        help="privtuna: how many configurations make a cell of its grid dense.",
    ),
    click.option(
        "--edition",
        type=click.Choice(EDITIONS),
        show_default="lean",
        help="privtuna: under encryption, exact and quick, or approximate as published.",
    ),
    click.option(
        "--top",
        type=click.IntRange(min=1),
        metavar="K",
        show_default="3",
        help="vote: how many of the configurations a party votes for.",
    ),
    click.option(
        "--until",
        type=float,
        metavar="LOSS",
        show_default="none",
        help="multishot: stop at this loss.",
    ),
    click.option(
        "--wrapper",
        type=click.Choice(WRAPPERS),
        show_default="sha",
        help="fedex: what draws and drops the settings of the aggregation.",
    ),
    click.option(
        "--rounds",
        type=click.IntRange(min=1),
        metavar="N",
        show_default="800",
        help="fedex: rounds of training in all.",
    ),
    click.option(
        "--clients-per-round",
        type=click.IntRange(min=1),
        metavar="N",
        show_default="10",
        help="fedex: parties that take part in a round.",
    ),
    click.option(
        "--objective",
        type=click.Choice(OBJECTIVES),
        show_default="personalized",
        help="fedex: judge the model after local training, or before it.",
    ),
    click.option(
        "--arms",
        type=click.IntRange(min=1),
        metavar="K",
        show_default="27",
        help="fedex: settings of the local training tuned at once; 1 is the wrapper alone.",
    ),
    click.option(
        "--epsilon",
        type=click.FloatRange(0, 1),
        metavar="SHARE",
        show_default="0.1",
        help="fedex: how far these lie apart, as a share of the space.",
    ),
    click.option(
        "--step-size",
        type=click.Choice(STEP_SIZES),
        show_default="aggressive",
        help="fedex: of the exponentiated gradient.",
    ),
    click.option(
        "--max-rounds",
        type=int,
        metavar="N",
        show_default="none; fedex: a fifth of --rounds",
        help="Budget of the search in rounds; fedex: rounds of one configuration.",
    ),
    click.option(
        "--max-fits", "fits", type=int, metavar="N", help="Budget of the search in model fits."
    ),
    click.option(
        "--max-seconds", "seconds", type=float, metavar="S", help="Budget of the search in seconds."
    ),
    click.option(
        "--max-bytes", "bytes", type=int, metavar="N", help="Budget of the search in bytes sent."
    ),
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
        default=None,
        show_default="train, compare does not",
        help="Let the federation train the best configuration.",
    ),
    click.option(
        "--merge-every",
        type=click.IntRange(min=1),
        metavar="N",
        show_default="never",
        help="For slow networks: parties grow N boosted trees by themselves, then merge them.",
    ),
    click.option(
        "--holdout",
        type=click.FloatRange(0, 0.9),
        metavar="SHARE",
        show_default="0.2 if every party has 100 rows, else 0; fedex: 0.1",
        help="Of every party's rows, set aside to evaluate the trained models by.",
    ),
    click.option(
        "--finalists",
        type=click.IntRange(min=0),
        metavar="N",
        show_default="3 where rows are set aside",
        help="Configurations that are trained and compared on the rows set aside; 0: as published.",
    ),
    run_option,
    quiet_option,
    json_option,
)


def tuning_options(command: Command) -> Command:
    """The arguments that `tune` and `compare` share."""
    for option in reversed(_tuning):
        command = option(command)
    return command
