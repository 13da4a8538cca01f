"""Private sums over real parties, by masks and (where the key agent can run) by ciphertexts."""

from __future__ import annotations

import os
import signal
import sqlite3
import time

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import cotune
from cotune.coordinator.federation import Federation
from cotune.coordinator.journal import Journal
from cotune.engines.local import LocalEngine
from cotune.errors import FederationError, UsageError
from cotune.party.keys import Reveal, Sealed
from cotune.party.task import Configuration
from cotune.party.tasks import Evaluate, Inspect, Search
from cotune.problem import Budget
from cotune.protocol.wire import (
    Cost,
    Encrypted,
    Gathered,
    Masked,
    Refusal,
    Request,
    decode_reply,
    decode_request,
    encode,
)
from cotune.run.settings import Settings
from tests.parts import (
    Unreliable,
    federation_of,
    iris,
    parts,
    party_of,
    problem_of,
    threads,
)
from tests.privacy.agents import ready

TABLES = parts(iris(), 5)
PARTIES = tuple(TABLES)
LOST = Refusal("lost", "the connection broke")
PRIVATE = ["masked", pytest.param("encrypted", marks=ready)]


@pytest.fixture(scope="module")
def problem():
    return problem_of(*TABLES.values(), compare_by="parties")  # a weighted sum


@pytest.fixture(scope="module")
def plain(problem):
    with federation_of(TABLES, problem=problem) as federation:
        return federation.sum(tree(1, 2)), federation.gather(tree(1, 2))


def tree(*depths):
    return Evaluate(tuple(Configuration("decision_tree", {"max_depth": d}) for d in depths))


class Watched(LocalEngine):
    """Notes every message and reply; `spoil(party, request, reply)` may change a reply."""

    def __init__(self, tables=TABLES, spoil=None):
        super().__init__(tables, "target", executor=threads())
        self.seen = []
        self._spoil = spoil or (lambda party, request, reply: reply)

    def call(self, messages, timeout):
        replies = super().call(messages, timeout)
        told = {}
        for party, reply in replies.items():
            request = decode_request(messages[party])
            told[party] = self._spoil(party, request, reply)
            self.seen.append((party, request, told[party]))
        return told


def losing(party, *names):
    """The party is lost from the first of these tasks on."""
    gone = set()

    def spoil(name, request, reply):
        if name == party and (request.task.name in names or gone):
            gone.add(party)
            return LOST
        return reply

    return spoil


@pytest.mark.parametrize("privacy", PRIVATE)
def test_a_private_total_is_the_plain_total_to_the_last_bit(problem, plain, privacy):
    with federation_of(TABLES, problem=problem, privacy=privacy) as federation:
        for _ in range(2):
            sums = federation.sum(tree(1, 2))
            for name in ("losses", "variances", "failed"):
                assert sums.sum(name).tolist() == plain[0].sum(name).tolist()
            assert (sums.parties, sums.weight) == (5, 150)


@pytest.mark.parametrize("privacy", PRIVATE)
def test_no_message_to_the_coordinator_has_a_partys_own_figures(problem, plain, privacy):
    engine = Watched()
    with Federation(engine, problem=problem, privacy=privacy) as federation:
        federation.sum(tree(1, 2))
    told = [reply for _, request, reply in engine.seen if request.task.name == "evaluate"]
    assert len(told) == 5
    assert all(isinstance(decode_reply(reply), Masked | Encrypted) for reply in told)
    received = b"".join(reply for _, _, reply in engine.seen)
    own = [
        np.float64(round(loss / 2**-30) * 2**-30 * reply.weight)
        for reply in plain[1].values()
        for loss in reply.losses
        if loss
    ]
    assert len(own) >= 5
    for value in own:
        assert value.tobytes() not in received
        assert int(value / 2**-30).to_bytes(8, "little") not in received


@pytest.mark.parametrize("privacy", PRIVATE)
def test_the_journal_of_a_private_run_holds_totals_only(tmp_path, plain, privacy):
    with federation_of(TABLES) as federation:
        cotune.tune(
            federation, "defaults", learners=["decision_tree"], folds=3, privacy=privacy,
            compare_by="parties", run=tmp_path / "run", progress=False, train=False,
        )  # fmt: skip
    with sqlite3.connect(tmp_path / "run" / "journal.sqlite") as database:
        database.execute("VACUUM")
    everything = b"".join(
        path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()
    )
    problem = problem_of(*TABLES.values(), compare_by="parties")
    with federation_of(TABLES, problem=problem) as federation:
        own = federation.gather(
            Evaluate(
                (Configuration("decision_tree", federation.problem.defaults("decision_tree")),)
            )
        )
    for reply in own.values():
        for value in (reply.losses[0], reply.losses[0] * reply.weight, reply.variances[0]):
            if value:
                assert np.float64(value).tobytes() not in everything
                assert np.float64(value).tobytes()[::-1] not in everything
                assert repr(value).encode() not in everything


