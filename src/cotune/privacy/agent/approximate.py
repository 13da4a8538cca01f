"""PrivTuna's approximate arithmetic: encrypted totals are divided, or compared with a threshold.

Mitic, Pyrgelis, Sav: How to Privately Tune Hyperparameters in Federated Learning?, section V.
The scheme is CKKS: real numbers with noise. Every product takes a level, and there are `DEPTH`.
When they run out the parties restore them together, without learning the numbers. So `divide` and
`reaching` are generators: they yield ciphertexts to be refreshed, are sent them back with all
levels, and return the result.

Where this departs from the paper:

- Counts are compared with least - 1/2, not with least: no count gives 0, the mask is 0 or 1.
- A count beyond the threshold counts as the threshold. It changes no mask, and a narrow range
  needs few polynomials. Their number follows from the range, as Cheon et al. have it.
- The polynomials are factored: 4 products instead of 5, in the same 3 levels.
- The ring is the paper's, the moduli are not: fewer levels leave room for a finer scale.

The noise that floods a decryption share is OpenFHE's for CKKS, sigma = 2**20. That is enough to
hide the noise of one evaluation, not of many: a ciphertext is decrypted once.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import count as counted
from typing import Any, NamedTuple

from .envelope import Refused
from .library import library

Ciphertext = Any
Refreshing = Generator[list[Ciphertext], list[Ciphertext], list[Ciphertext]]

#: Products one after another between two refreshes.
DEPTH = 6
#: Primes that a ciphertext must have left to be refreshed: one for the number, three for the mask.
#: The mask has 102 bits more than the number, at the larger ring 110.
KEPT = 4
#: Largest relative error of a quotient, before noise.
QUOTIENT_ERROR = 2.0**-18
#: Largest over smallest total count: noise in a quotient grows with it, to 3e-5 here.
WIDEST = 1000
#: Largest error of a mask, before noise. It would tell counts near the threshold from others, so it
#: must drown in the noise of decryption: that is 2**-17 in a slot, at the larger ring 2**-24.
MASK_ERROR = 2.0**-30


class Parameters(NamedTuple):
    """Ring dimension, bits of the scale and of the first prime, digits of key switching."""

    ring: int
    scale: int
    first: int
    digits: int


def parameters(parties: int) -> Parameters:
    """The paper's ring dimensions, 2**14 for 10 parties and 2**15 for 20; 128 bits of security."""
    return Parameters(2**14, 42, 60, 4) if parties < 20 else Parameters(2**15, 50, 60, 1)


@cache
def context(chosen: Parameters) -> Any:
    """A CKKS context. Rescaling is by hand: a level is spent where the code says so."""
    fhe = library()
    made = fhe.CCParamsCKKSRNS()
    made.SetRingDim(chosen.ring)
    made.SetMultiplicativeDepth(DEPTH)
    made.SetScalingModSize(chosen.scale)
    made.SetFirstModSize(chosen.first)
    made.SetScalingTechnique(fhe.FIXEDMANUAL)
    made.SetKeySwitchTechnique(fhe.HYBRID)
    made.SetNumLargeDigits(chosen.digits)
    made.SetInteractiveBootCompressionLevel(fhe.SLACK)
    made.SetSecurityLevel(fhe.HEStd_128_classic)
    found = fhe.GenCryptoContext(made)
    for feature in (fhe.PKE, fhe.KEYSWITCH, fhe.LEVELEDSHE, fhe.ADVANCEDSHE, fhe.MULTIPARTY):
        found.Enable(feature)
    return found


# Numbers


def plaintexts(context: Any, values: Sequence[float]) -> list[Any]:
    """Blocks of numbers from -1 to 1. Short vectors use few slots: that leaves them less noise."""
    if not values or not all(abs(value) <= 1 for value in values):
        raise Refused("values are numbers from -1 to 1, at least one: scale them")
    per = context.GetRingDimension() // 2
    slots = min(per, 1 << (len(values) - 1).bit_length())
    return [
        context.MakeCKKSPackedPlaintext(list(values[start : start + per]), 1, 0, None, slots)
        for start in range(0, len(values), per)
    ]


