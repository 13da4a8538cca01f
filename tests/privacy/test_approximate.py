"""Division and comparison under CKKS: the approximations, their levels, and real ciphertexts."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.privacy.agent.approximate import (
    DEPTH,
    KEPT,
    MASK_ERROR,
    QUOTIENT_ERROR,
    Divisor,
    F,
    G,
    Odd,
    Threshold,
    divide,
    parameters,
    reaching,
    rounded,
)
from cotune.privacy.agent.envelope import Refused
from cotune.privacy.client import HOME, environment
from cotune.privacy.doctor import diagnose
from tests.privacy.agents import ready

# Arithmetic without encryption, which counts the levels


@dataclass(frozen=True)
class Clear:
    """Stands for a ciphertext. It has `DEPTH + 1` primes at level 0, and must keep one."""

    values: np.ndarray
    level: int = 0
    squared_scale: bool = False

    def __post_init__(self) -> None:
        assert self.level <= DEPTH, "no levels left"

    def GetLevel(self) -> int:  # noqa: N802
        return self.level


class ClearContext:
    """The operations of OpenFHE that are used, on numbers in the clear."""

    def EvalAdd(self, one, other):  # noqa: N802
        assert not one.squared_scale
        return Clear(one.values + other, one.level)

    def EvalSub(self, one, other):  # noqa: N802
        if isinstance(one, Clear):
            return self.EvalAdd(one, -other)
        return Clear(one - other.values, other.level)

    def EvalMult(self, one, other):  # noqa: N802
        if not isinstance(other, Clear):
            return Clear(one.values * other, one.level, True)
        assert not one.squared_scale
        assert not other.squared_scale
        return Clear(one.values * other.values, max(one.level, other.level), True)

    def EvalSquare(self, one):  # noqa: N802
        return self.EvalMult(one, one)

    def Rescale(self, one):  # noqa: N802
        assert one.squared_scale
        return Clear(one.values, one.level + 1)


def finished(refreshing):
    """The result and how many ciphertexts were refreshed, each with enough primes left."""
    refreshes = 0
    try:
        wanted = next(refreshing)
        while True:
            assert all(DEPTH + 1 - each.level >= KEPT for each in wanted)
            refreshes += len(wanted)
            wanted = refreshing.send([Clear(each.values) for each in wanted])
    except StopIteration as ended:
        return ended.value, refreshes


def masked(parties: int, least: int):
    threshold = Threshold(parties, least)
    counts = np.arange(parties * least + 1)
    shares = [np.clip(counts - party * least, 0, least) for party in range(parties)]
    total = np.sum([threshold.scaled(share.tolist()) for share in shares], axis=0)
    (mask,), refreshes = finished(reaching(ClearContext(), [Clear(total)], threshold))
    return counts, mask.values, refreshes


@given(st.integers(2, 100), st.integers(1, 8))
def test_every_count_is_on_the_right_side_of_the_threshold(parties, least):
    counts, mask, _ = masked(parties, least)
    assert np.abs(mask - (counts >= least)).max() <= 2 * MASK_ERROR
    assert rounded(mask.tolist()) == [int(count >= least) for count in counts]


@pytest.mark.parametrize(("parties", "refreshes"), [(3, 3), (10, 4), (20, 4)])
def test_the_last_two_polynomials_share_a_refresh(parties, refreshes):
    assert len(Threshold(parties, 4).polynomials) == refreshes + 2
    assert masked(parties, 4)[2] == refreshes


@given(st.floats(0.5, 50), st.floats(1, 100), st.integers(0, 2**32 - 1))
def test_quotients_are_close_over_the_whole_range(low, ratio, seed):
    divisor = Divisor(low, low * ratio)
    random = np.random.default_rng(seed)
    counts = np.concatenate([[low, low * ratio], random.uniform(low, low * ratio, 20)])
    sums = random.uniform(-1, 1, 22) * counts
    scaled = (Clear(np.array(divisor.scaled(each.tolist()))) for each in (sums, counts))
    (found,), _ = finished(divide(ClearContext(), [next(scaled)], [next(scaled)], divisor))
    assert np.abs(found.values - sums / counts).max() <= 2 * QUOTIENT_ERROR


@pytest.mark.parametrize(
    ("low", "high", "refreshes"), [(10, 100, 0), (20, 200, 0), (4, 100, 2), (4, 200, 2)]
)
def test_a_federated_mean_needs_no_refresh(low, high, refreshes):
    one = [Clear(np.ones(1))]
    assert finished(divide(ClearContext(), one, one, Divisor(low, high)))[1] == refreshes


def test_several_blocks_are_refreshed_together():
    wanted = next(divide(ClearContext(), [Clear(np.ones(1))] * 3, [Clear(np.ones(1))] * 3,
                         Divisor(4, 200)))  # fmt: skip
    assert len(wanted) == 6


@given(st.floats(-1, 1))
def test_the_factored_polynomials_are_those_of_the_paper(x):
    f = (35 * x - 35 * x**3 + 21 * x**5 - 5 * x**7) / 16
    g = (4589 * x - 16577 * x**3 + 25614 * x**5 - 12860 * x**7) / 1024
    assert pytest.approx(f, abs=1e-12) == F.at(x)
    assert pytest.approx(g, abs=1e-12) == G.at(x)


def test_a_polynomial_is_found_again_from_its_coefficients():
    odd = Odd.of(3.0, -2.0, 1.0, -4.0)
    assert odd.at(0.5) == pytest.approx(1.5 - 0.25 + 1 / 32 - 4 / 128)
    assert odd.halved().at(0.5) == odd.at(0.5) / 2


def test_the_rings_are_those_of_the_paper():
    assert parameters(10).ring == 2**14
    assert parameters(20).ring == 2**15


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 1), (2, 1), (float("nan"), 1)])
def test_a_range_that_is_none_is_refused(low, high):
    with pytest.raises(Refused, match="a range above 0"):
        Divisor(low, high)


@pytest.mark.parametrize("value", [0.5, -0.4, 1.3, float("nan")])
def test_a_mask_of_other_values_is_refused(value):
    with pytest.raises(Refused, match="makes no sense"):
        rounded([0.0, 1.0, value])


# Real ciphertexts: three parties as objects, in the agent's interpreter

SCRIPT = """
import json
from agent.approximate import Refused, compressed, fuse, plaintexts
from agent.microbenchmark import Density, Mean, Parties
from agent.schemes import dumped, library