@pytest.mark.parametrize("privacy", PRIVATE)
def test_what_identifies_a_party_is_not_gathered(problem, privacy):
    with federation_of(TABLES, problem=problem, privacy=privacy) as federation:
        with pytest.raises(
            UsageError,
            match=r"no party tells the configurations its own search.*flora, privtuna or dash",
        ):
            federation.gather(Search(("decision_tree",), 2))
        with pytest.raises(UsageError, match=r"ask for the total \(sum\)"):
            federation.gather(tree(1))
        assert len(federation.gather(Inspect(2))) == 5
        assert federation.ledger.rounds == 1


@pytest.mark.parametrize("privacy", PRIVATE)
@pytest.mark.parametrize("how", ["lost", "garbage", "cut", "refused"])
def test_a_party_that_does_not_answer_is_left_out(problem, plain, privacy, how):
    bad = {
        "lost": lambda reply: LOST,
        "garbage": lambda reply: b"\xc1",
        "cut": lambda reply: encode(cut(decode_reply(reply))),
        "refused": lambda reply: encode(Refusal("internal", "no")),
    }[how]

    def spoil(party, request, reply):
        return bad(reply) if party == "party-2" and request.task.name == "evaluate" else reply

    with Federation(Watched(spoil=spoil), problem=problem, privacy=privacy) as federation:
        sums = federation.sum(tree(1, 2))
        assert [failure.party for failure in federation.ledger.failures] == ["party-2"]
    assert (sums.parties, sums.weight) == (4, 120)
    assert sums.sum("losses").tolist() == total_without(plain, "party-2")


def cut(reply):
    if isinstance(reply, Masked):
        return Masked(reply.digits[:-8])
    return Encrypted(tuple(one[:-8] for one in reply.ciphertexts))


def total_without(plain, *gone):
    step = 2.0**-30
    told = [
        np.rint(np.array(reply.losses) / step) * step * reply.weight
        for party, reply in plain[1].items()
        if party not in gone
    ]
    return np.sum(told, axis=0).tolist()


@pytest.mark.parametrize(
    ("privacy", "when"),
    [("masked", "reveal"), ("masked", "introduce"), ("masked", "acquaint"),
     *(pytest.param("encrypted", when, marks=ready) for when in ("deal", "adopt", "decrypt"))],
)  # fmt: skip
def test_a_party_that_dies_in_the_midst_of_a_sum_is_left_out(problem, plain, privacy, when):
    """Between masking and total, while keys are made, before its share of the decryption."""
    first, then = losing("party-1", "evaluate"), losing("party-4", when)

    def spoil(party, request, reply):
        reply = then(party, request, reply)
        return first(party, request, reply) if when == "reveal" else reply

    gone = ("party-1", "party-4") if when == "reveal" else ("party-4",)
    with Federation(Watched(spoil=spoil), problem=problem, privacy=privacy) as federation:
        sums = federation.sum(tree(1, 2))
        assert {failure.party for failure in federation.ledger.failures} == set(gone)
    assert sums.parties == 5 - len(gone)
    assert sums.sum("losses").tolist() == total_without(plain, *gone)


@pytest.mark.parametrize("privacy", PRIVATE)
def test_a_party_that_was_restarted_gets_new_keys_and_is_counted(problem, plain, privacy):
    engine = Watched()
    with Federation(engine, problem=problem, privacy=privacy) as federation:
        federation.sum(tree(1, 2))
        engine._parties["party-3"] = engine._start("party-3", TABLES["party-3"])
        sums = federation.sum(tree(1, 2))
    assert sums.parties == 5
    assert sums.sum("losses").tolist() == plain[0].sum("losses").tolist()


@pytest.mark.parametrize("privacy", PRIVATE)
def test_a_party_that_comes_back_is_counted_again(problem, privacy):
    away = {"party-5"}

    def spoil(party, request, reply):
        return LOST if party in away else reply

    with Federation(Watched(spoil=spoil), problem=problem, privacy=privacy) as federation:
        assert federation.sum(tree(1)).parties == 4
        away.clear()
        counted = [federation.sum(tree(2)).parties for _ in range(3)]
    assert counted[-1] == 5


@pytest.mark.parametrize("privacy", PRIVATE)
def test_a_total_of_one_party_is_refused(problem, privacy):
    def spoil(party, request, reply):
        return reply if party == "party-1" else LOST

    engine = Watched(spoil=spoil)
    with (
        Federation(engine, problem=problem, privacy=privacy, quorum=0.2) as federation,
        pytest.raises(FederationError, match="2 are needed for a private total"),
    ):
        federation.sum(tree(1))