def numbers(context: Any, plaintexts: Sequence[Any], count: int) -> list[float]:
    """The first `count` numbers in the decrypted blocks."""
    found: list[float] = []
    for plaintext in plaintexts:
        here = min(count - len(found), context.GetRingDimension() // 2)
        if here > plaintext.GetSlots():
            raise Refused(f"there are not {count} numbers in what was decrypted")
        plaintext.SetLength(here)
        found += plaintext.GetRealPackedValue()
    return found


def fuse(context: Any, shares: Sequence[Sequence[Ciphertext]], count: int) -> list[float]:
    """The numbers, from all parties' decryption shares of each block, the lead's first."""
    return numbers(
        context, [context.MultipartyDecryptFusion(list(block)) for block in shares], count
    )


def compressed(context: Any, ciphertext: Ciphertext) -> Ciphertext:
    """For decryption, with one prime left: the flooding noise is too small to hide the others."""
    return context.Compress(ciphertext, 1)


# Refreshing: distributed bootstrapping


class Wanted(NamedTuple):
    """A refresh under way. The parties get `asked` and `common`; `kept` stays with the evaluator.

    `common` is random and public. A party must never answer two refreshes with the same one: their
    difference would be a decryption share.
    """

    asked: Ciphertext
    common: Ciphertext
    kept: Ciphertext


def want(context: Any, public: Any, ciphertext: Ciphertext) -> Wanted:
    """The evaluator begins: only the part that meets the secret key is shown to the parties."""
    kept = context.IntMPBootAdjustScale(ciphertext)
    asked = kept.Clone()
    asked.RemoveElement(0)
    return Wanted(asked, context.IntMPBootRandomElementGen(public), kept)


def part(
    context: Any, secret: Any, asked: Ciphertext, common: Ciphertext
) -> tuple[Ciphertext, Ciphertext]:
    """A party's part: decrypted under a mask of its own, and the mask encrypted."""
    decrypted, encrypted = context.IntMPBootDecrypt(secret, asked, common)
    return decrypted, encrypted


def refreshed(
    context: Any, public: Any, wanted: Wanted, parts: Sequence[tuple[Ciphertext, Ciphertext]]
) -> Ciphertext:
    """The evaluator ends: with all parties' parts the masks cancel, and all levels are back."""
    total = context.IntMPBootAdd([list(each) for each in parts])
    return context.IntMPBootEncrypt(public, total, wanted.common, wanted.kept)


# Division


@dataclass(frozen=True)
class Divisor:
    """Total counts, known to lie within low..high. Scaling puts them within 0..2, around 1."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high <= WIDEST * self.low < math.inf:
            raise Refused(
                f"totals to divide by must lie in a range above 0, and one is at most {WIDEST} "
                f"times another: {self.low}..{self.high}"
            )

    def scaled(self, values: Sequence[float]) -> list[float]:
        """What a party encrypts: its counts, and likewise the sums that are divided by them."""
        return [2 * value / (self.low + self.high) for value in values]

    @cached_property
    def iterations(self) -> int:
        """Goldschmidt's d: the relative error r**2**(d + 1), r = (high - low) / (high + low)."""
        r = (self.high - self.low) / (self.high + self.low)
        return next(d for d in counted() if r**2 ** (d + 1) <= QUOTIENT_ERROR)


def divide(
    context: Any, sums: Sequence[Ciphertext], counts: Sequence[Ciphertext], divisor: Divisor
) -> Refreshing:
    """Sums over counts, both scaled totals, by Goldschmidt's iteration.

    With b = 1 - count: sum / count = sum (1 + b)(1 + b^2)(1 + b^4)... It takes a level for each
    of the d + 1 factors; without a refresh d is at most 5.
    """
    b = [context.EvalSub(1.0, count) for count in counts]
    quotients = [
        _product(context, sum_, context.EvalAdd(each, 1.0))
        for sum_, each in zip(sums, b, strict=True)
    ]
    for left in range(divisor.iterations, 0, -1):
        b = [_square(context, each) for each in b]
        if _must_refresh(quotients[0], 1, left):
            fresh = yield quotients + b
            quotients, b = fresh[: len(quotients)], fresh[len(quotients) :]
        quotients = [
            _product(context, quotient, context.EvalAdd(each, 1.0))
            for quotient, each in zip(quotients, b, strict=True)
        ]
    return quotients


# Comparison


class Odd(NamedTuple):
    """An odd polynomial of degree 7: lead x (y - root)(y (y + b) + c), with y = x^2."""

    lead: float
    root: float
    b: float
    c: float

    @classmethod
    def of(cls, c1: float, c3: float, c5: float, c7: float) -> Odd:
        """Of c1 x + c3 x^3 + c5 x^5 + c7 x^7, where c7 / c1 is negative: so a root y is positive.

        >>> g = Odd.of(4589 / 1024, -16577 / 1024, 25614 / 1024, -12860 / 1024)
        >>> round(g.at(1.0) * 1024, 6)
        766.0
        """
        low, high = 0.0, 1.0 + max(abs(c1), abs(c3), abs(c5)) / abs(c7)
        for _ in range(100):
            middle = (low + high) / 2
            above = (c1 + middle * (c3 + middle * (c5 + middle * c7))) * c1 > 0
            low, high = (middle, high) if above else (low, middle)
        b = c5 / c7 + low
        return cls(c7, low, b, c3 / c7 + low * b)

    def at(self, x: float) -> float:
        y = x * x
        return self.lead * x * (y - self.root) * (y * (y + self.b) + self.c)

    def halved(self) -> Odd:
        return self._replace(lead=self.lead / 2)


#: f_3 and g_3 of Cheon, Kim, Kim: Efficient Homomorphic Comparison Methods with Optimal Complexity,
#: 2020. g brings what is small away from 0 fast, f brings it close to 1 or -1.
F = Odd.of(35 / 16, -35 / 16, 21 / 16, -5 / 16)
G = Odd.of(4589 / 1024, -16577 / 1024, 25614 / 1024, -12860 / 1024)
#: Levels that one of them takes.
ODD_LEVELS = 3


@dataclass(frozen=True)
class Threshold:
    """Whether the total of the parties' counts, each at most `least`, reaches `least`."""

    parties: int
    least: int

    @property
    def width(self) -> float:
        """Of the range above the threshold, the wider one: it is scaled to 1."""
        return self.parties * self.least - self.least + 0.5

    @property
    def shift(self) -> float:
        return (self.least - 0.5) / self.width

    def scaled(self, counts: Sequence[float]) -> list[float]:
        """What a party encrypts."""
        return [min(count, self.least) / self.width for count in counts]

    @cached_property
    def polynomials(self) -> list[Odd]:
        """The fewest g, then f, that bring every count's difference close enough to 1 or -1."""
        for composed in counted(2):
            for gs in range(composed):
                found = [G] * gs + [F] * (composed - gs)
                if self._error(found) <= MASK_ERROR:
                    return found
        raise AssertionError

    def _error(self, polynomials: Sequence[Odd]) -> float:
        """The mask's largest error over all counts."""
        worst = 0.0
        for count in range(self.parties * self.least + 1):
            x = (count - self.least + 0.5) / self.width
            sign = math.copysign(1.0, x)
            for polynomial in polynomials:
                x = polynomial.at(x)
            worst = max(worst, abs(x - sign) / 2)
        return worst


def reaching(context: Any, totals: Sequence[Ciphertext], threshold: Threshold) -> Refreshing:
    """A mask: 1 where the scaled total reaches the threshold, else 0; Compare of the paper."""
    differences = [context.EvalSub(total, threshold.shift) for total in totals]
    *firsts, last = threshold.polynomials
    polynomials = [*firsts, last.halved()]
    for done, polynomial in enumerate(polynomials):
        if _must_refresh(differences[0], ODD_LEVELS, len(polynomials) - done):
            differences = yield differences
        differences = [_evaluated(context, polynomial, each) for each in differences]
    return [context.EvalAdd(each, 0.5) for each in differences]


def rounded(mask: Sequence[float]) -> list[int]:
    """A decrypted mask as zeros and ones."""
    if not all(min(abs(value), abs(value - 1)) < 0.25 for value in mask):
        raise Refused("the mask makes no sense: counts must not exceed the threshold")
    return [int(value > 0.5) for value in mask]


def _evaluated(context: Any, polynomial: Odd, x: Ciphertext) -> Ciphertext:
    y = _square(context, x)
    first = _product(
        context, _product(context, x, polynomial.lead), context.EvalSub(y, polynomial.root)
    )
    second = _product(context, y, context.EvalAdd(y, polynomial.b))
    return _product(context, first, context.EvalAdd(second, polynomial.c))


# Levels


def _product(context: Any, one: Ciphertext, other: Ciphertext | float) -> Ciphertext:
    return context.Rescale(context.EvalMult(one, other))


def _square(context: Any, ciphertext: Ciphertext) -> Ciphertext:
    return context.Rescale(context.EvalSquare(ciphertext))


def _must_refresh(ciphertext: Ciphertext, levels: int, steps: int) -> bool:
    """Whether the `steps` to come, of so many levels each, do not fit, and one more is too many."""
    primes: int = DEPTH + 1 - ciphertext.GetLevel()
    return steps * levels >= primes and primes - levels < KEPT
