"""What a party has fitted in a run, so that no fold of a configuration is fitted twice."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from cotune.files import UNREADABLE, make_folder, private
from cotune.party.task import Configuration
from cotune.protocol.tally import Tally

log = logging.getLogger(__name__)

#: Losses by fold; None where a fold does not define the metric.
Losses = tuple[float | None, ...]


class Batch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Folds of a configuration that were fitted together, their losses, and what that cost.

    `round` is the round that paid for it: asked again in that round (a coordinator that was
    killed and resumed), the party tells the same cost; asked in a later one, none. If any of the
    fits failed there is a `reason`, and the losses are of no use. `free` are the losses of the
    same models after fewer of their `iterations`, by that number. `tallies` and `free_tallies` are
    those of the same folds, where the run compares by the federation's figures.
    """

    folds: tuple[int, ...]
    losses: Losses
    fits: int
    cpu_seconds: float
    round: int
    reason: str | None = None
    iterations: str | None = None
    free: dict[int, Losses] = {}
    tallies: tuple[Tally, ...] = ()
    free_tallies: dict[int, tuple[Tally, ...]] = {}

    def loss(self, fold: int, count: int | None = None) -> float | None:
        """The fold's loss, after all iterations or the first `count` of them."""
        losses = self.losses if count is None else self.free[count]
        return losses[self.folds.index(fold)]

    def tally(self, fold: int, count: int | None = None) -> Tally | None:
        """The fold's tally, if there is one."""
        tallies = self.tallies if count is None else self.free_tallies.get(count, ())
        return tallies[self.folds.index(fold)] if tallies else None


class _Line(msgspec.Struct, frozen=True):
    configuration: Configuration
    batch: Batch


def _written(line: _Line) -> bytes:
    """A digest of the line, and the line, as JSON in one line."""
    content = msgspec.json.encode(line)
    return msgspec.json.encode((_digest(content), msgspec.Raw(content)))


def _read(written: bytes) -> _Line | None:
    """The line, if it is whole and as it was written."""
    try:
        digest, content = msgspec.json.decode(written, type=tuple[str, msgspec.Raw])
        if digest == _digest(bytes(content)):
            return msgspec.json.decode(content, type=_Line)
    except UNREADABLE:
        pass
    return None


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class Memory:
    """Folds by configuration, appended to a file as they come, if there is a file.

    The first that is known of a fold stays what is known of it.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, dict[int, Batch]] = {}
        if path is not None and path.exists():
            self._read(path)

    def get(self, configuration: Configuration) -> Mapping[int, Batch]:
        """The batches that tell of this configuration, by fold."""
        return self._known.get(key(configuration), {})

    def put(self, configuration: Configuration, batch: Batch) -> None:
        self._learn(configuration, batch)
        if self._path is not None:
            make_folder(self._path.parent)
            with open(self._path, "ab", opener=private) as file:
                file.write(b"\n" + _written(_Line(configuration, batch)))

    def _read(self, path: Path) -> None:
        """A line that a kill or a full disk cut short, or that was damaged, is fitted again."""
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            known = _read(line)
            if known is not None:
                self._learn(known.configuration, known.batch)
            elif line and number < len(lines):
                log.warning("%s, line %d is damaged: its folds are fitted again", path, number)

    def _learn(self, configuration: Configuration, batch: Batch) -> None:
        known = self._known.setdefault(key(configuration), {})
        for fold in batch.folds:
            known.setdefault(fold, batch)
        for count, losses in batch.free.items():
            params = configuration.params | {str(batch.iterations): count}
            smaller = msgspec.structs.replace(configuration, params=params)
            tallies = batch.free_tallies.get(count, ())
            self._learn(smaller, Batch(batch.folds, losses, 0, 0.0, batch.round, tallies=tallies))


def key(configuration: Configuration) -> str:
    """Names a configuration: the same text for the same learner, parameters, fraction and
    shuffle.
    """
    return msgspec.json.encode(configuration, order="deterministic").decode()
