"""The two verbs over an engine: `gather` every reply, or `sum` to learn only the total."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from cotune.coordinator.answers import Answers
from cotune.coordinator.exchange import Exchange
from cotune.coordinator.journal import Journal
from cotune.coordinator.ledger import Ledger, Round, Total
from cotune.coordinator.weights import Weights
from cotune.errors import (
    CotuneError,
    DataError,
    Diverged,
    FederationError,
    Malformed,
    UsageError,
)
from cotune.party.keys import FEWEST, WHOLE, Aim
from cotune.party.task import Reply, Task
from cotune.party.tasks import Measure
from cotune.privacy.protection import Protection
from cotune.privacy.sums import (
    Again,
    Privacy,
    Private,
    check_enough,
    check_parties,
    missing,
    private,
)
from cotune.problem import Budget, Problem
from cotune.protocol.engine import Engine
from cotune.protocol.wire import (
    Refusal,
    Request,
    Verb,
    decode_body,
    encode,
    refusal_of,
)

#: An absent party is asked again after 1, 2, 4, ... rounds, at most this many.
LONGEST_ABSENCE = 16
#: The part of a computation's checkpoint that says what it is of.
OF = "of"
#: How often a private sum is begun anew, under new keys, because a party is gone or was restarted.
ATTEMPTS = 4


class BudgetSpent(CotuneError):
    """The next round could exceed the budget, so it is not begun."""


class _End(msgspec.Struct, frozen=True):
    """What a computation came to: its result, or the sentence of the error that ended it."""

    content: bytes
    error: str = ""

    @classmethod
    def of(cls, result: bytes | CotuneError) -> _End:
        if isinstance(result, bytes):
            return cls(result)
        kind = next(name for name, kind in _ENDS.items() if isinstance(result, kind))
        return cls(str(result).encode(), kind)

    def result(self) -> bytes:
        if self.error:
            raise _ENDS[self.error](self.content.decode())
        return self.content


def _end_of(of: bytes) -> str:
    return f"end {hashlib.sha256(of).hexdigest()}"


#: The errors that end a computation, the narrower ones first.
_ENDS: dict[str, type[CotuneError]] = {
    "budget": BudgetSpent,
    "diverged": Diverged,
    "data": DataError,
}


class Sums:
    """The result of `sum`: totals over the parties that answered, and means by their weights."""

    def __init__(self, total: Total, parties: int) -> None:
        self._sums = {name: total.vector(name) for name in total.sums}
        self.parties = parties
        self.weight = float(self._sums["own"][0])

    def sum(self, name: str) -> np.ndarray:
        return self._sums[name]

    def mean(self, name: str) -> np.ndarray:
        """The weighted mean of a term that the task declares as weighted."""
        return self._sums[name] / self.weight


@dataclass
class Federation:
    """Parties that can be asked, and the rules of asking.

    Parameters
    ----------
    engine
        What moves the bytes.
    quorum
        The share of the parties that must answer a round, in (0, 1]. With fewer the run stops, and
        can be resumed.
    timeout
        Seconds that a round may take; a party that is late counts as failed in that round and is
        then left out for a while.
    retries
        How often a party whose reply was lost or malformed is asked again within a round.
    privacy
        How `sum` adds up: `plain` shows the coordinator every summand, `masked` and `encrypted`
        totals only (see `sum`); what identifies a party is then not gathered.
    """

    engine: Engine
    quorum: float = 0.5
    timeout: float | None = None
    retries: int = 1
    ledger: Ledger = field(default_factory=Ledger)
    journal: Journal = field(default_factory=Journal)
    budget: Budget = field(default_factory=Budget)
    run: str = ""
    problem: Problem | None = None
    #: How a simulation was made, for `cotune resume`; empty for other federations.
    origin: Mapping[str, object] = field(default_factory=dict)
    #: Said in the ledger with what is disclosed.
    remark: str = ""
    privacy: Privacy = "plain"
    #: Noise on every private sum but those by which the parties agree on a schema.
    protection: Protection | None = None

    def __post_init__(self) -> None:
        if not 0 < self.quorum <= 1:
            raise UsageError(f"the quorum is {self.quorum}: give a share of parties in (0, 1]")
        if self.timeout is not None and not self.timeout > 0:
            raise UsageError(f"the timeout is {self.timeout}: give a number of seconds above 0")
        self.parties = self.engine.parties()
        check_parties(self.privacy, len(self.parties))
        self._private: Private | None = private(self.privacy)
        self._wanted = tuple(self.parties)  # of the round under way
        self._absent: dict[str, tuple[int, int]] = {}  # party: (next round to ask, absence)
        self._told: set[str] = set()  # parties that have the problem
        self._rows: dict[str, float] = {}  # of each party, where they were counted in the clear
        self._weights = Weights()
        self._aim = WHOLE  # of the round under way
        self._since = 0  # the last round before the computation that is checkpointed
        self._held: list[Round] | None = None  # its rounds since the last checkpoint
        self._of = b""  # what names it
        self._another = False  # whether the journal knows another one that began here
        #: How computations ended that came to no round, and the last round before them.
        self._ends: tuple[int, dict[str, bytes]] = (0, {})

    def for_run(
        self,
        run: str,
        journal: Journal,
        budget: Budget,
        privacy: Privacy = "plain",
        protection: Protection | None = None,
    ) -> Federation:
        """The same parties with a ledger, a journal and a budget of their own."""
        return Federation(
            self.engine, self.quorum, self.timeout, self.retries,
            journal=journal, budget=budget, run=run, origin=self.origin, privacy=privacy,
            protection=protection,
        )  # fmt: skip

    def pooled(self) -> Federation:
        """All parties' rows as one party, in a simulation; ledger, journal and budget are shared.

        For the references that the papers compare with, which no real federation can have.
        """
        if self.engine.pooled is None:
            raise UsageError("all rows in one place are to be had in a simulation only")
        if self.privacy != "plain":
            raise UsageError("all rows in one place are no private reference: use privacy='plain'")
        alone = replace(self, remark="a simulation: all parties' rows lie in one place for this")
        alone.parties = [self.engine.pooled]
        return alone

    def gather(self, task: Task, otherwise: Task | None = None) -> dict[str, Reply]:
        """Every party's reply, by its name; parties that failed are missing.

        A party that no longer has what the task builds on (it was restarted, or left out for a
        while) is asked `otherwise`: a task that brings all of it and has the same answer.
        """
        if self.privacy != "plain" and task.instead:
            raise UsageError(
                f"with {self.privacy} sums no party tells {task.discloses}: {task.instead}"
            )
        entry = self._round(task, "gather", otherwise)
        assert entry.replies is not None
        return {p: decode_body(task, body, self.problem) for p, body in entry.replies.items()}

    def sum(
        self,
        task: Task,
        otherwise: Task | None = None,
        among: Sequence[str] | None = None,
        aim: Aim = WHOLE,
    ) -> Sums:
        """The total of the parties' replies; `otherwise` as in `gather`.

        Of a private sum the totals of its digits are opened, which is a little more than the total.

        With `among` only these parties are asked, and the quorum is one of them. `aim` says what of
        the total is wanted: of counts perhaps only 1 where they reach a threshold and 0 elsewhere.
        That is then all that is kept and, under encryption, all that anybody ever learns.
        """
        if self._private is not None and among is not None and set(among) != set(self.parties):
            raise UsageError(
                f"totals over some of the parties can be subtracted from each other: for "
                f"{self.privacy} sums let all of them take part each time, --clients-per-round "
                f"{len(self.parties)} (at most 100)"
            )
        entry = self._round(task, "sum", otherwise, among, aim)
        assert entry.total is not None
        return Sums(entry.total, entry.answered)

    @contextmanager
    def about(self, problem: Problem) -> Iterator[None]:
        """Ask with another problem for a while; the parties get it with the next message.

        Afterwards they are sent the former one again, as a party has one problem at a time.
        """
        usual = self.problem
        self.problem, self._told = problem, set()
        try:
            yield
        finally:
            self.problem, self._told = usual, set()

    def checkpoint(self, state: bytes, parts: Mapping[str, bytes] = {}) -> None:
        """Keep what a long computation has come to, and what its rounds cost.

        `parts` of it that are large and do not change each time can be kept one by one: `part`
        gives them back.
        """
        since, ends = self._ends
        named = {OF: self._of} if self._of else {}
        named |= ends if since == self._since else {}
        self.journal.checkpoint(self._since, self._held or [], state, {**named, **parts})
        self._held, self._ends = [], (self._since, {})

    def part(self, name: str) -> bytes | None:
        """A part that a checkpoint of the computation under way has kept."""
        return self.journal.part(self._since, name)

    def restored(self) -> bytes | None:
        """Begin a long computation: where it stood at its last checkpoint, if it was begun before.

        The rounds up to there are then in the ledger, as if they had been asked again. From now on
        checkpoints are what the journal keeps: a training has hundreds of rounds, with totals that
        nobody will ask for again, and writing each to the disk would take longer than the rounds.
        """
        self._since, self._held = self.ledger.rounds, []
        found = None if self._another else self.journal.restored(self._since)
        if found is None:
            return None
        rounds, state = found
        for entry in rounds:
            self.ledger.add(entry)
            self._note_absent(entry)
            self._told |= set(entry.heard)
        return state

    def begun(self, of: bytes) -> bytes | None:
        """Begin a computation that `of` names: its result, if it came to its end before.

        Its rounds are then in the ledger; if it failed then, it fails in the same way.
        """
        self._since, self._of = self.ledger.rounds, of
        kept = self.journal.part(self._since, OF)
        self._another = kept not in (None, of)
        end = self.journal.part(self._since, _end_of(of))
        if end is None:
            return None
        if not self._another:
            self.restored()
        self._held, self._of = None, b""
        return msgspec.msgpack.decode(end, type=_End).result()

    def concluded(self, result: bytes | CotuneError) -> None:
        """The computation is at its end, and rounds are written down one by one again.

        What it came to is kept, unless that is an error of usage, which may be fixed by then (a
        key agent that has ended). One that failed before its first round leaves no trace but in the
        checkpoint of the next one: if there is none yet, it is begun again.
        """
        if self.journal.lasts and not isinstance(result, UsageError):
            ends = {_end_of(self._of): msgspec.msgpack.encode(_End.of(result))}
            if self.ledger.rounds > self._since:
                self.checkpoint(b"", ends)
            else:
                self._ends = self._since, {**self._ends[1], **ends}
        self._held, self._of, self._another = None, b"", False

    def forget_keys(self) -> None:
        """The run is over: whatever could open its ciphertexts is not needed any more."""
        if self._private is not None:
            self._private.forget()

    def close(self) -> None:
        self.forget_keys()
        self.journal.close()
        self.engine.close()

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _round(
        self,
        task: Task,
        verb: Verb,
        otherwise: Task | None,
        among: Sequence[str] | None = None,
        aim: Aim = WHOLE,
    ) -> Round:
        """One round: from the journal if it was finished before, from the parties otherwise."""
        number = self.ledger.rounds + 1
        self._wanted = tuple(self.parties if among is None else among)
        asked = self._present(number)
        request = Request(self.run, number, verb, task, self.problem.digest if self.problem else "")
        self._aim = aim
        if self._held is not None:
            entry = self._ask(request, asked, otherwise)
            self._held.append(msgspec.structs.replace(entry, replies=None, total=None))
            self.ledger.add(self._held[-1])
        else:
            entry = self._recorded(request, asked, otherwise)
            self.ledger.add(entry)
        self._note_absent(entry)
        if isinstance(task, Measure):
            self._weights = Weights(entry.heard, self._rows)
        if task.needs_problem:
            self._told |= set(asked) - set(entry.failures)
        return entry

    def _recorded(self, request: Request, asked: tuple[str, ...], otherwise: Task | None) -> Round:
        if self.journal.computed(request.round - 1):  # the search had come to its end here
            self._allowed(request.task, self._messages(request, asked))
            raise BudgetSpent("the budget is spent")
        question = _digest(request, asked)
        entry = self.journal.recorded(request.round, question)
        if entry is None:
            entry = self._ask(request, asked, otherwise)
            self.journal.record(entry, question)
        return entry

    def _ask(self, request: Request, asked: tuple[str, ...], otherwise: Task | None) -> Round:
        self.engine.prepare(self.problem if request.task.needs_problem else None)
        began = time.perf_counter()
        remark = self.remark or self.engine.remark
        answers = Answers(request, self.problem, remark, self._aim, self._weights)
        if request.verb == "sum" and self._private is not None:
            answers.seal(self._private, None)
            left = self._allowed(request.task, self._messages(request, asked), answers.most_bytes)
            deadline = None if left is None else began + left
            exchange = Exchange(self.engine, self.run, request.round, self.timeout, deadline)
            try:
                self._add(self._private, request, asked, otherwise, answers, exchange)
            except FederationError:
                if not self._out_of_time(time.perf_counter() - began):
                    raise
        else:
            left = self._allowed(request.task, self._messages(request, asked))
            ends = [s for s in (left, self.timeout) if s is not None]
            deadline = began + min(ends) if ends else None
            exchange = Exchange(self.engine, self.run, request.round, deadline=deadline)
            self._collect(request, asked, otherwise, answers, exchange)
        seconds = time.perf_counter() - began
        if self._out_of_time(seconds):
            raise BudgetSpent("the budget in seconds is spent; the last round was given up")
        self._check_quorum(request.task, answers, asked)
        self._rows |= answers.rows
        return answers.round(asked, exchange, seconds)

    def _collect(
        self,
        request: Request,
        asked: Sequence[str],
        otherwise: Task | None,
        answers: Answers,
        exchange: Exchange,
    ) -> None:
        """Every party's reply; those that were lost or malformed are asked for again."""
        messages = waiting = self._messages(request, tuple(asked))
        for _ in range(1 + self.retries):
            longest = answers.longest_reply
            replies = self._call(waiting, request, otherwise, exchange, longest)
            answers.take(waiting, replies)
            waiting = {party: messages[party] for party in answers.worth_retrying()}
            spent = exchange.bytes_down + exchange.bytes_up
            if not waiting or exchange.left == 0 or self._over(request.task, waiting, spent):
                break

    def _add(
        self,
        way: Private,
        request: Request,
        asked: Sequence[str],
        otherwise: Task | None,
        answers: Answers,
        exchange: Exchange,
    ) -> None:
        """A private total: keys where they are missing, every party's sealed part, the total.

        If a party turns out to have lost its keys, or is gone whose share is needed, the others
        agree on new ones and send what they have under these: it is not computed again.
        """
        protection = None
        if self.protection is not None and request.task.needs_problem:
            protection = msgspec.structs.replace(self.protection, parties=self._needed())
            if self._aim != WHOLE and self.privacy == "encrypted":
                raise UsageError(
                    "noise cannot be added where less than the total is told: combine by 'mean', "
                    "or leave noise out"
                )
        fewest = max(FEWEST, self._needed())
        for _ in range(ATTEMPTS):
            present = [party for party in asked if party not in exchange.failures]
            check_enough(present, fewest, exchange.failures)
            answers.seal(way, protection)
            try:
                keyed = way.agree(exchange, present, fewest, self._aim)
                check_enough(keyed.among, fewest, exchange.failures)
                sealed = msgspec.structs.replace(
                    request, verb=way.verb, keyed=keyed, protection=protection
                )
                self._collect(sealed, keyed.among, otherwise, answers, exchange)
                self._check_present(way, answers, exchange)
                check_enough(answers.sealed, fewest, answers.failures)
                if protection is not None:
                    self.journal.note_noise(protection.noise)
                answers.open(*way.total(exchange, keyed, answers.sealed, answers.slots))
            except Again:
                way.forget()
                for party in [p for p, no in exchange.failures.items() if no.code == "no_keys"]:
                    del exchange.failures[party]  # it gets new ones
                continue
            for party in set(asked) - answers.counted:
                refusal = Refusal("lost", "the party could not be reached for its keys")
                told = exchange.failures.get(party, answers.failures.get(party, refusal))
                answers.failures[party] = told
            return
        party, refusal = next(iter((exchange.failures | answers.failures).items()))
        raise FederationError(
            f"no private total came about in {ATTEMPTS} attempts; {party}: {refusal.sentence}. "
            "Mend it and resume"
        )

    def _messages(self, request: Request, asked: tuple[str, ...]) -> dict[str, bytes]:
        """The problem travels with the first message that needs it, later ones name it."""
        short = encode(request)
        if not request.task.needs_problem or self._told.issuperset(asked):
            return dict.fromkeys(asked, short)
        whole = encode(msgspec.structs.replace(request, attached=self.problem))
        return {party: short if party in self._told else whole for party in asked}

    @staticmethod
    def _check_present(way: Private, answers: Answers, exchange: Exchange) -> None:
        """Agree on new keys if a party has lost its own, or is gone where all are needed."""
        if any(refusal.code == "no_keys" for refusal in answers.failures.values()):
            raise Again
        lost = {p: no for p, no in answers.failures.items() if no.code in ("lost", "timeout")}
        if lost and way.needs_all:
            exchange.failures |= lost
            raise Again

    def _call(
        self,
        messages: Mapping[str, bytes],
        request: Request,
        otherwise: Task | None,
        exchange: Exchange,
        longest: int,
    ) -> dict[str, bytes | Refusal]:
        """Call the engine; a party that lost what it was told (restarted, resumed) is told again.

        The second telling is not booked: a resumed run has the ledger of an uninterrupted one.
        """
        replies = exchange.call(request.task, messages, longest)
        for code, task in (("no_problem", request.task), ("no_state", otherwise)):
            lost = [party for party, reply in replies.items() if _lacks(reply, code)]
            if lost and task is not None:
                again = msgspec.structs.replace(request, task=task, attached=self.problem)
                replies |= self.engine.call(dict.fromkeys(lost, encode(again)), exchange.left)
        exchange.hear(replies)
        return replies

    def _allowed(
        self, task: Task, messages: Mapping[str, bytes], more_bytes: int = 0
    ) -> float | None:
        """Seconds of the budget that are left; `BudgetSpent` if it could exceed another limit.

        `more_bytes` are those of a private sum with each party, beyond what the task tells.
        """
        budget, ledger = self.budget, self.ledger
        if budget.rounds is not None and ledger.rounds + 1 > budget.rounds:
            raise BudgetSpent(f"the budget of {budget.rounds} rounds is spent")
        if budget.fits is not None and self.problem is not None:
            most = task.most_fits(self.problem) * len(messages)
            if ledger.most_fits + most > budget.fits:
                raise BudgetSpent(f"the next round could exceed the budget of {budget.fits} fits")
        if self._over(task, messages, more_bytes * len(messages)):
            raise BudgetSpent(f"the next round could exceed the budget of {budget.bytes} bytes")
        if budget.seconds is None:
            return None
        left = budget.seconds - ledger.seconds
        if left <= 0:
            raise BudgetSpent(f"the budget of {budget.seconds:g} seconds is spent")
        return left

    def _over(self, task: Task, messages: Mapping[str, bytes], spent: int = 0) -> bool:
        """Whether the messages and their replies, after `spent` bytes, could exceed the budget."""
        if self.budget.bytes is None:
            return False
        likely = _size(messages) + task.most_bytes(self.problem) * len(messages)
        booked = self.ledger.bytes_up + self.ledger.bytes_down
        return booked + spent + likely > self.budget.bytes

    def _out_of_time(self, seconds: float) -> bool:
        limit = self.budget.seconds
        return limit is not None and self.ledger.seconds + seconds > limit

    def _present(self, number: int) -> tuple[str, ...]:
        """The parties to ask: all but those that were late or lost a short while ago."""
        present = tuple(p for p in self._wanted if self._absent.get(p, (0, 0))[0] <= number)
        return present if len(present) >= self._needed() else self._wanted

    def _note_absent(self, entry: Round) -> None:
        for party in entry.asked:
            refusal = entry.failures.get(party)
            if refusal is not None and refusal.code in ("timeout", "lost"):
                absence = min(2 * self._absent.get(party, (0, 0.5))[1], LONGEST_ABSENCE)
                self._absent[party] = (entry.number + 1 + int(absence), int(absence))
            else:
                self._absent.pop(party, None)

    def _needed(self) -> int:
        return max(1, math.ceil(self.quorum * len(self._wanted)))

    def _check_quorum(self, task: Task, answers: Answers, asked: tuple[str, ...]) -> None:
        """Enough parties answered; and before the problem is agreed, none has unfit data."""
        for party, refusal in answers.failures.items():
            if refusal.code == "data" and not task.needs_problem:
                raise DataError(f"{party}: {refusal.sentence}")
        answered = len(asked) - len(answers.failures)
        if answered < self._needed():
            party, refusal = next(iter(answers.failures.items()))
            # what a party refuses by its rules says itself what to ask for instead
            fix = "" if refusal.code == "refused" else ". Mend it and resume, or lower the quorum"
            raise missing(
                answers.failures,
                f"{answered} of {len(self._wanted)} parties answered, {self._needed()} are needed; "
                f"{party}: {refusal.sentence}{fix}",
            )


def _size(messages: Mapping[str, bytes]) -> int:
    return sum(map(len, messages.values()))


def _lacks(reply: bytes | Refusal, code: str) -> bool:
    """Whether a party refused for want of what it should have been told before."""
    try:
        refusal = refusal_of(reply) if isinstance(reply, bytes) else reply
    except Malformed:
        return False
    return refusal is not None and refusal.code == code


def _digest(request: Request, asked: tuple[str, ...]) -> str:
    """Names a question, whatever the run's own name."""
    nameless = msgspec.structs.replace(request, run="")
    return hashlib.blake2b(encode((nameless, asked)), digest_size=12).hexdigest()