library().DisablePrecomputeCRTTablesAfterDeserializaton()
parties = Parties(3)
counts = range(13)
cells = [[float(min(max(count - 4 * party, 0), 4)) for count in counts] for party in range(3)]
found = {"mask": parties.mask(Density(cells, 4, None))}
found["mean"] = parties.quotients(Mean([[0.5, 1.0]] * 3, [[1.0, 10.0]] * 3, 3, 30))
found["wide"] = parties.quotients(Mean([[0.5, 50.0]] * 3, [[1.0, 60.0]] * 3, 3, 180))

(total,) = parties.totals([[0.25]] * 3)
asked = compressed(parties.context, total)
lead = parties.context.MultipartyDecryptLead([asked], parties._secrets[0])
main = [parties.context.MultipartyDecryptMain([asked], each) for each in parties._secrets[1:]]
try:
    found["two of three"] = fuse(parties.context, [[lead[0], main[0][0]]], 1)[0]
except RuntimeError:
    found["two of three"] = None
for name, values in (("empty", []), ("large", [1.5]), ("none", [float("nan")])):
    try:
        plaintexts(parties.context, values)
    except Refused as error:
        found[name] = str(error)

fhe, sent = library(), []
class Watching(Parties):
    def _sent(self, what, made, stage=""):
        sent.append(dumped(made))
        return super()._sent(what, made, stage)
watched = Watching(2)
watched.mask(Density([[1.0], [1.0]], 2, None))
found["private keys"] = 0
for data in sent:
    try:
        found["private keys"] += bool(fhe.DeserializePrivateKeyString(data, fhe.BINARY))
    except RuntimeError:
        pass
found["messages"] = len(sent)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    """What the script prints."""
    ended = subprocess.run(
        [str(diagnose().python), "-c", SCRIPT],
        capture_output=True, text=True, env=environment(), cwd=HOME, check=False,
    )  # fmt: skip
    assert not ended.returncode, ended.stderr
    return json.loads(ended.stdout)


@ready
def test_the_decrypted_mask_is_right_for_every_count(found):
    assert found["mask"] == [0] * 4 + [1] * 9


@ready
def test_decrypted_means_are_close(found):
    assert found["mean"] == pytest.approx([0.5, 0.1], abs=1e-4)
    assert found["wide"] == pytest.approx([0.5, 5 / 6], abs=1e-4)


@ready
def test_two_of_three_shares_do_not_decrypt(found):
    assert found["two of three"] is None or abs(found["two of three"] - 0.75) > 1


@ready
def test_no_message_is_a_private_key(found):
    assert found["private keys"] == 0
    assert found["messages"] > 10


@ready
@pytest.mark.parametrize("name", ["empty", "large", "none"])
def test_values_out_of_range_are_refused(found, name):
    assert "from -1 to 1" in found[name]