def test_masks_of_a_sum_are_used_once_and_told_for_that_sum_only(problem):
    engine = Watched()
    with Federation(engine, problem=problem, privacy="masked", run="run") as federation:
        federation.sum(tree(1))
        federation.sum(tree(2))
        first, second = (
            request
            for party, request, _ in engine.seen
            if party == "party-1" and request.verb == "masked"
        )
        party = engine._parties["party-1"]

        def answer(request):
            return decode_reply(party.perform(encode(request)))

        assert "used before" in answer(first).sentence
        assert isinstance(answer(second), Masked)  # the same once more
        assert "used before" in answer(replace(second, task=tree(1))).sentence
        assert (
            "used before"
            in answer(replace(second, keyed=replace(second.keyed, among=PARTIES[:3]))).sentence
        )
        keyed = second.keyed
        for number, gone in (
            (first.keyed.number, ("party-2",)),
            (keyed.number, PARTIES[1:4]),  # the quorum is three
            (keyed.number, ("party-1",)),
        ):
            asked = Request(second.run, 9, "gather", Reveal(keyed.session, number, gone))
            assert isinstance(answer(asked), Refusal)
        right = Request(second.run, 9, "gather", Reveal(keyed.session, keyed.number, PARTIES[1:3]))
        assert not isinstance(answer(right), Refusal)
        tasks = [request.task for _, request, _ in engine.seen]
        roster = next(task for task in tasks if task.name == "acquaint")
        again = Request(second.run, 9, "gather", roster)
        assert "used for another roster" in answer(again).sentence


def test_a_party_of_a_private_run_tells_nothing_in_the_clear(problem):
    engine = Watched()
    with Federation(engine, problem=problem, privacy="masked", run="run") as federation:
        federation.sum(tree(1))
        party = engine._parties["party-1"]
        for verb in ("sum", "gather"):
            request = Request("run", 2, verb, tree(1), problem.digest)
            refusal = decode_reply(party.perform(encode(request)))
            assert "the sums of this run are private" in refusal.sentence
        another = Request("other", 1, "sum", tree(1), problem.digest, problem)
        assert not isinstance(decode_reply(party.perform(encode(another))), Refusal)


def refused(party, request):
    refusal = decode_reply(party.perform(encode(request)))
    return isinstance(refusal, Refusal) and "the sums of this run are private" in refusal.sentence


def test_a_problem_of_private_sums_is_private_under_any_runs_name(problem, tmp_path):
    masked = replace(problem, privacy="masked")
    assert masked.digest != problem.digest
    party = party_of(iris(60), tmp_path)
    for verb in ("sum", "gather"):
        assert refused(party, Request("other", 1, verb, tree(1), masked.digest, masked))
    encrypted = replace(problem, privacy="encrypted")
    assert refused(party, Request("other", 1, "masked", tree(1), encrypted.digest, encrypted))
    openly = Request("other", 1, "gather", tree(1), problem.digest, problem)
    assert not refused(party, openly)


def test_a_settings_privacy_is_part_of_the_problem(problem):
    settings = Settings(learners=("decision_tree",), privacy="masked")
    assert settings.problem(problem.schema).privacy == "masked"


def test_what_a_party_was_asked_in_private_it_never_answers_in_the_clear_in_that_run(
    problem, tmp_path
):
    """Nor when other runs came between, nor when it was restarted."""
    frame = parts(iris(60))["party-1"]
    with federation_of(parts(iris(60)), state=tmp_path / "state") as base:
        for run in ("first", "second"):
            federation = base.for_run(run, Journal(), Budget(), "masked")
            federation.problem = problem
            federation.sum(tree(1))
        party = base.engine.party("party-1")
        restarted = party_of(frame, tmp_path / "scratch", state=tmp_path / "state")
        for one in (party, restarted):
            for run in ("first", "second"):
                assert refused(one, Request(run, 2, "sum", tree(1), problem.digest, problem))
            openly = Request("third", 1, "sum", tree(1), problem.digest, problem)
            assert not refused(one, openly)
        modes = {path.stat().st_mode & 0o777 for path in tmp_path.glob("state/*/*.privacy")}
    assert modes == {0o600}


class Late(Watched):
    """One party's replies to some tasks come after any timeout, which is then used up."""

    def __init__(self, party, *names):
        super().__init__()
        self._late = party, names

    def call(self, messages, timeout):
        replies = super().call(messages, None)
        party, names = self._late
        if party in messages and decode_request(messages[party]).task.name in names:
            time.sleep(min(timeout, 0.2))
            replies[party] = Refusal("timeout", "no reply within the time")
        return replies


