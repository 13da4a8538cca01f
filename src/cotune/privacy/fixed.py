"""Exact fixed-point arithmetic: the terms of a sum as whole numbers, and totals back as floats."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from cotune.errors import Malformed
from cotune.party.task import Term

#: Bits of a digit. Masks have 64-bit numbers, so that totals of 65,000 parties are below half of
#: the modulus; a ciphertext's have 29 bits, for at most 200 parties.
WIDTHS = {"masked": 46, "encrypted": 20}


class Digits:
    """Where the digits of every value lie in one vector of whole numbers.

    A value is a multiple of its term's resolution: a whole number, written with as many digits of
    `width` bits as its bounds need, all with its sign. Digits are added up on their own, so totals
    are exact in whatever modulus is large enough for a digit's total.

    Parameters
    ----------
    terms
        Of the sum.
    heaviest
        The largest weight that a party can have: what weighted terms are multiplied by.
    width
        Bits of a digit.
    """

    def __init__(self, terms: Mapping[str, Term], heaviest: float, width: int) -> None:
        self._terms, self._width = dict(terms), width
        self._digits = {
            name: math.ceil(_bits(term, heaviest) / width) for name, term in terms.items()
        }
        self.slots = sum(term.length * self._digits[name] for name, term in terms.items())

    def integers(self, vectors: Mapping[str, np.ndarray]) -> np.ndarray:
        """The digits (int64) of values that are multiples of their resolutions."""
        written = [np.empty(0, dtype=np.int64)]
        base = 2.0**self._width
        for name, term in self._terms.items():
            units = np.rint(vectors[name] / term.resolution)
            signs, rest = np.sign(units).astype(np.int64), np.abs(units)
            for _ in range(self._digits[name]):
                digits = np.fmod(rest, base)
                written.append(signs * digits.astype(np.int64))
                rest = (rest - digits) / base
            if rest.any():
                raise Malformed(f"the term {name} is larger than its bounds allow")
        return np.concatenate(written)

    def vectors(self, totals: np.ndarray) -> dict[str, np.ndarray]:
        """The values of digits (int64) that were added up."""
        if totals.shape != (self.slots,):
            raise Malformed("a total has another length than the task asked for")
        found, begin, base = {}, 0, 2.0**self._width
        for name, term in self._terms.items():
            count = self._digits[name]
            digits = totals[begin : begin + count * term.length].reshape(count, term.length)
            begin += digits.size
            units = np.zeros(term.length)
            for row in digits[::-1].astype(float):
                units = units * base + row
            found[name] = units * term.resolution
        return found


def _bits(term: Term, heaviest: float) -> int:
    """That the largest value has, in units of the resolution."""
    largest = max(abs(term.low), abs(term.high)) / term.resolution + 1.0
    return max(1, math.ceil(math.log2(largest * (heaviest if term.weighted else 1.0) + 1.0)))
