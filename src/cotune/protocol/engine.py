"""The contract of an engine: it moves bytes between the coordinator and the parties."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cotune.party.task import MOST_UNKNOWN
from cotune.protocol.wire import Refusal

if TYPE_CHECKING:
    from cotune.party.doubts import Doubt
    from cotune.problem import Problem


class Engine(ABC):
    """Moves bytes, and knows nothing of tuning.

    `cotune.testing.check_engine` is the conformance suite that every engine passes.
    """

    #: A party that holds all parties' rows, for references on pooled data: simulations only.
    pooled: str | None = None
    #: Said of every round in the ledger, where the answers are not those of real parties.
    remark: str = ""
    #: Whether the parties have rows, so that a model can be trained.
    has_rows: bool = True
    #: Bytes of a reply to the next call, at most: longer ones are refused, and need not be read.
    longest_reply: int = MOST_UNKNOWN

    @abstractmethod
    def parties(self) -> list[str]:
        """The names of all parties that can be called, sorted."""

    @abstractmethod
    def call(
        self, messages: Mapping[str, bytes], timeout: float | None
    ) -> dict[str, bytes | Refusal]:
        """Deliver each party its message and wait for the replies.

        `timeout` is in seconds. A party that cannot be reached, dies or is late gets a `Refusal`
        with code `lost` or `timeout`; the others' replies are returned all the same.
        """

    def prepare(self, problem: Problem | None = None) -> None:  # noqa: B027
        """Start what the first round would wait for; given the problem, return when it is ready.

        Called before a round's clock begins. Nothing by default.
        """

    def progress(self) -> int:
        """Fits finished since the start, where the engine can tell; for displays only."""
        return 0

    def doubts(self, drop: tuple[str, ...], folds: int) -> tuple[Doubt, ...]:
        """What is doubtful about the rows, where they lie in this process: in simulations only.

        Classes with fewer rows than `folds` are among it.
        """
        return ()

    def close(self) -> None:  # noqa: B027
        """Release what the engine holds: processes, connections, scratch files."""
