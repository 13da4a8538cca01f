"""The tasks of tuning: what a party may be asked, does with it, and discloses by it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from itertools import cycle, islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from cotune.data.schema import Kind, Schema, TaskKind
from cotune.errors import DataError, Malformed, UsageError
from cotune.party.task import (
    RESOLUTION,
    Configuration,
    Reply,
    Task,
    Term,
    check_weight,
    cost_terms,
    most_summed_bytes,
)
from cotune.protocol import tally
from cotune.space.domain import Category, Domain

if TYPE_CHECKING:
    from cotune.party.party import Party
    from cotune.problem import Problem
    from cotune.space import Space

#: Why a fit can fail, as a party may say it: a closed list, so that reasons can be counted
#: over parties without any of them telling its own.
REASONS = (
    "the configuration was refused by the learner",
    "the fit raised an error",
    "the predictions were not finite",
    "the fit ended its process (out of memory?)",
)


#: Of a column that a party tells, at most. One number: asked for many, a party would tell its rows.
QUANTILES = 21
#: A text column with more values than this is an identifier or free text: naming its values would
#: disclose the rows.
MOST_CATEGORIES = 1000
#: Where some party has fewer rows than this, none are set aside unless the user says so.
ENOUGH_ROWS = 100
#: Smaller numbers of iterations that one fit may judge for free.
MOST_FREE = 7


class Place(msgspec.Struct, frozen=True):
    """Roughly where numbers lie: all within two to the power of `exponent` of `centre`."""

    centre: float = 0.0
    exponent: Annotated[int, msgspec.Meta(ge=-1100, le=1100)] = 0


class SeenColumn(msgspec.Struct, frozen=True):
    """A column as one party sees it; `kind` is None (agreeing with any) where all is missing."""

    name: str
    kind: Kind | None
    place: Place = Place()
    categories: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    codes: int = 0


class Description(Reply, frozen=True):
    """A party's columns and target. `classes` is None for a target with too many values.

    `key` is the mark of a real party's key, by which it chooses rows.
    """

    dropped: tuple[str, ...]
    columns: tuple[SeenColumn, ...]
    target: str
    target_is_number: bool
    target_place: Place
    classes: tuple[str, ...] | None
    key: Annotated[str, msgspec.Meta(max_length=16)] = ""


class Inspect(Task, frozen=True):
    """Describe the columns of all rows, so that the parties can agree on a schema.

    With `classes` a party confirms that its own are among these, and lists none.
    """

    discloses = (
        "the names and kinds of its columns, the categories it has (a real party: those of five of "
        'its rows or more, all others as "other"), the classes it has (unless the run lists them), '
        "and roughly where the values of each numeric column lie (width and centre, rounded to a "
        "power of two); of arrays their shape and where their numbers lie; and a mark that is "
        "another if the key changes by which it chooses rows"
    )
    reply = Description
    instead = ""  # without names and kinds there is nothing to agree on; the report says it
    needs_problem = False

    folds: int
    task: TaskKind | None = None
    drop: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def perform(self, party: Party) -> Description:
        from cotune.party.inspect import describe

        seen = describe(party.all_rows, party.target, self, party.smallest_cell)
        return msgspec.structs.replace(seen, key=party.mark)

    def check(self, reply: Description, problem: Problem | None) -> None:
        most = max([len(column.categories) for column in reply.columns], default=0)
        if most > MOST_CATEGORIES:
            raise Malformed(f"the reply has a column of {most:,} categories")
        if len(reply.classes or ()) > max(MOST_CATEGORIES, len(self.classes)):
            raise Malformed(f"the reply has {len(reply.classes or ()):,} classes")


class Measures(Reply, frozen=True):
    """Sums over a party's rows, in the order of the draft schema's columns.

    `few` is 1 where these are fewer than `ENOUGH_ROWS`: summed, how many parties have so few.
    """

    numeric: list[float]
    categories: list[float]
    target: list[float]
    few: list[float]


class Measure(Task, frozen=True):
    """Add up what standardisation needs, over all rows: counts, sums and sums of squares.

    Values are taken from the column's common centre and divided by its common width, so that all
    lie in [-1, 1] and squares keep their precision however far from 0 they are. A row's array
    counts once, with the means of its values and of their squares.
    """

    discloses = (
        "how many rows it has, in all and of each category and class, whether they are fewer than "
        f"{ENOUGH_ROWS}, and for each numeric column the count, sum and sum of squares of its "
        "values; one such count and sums for arrays"
    )
    reply = Measures
    needs_problem = False

    draft: Schema
    places: tuple[Place, ...]
    target_place: Place

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        numeric = sum(column.has_amounts for column in self.draft.columns)
        categories = sum(len(column.categories) for column in self.draft.columns)
        return {
            "numeric": Term(3 * numeric, -(2.0**31), 2.0**31, RESOLUTION),
            "categories": Term(categories, 0.0, 2.0**31, 1.0),
            "target": Term(len(self.draft.classes) or 3, -(2.0**31), 2.0**31, RESOLUTION),
            "few": Term(1, 0.0, 1.0, 1.0),
        }

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))

    def rows(self, problem: Problem | None, vectors: Mapping[str, np.ndarray]) -> float:
        target = vectors["target"]
        return float(target.sum() if self.draft.classes else target[0])

    def perform(self, party: Party) -> Measures:
        from cotune.party.inspect import measure

        return measure(party.all_rows, self)


class Evaluations(Reply, frozen=True):
    """One entry per configuration; `failed` has one count per reason and configuration.

    `losses` are the party's own, and `variances` theirs, as far as folds show them, in the metric's
    unit squared. The others are tallies (see `cotune.protocol.tally`), where a run compares by the
    federation's figures: of a sum these are terms then, and losses and variances are not.
    """

    losses: list[float]
    variances: list[float]
    fits: list[int]
    cpu_seconds: list[float]
    failed: list[int]
    weight: float = 1.0
    counts: tuple[int, ...] = ()
    wholes: tuple[float, ...] = ()
    rests: tuple[float, ...] = ()


class Evaluate(Task, frozen=True):
    """Judge configurations by stratified k-fold cross-validation on the party's own rows."""

    discloses = (
        "how each configuration asked predicts its rows in cross-validation, as the metric needs "
        "it: how many rows of each class are predicted right or as which other class, histograms "
        "of scores, or sums of errors and of their powers (where parties are compared instead: its "
        "mean loss and how far that varies between folds); its number of rows (unless all parties "
        "count equally), how many fits and CPU seconds it took, and whether and why (from a fixed "
        "list) a fit failed"
    )
    reply = Evaluations
    of_losses = True

    configurations: tuple[Configuration, ...]

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        assert problem is not None
        count = len(self.configurations)
        if problem.compare_by == "federation":
            judged = tally.terms(problem, count)
        else:
            judged = {
                "losses": loss_term(problem, count),
                "variances": variance_term(problem, count),
            }
        return judged | {
            **cost_terms(count, most_fits=2.0**20),
            "failed": Term(count * len(REASONS), 0.0, 1.0, 1.0, spare=True),
        }

    def perform(self, party: Party) -> Evaluations:
        evaluations = party.evaluate(self.configurations)
        judged: dict[str, Any]
        if party.problem.compare_by == "federation":
            known = [one.tally for one in evaluations if one.tally is not None]
            if len(known) < len(evaluations):
                raise DataError("the party knows losses only: let the run compare by parties")
            judged = {"variances": [], **tally.vectors(party.problem, known)}
        else:
            most = variance_term(party.problem, len(evaluations)).high
            unit = party.problem.metric.unit(party.problem.schema)
            judged = {"variances": [min(one.variance(unit), most) for one in evaluations]}
        return Evaluations(
            losses=[evaluation.loss for evaluation in evaluations],
            fits=[evaluation.fits for evaluation in evaluations],
            cpu_seconds=[evaluation.cpu_seconds for evaluation in evaluations],
            failed=[int(e.reason == reason) for e in evaluations for reason in REASONS],
            weight=self.weight(party),
            **judged,
        )

    def rows(self, problem: Problem | None, vectors: Mapping[str, np.ndarray]) -> float:
        assert problem is not None
        return tally.rows(problem, vectors) if problem.compare_by == "federation" else 0.0

    def most_fits(self, problem: Problem) -> int:
        return len(self.configurations) * problem.folds

    def most_bytes(self, problem: Problem | None) -> int:
        """Gathered it has losses beside the tallies."""
        return most_summed_bytes(self.terms(problem)) + 9 * len(self.configurations)

    def check(self, reply: Evaluations, problem: Problem | None) -> None:
        assert problem is not None
        check_weight(reply.weight)
        nothing, count = Term(0, 0.0, 0.0, 1.0), len(self.configurations)
        judged = dict.fromkeys(("variances", "counts", "wholes", "rests"), nothing)
        expected = judged | {"losses": loss_term(problem, count)} | self.terms(problem)
        for name, term in expected.items():
            values = np.asarray(getattr(reply, name), dtype=float)
            inside = (values >= term.low) & (values <= term.high)  # NaN compares false
            if values.shape != (term.length,) or not inside.all():
                raise Malformed(f"the reply's {name} are not {term.length} within their bounds")


