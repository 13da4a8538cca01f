"""The key agent with real ciphertexts; skipped where no interpreter can run it."""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.errors import Malformed, UsageError
from cotune.privacy.agent.envelope import HEADER, Kind, Refused, Seal
from cotune.privacy.agent.messages import (
    Add,
    Adopt,
    Close,
    Decrypt,
    Divide,
    Encrypt,
    Forget,
    Fuse,
    Generate,
    JoinKeys,
    JoinRelinearisations,
    JoinSwitches,
    Open,
    Reaching,
    Refresh,
    Relinearise,
    Scheme,
    Switch,
    Wrong,
    encode,
)
from cotune.privacy.client import HOME, Agent, AgentError, _death, environment
from cotune.privacy.doctor import diagnose
from tests.soak import times

SUM = Scheme("sum", 3, 56)
MASK = Scheme("mask", 2)
EDGE = 2**56 - 1


@pytest.fixture(scope="module")
def python():
    diagnosis = diagnose()
    if not diagnosis.ready:
        pytest.skip(diagnosis.sentence)
    return diagnosis.python


@pytest.fixture(scope="module")
def agent(python):
    """One for all tests, with a session "sum" of three parties."""
    with Agent(python) as running:
        deal(running, "sum", SUM)
        yield running


def deal(agent: Agent, session: str, scheme: Scheme) -> None:
    """Key shares for all parties, and the joint public key."""
    lead, *others = holders(scheme)
    first = agent.ask(Generate(lead, session, scheme)).made
    rest = [agent.ask(Generate(other, session, scheme, first)).made for other in others]
    agent.ask(Open(session, scheme))
    joint = agent.ask(JoinKeys(session, (first, *rest))).made
    for holder in holders(scheme):
        agent.ask(Adopt(holder, session, joint))


def holders(scheme: Scheme) -> list[str]:
    return [f"party {i}" for i in range(scheme.parties)]


