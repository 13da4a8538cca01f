"""The ledger: what a run cost and what it disclosed, round by round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from cotune.party.keys import WHOLE, Aim
from cotune.protocol.wire import Cost, Refusal, Verb, Way


class Total(msgspec.Struct, frozen=True):
    """The sum over the parties that answered, one vector (float64, little-endian) per term."""

    sums: dict[str, bytes]

    def vector(self, name: str) -> np.ndarray:
        return np.frombuffer(self.sums[name], dtype="<f8")


class Round(msgspec.Struct, frozen=True):
    """One finished round: its result, what it cost, who failed.

    A gathered round keeps every reply (encoded); a summed one keeps the totals only, whatever
    the privacy setting, so that a journal never holds what one party said to a sum.
    """

    number: int
    task: str
    verb: Verb
    asked: tuple[str, ...]
    bytes_up: int
    bytes_down: int
    seconds: float
    cost: Cost
    disclosed: str
    #: Whether a sum was added up in the clear, under masks or under encryption.
    way: Way = "sum"
    #: What of the total was kept and, under encryption, ever known.
    aim: Aim = WHOLE
    #: Standard deviation of the total's noise in units of the clipping norm; 0 is none.
    noise: float = 0.0
    #: How many messages each party got, by the name of the task: private sums need several.
    messages: dict[str, int] = {}
    #: The most fits that the parties which failed may have done, unseen.
    unseen_fits: int = 0
    failures: dict[str, Refusal] = {}
    replies: dict[str, msgspec.Raw] | None = None
    total: Total | None = None

    @property
    def answered(self) -> int:
        return len(self.asked) - len(self.failures)

    @property
    def heard(self) -> tuple[str, ...]:
        """The parties that answered."""
        return tuple(party for party in self.asked if party not in self.failures)


class Failure(msgspec.Struct, frozen=True):
    """A row of the table of failures."""

    round: int
    party: str
    code: str
    sentence: str


class Ledger:
    """All rounds of a run so far. `up` is from the parties to the coordinator.

    Bytes are those of the messages themselves; what an engine adds (TLS, framing) comes on top.
    """

    def __init__(self, rounds: Iterable[Round] = ()) -> None:
        self._rounds = list(rounds)

    def add(self, entry: Round) -> None:
        self._rounds.append(entry)

    def __iter__(self) -> Iterator[Round]:
        return iter(self._rounds)

    @property
    def last(self) -> Round:
        """The newest round."""
        return self._rounds[-1]

    @property
    def rounds(self) -> int:
        return len(self._rounds)

    @property
    def bytes_up(self) -> int:
        return sum(entry.bytes_up for entry in self._rounds)

    @property
    def bytes_down(self) -> int:
        return sum(entry.bytes_down for entry in self._rounds)

    @property
    def fits(self) -> int:
        return sum(entry.cost.fits for entry in self._rounds)

    @property
    def most_fits(self) -> int:
        """Fits that were told, and those that failed parties may have done without telling."""
        return self.fits + sum(entry.unseen_fits for entry in self._rounds)

    @property
    def cpu_seconds(self) -> float:
        return sum(entry.cost.cpu_seconds for entry in self._rounds)

    @property
    def seconds(self) -> float:
        return sum(entry.seconds for entry in self._rounds)

    @property
    def disclosed(self) -> list[str]:
        """What the coordinator learnt, one sentence per kind of task, in the order of asking."""
        return list(dict.fromkeys(entry.disclosed for entry in self._rounds))

    @property
    def failures(self) -> list[Failure]:
        return [
            Failure(entry.number, party, refusal.code, refusal.sentence)
            for entry in self._rounds
            for party, refusal in entry.failures.items()
        ]

    def summary(self) -> dict[str, object]:
        """The figures of a leaderboard row."""
        return {
            "rounds": self.rounds,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "fits": self.fits,
            "cpu_seconds": round(self.cpu_seconds, 3),
            "seconds": round(self.seconds, 3),
        }