@pytest.mark.parametrize(
    ("privacy", "when"),
    [("masked", "evaluate"), ("masked", "introduce"),
     *(pytest.param("encrypted", when, marks=ready) for when in ("evaluate", "deal", "decrypt"))],
)  # fmt: skip
def test_a_party_that_is_late_does_not_use_up_the_others_time(problem, privacy, when):
    engine = Late("party-2", when)
    with Federation(engine, problem=problem, privacy=privacy, timeout=5.0) as federation:
        assert federation.sum(tree(1)).parties == 4


@pytest.mark.parametrize("privacy", PRIVATE)
def test_without_a_quorum_no_total_is_opened(problem, privacy):
    gone = ("party-1", "party-2")
    engine = Watched(
        spoil=lambda party, request, reply: (
            LOST if party in gone and request.task.name == "evaluate" else reply
        )
    )
    with (
        Federation(engine, problem=problem, privacy=privacy, quorum=1.0) as federation,
        pytest.raises(FederationError, match="5 are needed for a private total"),
    ):
        federation.sum(tree(1))
    assert not {r.task.name for _, r, _ in engine.seen} & {"reveal", "decrypt"}


@pytest.mark.parametrize("privacy", PRIVATE)
def test_totals_over_some_of_the_parties_are_refused(problem, privacy):
    with (
        federation_of(TABLES, problem=problem, privacy=privacy) as federation,
        pytest.raises(UsageError, match=r"can be subtracted.*--clients-per-round 5"),
    ):
        federation.sum(tree(1), among=PARTIES[:3])


@pytest.mark.parametrize("privacy", PRIVATE)
def test_a_budget_of_seconds_ends_a_private_run_as_it_ends_a_plain_one(privacy):
    with federation_of(TABLES) as federation:
        outcome = cotune.tune(
            federation, learners=["decision_tree"], folds=3, trials=10_000, seconds=3.0,
            privacy=privacy, progress=False, train=False,
        )  # fmt: skip
    assert "seconds is spent" in outcome.ended


@ready
def test_an_agent_that_dies_is_started_anew_and_new_keys_are_made(problem, plain):
    from cotune.privacy import sums as module

    engine = Watched()
    with Federation(engine, problem=problem, privacy="encrypted") as federation:
        federation.sum(tree(1, 2))
        for agent in (engine._agents[0], module._started[0]):
            os.kill(agent.pid, signal.SIGKILL)
            agent._process.wait()
            found = federation.sum(tree(1, 2))
            assert found.sum("losses").tolist() == plain[0].sum("losses").tolist()


@ready
def test_a_part_of_a_key_that_is_none_does_not_crash_the_coordinator(problem):
    def spoil(party, request, reply):
        if party == "party-3" and request.task.name == "deal":
            body = msgspec.Raw(encode(Sealed(())))
            return encode(Gathered(body, Cost()))
        return reply

    with Federation(Watched(spoil=spoil), problem=problem, privacy="encrypted") as federation:
        assert federation.sum(tree(1)).parties == 4


def test_federations_that_are_too_small_or_too_large_are_refused_at_once(problem):
    with pytest.raises(UsageError, match="a private total needs 2 parties, and there is 1"):
        Federation(Watched({"alone": iris()}), privacy="masked")
    tables = {f"party-{i}": iris(10) for i in range(201)}
    with pytest.raises(UsageError, match="at most 200 parties, and there are 201"):
        Federation(Watched(tables), privacy="encrypted")


@pytest.mark.parametrize("privacy", PRIVATE)
def test_a_killed_private_run_resumes_to_the_same_outcome(tmp_path, privacy):
    options = {"learners": ["decision_tree"], "folds": 3, "trials": 3, "progress": False}
    with federation_of(TABLES) as federation:
        whole = cotune.tune(federation, privacy=privacy, train=False, **options)
    calls = 6 if privacy == "masked" else 10
    broken = Unreliable(
        LocalEngine(TABLES, "target", executor=threads()),
        lambda call, party, reply: reply if call < calls else LOST,
    )
    with Federation(broken) as federation, pytest.raises(FederationError):
        cotune.tune(federation, privacy=privacy, train=False, run=tmp_path / "run", **options)
    assert len(Journal(tmp_path / "run" / "journal.sqlite")) > 1
    with federation_of(TABLES) as federation:
        resumed = cotune.resume(tmp_path / "run", federation, progress=False)
    assert [(t.params, t.loss) for t in resumed.trials] == [
        (t.params, t.loss) for t in whole.trials
    ]


def test_the_modes_are_checked_before_any_work(tmp_path):
    with federation_of(TABLES) as federation:
        with pytest.raises(UsageError, match="unknown privacy 'mask'"):
            cotune.tune(federation, privacy="mask")
        with pytest.raises(UsageError, match="'random_forest' is put together from models"):
            cotune.tune(federation, privacy="masked", learners=["random_forest"])
        with pytest.raises(UsageError, match="merge_every"):
            cotune.tune(federation, privacy="masked", learners=["hgb"], merge_every=5)