def packed(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def unpacked(values: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(values) // 8}q", values))


def encrypted(agent: Agent, session: str, told: Sequence[Sequence[int]]):
    return tuple(
        agent.ask(Encrypt(f"party {i}", session, packed(values))).made
        for i, values in enumerate(told)
    )


def decrypted(agent: Agent, session: str, scheme: Scheme, totals, count: int) -> list[int]:
    shares = tuple(agent.ask(Decrypt(one, session, totals)).made for one in holders(scheme))
    return unpacked(agent.ask(Fuse(session, shares, count)).values)


def total(agent: Agent, told: Sequence[Sequence[int]]) -> list[int]:
    totals = agent.ask(Add("sum", encrypted(agent, "sum", told))).made
    return decrypted(agent, "sum", SUM, totals, len(told[0]))


def some_total(agent: Agent):
    return agent.ask(Add("sum", encrypted(agent, "sum", [[1], [2], [3]]))).made


def numbers():
    extreme = st.sampled_from([0, 1, -1, EDGE, -EDGE])
    return st.lists(extreme | st.integers(-EDGE, EDGE), min_size=5, max_size=5)


@settings(max_examples=8, deadline=None)
@given(told=st.lists(numbers(), min_size=3, max_size=3))
def test_totals_are_exact(agent, told):
    assert total(agent, told) == [sum(column) for column in zip(*told, strict=True)]


def test_totals_of_more_values_than_a_ciphertext_holds_are_exact(agent):
    told = [[(i * 7919 + k) ** 3 % EDGE * (-1) ** i for i in range(6000)] for k in range(3)]
    assert len(encrypted(agent, "sum", told[:1])[0]) == 3
    assert total(agent, told) == [sum(column) for column in zip(*told, strict=True)]


@pytest.mark.parametrize(("parties", "bits"), [(2, 28), (5, 25), (60, 56), (200, 55)])
def test_the_greatest_totals_are_exact_for_any_number_of_parties(agent, parties, bits):
    """Two share the key; one encrypts again and again, as if it were all parties."""
    session, scheme = f"{parties} parties, {bits} bits", Scheme("sum", parties, bits)
    first = agent.ask(Generate("party 0", session, scheme)).made
    second = agent.ask(Generate("party 1", session, scheme, first)).made
    agent.ask(Open(session, scheme))
    joint = agent.ask(JoinKeys(session, (first, second))).made
    for holder in ("party 0", "party 1"):
        agent.ask(Adopt(holder, session, joint))
    edge = 2**bits - 1
    values = packed([edge, -edge, edge // 3, 0])
    told = tuple(agent.ask(Encrypt("party 0", session, values)).made for _ in range(parties))
    totals = agent.ask(Add(session, told)).made
    found = decrypted(agent, session, Scheme("sum", 2, bits), totals, 4)
    assert found == [parties * value for value in unpacked(values)]
    for holder in ("party 0", "party 1"):
        agent.ask(Forget(holder, session))
    agent.ask(Close(session))


@pytest.mark.parametrize(
    ("scheme", "says"),
    [
        (Scheme("sum", 1, 20), "parties must be 2 to 200"),
        (Scheme("sum", 201, 20), "parties must be 2 to 200"),
        (Scheme("sum", 3, 57), "bits must be 1 to 56"),
        (Scheme("sum", 200, 56), "use fewer bits"),
        (Scheme("mask", 3, 0, 9), "least must be 1 to 8"),
        (Scheme("density", 3, 0, 9), "least must be 1 to 8"),
        (Scheme("mean", 1), "parties must be 2 to 200"),
    ],
)
def test_parameters_out_of_range_are_refused(agent, scheme, says):
    with pytest.raises(Malformed, match=says):
        agent.ask(Open("never", scheme))
    with pytest.raises(Malformed, match=says):
        agent.ask(Generate("party 0", "never", scheme))


# Run under the agent's interpreter, with the raw library.
LOOK = """
import json, sys
import msgspec
from agent.envelope import HEADER, CHECK
from agent.messages import Scheme
from agent.schemes import kit, library

fhe = library()
context = kit(Scheme("sum", 3, 56)).context
told, shares = msgspec.msgpack.decode(sys.stdin.buffer.read())
payload = lambda sealed: sealed[HEADER.size + CHECK:]

def private(payload):
    try:
        fhe.DeserializePrivateKeyString(payload, fhe.BINARY)
    except Exception:
        return False
    return True

def fused(shares):
    parts = [fhe.DeserializeCiphertextString(payload(one), fhe.BINARY) for one in shares]
    return context.MultipartyDecryptFusion(parts).GetPackedValue()[0]

print(json.dumps({
    "a private key": private(fhe.Serialize(context.KeyGen().secretKey, fhe.BINARY)),
    "told": [private(payload(one)) for one in told],
    "all": fused(shares),
    "without one": [fused(shares[:i] + shares[i + 1:]) for i in range(3)],
}))
"""


def test_nothing_that_is_told_is_a_secret_key_and_all_shares_are_needed(agent, python):
    scheme, session = SUM, "watched"
    lead, *others = holders(scheme)
    first = agent.ask(Generate(lead, session, scheme)).made
    keys = [first, *(agent.ask(Generate(one, session, scheme, first)).made for one in others)]
    agent.ask(Open(session, scheme))
    joint = agent.ask(JoinKeys(session, tuple(keys))).made
    for holder in holders(scheme):
        agent.ask(Adopt(holder, session, joint))
    switch = agent.ask(Switch(lead, session)).made
    switches = [switch, *(agent.ask(Switch(one, session, switch)).made for one in others)]
    joined = agent.ask(JoinSwitches(session, tuple(switches))).made
    rounds = [agent.ask(Relinearise(one, session, joined)).made for one in holders(scheme)]
    summands = encrypted(agent, session, [[100], [20], [3]])
    totals = agent.ask(Add(session, summands)).made
    shares = [agent.ask(Decrypt(one, session, totals)).made[0] for one in holders(scheme)]
    told = [*keys, joint, *switches, joined, *rounds, *sum(summands, ()), *totals, *shares]
    done = subprocess.run(
        [str(python), "-c", LOOK],
        input=msgspec.msgpack.encode((told, shares)),
        capture_output=True,
        env=environment(),
        cwd=HOME,
        check=True,
    )
    seen = msgspec.json.decode(done.stdout)
    assert seen["a private key"]
    assert not any(seen["told"])
    assert seen["all"] == 123
    assert all(abs(value) > 1000 for value in seen["without one"])
    with pytest.raises(Malformed, match="all 3 parties of the session must take part, 2 did"):
        agent.ask(Fuse(session, tuple((share,) for share in shares[:2]), 1))
    with pytest.raises(Malformed, match="came twice"):
        agent.ask(Fuse(session, tuple((shares[i],) for i in (0, 1, 1)), 1))


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_damaged_ciphertexts_are_refused(agent, data):
    (good,), *others = encrypted(agent, "sum", [[1], [2], [3]])
    place = data.draw(st.integers(0, 150) | st.integers(0, len(good) - 1))
    flipped = bytearray(good)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    for bad in (bytes(flipped), good[:place], good + b"\0"):
        with pytest.raises(Malformed, match=r"changed|bytes were expected"):
            agent.ask(Add("sum", ((bad,), *others)))
    agent.ask(Add("sum", ((good,), *others)))


def test_another_sessions_ciphertext_is_refused(agent):
    deal(agent, "other", SUM)
    foreign = encrypted(agent, "other", [[1], [2], [3]])
    with pytest.raises(Malformed, match="another session"):
        agent.ask(Add("sum", foreign))
    with pytest.raises(Malformed, match="another session"):
        agent.ask(Decrypt("party 1", "sum", agent.ask(Add("other", foreign)).made))


def test_bytes_that_the_library_cannot_read_are_refused(agent):
    sealed = Seal("sum", SUM).close(Kind.TOTAL, b"no ciphertext")
    with pytest.raises(Malformed, match="does not fit this session"):
        agent.ask(Decrypt("party 1", "sum", (sealed,)))


def test_a_replayed_summand_is_refused(agent):
    told = encrypted(agent, "sum", [[1], [2], [3]])
    with pytest.raises(Malformed, match="came twice"):
        agent.ask(Add("sum", (told[0], told[1], told[1])))
    agent.ask(Add("sum", told))
    again = encrypted(agent, "sum", [[1], [2]])
    with pytest.raises(Malformed, match="came twice"):
        agent.ask(Add("sum", (*again, told[2])))


def test_summands_of_unequal_number_or_of_too_few_parties_are_refused(agent):
    short, long, longest = encrypted(agent, "sum", [[1], [1, 2], [1] * 3000])
    with pytest.raises(Malformed, match="different numbers of ciphertexts"):
        agent.ask(Add("sum", (short, longest)))
    with pytest.raises(Malformed, match="different numbers of values"):
        agent.ask(Add("sum", (short, long)))
    with pytest.raises(Malformed, match="the order is mixed up"):
        agent.ask(Add("sum", (longest, encrypted(agent, "sum", [[1] * 3000])[0][::-1])))
    with pytest.raises(Malformed, match="2 to 3 parties are added up, 1 came"):
        agent.ask(Add("sum", (short,)))
    with pytest.raises(Malformed, match="2 to 3 parties are added up, 4 came"):
        agent.ask(Add("sum", (short,) * 4))


def test_a_total_is_decrypted_once(agent):
    totals = some_total(agent)
    agent.ask(Decrypt("party 1", "sum", totals))
    with pytest.raises(Malformed, match="once only"):
        agent.ask(Decrypt("party 1", "sum", totals))
    with pytest.raises(Malformed, match="once only"):
        agent.ask(Decrypt("party 2", "sum", totals * 2))
    agent.ask(Decrypt("party 2", "sum", totals))


def test_a_summand_is_not_decrypted_whoever_made_it(agent):
    own, other = encrypted(agent, "sum", [[1], [2]])
    with pytest.raises(Malformed, match="encrypted it itself"):
        agent.ask(Decrypt("party 0", "sum", own))
    with pytest.raises(Malformed, match="one party's"):
        agent.ask(Decrypt("party 0", "sum", other))
    seal = Seal("sum", SUM)
    renamed = seal.close(Kind.TOTAL, seal.open(own[0], Kind.SUMMAND).payload)
    with pytest.raises(Malformed, match="encrypted it itself"):
        agent.ask(Decrypt("party 0", "sum", (renamed,)))


def test_a_session_for_sums_refreshes_and_divides_nothing(agent):
    """Whoever seals a ciphertext anew gets no part of a refresh for it."""
    seal, (total,) = Seal("sum", SUM), some_total(agent)
    payload = seal.open(total, Kind.TOTAL).payload
    common = seal.close(Kind.COMMON_ELEMENT, payload)
    asked = seal.close(Kind.TO_REFRESH, payload, seal.open(common, Kind.COMMON_ELEMENT).digest)
    with pytest.raises(Malformed, match="nothing is refreshed"):
        agent.ask(Refresh("party 0", "sum", (asked,), (common,)))
    with pytest.raises(Malformed, match="no relinearisation key"):
        agent.ask(Divide("sum", (total,), (total,), 1.0, 2.0))


def test_shares_of_different_totals_are_not_fused(agent):
    one, other = some_total(agent), some_total(agent)
    shares = [agent.ask(Decrypt(f"party {i}", "sum", one)).made for i in range(2)]
    shares.append(agent.ask(Decrypt("party 2", "sum", other)).made)
    with pytest.raises(Malformed, match="of different ciphertexts"):
        agent.ask(Fuse("sum", tuple(shares), 1))
    with pytest.raises(Malformed, match="9000 numbers are in 4 ciphertexts"):
        agent.ask(Fuse("sum", tuple(shares), 9000))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (b"", "8 bytes each"),
        (b"1234567", "8 bytes each"),
        (packed([EDGE + 1]), "does not fit 56 bits"),
        (packed([-EDGE - 1]), "does not fit 56 bits"),
        (packed([-(2**63)]), "does not fit 56 bits"),
    ],
)
def test_values_that_cannot_be_encrypted_are_refused(agent, values, says):
    with pytest.raises(Malformed, match=says):
        agent.ask(Encrypt("party 0", "sum", values))


def test_sessions_are_neither_invented_nor_overwritten(agent):
    with pytest.raises(Malformed, match="open it first"):
        agent.ask(Close("unheard of"))
    with pytest.raises(Malformed, match="close it first"):
        agent.ask(Open("sum", SUM))
    with pytest.raises(Malformed, match="forget it first"):
        agent.ask(Generate("party 0", "sum", SUM))
    with pytest.raises(Malformed, match="'party 9' has no key share"):
        agent.ask(Encrypt("party 9", "sum", packed([1])))
    agent.ask(Generate("party 0", "early", SUM))
    with pytest.raises(Malformed, match="adopt it first"):
        agent.ask(Encrypt("party 0", "early", packed([1])))


def test_a_joint_key_is_not_replaced(agent):
    lead = agent.ask(Generate("a", "twice", SUM)).made
    other = agent.ask(Generate("b", "twice", SUM, lead)).made
    agent.ask(Open("twice", SUM))
    joint = agent.ask(JoinKeys("twice", (lead, other))).made
    agent.ask(Adopt("a", "twice", joint))
    with pytest.raises(Malformed, match="was adopted before"):
        agent.ask(Adopt("a", "twice", joint))
    with pytest.raises(Malformed, match="were joined before"):
        agent.ask(JoinKeys("twice", (lead, other)))
    with pytest.raises(Malformed, match="joint key: that was expected, but lead key came"):
        agent.ask(Adopt("b", "twice", lead))


@settings(max_examples=30, deadline=None)
@given(frame=st.binary(max_size=64) | st.just(encode({"type": "Export", "holder": "party 0"})))
def test_garbage_is_answered_and_the_next_message_too(agent, frame):
    reply = agent._exchange(frame)
    assert isinstance(reply, Wrong)
    assert "cannot be read" in reply.sentence
    with pytest.raises(Malformed, match="open it first"):
        agent.ask(Close("unheard of"))


def test_threads_get_their_own_answers(agent):
    def told(i: int) -> bool:
        with pytest.raises(Malformed) as refusal:
            agent.ask(Forget(f"nobody {i}", "sum"))
        return f"'nobody {i}'" in str(refusal.value)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(told, range(100)))


def test_which_counts_reach_a_threshold(agent):
    """All counts 0 to 20 and all thresholds 1 to 8; the counts themselves stay hidden."""
    deal(agent, "mask", MASK)
    lead = agent.ask(Switch("party 0", "mask")).made
    other = agent.ask(Switch("party 1", "mask", lead)).made
    joined = agent.ask(JoinSwitches("mask", (lead, other))).made
    rounds = tuple(agent.ask(Relinearise(one, "mask", joined)).made for one in holders(MASK))
    counts = range(21)
    told = [[count // 2 for count in counts], [count - count // 2 for count in counts]]
    with pytest.raises(Malformed, match="no relinearisation key"):
        agent.ask(Reaching("mask", (), 1))
    agent.ask(JoinRelinearisations("mask", rounds))
    for least in range(1, 9):
        totals = agent.ask(Add("mask", encrypted(agent, "mask", told))).made
        reached = agent.ask(Reaching("mask", totals, least)).made
        found = decrypted(agent, "mask", MASK, reached, len(counts))
        assert found == [int(count >= least) for count in counts]
    with pytest.raises(Malformed, match="used once only"):
        agent.ask(Reaching("mask", totals, 1))
    with pytest.raises(Malformed, match="but total came"):
        agent.ask(Decrypt("party 0", "mask", totals))
    with pytest.raises(Malformed, match="clip them"):
        agent.ask(Encrypt("party 0", "mask", packed([-1])))


def test_a_killed_agent_says_so_and_a_new_one_works(agent, python):
    with Agent(python) as first:
        os.kill(first.pid, signal.SIGKILL)
        with pytest.raises(AgentError, match=r"died \(killed by SIGKILL\)"):
            deal(first, "sum", SUM)
        with pytest.raises(AgentError, match="start a new one"):
            deal(first, "sum", SUM)
    with Agent(python) as second:
        deal(second, "sum", SUM)
        assert total(second, [[1], [2], [3]]) == [6]
        foreign = encrypted(second, "sum", [[1], [2], [3]])
        with pytest.raises(Malformed, match="another joint public key"):
            agent.ask(Add("sum", foreign))


def test_the_agent_ends_with_the_object_and_with_its_parent(python):
    running = Agent(python)
    pid = running.pid
    del running
    gc.collect()
    assert gone(pid)
    orphan = (
        "import os, sys; from pathlib import Path; from cotune.privacy.client import Agent;"
        "agent = Agent(Path(sys.argv[1])); print(agent.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", orphan, str(python)], capture_output=True)
    assert gone(int(done.stdout))


def gone(pid: int) -> bool:
    """Whether the process ends within five seconds; nobody may be there to reap it."""
    for _ in range(100):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def test_an_interpreter_that_cannot_be_run_is_named(tmp_path):
    with pytest.raises(UsageError, match="cotune agent doctor --setup"):
        Agent(tmp_path / "python")


def test_an_interpreter_without_the_library_dies_with_a_clear_error():
    with Agent(Path(sys.executable)) as running, pytest.raises(AgentError, match="died"):
        running.ask(Open("sum", SUM))


def test_envelopes_are_of_one_session_and_scheme():
    sealed = Seal("one", SUM).close(Kind.TOTAL, b"payload")
    assert Seal("one", SUM).open(sealed, Kind.TOTAL).payload == b"payload"
    assert len(sealed) == HEADER.size + 16 + len(b"payload")
    for other in (Seal("other", SUM), Seal("one", MASK)):
        with pytest.raises(Refused, match="another session"):
            other.open(sealed, Kind.TOTAL)


def resealed(sealed: bytes, session: str, scheme: Scheme, payload: bytes) -> bytes:
    """An envelope with another payload: anybody who changes one can close it again."""
    _, kind, _, subject, *_ = HEADER.unpack(sealed[: HEADER.size])
    return Seal(session, scheme).close(Kind(kind), payload, subject)


def payload_of(sealed: bytes, session: str, scheme: Scheme) -> bytes:
    return Seal(session, scheme).open(sealed, *Kind).payload


def used(agent: Agent) -> int:
    """The most bytes that the agent has had in memory."""
    lines = Path(f"/proc/{agent.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no such bound")
def test_hostile_keys_and_ciphertexts_cost_little(python):
    """Some bytes of the payload are changed to lengths that OpenFHE would make room for.

    A few of them end the agent, which starts again: nothing else is in its process.
    """
    rng, died = random.Random(0), 0
    agent = None
    for number in range(times(40, 1000)):
        if agent is None:
            agent = Agent(python)
            deal(agent, "sum", SUM)
            lead, ciphertext = agent.ask(Generate("lead", "other", SUM)).made, some_total(agent)[0]
        sealed, session = (lead, "other") if number % 2 else (ciphertext, "sum")
        payload = bytearray(payload_of(sealed, session, SUM))
        at = rng.choice((rng.randrange(1500), rng.randrange(len(payload))))
        value = rng.choice((2**28, 2**29, 2**30, 2**31 - 1, 2**33, rng.randrange(2**62)))
        payload[at : at + 8] = struct.pack("<Q", value)[: len(payload) - at]
        changed = resealed(sealed, session, SUM, bytes(payload))
        began = time.monotonic()
        try:
            if number % 2:
                agent.ask(Generate(f"party {number}", "other", SUM, changed))
            else:
                agent.ask(Decrypt("party 0", "sum", (changed,)))
        except Malformed:
            pass
        except AgentError:
            agent, died = None, died + 1
            continue
        assert time.monotonic() - began < 60
        assert used(agent) < 2e9
    assert died <= number // 10
    if agent is not None:
        assert decrypted(agent, "sum", SUM, some_total(agent), 1) == [6]
        agent.close()


def test_a_key_that_is_longer_than_a_key_is_not_parsed(agent):
    lead = agent.ask(Generate("lead", "longer", SUM)).made
    payload = payload_of(lead, "longer", SUM)
    longer = resealed(lead, "longer", SUM, payload + bytes(10_000))
    with pytest.raises(Malformed, match="bytes, and can have"):
        agent.ask(Generate("party 1", "longer", SUM, longer))


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_the_agent_cannot_be_looked_into_nor_gain_rights(agent):
    about = Path(f"/proc/{agent.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in about
    limits = Path(f"/proc/{agent.pid}/limits").read_text()
    assert re.search(r"Max core file size +0 ", limits)


def test_an_agent_that_computes_for_too_long_is_ended(python):
    program = "from agent import limits\nlimits.SECONDS = 0.1\nlimits.allow_time(0)\nwhile 1: 1"
    ended = subprocess.run([python, "-c", program], env=environment(), cwd=HOME, timeout=60)
    assert ended.returncode == -signal.SIGPROF
    assert _death(ended.returncode) == "it computed for too long"