class Pair(msgspec.Struct, frozen=True, omit_defaults=True):
    """A configuration that a party's search judged, and its loss there.

    A `free` one cost no fit: it is the same model after fewer iterations. `doubt` is the variance
    of the loss as a multiple of that of a loss from fits of its own on all folds: more if some
    folds were spared, or if several pairs tell of the same fits.
    """

    params: dict[str, bool | int | float | str | None]
    loss: float
    free: bool = False
    doubt: Annotated[float, msgspec.Meta(ge=1)] = 1.0


class Found(msgspec.Struct, frozen=True):
    """What a party's search of one learner's space judged, in that order, and its cost."""

    pairs: tuple[Pair, ...]
    fits: int
    cpu_seconds: float


class Searches(Reply, frozen=True):
    """One search per learner that was asked for, and the party's weight."""

    found: tuple[Found, ...]
    weight: float


class Search(Task, frozen=True):
    """Search the learners' spaces alone, with an Optuna sampler, each for a number of trials.

    Parameters
    ----------
    learners
        All that are to be searched: they travel in one message.
    trials
        Configurations to ask for, per learner.
    fraction
        The share of the party's rows that is used.
    keep
        How many of the best pairs to tell, per learner (T' of FLoRA's Table 13); None is all.
    free_pairs
        Whether a fit also judges smaller numbers of its iterations, where the learner has any.
    pruning
        Whether a configuration that is clearly worse than the best so far is spared its
        remaining folds.
    reshuffle
        Whether every trial is judged on folds of its own, shuffled anew: then what luck there is
        in folds differs from trial to trial, and a surrogate averages it out. On common folds it
        would take it for a slope. Not with pruning, which compares trials fold by fold.
    """

    discloses = (
        "the configurations its own search tried (all or the best of them) with their losses, how "
        "many fits and CPU seconds that took, and its number of rows (unless all parties count "
        "equally)"
    )
    reply = Searches
    of_losses = True
    instead = "use flora, privtuna or dash, which need totals only"

    learners: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    trials: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    sampler: str = "tpe"
    fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    keep: Annotated[int, msgspec.Meta(ge=1)] | None = None
    free_pairs: bool = False
    pruning: bool = False
    reshuffle: bool = False

    def perform(self, party: Party) -> Searches:
        return Searches(party.searched(self), self.weight(party))

    def kept(self, found: Found) -> Found:
        """What of a search the coordinator gets to see: the best pairs, one of each fit."""
        if self.keep is None:
            return found
        fits: list[Pair] = []
        for pair in found.pairs:  # free ones follow the pair whose fit they come from
            if not pair.free:
                fits.append(pair)
            elif pair.loss < fits[-1].loss:
                fits[-1] = pair
        best = sorted(fits, key=lambda pair: pair.loss)[: self.keep]
        return msgspec.structs.replace(found, pairs=tuple(best))

    def most_fits(self, problem: Problem) -> int:
        return len(self.learners) * self.trials * problem.folds

    def most_bytes(self, problem: Problem | None) -> int:
        assert problem is not None
        known = [name for name in self.learners if name in problem.spaces]  # it refuses others
        return 64 + sum(self.most_pairs * _most_pair_bytes(problem, name) for name in known)

    @property
    def most_pairs(self) -> int:
        """The most pairs that a party may tell of one learner."""
        judged = self.trials * (MOST_FREE + 1 if self.free_pairs else 1)
        return judged if self.keep is None else min(self.keep, judged)

    def check(self, reply: Searches, problem: Problem | None) -> None:
        assert problem is not None
        if len(reply.found) != len(self.learners):
            raise Malformed(f"the reply has {len(reply.found)} searches, not {len(self.learners)}")
        check_weight(reply.weight)
        for learner, found in zip(self.learners, reply.found, strict=True):
            if not 0 < len(found.pairs) <= self.most_pairs:
                raise Malformed(f"the reply has {len(found.pairs)} pairs for {learner}")
            losses = np.array([pair.loss for pair in found.pairs])
            if not loss_term(problem, len(losses)).holds(losses, 1.0):
                raise Malformed("the reply has a loss that is not a number within its bounds")
            if not (0 <= found.fits < 2**31 and 0 <= found.cpu_seconds < 2.0**31):
                raise Malformed("the reply's cost is not within its bounds")
            space = problem.space(learner)
            try:
                for pair in found.pairs:
                    space.validate(pair.params)
            except UsageError as error:
                raise Malformed("the reply has a configuration outside the space") from error


