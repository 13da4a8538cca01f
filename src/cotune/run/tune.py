"""`tune` and `resume`: run a method over a federation until it ends or a budget is spent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import msgspec

from cotune.coordinator.agree import agreed
from cotune.coordinator.federation import BudgetSpent, Federation
from cotune.data.schema import TaskKind
from cotune.errors import DataError, FederationError, UsageError
from cotune.methods import method as find_method
from cotune.methods import takes
from cotune.model.model import Model
from cotune.party.doubts import announce
from cotune.party.task import Configuration
from cotune.privacy.sums import Privacy
from cotune.problem import Budget, CompareBy, JudgedBy, Problem, Scaling, Weights
from cotune.run.differences import Differing, differ
from cotune.run.evaluate import held_out, joining
from cotune.run.finish import contenders, finish
from cotune.run.folder import Record, Run
from cotune.run.joined import Assessment
from cotune.run.outcome import MODEL, Outcome
from cotune.run.progress import Progress, display
from cotune.run.settings import REFERENCES, Settings, spaces_as_json
from cotune.space import Space
from cotune.trial import Finalist, Step, Trial, best_of


def tune(
    federation: Federation,
    method: str = "dash",
    *,
    learners: Iterable[str] = (),
    trials: int | None = None,
    metric: str | None = None,
    task: TaskKind | None = None,
    folds: int = 5,
    space: Literal["default", "paper"] | Mapping[str, Space | Mapping[str, Any]] = "default",
    fixed: Mapping[str, Mapping[str, Any]] | None = None,
    drop: Iterable[str] = (),
    classes: Iterable[object] = (),
    weights: Weights = "rows",
    compare_by: CompareBy | None = None,
    judge: JudgedBy = "local",
    scaling: Scaling = "standard",
    seed: int = 0,
    train: bool = True,
    merge_every: int | None = None,
    holdout: float | None = None,
    finalists: int | None = None,
    privacy: Privacy = "plain",
    noise: float | None = None,
    clip: float | None = None,
    delta: float = 1e-5,
    rounds: int | None = None,
    fits: int | None = None,
    seconds: float | None = None,
    bytes: int | None = None,
    run: str | Path | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Outcome:
    """Find the best learner and configuration for the federation's data, and train the model.

    Parameters
    ----------
    federation
        From `cotune.simulate`, or one of real parties.
    method
        `flora` (few rounds), `dash` (many), `flash` (many learners), `fedex` (networks, tuned while
        they train), `defaults` (no search); `central` and `multishot` are references for
        simulations. `cotune.method_names()` lists all.
    learners
        Names of the learners to choose from: `hgb svm mlp random_forest decision_tree extra_tree
        extra_trees logistic_regression xgboost lightgbm torch_mlp cnn char_lstm`, or your own. By
        default a boosted, a bagged and a linear one; for `fedex` torch_mlp.
    trials
        Configurations per learner.
    metric
        `balanced_accuracy` (default for classes), `accuracy`, `log_loss`, `roc_auc`, `f1`;
        `rmse` (default for numbers), `mae`, `r2`.
    task
        `classification` or `regression`; by default the metric or the target decides.
    folds
        Of the stratified cross-validation at each party.
    space
        `default` (wide), `paper` (as published), or your own by learner:
        `{"hgb": {"learning_rate": (0.01, 1.0, "log"), "max_iter": (10, 100)}}`. The answer lies in
        it or, unless the space is your own, is the learner's default.
    fixed
        Parameters that are not to be searched, by learner: `{"hgb": {"max_iter": 50}}`.
    drop
        Columns that are not to be used. In a simulation a `DataWarning` names those that should
        perhaps not be: identifiers, dates that are text, columns with one value.
    classes
        The names of all classes. Parties then confirm that theirs are among them, and none has to
        list its own: real parties ask for that where a class has fewer than five of their rows.
    weights
        Whether a party counts by its `rows` or all are `equal` in means over the parties.
    compare_by
        `federation`: configurations are compared by their figure over all parties' rows, from
        totals. `parties`: by the mean of the parties' own losses, the published objective, and what
        equal weights, noise, `fedex` and recorded evaluations take.
    judge
        `local`: a configuration is evaluated by cross-validation of models that every party fits on
        its own rows. `federated`, in `dash` and `defaults`: by a model that the federation trains
        on the rows outside of one fold, on those of the fold. That sees how parties differ, at the
        cost of one training per configuration: many rounds, and the bytes of these.
    scaling
        What learners that measure distances get: columns of mean 0 and deviation 1 over all
        parties (`standard`), or as they are (`none`), if they came scaled.
    seed
        Of everything random.
    train
        Whether the federation trains the best configuration in the end: `outcome.model`.
    merge_every
        For slow networks: boosted trees are then not grown together, in many messages each, but
        by every party for itself, this many in one message, and merged. Costs some accuracy.
    holdout
        The share of every party's rows that is set aside before anything else. The model is
        evaluated on them in the end, in one more round (not under noise), and that is the run's
        `outcome.headline`; `cotune.evaluate` compares it there with the parties' own. By default a
        fifth where every party has 100 rows or more, else none; a tenth for `fedex`; none for
        `central` and `multishot`, under noise, without training, and with `finalists=0`.
    finalists
        How many configurations the federation trains in the end and compares on the rows set
        aside, each at the cost of one training: the search's answer, another learner's best, and
        the default settings of the better one's learner. The best is the answer, shipped as it was
        judged. 3 by default where rows are set aside; 1 trains the search's answer alone and
        evaluates it there; 0 is as published: no rows are set aside unless `holdout` is given. Two
        or more where no rows are set aside are compared by cross-validation instead, for which each
        is trained `folds` times; the best is then trained on all rows.
    privacy
        What the coordinator sees of a sum: every party's part (`plain`), or only the total, by
        masks that cancel (`masked`) or by threshold homomorphic encryption (`encrypted`, needs the
        key agent: `cotune agent doctor`).
    noise, clip, delta
        Differential privacy of the parties: the standard deviation of Gaussian noise on every
        private sum of the search and the training, in units of the norm `clip` to which each
        party's part is cut. `outcome.epsilon` is what that comes to at this `delta`. It takes many
        parties (or few sums) for totals to be of use.
    rounds, fits, seconds, bytes
        Budgets of the search: a round that could exceed one is not begun, and the best so far is
        taken. Seconds are those of the rounds, without the start of the workers. The training
        that follows is not limited. For `fedex`, `rounds` are those of training.
    run
        A folder for the journal and the outcome: a killed run can then be resumed. Without it
        nothing is written.
    progress
        Show progress on standard error; by default if that is a terminal.
    options
        The method's own, say `sampler="random"`.

    Examples
    --------
    >>> import cotune
    >>> with cotune.simulate("sklearn:iris", parties=3, processes=1) as federation:
    ...     outcome = cotune.tune(federation, learners=["decision_tree"], trials=3, folds=3)
    >>> outcome.best_learner, outcome.best_value > 0.8
    ('decision_tree', True)
    """
    own = {} if isinstance(space, str) else spaces_as_json(space)
    budget = Budget(trials=trials, rounds=rounds, fits=fits, seconds=seconds, bytes=bytes)
    settings = Settings(
        method=method,
        learners=tuple(dict.fromkeys([learners] if isinstance(learners, str) else learners)),
        metric=metric,
        task=task,
        folds=folds,
        space=space if isinstance(space, str) else "default",
        spaces=own,
        fixed={name: dict(values) for name, values in (fixed or {}).items()},
        drop=(drop,) if isinstance(drop, str) else tuple(drop),
        classes=(classes,) if isinstance(classes, str) else tuple(map(str, classes)),
        weights=weights,
        compare_by=compare_by,
        judge=judge,
        scaling=scaling,
        seed=seed,
        train=train,
        merge_every=merge_every,
        holdout=holdout,
        finalists=finalists,
        privacy=privacy,
        noise=noise,
        clip=clip,
        delta=delta,
        budget=budget,
        options=options,
    )
    if not federation.engine.has_rows:
        if train:
            raise UsageError("these parties have no rows to train a model on: pass train=False")
        if compare_by == "federation":
            raise UsageError("these parties have losses only, no rows: leave compare_by out")
        if judge == "federated":
            raise UsageError("these parties have no rows to train a model on: leave judge out")
        settings = msgspec.structs.replace(settings, compare_by="parties")
    folder = None if run is None else Path(run)
    return _conduct(federation, Run.create(settings, dict(federation.origin), folder), progress)


def resume(
    run: str | Path,
    federation: Federation | None = None,
    *,
    train: bool = True,
    progress: bool | None = None,
) -> Outcome:
    """Go on with a run that was killed or interrupted; the outcome is as if it had not been.

    With `train=False` no model is trained, whatever the run was started with.

    Finished rounds are read from the journal. The federation is made anew if it was a simulation
    on files or named data sets; otherwise pass one with the same parties and rows.
    """
    from cotune.run.simulate import again

    folder = Path(run)
    if (folder / "outcome.json").exists():  # nothing is to be written: the disk may be read-only
        return Outcome.load(folder)
    with closing(Run.open(folder)) as opened:
        if federation is not None:
            check_same(opened.record, federation)
            return _conduct(federation, opened, progress, train)
        with again(opened.record.origin, state=folder / "parties") as federation:
            return _conduct(federation, opened, progress, train)


def check_same(record: Record, federation: Federation) -> None:
    """Refuse a federation that has other rows than the run was made with."""
    before, now = record.origin.get("fingerprint"), federation.origin.get("fingerprint")
    if before != now:
        raise DataError("the federation's rows are not those that the run was started with")


def _conduct(
    federation: Federation, run: Run, progress: bool | None, may_train: bool = True
) -> Outcome:
    """Agree on the problem, run the method, keep what it yields."""
    settings = run.record.settings
    bound = federation.for_run(
        run.record.id, run.journal, settings.budget, settings.privacy, settings.protection
    )
    steps: list[Step] = []
    try:
        with display(progress, settings, bound) as shown:
            ended, differing = _run_method(bound, settings, steps, shown)
            outcome = _outcome(bound, settings, steps, ended, run, differing)
            if settings.train and may_train:
                outcome = _trained(bound, settings, outcome, shown, steps[-1].model)
        run.finish(outcome.encoded())
        return outcome
    finally:
        bound.forget_keys()
        run.close()


def _run_method(
    federation: Federation, settings: Settings, steps: list[Step], shown: Progress
) -> tuple[str, Differing | None]:
    """Fill `steps`; what is returned says why the run ended, and how far the parties differ."""
    options = dict(settings.options)
    for name in ("trials", "rounds"):
        if getattr(settings.budget, name) is not None and takes(settings.method, name):
            options[name] = getattr(settings.budget, name)
    if "rounds" in options:  # of training; what else is asked comes on top
        federation.budget = msgspec.structs.replace(federation.budget, rounds=None)
    resumed = len(federation.journal) > 0
    differing: Differing | None = None
    try:
        found = agreed(
            federation,
            folds=settings.least_rows,
            task=settings.expected_task,
            drop=settings.drop,
            classes=settings.classes,
        )
        if not resumed:
            folds = settings.least_rows if found.schema.task == "classification" else 0
            announce(federation.engine.doubts(settings.drop, folds))
        problem = federation.problem = settings.problem(found.schema, found.keys, not found.few)
        shown.says(settings.why_held(found.few, len(federation.parties)))
        if len(federation.parties) > 1 and _asks_how_parties_differ(settings):
            differing = differ(federation, problem)
            shown.differing(differing, problem, settings.trained_by_folds)
        for step in find_method(settings.method)(federation, problem, **options):
            steps.append(step)
            shown.step(step, _trials(steps), problem)
    except BudgetSpent as spent:
        return str(spent), differing
    return "finished", differing


def _asks_how_parties_differ(settings: Settings) -> bool:
    """Not where published objectives are compared, nor where each round has its price."""
    budget = settings.budget
    limited = any(limit is not None for limit in (budget.rounds, budget.seconds, budget.bytes))
    return settings.compares_by == "federation" and not limited


def _trained(
    federation: Federation, settings: Settings, outcome: Outcome, shown: Progress, ready: Any
) -> Outcome:
    """The outcome with the best model that the federation trains; saved in the run's folder.

    A method may have trained it on the way: then it is `ready`.
    """
    from cotune.training import about, train

    searched = federation.ledger.rounds
    federation.budget = Budget()
    problem, best = outcome.problem, outcome.best
    finalists: tuple[Finalist, ...] = ()
    joined: Assessment | None = None
    judged = bool(problem.holdout) and settings.protection is None
    try:
        if ready is not None:
            told = about(federation, list(federation.ledger))
            model = Model.of(problem, Configuration(best.learner, best.params), ready, told)
            found = outcome.held_out
            if found is None and judged:
                scores = held_out(federation, problem, model)
                found = None if scores is None else scores.held_out
        else:
            by_folds = not problem.holdout and settings.trained_by_folds
            count = settings.trained if judged or by_folds else 0

            def training(one: Finalist, problem: Problem) -> Model:
                shown.training(one)
                configuration = Configuration(one.learner, one.params)
                return train(federation, problem, configuration, shown.stage, settings.merge_every)

            folds = problem.folds if by_folds else 0
            replaced = settings.finalists != 0 and settings.method not in REFERENCES
            joins = judged and settings.method not in REFERENCES and len(outcome.parties) > 1
            certain = contenders(problem, best, outcome.trials, count)
            shown.finalists(certain, count, folds, replaced, joins)
            model, finalist, finalists = finish(
                federation,
                problem,
                outcome.trials,
                best,
                count,
                training,
                shown.given_up,
                replaced=replaced,
            )
            found = finalist.held_out
            best = _trial_of(finalist, outcome)
            if joins:
                joined = joining(federation, problem, model)
        if outcome.run is not None:
            model.save(Path(outcome.run) / MODEL)
    except (UsageError, DataError) as error:  # not of the kind after which a run is discarded
        raise FederationError(
            f"the search is finished and kept, but its model could not be made: {error}; resume "
            "the run without training (--no-train) to have its result"
        ) from error
    outcome = msgspec.structs.replace(
        outcome,
        chosen=outcome.chosen if best == outcome.best else best,
        held_out=found,
        finalists=finalists if len(finalists) > 1 else (),
        rounds=tuple(federation.ledger),
        searched=searched,
        joined=joined,
        noises=federation.journal.noises(),
    )
    vars(outcome)["model"] = model
    return outcome


def _trial_of(finalist: Finalist, outcome: Outcome) -> Trial:
    """The finalist's best trial; of one that the search did not evaluate what its model says."""
    alike = [
        trial
        for trial in (outcome.best, *outcome.trials)
        if (trial.learner, trial.params) == (finalist.learner, finalist.params)
    ]
    if alike:
        return alike[0] if alike[0] == outcome.best else best_of(alike)
    found = finalist.held_out
    assert found is not None  # else it would not have been taken before the search's answer
    return Trial(
        finalist.learner,
        finalist.params,
        loss=found.loss,
        parties=found.parties,
        weight=float(found.rows),
        fits=0,
        cpu_seconds=0.0,
        error=found.error,
        validation=found.rows,
    )


def _trials(steps: list[Step]) -> list[Trial]:
    return [trial for step in steps for trial in step.trials]


def _outcome(
    federation: Federation,
    settings: Settings,
    steps: list[Step],
    ended: str,
    run: Run,
    differing: Differing | None,
) -> Outcome:
    trials = _trials(steps)
    if not trials or federation.problem is None:
        raise FederationError(f"nothing was evaluated: {ended}; give the run a larger budget")
    return Outcome(
        method=settings.method,
        problem=federation.problem,
        trials=tuple(trials),
        report={name: figure for step in steps for name, figure in step.report.items()},
        chosen=next((step.chosen for step in reversed(steps) if step.chosen), None),
        held_out=next((step.held_out for step in reversed(steps) if step.held_out), None),
        rounds=tuple(federation.ledger),
        parties=tuple(federation.parties),
        ended=ended,
        run=None if run.folder is None else str(run.folder),
        privacy=settings.privacy,
        delta=settings.delta,
        noises=federation.journal.noises(),
        differing=differing,
    )
