"""Times PrivTuna's operations and protocols under CKKS, with the parties as objects of one process.

    python -m agent.microbenchmark < job > report

Both are JSON, `Job` and `Report`. Everything that parties and evaluator tell each other is
serialised and parsed, and nobody is given another's secret. Times are of the processor, one thread.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import msgspec

from .approximate import (
    Divisor,
    Refreshing,
    Threshold,
    compressed,
    context,
    divide,
    fuse,
    parameters,
    part,
    plaintexts,
    reaching,
    refreshed,
    rounded,
    want,
)
from .library import library
from .schemes import dumped


class Mean(msgspec.Struct):
    """Sums and counts by party, and the range of the total counts."""

    sums: list[list[float]]
    counts: list[list[float]]
    low: float
    high: float


class Density(msgspec.Struct):
    """Counts of cells by party, their threshold, and the sums and counts of the second round."""

    cells: list[list[float]]
    least: int
    clusters: Mean


class Job(msgspec.Struct):
    """Operations are timed `repeats` times; the protocols run once each, with keys of their own."""

    parties: int
    repeats: int
    mean: Mean
    density: Density


class Run(msgspec.Struct):
    """A protocol's seconds by stage, the bytes that the lead sent by stage, and its results."""

    seconds: dict[str, float]
    sent: dict[str, int]
    values: list[float]
    mask: list[int]


class Report(msgspec.Struct):
    """Milliseconds of each operation, a list of repetitions; bytes of what travels."""

    openfhe: str
    operations: dict[str, list[float]]
    bytes: dict[str, int]
    mean: Run
    density: Run


class Clock:
    """Processor seconds by name."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begun = time.process_time()
        yield
        self.spent[name].append(time.process_time() - begun)


class Parties:
    """All parties with their secrets, and the evaluator with none, after agreeing on keys."""

    def __init__(self, count: int) -> None:
        self.context = context(parameters(count))
        self.clock = Clock()
        self.sent: dict[str, int] = defaultdict(int)
        self.bytes: dict[str, int] = {}
        with self.clock("pk"):
            self._agree(count)
        with self.clock("ek"):
            self._relinearise()

    def _agree(self, count: int) -> None:
        with self.clock("SecKeyGen"):
            keys = [self.context.KeyGen()]
        lead = self._sent("public key", keys[0].publicKey, "keys")
        joint = self._got("public key", lead)
        tag = joint.GetKeyTag()
        for _ in range(count - 1):
            first = self._got("public key", lead)
            keys.append(self.context.MultipartyKeyGen(first, False, True))
            joint = self.context.MultiAddPubKeys(
                joint, self._told("public key", keys[-1].publicKey), tag
            )
        self._secrets = [each.secretKey for each in keys]
        told = self._sent("public key", joint)
        for _ in keys:  # every party reads it
            self.public = self._got("public key", told)

    def _relinearise(self) -> None:
        tag, lead = self.public.GetKeyTag(), self._secrets[0]
        first = self._sent("evaluation key", self.context.KeySwitchGen(lead, lead), "keys")
        joined = self._got("evaluation key", first)
        for secret in self._secrets[1:]:
            begun = self._got("evaluation key", first)
            made = self.context.MultiKeySwitchGen(secret, secret, begun)
            joined = self.context.MultiAddEvalKeys(joined, self._told("evaluation key", made), tag)
        both = self._sent("evaluation key", joined)
        total = None
        for secret in self._secrets:
            made = self.context.MultiMultEvalKey(secret, self._got("evaluation key", both), tag)
            told = self._told("evaluation key", made, "keys" if total is None else "")
            total = told if total is None else self.context.MultiAddEvalMultKeys(total, told, tag)
        self.context.InsertEvalMultKey([total])

    def _told(self, what: str, made: Any, stage: str = "") -> Any:
        """As it arrives at the other side."""
        return self._got(what, self._sent(what, made, stage))

    def _sent(self, what: str, made: Any, stage: str = "") -> bytes:
        """On its way; with a stage it is counted, as the lead's."""
        data = dumped(made)
        self.bytes[what] = len(data)
        if stage:
            self.sent[stage] += len(data)
        return data

    def _got(self, what: str, data: bytes) -> Any:
        fhe = library()
        if what == "public key":
            return fhe.DeserializePublicKeyString(data, fhe.BINARY)
        if what == "evaluation key":
            return fhe.DeserializeEvalKeyString(data, fhe.BINARY)
        return fhe.DeserializeCiphertextString(data, fhe.BINARY)

    def encrypted(self, values: Sequence[float]) -> list[Any]:
        return [
            self.context.Encrypt(self.public, each) for each in plaintexts(self.context, values)
        ]

    def totals(self, values: Sequence[Sequence[float]]) -> list[Any]:
        """Each party encrypts its values, the evaluator adds."""
        found: list[Any] = []
        for party, own in enumerate(values):
            made = self.encrypted(own)
            told = [self._told("ciphertext", each, "" if party else "ciphertexts") for each in made]
            pairs = zip(found, told, strict=True)
            found = [self.context.EvalAdd(one, other) for one, other in pairs] if party else told
        return found

    def finished(self, refreshing: Refreshing) -> list[Any]:
        """The result of a computation, with all the refreshes that it wants."""
        try:
            wanted = next(refreshing)
            while True:
                wanted = refreshing.send([self.refreshed(each) for each in wanted])
        except StopIteration as ended:
            found: list[Any] = ended.value
            return found

    def refreshed(self, ciphertext: Any) -> Any:
        wanted = want(self.context, self.public, ciphertext)
        asked = self._sent("ciphertext to refresh", wanted.asked)
        common = self._sent("common element", wanted.common)
        parts = []
        for party, secret in enumerate(self._secrets):
            made = part(self.context, secret, self._got("", asked), self._got("", common))
            stage = "" if party else "refreshes"
            one = self._told("part of a refresh, decrypted", made[0], stage)
            other = self._told("part of a refresh, encrypted", made[1], stage)
            parts.append((one, other))
        return refreshed(self.context, self.public, wanted, parts)

    def decrypted(self, ciphertexts: Sequence[Any], count: int) -> list[float]:
        blocks = []
        for ciphertext in ciphertexts:
            asked = self._sent("ciphertext to decrypt", compressed(self.context, ciphertext))
            shares = []
            for party, secret in enumerate(self._secrets):
                share = self.context.MultipartyDecryptMain
                if not party:
                    share = self.context.MultipartyDecryptLead
                made = share([self._got("", asked)], secret)[0]
                shares.append(
                    self._told("decryption share", made, "" if party else "decryption shares")
                )
            blocks.append(shares)
        with self.clock("fusion"):
            return fuse(self.context, blocks, count)

    def quotients(self, mean: Mean) -> list[float]:
        """Both rounds' last step: totals, their quotients, decrypted."""
        divisor = Divisor(mean.low, mean.high)
        with self.clock("totals"):
            sums = self.totals([divisor.scaled(own) for own in mean.sums])
            counts = self.totals([divisor.scaled(own) for own in mean.counts])
        with self.clock("Divide"):
            found = self.finished(divide(self.context, sums, counts, divisor))
        with self.clock("DDecrypt"):
            return self.decrypted(found, len(mean.sums[0]))

    def mask(self, density: Density) -> list[int]:
        threshold = Threshold(len(self._secrets), density.least)
        with self.clock("totals"):
            totals = self.totals([threshold.scaled(own) for own in density.cells])
        with self.clock("Compare"):
            found = self.finished(reaching(self.context, totals, threshold))
        with self.clock("DDecrypt"):
            return rounded(self.decrypted(found, len(density.cells[0])))

    def run(self, values: list[float], mask: list[int]) -> Run:
        stages = ("pk", "ek", "totals", "Compare", "Divide", "DDecrypt")
        seconds = {name: sum(self.clock.spent[name]) for name in stages}
        return Run(seconds, dict(self.sent), values, mask)


