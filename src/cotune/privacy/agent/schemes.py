"""The schemes: their parameters, and how numbers become plaintexts and totals numbers again.

All have a secret key that is the sum of the parties' shares, and ciphertexts of 128 bits classical
security. The exact ones are BFV, with decryption shares flooded with noise of two 60-bit primes
(`NOISE_FLOODING_MULTIPARTY`). The approximate ones are CKKS, whose decryption shares are flooded
with far less: what these reveal is hidden by some bits only, see `approximate.py`.
"""

from __future__ import annotations

import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, ClassVar

from . import approximate
from .approximate import Refreshing
from .envelope import Kind, Opened, Refused
from .library import library
from .messages import Scheme

#: A prime, 1 modulo 2 * 8192: the largest for which 200 parties still fit ring dimension 8192.
SUM_MODULUS = 536690689
#: The smallest prime with a slot for each of 16384 coefficients; reciprocal of a mask's error.
MASK_MODULUS = 65537
MOST_PARTIES = 200
MOST_BITS = 56
GREATEST_LEAST = 8


class Kit(ABC):
    """A scheme at work. `context` is OpenFHE's, `decrypted` the kind that may be decrypted."""

    context: Any
    decrypted: ClassVar[Kind]

    @abstractmethod
    def __init__(self, scheme: Scheme) -> None:
        """Refuses parameters out of range."""

    @abstractmethod
    def plaintexts(self, values: bytes) -> list[Any]:
        """What a party encrypts."""

    @abstractmethod
    def positions(self, count: int) -> int:
        """How many ciphertexts are decrypted for so many numbers."""

    @abstractmethod
    def values(self, plaintexts: list[Any], count: int) -> bytes:
        """The numbers in what was decrypted."""

    @cached_property
    def key_bytes(self) -> int:
        """Of a public key; ciphertexts have as many, or fewer."""
        return len(dumped(self.context.KeyGen().publicKey))

    def most_bytes(self, kind: Kind) -> int:
        """Of a key or ciphertext, at most: six of a public key are in one for relinearisation."""
        keys = 8 if Kind.LEAD_SWITCH <= kind <= Kind.RELINEARISATION else 1
        return keys * self.key_bytes + 4096

    def reaching(self, totals: list[Any], least: int) -> Refreshing:
        """Results of `Reaching`; the relinearisation key is in place."""
        raise Refused("this session cannot compare: open one with the scheme 'mask' or 'density'")

    def divide(
        self, sums: list[Any], counts: list[Any], divisor: approximate.Divisor
    ) -> Refreshing:
        """Results of `Divide`; the relinearisation key is in place."""
        raise Refused("this session cannot divide: open one with the scheme 'mean'")

    def part(self, secret: Any, asked: Any, common: Any) -> tuple[Any, Any]:
        """A party's part in a refresh."""
        raise Refused("in this session nothing is refreshed")

    def reduced(self, ciphertext: Any) -> Any:
        """As it is decrypted."""
        return ciphertext