def _most_pair_bytes(problem: Problem, learner: str) -> int:
    space = problem.space(learner)
    return 48 + sum(len(name.encode()) + 5 + _most_value_bytes(space[name]) for name in space)


def _most_value_bytes(domain: Domain) -> int:
    """A number has 9 bytes at most, a text is as long as it is."""
    values = domain.choices if isinstance(domain, Category) else (getattr(domain, "value", None),)
    return max(len(msgspec.msgpack.encode(value)) for value in (*values, 0.0))


class Candidates(msgspec.Struct, frozen=True):
    """Configurations that the coordinator and the parties draw alike, instead of sending them.

    Uniform draws from the space; or the configurations `around` themselves, and draws from their
    neighbourhoods of the size `epsilon`, in turn.
    """

    count: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    seed: Annotated[int, msgspec.Meta(ge=0)]
    around: tuple[dict[str, bool | int | float | str | None], ...] = ()
    epsilon: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    #: Of what the coordinator drew. A party whose libraries draw otherwise must not answer.
    digest: str = ""

    def __post_init__(self) -> None:
        if len(self.around) > self.count:
            raise ValueError("there are more configurations to begin with than to draw")

    def drawn(self, space: Space) -> list[dict[str, Any]]:
        """The same list each time, for whoever asks in this process: not to be changed."""
        return _drawn(msgspec.json.encode(self), msgspec.json.encode(space.to_json()))

    def digest_of(self, space: Space, drawn: list[dict[str, Any]]) -> str:
        """The same on machines whose last bits of a logarithm differ."""
        rounded = np.round(space.encode_many(drawn), 6) + 0.0  # no negative zeros
        return hashlib.blake2b(rounded.astype("<f8").tobytes(), digest_size=8).hexdigest()