def operations(job: Job) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Milliseconds of the rows of Tables II and III."""
    clock, scaled = Clock(), Threshold(job.parties, job.density.least).scaled
    for _ in range(job.repeats):
        parties = Parties(job.parties)
        for name in ("SecKeyGen", "pk", "ek"):
            clock.spent[name] += parties.clock.spent[name]
        first, second = map(scaled, job.density.cells[:2])
        with clock("Encrypt"):
            one = parties.encrypted(first)[0]
        other = parties.encrypted(second)[0]
        with clock("Add"):
            parties.context.EvalAdd(one, other)
        with clock("Mul_ct"):
            parties.context.Rescale(parties.context.EvalMult(one, other))
        with clock("DBootstrap (initialization)"):
            want(parties.context, parties.public, one)
        with clock("DBootstrap (whole)"):
            parties.refreshed(one)
        parties.quotients(job.mean)
        parties.mask(job.density)
        for name in ("Divide", "Compare", "DDecrypt", "fusion"):
            clock.spent[name] += parties.clock.spent[name]
        library().ClearEvalMultKeys()
    return {name: [1000 * each for each in spent] for name, spent in clock.spent.items()}, (
        parties.bytes
    )


def measure(job: Job) -> Report:
    """Everything that the job asks for."""
    library().DisablePrecomputeCRTTablesAfterDeserializaton()  # the contexts are here already
    spent, sizes = operations(job)
    first = Parties(job.parties)
    mean = first.run(first.quotients(job.mean), [])
    second = Parties(job.parties)
    mask = second.mask(job.density)
    density = second.run(second.quotients(job.density.clusters), mask)
    return Report(version("openfhe"), spent, sizes, mean, density)


if __name__ == "__main__":
    report = measure(msgspec.json.decode(sys.stdin.buffer.read(), type=Job))
    sys.stdout.buffer.write(msgspec.json.encode(report))
