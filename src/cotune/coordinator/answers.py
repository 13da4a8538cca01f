"""One round's replies, from the first to the total that is written down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from cotune.coordinator.exchange import Exchange
from cotune.coordinator.ledger import Round, Total
from cotune.coordinator.weights import Weights
from cotune.errors import FederationError, Malformed
from cotune.party.keys import WHOLE, Aim
from cotune.party.task import Task
from cotune.party.tasks import Evaluations, Measure
from cotune.party.train.assess import Assessed
from cotune.privacy.fixed import WIDTHS, Digits
from cotune.privacy.protection import Protection
from cotune.privacy.sums import Private
from cotune.problem import Problem, heaviest
from cotune.protocol.wire import (
    OWN_TERMS,
    Cost,
    Encrypted,
    Gathered,
    Masked,
    Refusal,
    Request,
    Summand,
    Way,
    decode_body,
    decode_bounded,
    unpack_terms,
)

#: Nobody has said anything of its rows.
UNKNOWN = Weights()


class Answers:
    """Collects one round's replies, decoded and checked; adds summands up as they come."""

    def __init__(
        self,
        request: Request,
        problem: Problem | None,
        remark: str = "",
        aim: Aim = WHOLE,
        weights: Weights = UNKNOWN,
    ) -> None:
        self._request = request
        self._problem = problem
        self._remark = f" [{remark}]" if remark else ""
        self._task: Task = request.task
        self._terms = self._task.terms(problem) | OWN_TERMS if request.verb == "sum" else {}
        self._most_fits = self._task.most_fits(problem) if problem is not None else 0
        self._bodies: dict[str, msgspec.Raw] = {}
        self._summands: dict[str, dict[str, np.ndarray]] = {}
        self._aim = aim
        self._weights = weights
        self._protection: Protection | None = None
        self._way: Way = request.verb
        self._private: Private | None = None
        self._digits: Digits | None = None
        self._opened: dict[str, np.ndarray] = {}
        self._cost = Cost()
        self.sealed: dict[str, bytes | tuple[bytes, ...]] = {}
        self.counted: frozenset[str] = frozenset()
        self.failures: dict[str, Refusal] = {}

    def seal(self, way: Private, protection: Protection | None) -> None:
        """Expect parts of a private sum from now on, from the beginning."""
        if protection is not None and self._protection is None:
            self._terms = protection.widened(self._terms)
        self._private, self._way, self._protection = way, way.verb, protection
        self.sealed, self.failures = {}, {}
        self._digits = Digits(self._terms, heaviest(self._problem), WIDTHS[way.verb])

    @property
    def slots(self) -> int:
        """How many digits a part of the private sum has."""
        if self._aim.high and self._partial:
            return int(self._terms["sums"].length)
        if self._partial:
            return sum(term.length for name, term in self._terms.items() if name not in OWN_TERMS)
        assert self._digits is not None
        return self._digits.slots

    @property
    def _partial(self) -> bool:
        """Whether not the total itself is decrypted."""
        return self._aim.scheme != "sum" and self._way == "encrypted"

    @property
    def most_bytes(self) -> int:
        """Of a private sum, to and from one party."""
        assert self._private is not None
        return self._private.most_bytes(self.slots, self._aim)

    @property
    def longest_reply(self) -> int:
        """Bytes that no party's reply has."""
        if self._private is not None:
            return self._private.longest_part(self.slots, self._aim)
        return self._task.longest_reply(self._problem)

    @property
    def rows(self) -> dict[str, float]:
        """Of each party, where they were counted in the clear."""
        if not isinstance(self._task, Measure) or self._private is not None:
            return {}
        return {
            party: self._task.rows(self._problem, vectors)
            for party, vectors in self._summands.items()
        }

    def open(self, digits: np.ndarray, counted: Sequence[str]) -> None:
        """Take the total of a private sum over the parties that could be counted.

        What one of them said cannot be checked, only whether the total is possible.
        """
        assert self._digits is not None
        self.counted = frozenset(counted)
        if self._partial:
            self._opened = self._opened_partly(digits.astype(float))
            return
        self._opened = self._digits.vectors(digits)
        weight = float(self._opened["own"][0])
        for name, term in self._terms.items():
            factor = weight if term.weighted else float(len(counted))
            if not weight > 0 or not term.holds(self._opened[name], factor):
                raise FederationError(
                    f"the total of {name} is out of its bounds: a party sent what it must not, and "
                    "a private sum does not tell which; find it with privacy='plain' on made-up "
                    "data, or leave parties out"
                )
        if self._protection is None:
            of_losses = self._task.of_losses
            _check_total(weight, self._weights.most(self._problem, counted, of_losses))
        rows = self._task.rows(self._problem, self._opened)
        _check_total(rows, self._weights.most_rows(self._problem, counted))

    def _opened_partly(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Where counts reach the threshold, or quotients; neither weights nor costs are told."""
        opened = {name: np.zeros(term.length) for name, term in self._terms.items()}
        if self._aim.high:
            assert self._problem is not None
            return opened | self._task.divided(self._problem, values)
        names = [name for name in self._terms if name not in OWN_TERMS]
        ends = np.cumsum([self._terms[name].length for name in names])
        return opened | dict(zip(names, np.split(values, ends[:-1]), strict=True))

    def take(self, asked: Iterable[str], replies: Mapping[str, bytes | Refusal]) -> None:
        """Note the replies of the parties that were asked; who was not asked is not heard."""
        longest = self.longest_reply
        for party in sorted(asked):
            reply = replies.get(party, Refusal("lost", "no reply came"))
            self.failures.pop(party, None)
            try:
                self._take(party, reply, longest)
            except Malformed as error:
                self.failures[party] = Refusal("malformed", str(error))

    def _take(self, party: str, reply: bytes | Refusal, longest: int) -> None:
        reply_message = decode_bounded(reply, longest) if isinstance(reply, bytes) else reply
        if isinstance(reply_message, Refusal):
            self.failures[party] = reply_message
        elif isinstance(reply_message, Gathered) and self._way == "gather":
            body = decode_body(self._task, reply_message.body, self._problem)
            self._check_weight(party, getattr(body, "weight", 0.0))
            if isinstance(body, Assessed | Evaluations):
                tallies = {n: np.array(getattr(body, n)) for n in ("counts", "wholes", "rests")}
                self._check_rows(party, self._task.rows(self._problem, tallies))
            if not reply_message.cost.holds:
                raise Malformed("the reply's cost is not within its bounds")
            self._bodies[party] = reply_message.body
            self._cost += reply_message.cost
        elif isinstance(reply_message, Summand) and self._way == "sum":
            vectors = unpack_terms(self._terms, reply_message.terms)
            self._check_weight(party, float(vectors["own"][0]))
            self._check_rows(party, self._task.rows(self._problem, vectors))
            self._summands[party] = vectors
        elif isinstance(reply_message, Masked) and self._way == "masked":
            self._seal(party, reply_message.digits)
        elif isinstance(reply_message, Encrypted) and self._way == "encrypted":
            self._seal(party, reply_message.ciphertexts)
        else:
            raise Malformed("the reply answers another verb than was asked")

    def _check_weight(self, party: str, weight: float) -> None:
        most = self._weights.most(self._problem, (party,), self._task.of_losses)
        if weight > most:
            raise Malformed(
                f"the reply's weight is {weight:.15g}, and by the party's count of its rows it "
                f"can be {most:.15g}"
            )

    def _check_rows(self, party: str, rows: float) -> None:
        most = self._weights.most_rows(self._problem, (party,))
        if rows > most:
            raise Malformed(
                f"the reply is about {rows:.15g} rows, and by the party's count it has {most:.15g}"
            )

    def _seal(self, party: str, part: bytes | tuple[bytes, ...]) -> None:
        assert self._private is not None
        self._private.check(part, self.slots, self._aim)
        self.sealed[party] = part

    def worth_retrying(self) -> list[str]:
        return [p for p, refusal in self.failures.items() if refusal.code in ("lost", "malformed")]

    def round(self, asked: tuple[str, ...], exchange: Exchange, seconds: float) -> Round:
        summed = self._request.verb == "sum"
        total = self._total() if summed else None
        if total is not None:
            _, fits, cpu_seconds = total.vector("own")
            self._cost = Cost(int(fits), float(cpu_seconds))
        return Round(
            number=self._request.round,
            task=self._task.name,
            verb="sum" if summed else "gather",
            asked=asked,
            bytes_up=exchange.bytes_up,
            bytes_down=exchange.bytes_down,
            seconds=seconds,
            cost=self._cost,
            way=self._way,
            aim=self._aim,
            noise=self._protection.noise if self._protection else 0.0,
            messages=dict(exchange.messages),
            disclosed=f"{self._task.name}: {self._told} {self._task.discloses}{self._remark}",
            unseen_fits=self._most_fits * len(self.failures),
            failures=self.failures,
            replies=None if summed else self._bodies,
            total=total,
        )

    @property
    def _told(self) -> str:
        """How much of what a task discloses the coordinator learns."""
        if self._way in ("gather", "sum"):
            return "each party tells"
        if self._partial and self._aim.high:
            return "only quotients of totals over the parties (encrypted) are told of"
        if self._partial:
            return f"only where the total over the parties reaches {self._aim.least} is told of"
        noised = ", noised" if self._protection is not None else ""
        return f"only the total over the parties ({self._way}{noised}) is told of"

    def _total(self) -> Total:
        """Added up in the order of the names, whoever had to be asked twice."""
        totals = self._added() if self._way == "sum" else self._opened
        for name in totals.keys() - OWN_TERMS.keys() if self._aim.least else ():
            totals[name] = (totals[name] >= (1 if self._partial else self._aim.least)) * 1.0
        return Total({name: v.astype("<f8").tobytes() for name, v in totals.items()})

    def _added(self) -> dict[str, np.ndarray]:
        summands = [self._summands[party] for party in sorted(self._summands)]
        sums = {}
        for name, term in self._terms.items():
            total = np.zeros(term.length, dtype="<f8")
            for summand in summands:
                total += summand[name]
            sums[name] = total
        return sums


def _check_total(rows: float, most: float) -> None:
    if rows > most:
        raise FederationError(
            f"the parties claim {rows:.15g} rows in all, and can have {most:.15g}: a party "
            "sent what it must not, and a private sum does not tell which; leave parties out"
        )
