"""A party: the only place where rows exist. It performs tasks and answers in bytes."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
import pandas as pd

from cotune.data.encode import Features
from cotune.errors import CotuneError, DataError, Malformed, UsageError
from cotune.files import make_folder, write
from cotune.learners import available, learner_names
from cotune.party.evaluate import Entrant, Evaluation, Evaluator
from cotune.party.inspect import check_schema, with_other
from cotune.party.key import Key, KeyFile, RowsRefused, RunKey
from cotune.party.keys import Keys, NoKeys
from cotune.party.memory import Memory
from cotune.party.rows import Rows, open_rows, parted, set_aside
from cotune.party.task import Configuration, Task
from cotune.party.tasks import Found, Search
from cotune.party.workers import Cancelled, Workers
from cotune.privacy.fixed import WIDTHS, Digits
from cotune.problem import Privacy, Problem, heaviest
from cotune.protocol.tally import class_weights
from cotune.protocol.wire import (
    OWN_TERMS,
    Code,
    Cost,
    Encrypted,
    Gathered,
    Masked,
    Refusal,
    Request,
    Summand,
    decode_request,
    encode,
    pack_terms,
    rounded_terms,
)
from cotune.site.policy import RANK, harmless

if TYPE_CHECKING:
    from cotune.privacy.client import Agent
    from cotune.space.surrogate import Surrogate

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Fits that one message may ask for, and bytes of its reply, at most: more is no honest question.
MOST_FITS = 2**20
MOST_REPLY = 2**28


class Refuse(CotuneError):
    """Raised inside a party to answer with a refusal."""

    def __init__(self, code: Code, sentence: str) -> None:
        super().__init__(sentence)
        self.code: Code = code


class Party:
    """Holds rows, performs tasks of the closed list on them, one at a time.

    Parameters
    ----------
    name
        How the others call it.
    frame, target
        Its rows, and the column to predict.
    workers
        Where its fits run; parties of a simulation share one pool.
    scratch
        A private folder for the encoded rows, which the workers map into memory.
    state
        A folder that outlives the process, where the party remembers its evaluations.
    agent
        Gives the key agent, which is started when the party is first asked for an encrypted sum.
    key
        A real party's key, by which it chooses rows. Without one that follows from the run's seed.
    smallest_cell
        A category of fewer of its rows is the category "other" here, and the party names no class
        of fewer.
    """

    def __init__(
        self,
        name: str,
        frame: pd.DataFrame,
        target: str,
        *,
        workers: Workers,
        scratch: Path,
        state: Path | None = None,
        agent: Callable[[], Agent] | None = None,
        key: KeyFile | None = None,
        smallest_cell: int = 1,
    ) -> None:
        self.name = name
        self.keys = Keys(name, agent or _no_agent)
        self.all_rows = with_other(frame, target, smallest_cell)
        self.frame = self.all_rows  # the rows to learn from
        self.held_out = self.frame.iloc[:0]
        self.target = target
        self.smallest_cell = smallest_cell
        self._key_file = key
        self._workers = workers
        self._scratch = scratch
        self._state = state
        self._problem: Problem | None = None
        self._rows: Rows | None = None
        self._evaluator: Evaluator | None = None
        self._given_up: Future[None] = workers.given_up
        self._run = ""
        self._round = 0
        self._may_fit = True
        self._searched: dict[Search, tuple[int, tuple[Found, ...]]] = {}
        self.surrogates: dict[Any, Surrogate] = {}  # of its searches, while the problem lasts
        self.training: dict[str, Any] = {}  # how far the training of a model is, in this run
        self._cost = Cost()
        self._summed: tuple[tuple[str, int, bytes], dict[str, np.ndarray]] | None = None
        self._private_runs: dict[str, Privacy] = {}
        self._lock = threading.Lock()

    def perform(self, message: bytes) -> bytes:
        """The encoded reply to an encoded request. Never raises: what goes wrong is a refusal.

        A refusal holds a code and a sentence of ours, never an exception's text, which could
        quote a row.
        """
        given_up = self._workers.given_up
        if self._lock.locked():  # still at a task that was given up
            self._workers.on_wait()
        # Numbers from outside may overflow: what is not finite then is out of bounds.
        with self._lock, np.errstate(all="ignore"):
            try:
                return encode(self._answer(decode_request(message), given_up))
            except Refuse as refused:
                return encode(Refusal(refused.code, str(refused)))
            except RowsRefused as error:
                return encode(Refusal("refused", str(error)))
            except NoKeys as error:
                return encode(Refusal("no_keys", str(error)))
            except DataError as error:
                return encode(Refusal("data", str(error)))
            except (Malformed, UsageError) as error:  # both are about what was asked
                return encode(Refusal("malformed", str(error)))
            except Cancelled as error:
                return encode(Refusal("cancelled", str(error)))
            except MemoryError:
                sentence = "the task takes more memory than the party may use: ask for less"
                return encode(Refusal("malformed", sentence))
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else "input or output failed"
                return encode(Refusal("storage", f"the party's disk cannot be used: {reason}"))
            except Exception:
                log.exception("party %s could not perform a task", self.name)
                return encode(Refusal("internal", "the party failed; its own log says why"))

    @property
    def key(self) -> Key:
        """By which the party chooses rows: nothing else decides which.

        Of each fold's rows a real party chooses by a key of its own: the same positions in other
        rows would be sets that differ by few.
        """
        if self._key_file is None:
            return RunKey(self.problem.seed)
        key, fold = self._key_file.key, self.problem.fold
        return key if fold is None else key.part("fold", self.problem.folds, fold)

    @property
    def mark(self) -> str:
        """Names the key of a real party."""
        return "" if self._key_file is None else self._key_file.key.mark

    def divided(self, problem: Problem) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The rows to learn from, and those that are set aside before anything is learnt.

        With a `fold` of the problem the former are parted once more, and the latter not used.
        """
        file = self._key_file
        key: Key = RunKey(problem.seed) if file is None else file.key
        share = problem.holdout if file is None else file.set_aside(problem.holdout)
        kept, held = set_aside(self.all_rows, self.target, share, key)
        return (kept, held) if problem.fold is None else parted(kept, problem, key)

    def arrays(self, features: Features) -> tuple[np.ndarray, np.ndarray]:
        """The rows to learn from, encoded by the schema, and the target; not to be changed."""
        folder = self.folder(features)
        return open_rows(folder).features(features), open_rows(folder).y

    def folder(self, features: Features) -> Path:
        """Where the encoded rows lie, for a worker to open them: `cotune.party.rows.open_rows`."""
        assert self._rows is not None
        self._rows.prepare(features)
        return self._rows.folder

    def held_folder(self, features: Features) -> Path:
        """Like `folder`, for the rows that are set aside."""
        assert self._rows is not None
        rows = Rows(self._rows.folder / "held", self.held_out, self.problem, self.key)
        rows.prepare(features)
        return rows.folder

    def kept(self, name: str) -> Path:
        """A folder for what the party must remember between rounds; not made yet."""
        return (self._state or self._scratch) / self.name / self._remembered / name

    @property
    def _remembered(self) -> str:
        """Under what the party remembers what it does for the problem: a run may have several."""
        own = "" if self.problem.fold is None else f"-{self.problem.digest}"
        return self._run + own

    def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a module's function on a worker: for what takes long. One thread, one process."""
        run: Callable[..., T] = partial(_quietly, function)
        return self._workers.call(run, *arguments, given_up=self._given_up)

    def check_given_up(self) -> None:
        """Raise `Cancelled` if nobody waits for the reply any more; for what takes long."""
        if self._given_up.done():
            raise Cancelled("the round was given up")

    def bill(self, fits: int, cpu_seconds: float) -> None:
        """Add to the cost of the reply under way."""
        self._cost += Cost(fits, cpu_seconds)

    @property
    def problem(self) -> Problem:
        assert self._problem is not None
        return self._problem

    @property
    def weight(self) -> float:
        """The party's share in a mean: its rows, or 1 where all parties count the same."""
        equal = self._problem is not None and self._problem.weights == "equal"
        return 1.0 if equal else float(len(self.frame))

    @property
    def loss_weight(self) -> float:
        """Its share in a mean of the parties' losses.

        For balanced accuracy of the federation it is sum_c n_c / N_c over its rows n_c and all
        parties' N_c of each class c, in such a unit that with equal shares of the classes it is its
        rows; a whole number, so that sums are exact.
        """
        problem = self.problem
        if not problem.weighs_classes:
            return self.weight
        assert self._rows is not None
        weights = class_weights(problem.schema)
        share = weights[open_rows(self._rows.folder).y].sum() / len(weights)
        share = min(1.0, share)  # more has only a party whose rows are not among the N_c
        return float(max(1, round(problem.schema.rows * share)))

    def require(self, learner: str) -> None:
        """Refuse a learner that this party does not have."""
        if learner not in learner_names() or not available(learner):
            raise Refuse(
                "unknown_learner", f"the learner {learner!r} is not installed at this party"
            )

    def evaluate(self, configurations: Sequence[Configuration]) -> list[Evaluation]:
        """Judge configurations; the cost is added to that of the reply under way."""
        return self.race([Entrant(configuration) for configuration in configurations])

    def race(self, entrants: Sequence[Entrant]) -> list[Evaluation]:
        """Judge configurations, those that have an incumbent only until they are clearly worse."""
        assert self._evaluator is not None
        if len(self.frame) < self.problem.folds:
            raise DataError(
                f"{len(self.frame)} rows to learn from are fewer than the {self.problem.folds} "
                "folds: use fewer folds or a smaller holdout, or leave this party out"
            )
        for name in {entrant.configuration.learner for entrant in entrants}:
            self.require(name)
        for fraction in {entrant.configuration.fraction for entrant in entrants}:
            self.key.check(fraction, "fraction")
        if not self._may_fit and self._evaluator.must_fit(entrants):
            raise Refuse("unknown", "the party does not remember what it was asked to build on")
        evaluations = self._evaluator.race(entrants)
        for evaluation in evaluations:
            self._cost += Cost(evaluation.fits, evaluation.cpu_seconds)
        return evaluations

    def remembers(self, configuration: Configuration) -> bool:
        """Whether the configuration can be judged without a fit."""
        assert self._evaluator is not None
        return not self._evaluator.must_fit([Entrant(configuration)])

    def searched(self, task: Search) -> tuple[Found, ...]:
        """The party's own searches, made once in a run; their cost is told in that round only."""
        from cotune.party.search import search

        known = self._searched.get(task)
        if known is None:
            found = tuple(task.kept(found) for found in search(self, task))
            self._searched[task] = self._round, found
            return found
        paid, found = known
        if paid != self._round:
            return tuple(msgspec.structs.replace(f, fits=0, cpu_seconds=0.0) for f in found)
        for one in found:
            self._cost += Cost(one.fits, one.cpu_seconds)
        return found

    def _answer(
        self, request: Request, given_up: Future[None]
    ) -> Gathered | Summand | Masked | Encrypted:
        task = request.task
        self._cost = Cost()
        self._round = request.round
        self._given_up = given_up
        if task.needs_problem:
            self._take_problem(request).begin(request.round, given_up)
            self._may_fit = task.most_fits(self.problem) > 0
        self._check_way(request)
        self._check_size(task)
        if request.verb == "gather":
            reply = task.perform(self)
            return Gathered(msgspec.Raw(encode(reply)), self._cost)
        if request.verb == "sum":
            return Summand(pack_terms(self._summand(task)))
        return self._sealed(request)

    def _check_way(self, request: Request) -> None:
        """Never answer with less privacy than the problem says, or than before in this run.

        What is made to be added up is not disclosed alone, in any run.
        """
        if request.verb == "gather" and not request.task.gathered:
            raise Malformed(f"the task {request.task.name} can only be added up: use sum")
        before = promised = self._promised(request.run)
        if request.task.needs_problem:
            promised = max(before, self.problem.privacy, key=RANK.__getitem__)
        if RANK[request.verb] < RANK[promised] and not harmless(request):
            raise Malformed(
                f"the sums of this run are private ({promised}): the party takes part in no other"
            )
        if RANK[request.verb] > RANK[before] and request.run:
            self._promise(request.run, "encrypted" if request.verb == "encrypted" else "masked")

    def _promised(self, run: str) -> Privacy:
        """What is known of a run's privacy, also by a party that was restarted."""
        file = self._promises(run)
        if run not in self._private_runs and file is not None and file.exists():
            self._private_runs[run] = "masked" if file.read_bytes() == b"masked" else "encrypted"
        return self._private_runs.get(run, "plain")

    def _promise(self, run: str, privacy: Privacy) -> None:
        file = self._promises(run)
        if file is not None:
            make_folder(file.parent)
            write(file, privacy.encode())
        self._private_runs[run] = privacy

    def _promises(self, run: str) -> Path | None:
        return self._state / self.name / f"{run}.privacy" if self._state else None

    def _check_size(self, task: Task) -> None:
        """Refuse what would take all time or all memory, before any of it is taken."""
        problem = self._problem if task.needs_problem else None
        fits = task.most_fits(problem) if problem is not None else 0
        if fits > MOST_FITS:
            raise Malformed(
                f"the task may take {fits:,} fits, and a party makes at most {MOST_FITS:,} for one "
                "message: ask for fewer"
            )
        size = task.most_bytes(problem)
        if size > MOST_REPLY:
            raise Malformed(
                f"the reply may have {size:,} bytes, and a party makes none of more than "
                f"{MOST_REPLY:,}: ask for less"
            )

    def _summand(self, task: Task) -> dict[str, np.ndarray]:
        """The party's part of a sum."""
        reply = task.perform(self)
        terms, weight = task.terms(self._problem), task.weight(self)
        values = {name: getattr(reply, name) for name in terms}
        values["own"] = [weight, self._cost.fits, self._cost.cpu_seconds]
        return rounded_terms(terms | OWN_TERMS, values, weight)

    def _sealed(self, request: Request) -> Masked | Encrypted:
        """The party's part of a private sum; asked again under other keys, it is the same."""
        if request.keyed is None:
            raise Malformed("a private sum was asked for without keys")
        if request.protection is not None:
            request.protection.check(request.keyed)
        asked = (request.run, request.round, encode((request.task, request.protection)))
        terms = request.task.terms(self._problem) | OWN_TERMS
        if self._summed is None or self._summed[0] != asked:
            summand = self._summand(request.task)
            if request.protection is not None:
                summand = request.protection.applied(terms, summand)
            self._summed = asked, summand
        if request.protection is not None:
            terms = request.protection.widened(terms)
        if request.verb == "encrypted" and request.keyed.aim.scheme != "sum":
            return Encrypted(self.keys.encrypt(self._compared(request), request.keyed))
        written = Digits(terms, heaviest(self._problem), WIDTHS[request.verb])
        digits = written.integers(self._summed[1])
        if request.verb == "masked":
            return Masked(self.keys.mask(digits, request.keyed))
        return Encrypted(self.keys.encrypt([digits], request.keyed))

    def _compared(self, request: Request) -> list[np.ndarray]:
        """Of a sum that is not told as a whole: the counts, or what is divided and by what."""
        assert self._summed is not None
        assert request.keyed is not None
        if request.keyed.aim.high:
            return list(request.task.fractions(self.problem, self._summed[1]))
        return [np.concatenate([v for n, v in self._summed[1].items() if n not in OWN_TERMS])]

    def _take_problem(self, request: Request) -> Evaluator:
        """Encode the rows for the request's problem, unless that was done for this run."""
        known = self._problem is not None and self._problem.digest == request.problem
        if known and self._run == request.run and self._evaluator is not None:
            return self._evaluator
        problem = request.attached
        if problem is None or problem.digest != request.problem:
            raise Refuse("no_problem", "the party has not been told the problem of this run")
        check_schema(self.all_rows, problem.schema)
        if problem.folds < 1:
            raise Malformed(f"the problem has {problem.folds} folds: give 2 or more")
        if problem.fold is not None and not 0 <= problem.fold < problem.folds != 1:
            raise Malformed(f"the problem is about fold {problem.fold} of {problem.folds}")
        self._evaluator = None  # should it be interrupted on the way
        if problem.keys.get(self.name, self.mark) != self.mark:
            raise RowsRefused(
                "the key by which this party chose its rows when the run was begun is not the one "
                "it has now (its state folder was lost, or its data changed): start a new run"
            )
        self.frame, self.held_out = self.divided(problem)
        self._problem, self._run = problem, request.run
        folder = self._scratch / self.name / request.problem
        self._rows = Rows(folder, self.frame, problem, self.key)
        memory = self._state / self.name / f"{self._remembered}.jsonl" if self._state else None
        self._searched = {}
        self._summed = None
        self.surrogates = {}
        self.training = {}
        self._evaluator = Evaluator(
            problem, self._rows, self._workers, Memory(memory), self.smallest_cell
        )
        return self._evaluator


def _quietly(function: Callable[..., T], *arguments: Any) -> T:
    """On a worker: numbers from outside may overflow there, too."""
    with np.errstate(all="ignore"):
        return function(*arguments)


def _no_agent() -> Agent:
    raise Refuse("internal", "the party has no key agent")