@lru_cache(maxsize=16)
def _drawn(described: bytes, space_json: bytes) -> list[dict[str, Any]]:
    from cotune.space import Space

    candidates = msgspec.json.decode(described, type=Candidates)
    space = Space.from_json(msgspec.json.decode(space_json))
    rng = np.random.default_rng(candidates.seed)
    if not candidates.around:
        return [space.sample(rng) for _ in range(candidates.count)]
    centres = islice(cycle(candidates.around), candidates.count - len(candidates.around))
    near = (space.perturb(centre, rng, candidates.epsilon) for centre in centres)
    return [*candidates.around, *near]


class Predictions(Reply, frozen=True):
    """Predicted losses of all learners' candidates, one after the other; costs per learner.

    For a soft maximum `losses` are not losses but what `Predict` says.
    """

    losses: list[float]
    fits: list[int]
    cpu_seconds: list[float]


class Predict(Task, frozen=True):
    """Predict losses of candidates, by a surrogate of the party's own search.

    The search is made once: asked again, the party remembers it. Configurations that were `judged`
    by all parties in earlier rounds are added to what the surrogate learns from, as far as the
    party remembers them. Unless `anew`, a party that would have to search refuses.

    With `ceilings`, one c for each learner, it tells exp(25 (min(f, c) / c - 1)) instead of a loss
    f. The logarithm of the total over N parties is a soft maximum, of losses up to c:

        max_i f_i <= c (1 + ln(sum_i exp(25 (f_i / c - 1))) / 25) <= max_i f_i + c ln(N) / 25

    What is told lies between e**-25, about 2**-36, and 1, so with steps of 2**-45 totals are exact
    and rounding moves the maximum by 0.00005 c at most. More than 25 would be sharper, but in sums
    of a wider range the smaller parts lie beside the larger ones, and can be told apart.
    """

    discloses = (
        "the losses that a model of its own search predicts for candidates that all parties are "
        "asked about, or for a soft maximum an exponential of each, so that the total is close to "
        "the largest party's (much of the search could be reconstructed from one party's "
        "predictions), its number of rows (unless all parties count equally), and how many fits "
        "and CPU seconds the search took"
    )
    reply = Predictions
    of_losses = True

    search: Search
    candidates: tuple[Candidates, ...]
    surrogate: str = "forest"
    judged: tuple[Configuration, ...] = ()
    anew: bool = True
    ceilings: tuple[Annotated[float, msgspec.Meta(gt=0)], ...] = ()

    def terms(self, problem: Problem | None) -> dict[str, Term]:
        assert problem is not None
        learners, count = len(self.search.learners), sum(c.count for c in self.candidates)
        return {
            "losses": Term(count, 0.0, 1.0, 2.0**-45)
            if self.ceilings
            else loss_term(problem, count),
            **cost_terms(learners),
        }

    def perform(self, party: Party) -> Predictions:
        from cotune.party.predict import predict

        learners = len(self.search.learners)
        if len(self.candidates) != learners or len(self.ceilings) not in (0, learners):
            raise Malformed("there are not candidates, or ceilings, for each learner")
        return predict(party, self)

    def most_fits(self, problem: Problem) -> int:
        return self.search.most_fits(problem) if self.anew else 0

    def most_bytes(self, problem: Problem | None) -> int:
        return most_summed_bytes(self.terms(problem))

    def check(self, reply: Predictions, problem: Problem | None) -> None:
        losses = np.asarray(reply.losses)
        term = self.terms(problem)["losses"]
        if losses.shape != (term.length,) or not term.holds(losses, 1.0):
            raise Malformed(f"the reply has not {term.length} losses within their bounds")


