"""What a party has evaluated in a run, so that no configuration is fitted twice."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from cotune.party.tasks import Configuration


class Evaluation(msgspec.Struct, frozen=True):
    """A configuration's judgement: mean loss over the folds, why it failed, what it cost.

    `round` is the round that paid for it: asked again in that round (a coordinator that was
    killed and resumed), the party tells the same cost; asked in a later one, none.
    """

    loss: float
    fits: int
    cpu_seconds: float
    round: int
    reason: str | None = None


class _Line(msgspec.Struct, frozen=True):
    configuration: Configuration
    evaluation: Evaluation


class Memory:
    """Evaluations by configuration, appended to a file as they come, if there is a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Evaluation] = {}
        if path is not None and path.exists():
            self._read(path)

    def get(self, configuration: Configuration) -> Evaluation | None:
        return self._known.get(key(configuration))

    def put(self, configuration: Configuration, evaluation: Evaluation) -> None:
        self._known[key(configuration)] = evaluation
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(b"\n" + msgspec.json.encode(_Line(configuration, evaluation)))

    def _read(self, path: Path) -> None:
        for line in path.read_bytes().splitlines():
            with suppress(msgspec.DecodeError):  # a kill or a full disk may have cut a line short
                known = msgspec.json.decode(line, type=_Line)
                self._known[key(known.configuration)] = known.evaluation


def key(configuration: Configuration) -> str:
    """Names a configuration: the same text for the same learner, parameters and fraction."""
    return msgspec.json.encode(configuration, order="deterministic").decode()
