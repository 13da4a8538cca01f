"""FLoRA: parties search alone, their results become one loss surface, its minimiser is taken."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from cotune.coordinator.federation import Federation
from cotune.errors import UsageError, choices
from cotune.learners import learner as learner_of
from cotune.methods.moments import Regressed
from cotune.methods.surfaces import SURFACES, Minimiser, Params, diverse
from cotune.methods.unified import Gathered, Highest, Summed, Unified, inside
from cotune.party.task import Configuration
from cotune.party.tasks import Search
from cotune.problem import Problem, seed_of
from cotune.space.domain import Integer
from cotune.space.surrogate import SURROGATES
from cotune.trial import Step, Trial, best_of

#: The share of the surface's candidates among which those of a few-shot round are chosen.
BEST = 0.1
#: How far apart, at least, the candidates of a few-shot round lie (equation C.4).
APART = 0.12
#: Rows per party below which luck in how rows are shared out to folds decides much. Such parties
#: search with other folds for each trial, and judge candidates `SHUFFLES` times.
SMALL = 1000
SHUFFLES = 3
#: By how many standard errors of its loss the default configuration must be beaten.
ERRORS = 0.5
#: Parties from which on one of them has too few of all rows to say how many trees are too many.
MANY = 8


def flora(
    federation: Federation,
    problem: Problem,
    *,
    trials: int = 100,
    surface: str = "aplm",
    single_shot: bool = False,
    few_shot: int | None = None,
    repeats: int | None = None,
    surrogate: str | None = None,
    alpha: float = 1.0,
    keep: int | None = None,
    sampler: str = "tpe",
    disclose: bool = False,
    wasserstein: bool = False,
    free_pairs: bool | None = None,
    pruning: bool | None = None,
    reshuffle: bool | None = None,
) -> Iterator[Step]:
    """One-shot tuning by an aggregated loss surface.

    Zhou, Ram, Salonidis, Baracaldo, Samulowitz, Ludwig: Single-shot general hyper-parameter
    optimization for federated learning, Algorithm 1; the numbers at the right are its lines.
    Line 8 is the federated training that follows.

    As published (`single_shot`), the surface's minimiser is the answer. By default it goes on,
    as we do: the surface's best candidates, `few_shot` of them and apart from each other, are
    judged by all parties in one more round, on folds shuffled anew; the surface learns from that;
    and its new minimiser is taken, if it is better at the parties than the default configuration
    by half a standard error; with more trees, where it has any and the parties find them no worse,
    or are many: a party judges how many are enough by its own rows, the federation trains on
    those of all. The default is the learner's own. Where that lies outside of the space, no surface
    learns from it.

    With `aplm` the parties keep their pairs: they fit their surrogates themselves and the mean of
    their predictions is a `sum`. With `disclose` they tell the pairs; the answer is the same.
    Where sums are private, the other surfaces are made of sums too: `mplm` as a soft maximum
    (`cotune.methods.unified.Highest`), `sgm` and `sgm+u` as a regression on random features
    (`cotune.methods.moments`).

    Parameters
    ----------
    trials
        T: configurations that each party tries, per learner.
    surface
        `sgm`, `sgm+u`, `mplm` or `aplm`: Table 2.
    single_shot
        As in the paper: no further rounds, forests, all folds, no free pairs.
    few_shot
        K: candidates per learner that all parties judge in a further round; 20 by default.
    repeats
        How many such rounds; 1 by default.
    surrogate
        `forest` (the paper's, and the default if single-shot) or `gp`. Private sums allow none for
        `sgm` and `sgm+u`.
    alpha
        Deviations that `sgm+u` adds to the mean.
    keep
        T': how many of its best pairs a party uses and tells (Table 13); all by default.
    sampler
        Of the parties' own searches: `tpe`, `random`, `gp`, `cmaes` or `grid`.
    disclose
        Whether the parties tell their pairs where `aplm` does not need that. Wherever they do,
        the report has `gamma_p`, and for `aplm` and `mplm` the terms of Theorem C.6's bound.
    wasserstein
        Whether the parties also tell quantiles of their columns, for the bound's first term; it
        needs the pairs, so they are disclosed too.
    free_pairs, pruning
        See `cotune.party.tasks.Search`; on by default unless single-shot, pruning also unless
        reshuffled.
    reshuffle
        Whether every trial of a party's search is judged on folds of its own, instead of pruning
        on common ones; on by default where parties have fewer than 1,000 rows each, unless
        single-shot. The luck of one way of sharing rows out is then no slope of the surface.
    """
    kind = surrogate or ("forest" if single_shot else "gp")
    if single_shot and (few_shot, repeats) != (None, None):
        raise UsageError("single_shot takes no further rounds: leave few_shot and repeats out")
    few_shot, repeats = 20 if few_shot is None else few_shot, 1 if repeats is None else repeats
    counts = {"few_shot": few_shot, "repeats": repeats, "keep": 1 if keep is None else keep}
    _check(surface, kind, alpha, counts)
    if pruning and reshuffle:
        raise UsageError("pruning compares trials on the same folds: leave it or reshuffle out")
    for learner in problem.learners:  # a sampler that cannot be is refused here, with a reason
        problem.search(learner, sampler, trials)
    thrifty, small = not single_shot, problem.schema.rows < SMALL * len(federation.parties)
    if reshuffle is None:
        reshuffle = thrifty and small and not pruning
    search = Search(
        problem.learners,
        trials,
        sampler,
        keep=keep,
        free_pairs=thrifty if free_pairs is None else free_pairs,
        pruning=thrifty and not reshuffle if pruning is None else pruning,
        reshuffle=reshuffle,
    )
    predict: Unified
    if disclose or wasserstein or (surface != "aplm" and federation.privacy == "plain"):
        predict = Gathered(federation, problem, search, kind, surface, alpha, wasserstein)
    elif surface == "aplm":
        predict = Summed(federation, problem, search, kind)
    elif federation.protection is not None:
        raise UsageError(f"noise would drown surface={surface!r}: use aplm, or leave noise out")
    elif surface == "mplm":
        predict = Highest(federation, problem, search, kind)
    else:
        predict = Regressed(federation, problem, search, alpha if surface == "sgm+u" else 0.0)
    steps = 1 if single_shot else 2 + repeats
    ranked = _minimise(predict, problem)  # lines 2-7
    predicted = predict.trials({learner: ranked[learner][0] for learner in problem.learners})
    yield Step(tuple(predicted), 1, steps)
    if single_shot:
        yield Step((), 1, 1, predict.report(best_of(predicted)))
        return
    # Never that of the searches: what luck made good there, it would confirm.
    shuffles = range(1, 1 + (SHUFFLES if small else 1))
    shots: list[Configuration] = []
    judged: list[Trial] = []
    for repeat in range(repeats):
        shot = [
            Configuration(learner, params)
            for learner in problem.learners
            for params in _candidates(problem, learner, ranked[learner], few_shot, repeat)
        ]
        judged += predict.judge(shot, shuffles)
        shots += shot
        ranked = _minimise(predict, problem, shots)
        yield Step(tuple(judged[-len(shot) :]), 2 + repeat, steps)
    minimisers = {learner: ranked[learner][0][0] for learner in problem.learners}
    final = [
        Configuration(learner, params)
        for learner, minimiser in minimisers.items()
        for params in _finalists(problem, learner, minimiser, len(federation.parties))
    ]
    finalists = predict.judge(final, shuffles)
    settled = best_of([_settled(j, finalists) for j in minimisers])
    chosen = _grown(settled, finalists, len(federation.parties))
    yield Step(tuple(finalists), steps, steps, chosen=chosen)
    yield Step((), steps, steps, predict.report(chosen))  # may take a round of its own


def private(
    surface: str = "aplm",
    surrogate: str | None = None,
    disclose: bool = False,
    wasserstein: bool = False,
    **_: Any,
) -> None:
    """Which options private sums allow."""
    for name, given in {"disclose": disclose, "wasserstein": wasserstein}.items():
        if given:
            raise UsageError(
                f"with {name} every party tells its pairs, which private sums rule out: leave it "
                "out, or use privacy='plain'"
            )
    if surrogate is not None and surface in ("sgm", "sgm+u"):
        raise UsageError(
            f"with private sums surface={surface!r} is a regression on random features: leave "
            "surrogate out, or use aplm or mplm"
        )


def _check(surface: str, surrogate: str, alpha: float, counts: dict[str, int]) -> None:
    if surface not in SURFACES:
        raise UsageError(choices(surface, "surface", SURFACES))
    if surrogate not in SURROGATES:
        raise UsageError(choices(surrogate, "surrogate", SURROGATES))
    if not isinstance(alpha, int | float) or not 0 <= alpha < math.inf:
        raise UsageError(f"alpha is {alpha!r}: give a number of deviations, 0 or more")
    for name, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"{name} is {value!r}: give a whole number from 1 on")


def _candidates(
    problem: Problem,
    learner: str,
    ranked: Sequence[tuple[Params, float]],
    count: int,
    repeat: int,
) -> list[Params]:
    """Of the surface's best, some apart from each other, nearer with every repeat; the default."""
    best = ranked[: max(count, int(BEST * len(ranked)))]
    chosen = diverse(best, problem.space(learner), count, APART / 2**repeat)
    default = problem.default(learner)
    return chosen if repeat or default in chosen else [default, *chosen]


def _finalists(problem: Problem, learner: str, minimiser: Params, parties: int) -> list[Params]:
    """What may be the answer, the default last: it is remembered, no fits.

    Rows to train on are `parties` times a party's own, so the minimiser comes with more trees too:
    by the root of that number.
    """
    space, iterations = problem.space(learner), learner_of(learner).iterations
    default = problem.default(learner)
    if iterations in minimiser and isinstance(space[iterations], Integer):
        more = {iterations: minimiser[iterations] * math.sqrt(parties)}
        grown = space.clip(minimiser | more)
        if grown not in (minimiser, default):
            return [minimiser, grown, default]
    return [minimiser, default]


def _settled(learner: str, finalists: Sequence[Trial]) -> Trial:
    """The minimiser if it is clearly better than the default, else the default.

    Breiman's rule of one standard error for cross-validation, with half of it: what is gained by
    less is as likely gained by luck, and parties of some hundred rows have much of that.
    """
    minimiser, *_, default = [trial for trial in finalists if trial.learner == learner]
    return minimiser if minimiser.loss < default.loss - ERRORS * default.error else default


def _grown(settled: Trial, finalists: Sequence[Trial], parties: int) -> Trial:
    """With more trees, if it is the minimiser and they do no harm.

    They are no second try against the default. That one of `MANY` parties finds them too many for
    its own rows says nothing about the rows of all, and is no harm.
    """
    minimiser, *grown, _ = [trial for trial in finalists if trial.learner == settled.learner]
    harmless = [trial for trial in grown if parties >= MANY or trial.loss <= minimiser.loss]
    return harmless[0] if harmless and settled is minimiser else settled


def _minimise(
    predict: Unified, problem: Problem, judged: Sequence[Configuration] = ()
) -> dict[str, list[tuple[Params, float]]]:
    """Line 7, for all learners side by side: their candidates travel together.

    What was judged is among the candidates: the surface knows it best. A default outside of its
    space is not: there is no surface there.
    """
    minimisers = {
        learner: Minimiser(
            problem.space(learner),
            seed_of(problem.seed, "minimise", learner),
            [one.params for one in inside(problem, judged) if one.learner == learner]
            or [problem.space(learner).clip(problem.defaults(learner))],
        )
        for learner in problem.learners
    }
    while asked := [c for m in minimisers.values() if (c := m.ask()) is not None]:
        before = predict.weight
        for minimiser, values in zip(minimisers.values(), predict(asked), strict=True):
            minimiser.tell(values, alike=predict.weight == before)
    return {learner: minimiser.ranked for learner, minimiser in minimisers.items()}