class Sum(Kit):
    """Totals of signed integers. Each is split into digits whose totals stay below the modulus.

    With N parties and modulus t a digit has w bits, 2**w <= (t - 1) / N: it lies within
    -2**(w-1)..2**(w-1), so N of them lie within -(t-1)/2..(t-1)/2.
    """

    decrypted = Kind.TOTAL

    def __init__(self, scheme: Scheme) -> None:
        _check_parties(scheme)
        if not 1 <= scheme.bits <= MOST_BITS:
            raise Refused(f"bits must be 1 to {MOST_BITS}, not {scheme.bits}")
        if scheme.parties << scheme.bits > 1 << 63:
            raise Refused(
                f"totals of {scheme.parties} parties with {scheme.bits} bits do not fit 64 bits: "
                "use fewer bits"
            )
        self.bits = scheme.bits
        self.width = ((SUM_MODULUS - 1) // scheme.parties).bit_length() - 1
        self.digits = -(-(scheme.bits + 1) // self.width)
        self.context = context(SUM_MODULUS, 0, scheme.parties)
        self.per: int = self.context.GetRingDimension() // self.digits

    def plaintexts(self, values: bytes) -> list[Any]:
        numbers = integers(values)
        if max(map(abs, numbers)) >= 1 << self.bits:
            raise Refused(f"a value does not fit {self.bits} bits: clip it, or open with more bits")
        return [
            self.context.MakePackedPlaintext(self._slots(numbers[start : start + self.per]))
            for start in range(0, len(numbers), self.per)
        ]

    def positions(self, count: int) -> int:
        return -(-count // self.per)

    def values(self, plaintexts: list[Any], count: int) -> bytes:
        totals: list[int] = []
        for plaintext in plaintexts:
            here = min(self.per, count - len(totals))
            slots = plaintext.GetPackedValue()
            digits = [slots[d * here : (d + 1) * here] for d in range(self.digits)]
            totals += [
                sum(digit << (self.width * d) for d, digit in enumerate(one))
                for one in zip(*digits, strict=True)
            ]
        if max(map(abs, totals)) >= 1 << 63:
            raise Refused("the totals make no sense: the shares are not of one total")
        return struct.pack(f"<{count}q", *totals)

    def _slots(self, numbers: tuple[int, ...]) -> list[int]:
        """The lowest digits of all numbers, then the next ones; the last digit takes what is left.

        The digits are balanced: rounding to nearest keeps each within half of 2**width.
        """
        half, mask = 1 << (self.width - 1), (1 << self.width) - 1
        slots: list[int] = []
        left = list(numbers)
        for _ in range(self.digits - 1):
            slots += [((number + half) & mask) - half for number in left]
            left = [(number + half) >> self.width for number in left]
        return slots + left


class Mask(Kit):
    """Which totals of counts reach a threshold, and nothing else about them.

    Decrypted is r * q(x), q(x) = x (x-1) ... (x-least+1) and r the total of random numbers of all
    parties: zero below the threshold, uniform from there on. r is zero once in 65537, so everything
    is there twice and the chance of missing a cell is 2**-32.
    """

    decrypted = Kind.RESULT

    def __init__(self, scheme: Scheme) -> None:
        _check_parties(scheme)
        _check_least(scheme)
        self.least = scheme.least
        self.most = (MASK_MODULUS - 1) // scheme.parties
        # r * q(x) has degree least + 1; a product of d levels has degree 2**d.
        self.context = context(MASK_MODULUS, scheme.least.bit_length(), scheme.parties)
        self.per: int = self.context.GetRingDimension() // 2

    def plaintexts(self, values: bytes) -> list[Any]:
        """For each block of counts: the counts twice, then random numbers."""
        counts = integers(values)
        if min(counts) < 0 or max(counts) > self.most:
            raise Refused(f"counts must be 0 to {self.most}: clip them at the threshold")
        found = []
        for start in range(0, len(counts), self.per):
            block = list(counts[start : start + self.per])
            twice = block + [0] * (self.per - len(block)) + block
            found += [twice, _uniform(2 * self.per)]
        return [self.context.MakePackedPlaintext(slots) for slots in found]

    def positions(self, count: int) -> int:
        return -(-count // self.per)

    def values(self, plaintexts: list[Any], count: int) -> bytes:
        reached: list[int] = []
        for plaintext in plaintexts:
            slots = plaintext.GetPackedValue()
            pairs = zip(slots[: self.per], slots[self.per :], strict=True)
            reached += [int(one != 0 or other != 0) for one, other in pairs]
        return struct.pack(f"<{count}q", *reached[:count])

    def reaching(self, totals: list[Any], least: int) -> Refreshing:
        _check_asked(least, self.least)
        if len(totals) % 2:
            raise Refused("totals come in pairs: counts, and the random numbers for them")
        pairs = zip(totals[::2], totals[1::2], strict=True)
        yield from ()  # nothing has to be refreshed
        return [self._product(count, randoms, least) for count, randoms in pairs]

    def _product(self, count: Any, randoms: Any, least: int) -> Any:
        """r * q(x) from u = x (x - least + 1): the factors pair up to u + i (least - 1 - i)."""
        multiply = self.context.EvalMult
        factors = [randoms]
        if least % 2:
            factors = [multiply(randoms, self._plus(count, -(least // 2)))]
        if least > 1:
            u = multiply(count, self._plus(count, 1 - least))
            factors += [self._plus(u, i * (least - 1 - i)) for i in range(least // 2)]
        while len(factors) > 1:
            pairs = zip(factors[::2], factors[1::2], strict=False)
            odd = factors[len(factors) & ~1 :]
            factors = [multiply(one, other) for one, other in pairs] + odd
        return factors[0]

    def _plus(self, ciphertext: Any, number: int) -> Any:
        if not number:
            return ciphertext
        constant = self.context.MakePackedPlaintext([number] * self.context.GetRingDimension())
        return self.context.EvalAdd(ciphertext, constant)


class Approximate(Kit):
    """Real numbers with noise. Totals are not decrypted, only what was computed from them."""

    decrypted = Kind.RESULT

    def __init__(self, scheme: Scheme) -> None:
        _check_parties(scheme)
        self.context = approximate.context(approximate.parameters(scheme.parties))
        self.per: int = self.context.GetRingDimension() // 2

    def plaintexts(self, values: bytes) -> list[Any]:
        return approximate.plaintexts(self.context, reals(values))

    def positions(self, count: int) -> int:
        return -(-count // self.per)

    def values(self, plaintexts: list[Any], count: int) -> bytes:
        return _packed(approximate.numbers(self.context, plaintexts, count))

    def part(self, secret: Any, asked: Any, common: Any) -> tuple[Any, Any]:
        return approximate.part(self.context, secret, asked, common)

    def reduced(self, ciphertext: Any) -> Any:
        return approximate.compressed(self.context, ciphertext)


class Mean(Approximate):
    """Totals of sums over totals of counts, both scaled by the parties (`Divisor.scaled`)."""

    def divide(
        self, sums: list[Any], counts: list[Any], divisor: approximate.Divisor
    ) -> Refreshing:
        return approximate.divide(self.context, sums, counts, divisor)


class Density(Approximate):
    """Which totals of counts reach a threshold; the parties scale them (`Threshold.scaled`)."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__(scheme)
        _check_least(scheme)
        self.parties, self.least = scheme.parties, scheme.least

    def values(self, plaintexts: list[Any], count: int) -> bytes:
        mask = approximate.numbers(self.context, plaintexts, count)
        return _packed(approximate.rounded(mask))

    def reaching(self, totals: list[Any], least: int) -> Refreshing:
        _check_asked(least, self.least)
        threshold = approximate.Threshold(self.parties, least)
        return approximate.reaching(self.context, totals, threshold)


#: Of a scheme's name.
KITS: dict[str, type[Kit]] = {"sum": Sum, "mask": Mask, "mean": Mean, "density": Density}


@cache
def kit(scheme: Scheme) -> Kit:
    """The scheme at work; made once for all sessions."""
    return KITS[scheme.name](scheme)


@cache
def context(modulus: int, depth: int, parties: int) -> Any:
    """A BFV context. BV key switching: no further primes, so the ring need not be larger."""
    fhe = library()
    parameters = fhe.CCParamsBFVRNS()
    parameters.SetPlaintextModulus(modulus)
    parameters.SetMultiplicativeDepth(depth)
    if not depth:  # OpenFHE takes the one or the other into account
        parameters.SetEvalAddCount(parties)
    parameters.SetKeySwitchTechnique(fhe.BV)
    parameters.SetMultipartyMode(fhe.NOISE_FLOODING_MULTIPARTY)
    parameters.SetThresholdNumOfParties(parties)
    parameters.SetSecurityLevel(fhe.HEStd_128_classic)
    made = fhe.GenCryptoContext(parameters)
    for feature in (fhe.PKE, fhe.KEYSWITCH, fhe.LEVELEDSHE, fhe.ADVANCEDSHE, fhe.MULTIPARTY):
        made.Enable(feature)
    return made


def dumped(made: Any) -> bytes:
    """A key or ciphertext as bytes. Never called with a private key."""
    fhe = library()
    return bytes(fhe.Serialize(made, fhe.BINARY))


def loaded(opened: Opened, tools: Kit) -> Any:
    """The key or ciphertext in an envelope."""
    fhe = library()
    most = tools.most_bytes(opened.kind)
    if len(opened.payload) > most:
        raise Refused(f"it has {len(opened.payload)} bytes, and can have {most}")
    if opened.kind <= Kind.JOINT_KEY:
        load = fhe.DeserializePublicKeyString
    elif opened.kind <= Kind.RELINEARISATION:
        return fhe.DeserializeEvalKeyString(opened.payload, fhe.BINARY)
    else:
        load = fhe.DeserializeCiphertextString
    made = load(opened.payload, fhe.BINARY)
    if made.GetCryptoContext() is not tools.context:
        raise Refused("it was made with other parameters than this session's")
    return made


def integers(values: bytes) -> tuple[int, ...]:
    """At least one int64, little-endian."""
    return _unpacked(values, "q")


def reals(values: bytes) -> tuple[float, ...]:
    """At least one float64, little-endian."""
    return _unpacked(values, "d")


def _unpacked(values: bytes, code: str) -> tuple[Any, ...]:
    if not values or len(values) % 8:
        raise Refused(f"values are 8 bytes each, at least one; {len(values)} bytes came")
    return struct.unpack(f"<{len(values) // 8}{code}", values)


def _packed(numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


def _check_parties(scheme: Scheme) -> None:
    if not 2 <= scheme.parties <= MOST_PARTIES:
        raise Refused(f"parties must be 2 to {MOST_PARTIES}, not {scheme.parties}")


def _check_least(scheme: Scheme) -> None:
    if not 1 <= scheme.least <= GREATEST_LEAST:
        raise Refused(f"least must be 1 to {GREATEST_LEAST}, not {scheme.least}")


def _check_asked(least: int, greatest: int) -> None:
    if not 1 <= least <= greatest:
        raise Refused(f"least must be 1 to {greatest}, as the session was opened")


def _uniform(count: int) -> list[int]:
    """Random numbers of the mask's whole range, from the operating system; bias below 2**-47."""
    drawn = struct.unpack(f"<{count}Q", os.urandom(8 * count))
    return [number % MASK_MODULUS - MASK_MODULUS // 2 for number in drawn]
