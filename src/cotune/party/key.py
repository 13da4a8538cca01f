"""The key by which a party chooses rows: to set aside, for folds and fractions, for each tree."""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from cotune.errors import CotuneError, FederationError
from cotune.files import make_folder, write
from cotune.problem import seed_of

#: A real party names no category of fewer of its rows, and leaves out none of them or so many.
SMALLEST_CELL = 5
#: The shares of its rows that a real party takes or leaves out: whole percents, and FLASH's.
LADDER = tuple(
    sorted({*(k / 100 for k in range(101)), *(round(0.0375 * 1.5**m, 12) for m in range(9))})
)
#: Shares that are so close are the same; FLASH's are products, which are rounded.
_SAME = 1e-9


class _Cells(msgspec.Struct, frozen=True):
    #: Rows are left out by multiples of this.
    cell: ClassVar[int] = 1

    def left_out(self, rows: int, usual: int) -> int:
        """How many of the rows are left out, if usually so many would be."""
        cells = min(-(-usual // self.cell), (rows - self.cell) // self.cell)
        return self.cell * max(cells, 0)


class RunKey(_Cells, frozen=True, tag="run"):
    """A simulation's key: it follows from the run's seed, and any share can be had."""

    run: int

    def seed(self, *purpose: object, within: object = ()) -> int:
        """The named purpose's own seed; without a name the run's. Nothing depends on `within`."""
        return seed_of(self.run, *purpose) if purpose else self.run

    def fit_seed(self, *within: object) -> int:
        """What a fit draws by, say a forest its rows."""
        return self.run

    def part(self, *purpose: object) -> RunKey:
        return RunKey(self.seed(*purpose))

    def drawn(self, rows: int, share: float, *purpose: object) -> np.ndarray:
        """Positions of the rows that are drawn, each with the probability `share`."""
        return np.flatnonzero(np.random.default_rng(self.seed(*purpose)).random(rows) < share)

    def check(self, share: float, what: str) -> None:
        """Any share will do."""


class Secret(_Cells, frozen=True, tag="secret"):
    """A real party's key: nobody else can know which rows it chooses, nor move the choice by one.

    An order of the rows depends on all that somebody else could vary (`within`), but for the share
    that is taken of it. The number of rows that are left out is a multiple of the smallest cell,
    so two beginnings of one order differ by no row or by as many as that.
    """

    cell = SMALLEST_CELL

    secret: bytes

    def __repr__(self) -> str:
        return f"Secret({self.mark})"

    @property
    def mark(self) -> str:
        """Names the key without giving it away."""
        return f"{self.seed('mark') % 2**64:016x}"

    def seed(self, *purpose: object, within: object = ()) -> int:
        """256 bits: nobody can try them all."""
        message = msgspec.json.encode((purpose, within), order="deterministic")
        return int.from_bytes(hmac.digest(self.secret, message, "sha256"), "big")

    def fit_seed(self, *within: object) -> int:
        """Of as many bits as all libraries take. No order is told that it could be tried on."""
        return self.seed("fit", within=within) % 2**31

    def part(self, *purpose: object) -> Secret:
        return Secret(self.seed("part", *purpose).to_bytes(32, "big"))

    def drawn(self, rows: int, share: float, *purpose: object) -> np.ndarray:
        """A share is a learner's parameter here, searched or given: the nearest one is taken."""
        share = nearest(share)
        left = self.left_out(rows, round((1.0 - share) * rows))
        seed = self.seed(*purpose, within=(share, rows))
        return np.sort(np.random.default_rng(seed).permutation(rows)[left:])

    def check(self, share: float, what: str) -> None:
        """Refuse a share that is not on the ladder."""
        step = nearest(share)
        if not abs(step - share) <= _SAME:  # nor is NaN
            raise RowsRefused(
                f"the {what} is {share:.10g}: this party takes shares of its rows in whole "
                f"percents, or 0.0375 times a power of 1.5; use {step:.10g}"
            )


Key = RunKey | Secret


class RowsRefused(CotuneError):
    """Raised inside a party that is asked for a choice of its rows which it does not make."""


class KeyFile(msgspec.Struct):
    """A real party's key for one data file, and the share of its rows that is set aside for good.

    Beside all rows the party answers for one other set: what is left when that share is set aside.
    It is the first that was ever asked of it, in whichever run; both outlive the process in `path`.
    """

    path: Path
    key: Secret
    holdout: float = 0.0

    @classmethod
    def opened(cls, folder: Path, data: str) -> KeyFile:
        """That of the data with this fingerprint, made at the first time."""
        path = folder / f"{data}.json"
        try:
            if not path.exists():
                make_folder(folder)
                cls(path, Secret(secrets.token_bytes(32)))._write()
            stored = msgspec.json.decode(path.read_bytes(), type=_Stored)
        except OSError as error:
            raise FederationError(
                f"the key of this party's rows cannot be kept in {folder} ({error.strerror}): see "
                "to the rights and the free space there"
            ) from error
        except msgspec.DecodeError as error:
            raise FederationError(
                f"{path}, the key of this party's rows, is damaged: restore it from a copy, or "
                "remove it to have a new one (runs that were begun with it then cannot be resumed)"
            ) from error
        return cls(path, Secret(stored.secret), stored.holdout)

    def set_aside(self, share: float) -> float:
        """The share itself, if it is the first or 0; the first is kept before it is used."""
        if share <= 0.0 or abs(share - self.holdout) <= _SAME:
            return self.holdout if share > 0.0 else 0.0
        if self.holdout:
            raise RowsRefused(
                f"the holdout is {share:.10g}: this party sets {self.holdout:.10g} of these rows "
                f"aside, in every run; use --holdout {self.holdout:.10g} or 0"
            )
        self.key.check(share, "holdout")
        if nearest(share) >= 1.0:
            raise RowsRefused(f"the holdout is {share:.10g}: no row would be left to learn from")
        self.holdout = nearest(share)
        try:
            self._write()
        except OSError:
            self.holdout = 0.0
            raise
        return self.holdout

    def _write(self) -> None:
        """On the disk before anything is answered."""
        write(self.path, msgspec.json.encode(_Stored(self.key.secret, self.holdout)))


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    secret: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    holdout: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0


def random_state(seed: int) -> int | np.random.RandomState:
    """The seed as scikit-learn takes it, which knows numbers of 32 bits only."""
    if seed < 2**32:
        return seed
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))


def nearest(share: float) -> float:
    """The step of the ladder that is nearest.

    >>> nearest(0.20033), nearest(0.056)
    (0.2, 0.05625)
    """
    return min(LADDER, key=lambda step: abs(step - share))