class Distributions(Reply, frozen=True):
    """A party's marginals in the schema's order, the target after the columns of its kind.

    `quantiles` are of the numeric ones, standardised; `shares` are of each category, with that of
    missing values last, and of each class.
    """

    quantiles: tuple[tuple[float, ...], ...]
    shares: tuple[tuple[float, ...], ...]


class Marginals(Task, frozen=True):
    """Tell how each column is distributed, to estimate how far the parties' data lie apart.

    Fewer quantiles are told of a column with less than ten values for each: see `marginals.py`.
    """

    discloses = (
        "how the values of each column and of the target are distributed at this party alone: of "
        "each numeric one up to 21 quantiles (each lies at or between the "
        "values of one or two of its rows, and stands for ten rows at least; the smallest and the "
        "largest value are not told), of each other one the share of rows that have each category "
        "or class or, in a column, no value"
    )
    reply = Distributions
    instead = "leave --wasserstein out"

    def perform(self, party: Party) -> Distributions:
        from cotune.party.marginals import marginals

        return marginals(party.frame, party.problem.schema)

    def most_bytes(self, problem: Problem | None) -> int:
        assert problem is not None
        numbers, shares = _marginal_lengths(problem.schema)
        return 64 + numbers * (9 * QUANTILES + 5) + sum(9 * length + 5 for length in shares)

    def check(self, reply: Distributions, problem: Problem | None) -> None:
        assert problem is not None
        numbers, lengths = _marginal_lengths(problem.schema)
        if len(reply.quantiles) != numbers or [len(s) for s in reply.shares] != lengths:
            raise Malformed("the reply's marginals are not those of the schema's columns")
        if not all(1 <= len(told) <= QUANTILES for told in reply.quantiles):
            raise Malformed(f"the reply has not between 1 and {QUANTILES} quantiles")
        for told in reply.quantiles:
            if not np.all(np.isfinite(told)) or list(told) != sorted(told):
                raise Malformed("the reply's quantiles are not finite numbers in ascending order")
        for shares in reply.shares:
            if not all(0.0 <= s <= 1.0 for s in shares) or not abs(sum(shares) - 1.0) <= 1e-6:
                raise Malformed("the reply's shares are not numbers from 0 to 1 that sum to 1")


def _marginal_lengths(schema: Schema) -> tuple[int, list[int]]:
    """How many marginals are told by quantiles, and how long each of the others is."""
    shares = [len(column.categories) + 1 for column in schema.columns if column.kind != "numeric"]
    numbers = len(schema.columns) - len(shares)
    if schema.task == "classification":
        return numbers, [*shares, len(schema.classes)]
    return numbers + 1, shares


def loss_term(problem: Problem, count: int) -> Term:
    """The term of `count` losses that are averaged over the parties by their weights."""
    schema, metric = problem.schema, problem.metric
    return Term(count, 0.0, metric.worst(schema), metric.resolution(schema), weighted=True)


def variance_term(problem: Problem, count: int) -> Term:
    """The term of `count` variances of losses in the metric's unit, averaged like these."""
    metric, schema = problem.metric, problem.schema
    most = metric.worst(schema) / metric.unit(schema)
    return Term(count, 0.0, most**2, RESOLUTION, weighted=True, spare=True)


TASKS: tuple[type[Task], ...] = (Inspect, Measure, Evaluate, Search, Predict, Marginals)
