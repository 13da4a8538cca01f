"""Division and comparison by the key agent: three parties, real ciphertexts, refreshes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from cotune.errors import Malformed
from cotune.privacy.agent.approximate import Divisor, Threshold
from cotune.privacy.agent.envelope import Kind, Seal
from cotune.privacy.agent.messages import (
    Add,
    Adopt,
    Decrypt,
    Divide,
    Encrypt,
    Fuse,
    Generate,
    JoinKeys,
    JoinRelinearisations,
    JoinSwitches,
    Open,
    Reaching,
    Refresh,
    Refreshed,
    Relinearise,
    Scheme,
    Several,
    Switch,
    Wanting,
)
from cotune.privacy.client import Agent
from cotune.privacy.doctor import diagnose
from tests.privacy.agents import ready

pytestmark = ready

HOLDERS = ("party 0", "party 1", "party 2")
MEAN = Scheme("mean", 3)
DENSITY = Scheme("density", 3, least=4)
#: Divided without a refresh, and with one.
NARROW, WIDE = Divisor(3, 30), Divisor(3, 180)
COUNTS = range(13)


class Parties:
    """All holders of a session in one agent, after they agreed on keys."""

    def __init__(self, agent: Agent, session: str, scheme: Scheme) -> None:
        self.agent, self.session = agent, session
        lead, *others = HOLDERS
        first = agent.ask(Generate(lead, session, scheme)).made
        rest = [agent.ask(Generate(other, session, scheme, first)).made for other in others]
        agent.ask(Open(session, scheme))
        self.public = agent.ask(JoinKeys(session, (first, *rest))).made
        for holder in HOLDERS:
            agent.ask(Adopt(holder, session, self.public))
        first = agent.ask(Switch(lead, session)).made
        rest = [agent.ask(Switch(other, session, first)).made for other in others]
        joined = agent.ask(JoinSwitches(session, (first, *rest))).made
        parts = tuple(agent.ask(Relinearise(one, session, joined)).made for one in HOLDERS)
        agent.ask(JoinRelinearisations(session, parts))

    def encrypted(self, holder: str, values: Sequence[float]) -> tuple[bytes, ...]:
        packed = struct.pack(f"<{len(values)}d", *values)
        return self.agent.ask(Encrypt(holder, self.session, packed)).made

    def totals(self, told: Sequence[Sequence[float]]) -> tuple[bytes, ...]:
        summands = tuple(map(self.encrypted, HOLDERS, told))
        return self.agent.ask(Add(self.session, summands)).made

    def divide(self, sums, counts, divisor: Divisor) -> Several | Wanting:
        scaled = (self.totals([divisor.scaled(own) for own in told]) for told in (sums, counts))
        return self.agent.ask(Divide(self.session, *scaled, divisor.low, divisor.high))

    def reaching(self, told, least: int) -> Several | Wanting:
        scaled = Threshold(3, least).scaled
        totals = self.totals([scaled(own) for own in told])
        return self.agent.ask(Reaching(self.session, totals, least))

    def refresh(self, holder: str, wanting: Wanting) -> tuple[bytes, ...]:
        asked = Refresh(holder, self.session, wanting.asked, wanting.common)
        return self.agent.ask(asked).made

    def refreshed(self, parts: Sequence[tuple[bytes, ...]]) -> Several | Wanting:
        return self.agent.ask(Refreshed(self.session, tuple(parts)))

    def results(self, answer: Several | Wanting) -> tuple[bytes, ...]:
        while isinstance(answer, Wanting):
            answer = self.refreshed([self.refresh(one, answer) for one in HOLDERS])
        return answer.made

    def share(self, holder: str, results: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return self.agent.ask(Decrypt(holder, self.session, results)).made

    def fused(self, shares: Sequence[tuple[bytes, ...]], count: int) -> list[float]:
        values = self.agent.ask(Fuse(self.session, tuple(shares), count)).values
        return list(struct.unpack(f"<{count}d", values))

    def numbers(self, answer: Several | Wanting, count: int) -> list[float]:
        results = self.results(answer)
        return self.fused([self.share(one, results) for one in HOLDERS], count)


@pytest.fixture(scope="module")
def agent():
    with Agent(diagnose().python) as running:
        yield running


@pytest.fixture(scope="module")
def mean(agent) -> Parties:
    return Parties(agent, "mean", MEAN)


@pytest.fixture(scope="module")
def density(agent) -> Parties:
    return Parties(agent, "density", DENSITY)


def spread(counts: Sequence[int]) -> list[list[float]]:
    """The counts as totals over three parties, at most 4 of each."""
    return [[float(min(max(count - 4 * k, 0), 4)) for count in counts] for k in range(3)]


def half(parties: Parties, divisor: Divisor = NARROW) -> Several | Wanting:
    """Encrypted: 3 over 6, and 6 over 3."""
    return parties.divide([[1.0, 2.0]] * 3, [[2.0, 1.0]] * 3, divisor)


@pytest.mark.parametrize(("divisor", "refreshed"), [(NARROW, False), (WIDE, True)])
def test_means_are_close(mean, divisor, refreshed):
    counts = [[1.0, divisor.high / 3, 2.0], [1.0, divisor.high / 3, 7.0], [1.0, 1.0, 3.5]]
    sums = [[0.5, -3.0, 2.0], [0.25, -9.0, 0.0], [1.0, 0.5, 1.5]]
    answer = mean.divide(sums, counts, divisor)
    assert isinstance(answer, Wanting) == refreshed
    expected = [
        sum(above) / sum(below)
        for above, below in zip(zip(*sums, strict=True), zip(*counts, strict=True), strict=True)
    ]
    assert mean.numbers(answer, 3) == pytest.approx(expected, abs=1e-4)


def test_means_of_more_values_than_a_ciphertext_holds_are_close(mean):
    """With all slots in use the flooding noise is larger: 2e-4 was seen."""
    sums = [[(i * k % 17) / 17 for i in range(8200)] for k in (1, 2, 3)]
    answer = mean.divide(sums, [[1.0 + k] * 8200 for k in range(3)], NARROW)
    assert len(answer.made) == 2
    found = mean.numbers(answer, 8200)
    assert found == pytest.approx([sum(own) / 6 for own in zip(*sums, strict=True)], abs=1e-3)


def test_the_mask_is_exact_for_every_count_while_another_session_divides(mean, density):
    """Between two refreshes the process has only the other session's relinearisation key."""
    for least in (4, 2):
        answer = density.reaching(spread(COUNTS), least)
        assert mean.numbers(half(mean), 2) == pytest.approx([0.5, 2.0], abs=1e-4)
        assert isinstance(answer, Wanting)
        found = density.numbers(answer, len(COUNTS))
        assert found == [float(count >= least) for count in COUNTS]


