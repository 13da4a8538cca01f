"""Private sums over real parties, by masks and (where the key agent can run) by ciphertexts."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

import cotune
from cotune.errors import FederationError, UsageError
from cotune.federation.federation import Federation
from cotune.federation.journal import Journal
from cotune.federation.local import LocalEngine
from cotune.federation.wire import Encrypted, Masked, Refusal, decode_reply, decode_request, encode
from cotune.party.keys import Reveal
from cotune.party.task import Configuration
from cotune.party.tasks import Evaluate, Inspect, Search
from tests.parts import Unreliable, federation_of, iris, parts, problem_of, threads
from tests.privacy.agents import ready

TABLES = parts(iris(), 5)
PARTIES = tuple(TABLES)
LOST = Refusal("lost", "the connection broke")
PRIVATE = ["masked", pytest.param("encrypted", marks=ready)]


@pytest.fixture(scope="module")
def problem():
    return problem_of(*TABLES.values())


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
            run=tmp_path / "run", progress=False, train=False,
        )  # fmt: skip
    with sqlite3.connect(tmp_path / "run" / "journal.sqlite") as database:
        database.execute("VACUUM")
    everything = b"".join(
        path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()
    )
    with federation_of(TABLES, problem=problem_of(*TABLES.values())) as federation:
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
        pytest.raises(FederationError, match="a private total needs 2"),
    ):
        federation.sum(tree(1))


def test_masks_of_a_round_are_used_once_and_told_for_that_round_only(problem):
    engine = Watched()
    with Federation(engine, problem=problem, privacy="masked") as federation:
        federation.sum(tree(1))
        federation.sum(tree(2))
        (first, second) = [
            request for party, request, _ in engine.seen
            if party == "party-1" and request.verb == "masked"
        ]  # fmt: skip
        party = engine._parties["party-1"]
        again = decode_reply(party.perform(encode(first)))
        assert (again.code, "used before" in again.sentence) == ("malformed", True)
        repeated = decode_reply(party.perform(encode(second)))
        assert isinstance(repeated, Masked)
        session = second.keyed.session
        for task in (
            Reveal(session, first.round, ("party-2",)),
            Reveal(session, second.round, PARTIES[1:]),
            Reveal(session, second.round, ("party-1",)),
        ):
            request = type(second)(second.run, 9, "gather", task)
            assert isinstance(decode_reply(party.perform(encode(request))), Refusal)


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
