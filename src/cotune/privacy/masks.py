"""Masks that cancel in a total: one stream of random numbers for every pair of parties.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017,
without its second, secret-shared masks: they protect from a coordinator that pretends that a party
is gone. Here the coordinator is trusted not to; `encrypted` sums need no such trust.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from cotune.errors import Malformed

#: Bytes of a public key, and of the key of a pair's stream.
KEY = 32


def name_of(roster: Mapping[str, bytes]) -> str:
    """Names an agreement: the same roster of public keys, the same name."""
    digest = hashlib.blake2b(digest_size=12)
    for party, key in sorted(roster.items()):
        digest.update(len(party).to_bytes(4, "big") + party.encode() + key)
    return digest.hexdigest()


class Pairs:
    """What one party shares with each other one: a secret, and from it a stream for each sum."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own = X25519PrivateKey.generate()
        self._secrets: dict[str, bytes] = {}
        self.public = self._own.public_key().public_bytes_raw()

    def meet(self, roster: Mapping[str, bytes]) -> None:
        """Agree on a secret with everyone of the roster, which must name this party rightly."""
        if roster.get(self._name) != self.public:
            raise Malformed("the roster of public keys does not have this party's own key")
        try:
            self._secrets = {
                other: self._own.exchange(X25519PublicKey.from_public_bytes(key))
                for other, key in roster.items()
                if other != self._name
            }
        except ValueError as error:  # of another length, or a point of small order
            raise Malformed("the roster has a public key that is none") from error

    def knows(self, others: Iterable[str]) -> bool:
        return set(others) - {self._name} <= self._secrets.keys()

    def stream_key(self, other: str, label: str) -> bytes:
        """The key of the stream that this pair uses for this sum, and for no other."""
        derived = HKDF(SHA256(), KEY, salt=None, info=f"cotune mask {label}".encode())
        return derived.derive(self._secrets[other])

    def mask(self, digits: np.ndarray, among: Iterable[str], label: str) -> np.ndarray:
        """The digits (int64) plus this party's masks: uniformly random for whoever lacks one."""
        masked = digits.astype(np.int64).view(np.uint64).copy()
        for other in among:
            if other != self._name:
                stream = signed(self._name, other, self.stream_key(other, label), len(digits))
                masked += stream
        return masked


def signed(adds: str, other: str, key: bytes, length: int) -> np.ndarray:
    """What the party `adds` adds for its pair with `other`: one of the two adds the negative."""
    numbers = stream(key, length)
    return numbers if adds < other else np.negative(numbers)


def stream(key: bytes, length: int) -> np.ndarray:
    """Random numbers below 2**64, by ChaCha20."""
    encryptor = Cipher(algorithms.ChaCha20(key, b"\0" * 16), mode=None).encryptor()
    return np.frombuffer(encryptor.update(b"\0" * (8 * length)), dtype="<u8")