def test_a_common_element_is_answered_once(mean):
    wanting = half(mean, WIDE)
    assert len(wanting.asked) == 2
    for common, says in [
        (wanting.common[::-1], "not those of the ciphertexts"),
        (wanting.common[:1], "for each ciphertext"),
    ]:
        with pytest.raises(Malformed, match=says):
            mean.refresh("party 0", Wanting(wanting.asked, common))
    twice = Wanting(wanting.asked[:1] * 2, wanting.common[:1] * 2)
    with pytest.raises(Malformed, match="answered once only"):
        mean.refresh("party 0", twice)
    parts = [mean.refresh(holder, wanting) for holder in HOLDERS]
    seal = Seal("mean", MEAN)
    name = seal.open(wanting.common[0], Kind.COMMON_ELEMENT).digest
    other = seal.close(Kind.TO_REFRESH, b"another ciphertext", name)
    for repeated in (wanting, Wanting((other,), wanting.common[:1])):
        with pytest.raises(Malformed, match="answered once only"):
            mean.refresh("party 1", repeated)
    answer = mean.refreshed(parts)
    assert mean.numbers(answer, 2) == pytest.approx([0.5, 2.0], abs=1e-4)


def test_only_results_are_decrypted_and_each_once(mean, density):
    totals = density.totals([[0.25]] * 3)
    with pytest.raises(Malformed, match="result or summand: that was expected, but total came"):
        density.share("party 0", totals)
    with pytest.raises(Malformed, match="only totals are decrypted"):
        mean.share("party 1", mean.encrypted("party 0", [0.5]))
    results = mean.results(half(mean))
    mean.share("party 0", results)
    with pytest.raises(Malformed, match="once only"):
        mean.share("party 0", results)


def test_without_one_holder_nothing_is_finished(agent, mean):
    """A fourth holder, whose key is not a part of the joint one, does not stand in for it."""
    lead = agent.ask(Generate("lead of nothing", "mean", MEAN)).made
    agent.ask(Generate("stranger", "mean", MEAN, lead))
    agent.ask(Adopt("stranger", "mean", mean.public))
    wanting = half(mean, WIDE)
    parts = [mean.refresh(holder, wanting) for holder in HOLDERS]
    with pytest.raises(Malformed, match="all 3 parties of the session must take part, 2 did"):
        mean.refreshed(parts[:2])
    with pytest.raises(Malformed, match="came twice"):
        mean.refreshed([*parts[:2], parts[1]])
    with pytest.raises(Malformed, match="two parts of each party"):
        mean.refreshed([part[:2] for part in parts])
    with pytest.raises(Malformed, match="of another refresh"):
        mean.refreshed([part[2:] + part[:2] for part in parts])
    results = mean.results(mean.refreshed(parts))
    shares = [mean.share(holder, results) for holder in (*HOLDERS, "stranger")]
    with pytest.raises(Malformed, match="all 3 parties"):
        mean.fused(shares[:2], 2)
    with pytest.raises(Malformed, match="failed in OpenFHE"):
        mean.fused([*shares[:2], shares[3]], 2)
    assert mean.fused(shares[:3], 2) == pytest.approx([0.5, 2.0], abs=1e-4)
    wanting = half(mean, WIDE)
    parts = [mean.refresh(holder, wanting) for holder in ("party 0", "party 1", "stranger")]
    results = mean.results(mean.refreshed(parts))
    with pytest.raises(Malformed, match="failed in OpenFHE"):
        mean.fused([mean.share(holder, results) for holder in HOLDERS], 2)


def test_what_does_not_fit_is_refused(agent, mean, density):
    with pytest.raises(Malformed, match="nothing waits for a refresh"):
        mean.refreshed([])
    with pytest.raises(Malformed, match="numbers from -1 to 1"):
        mean.encrypted("party 0", [1.5])
    sums, counts, few = (mean.totals([[0.25] * size] * 3) for size in (2, 2, 1))
    with pytest.raises(Malformed, match="encrypt a count for each sum"):
        agent.ask(Divide("mean", sums, few, 3, 30))
    for low, high in [(0, 30), (3, 30000), (3, float("inf")), (float("nan"), 30)]:
        with pytest.raises(Malformed, match="range above 0"):
            agent.ask(Divide("mean", sums, counts, low, high))
    with pytest.raises(Malformed, match="cannot compare"):
        agent.ask(Reaching("mean", sums, 4))
    results = mean.results(agent.ask(Divide("mean", sums, counts, 3, 30)))
    with pytest.raises(Malformed, match="used once only"):
        agent.ask(Divide("mean", sums, counts, 3, 30))
    shares = [mean.share(holder, results) for holder in HOLDERS]
    with pytest.raises(Malformed, match="not 3 numbers"):
        mean.fused(shares, 3)
    with pytest.raises(Malformed, match="least must be 1 to 4"):
        density.reaching(spread(COUNTS), 5)
    totals, others = density.totals([[0.25]] * 3), density.totals([[0.25]] * 3)
    with pytest.raises(Malformed, match="cannot divide"):
        agent.ask(Divide("density", totals, others, 3, 30))
    density.reaching(spread(COUNTS), 4)
    with pytest.raises(Malformed, match="waits for a refresh"):
        agent.ask(Reaching("density", totals, 4))
