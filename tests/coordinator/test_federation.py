from __future__ import annotations

import sqlite3
import time

import msgspec
import numpy as np
import pytest

from cotune.coordinator.federation import BudgetSpent, Federation
from cotune.coordinator.journal import Journal
from cotune.coordinator.ledger import Round
from cotune.engines.local import LocalEngine
from cotune.errors import DataError, FederationError, UsageError
from cotune.party.task import Configuration
from cotune.party.tasks import Evaluate, Inspect, Search
from cotune.problem import Budget
from cotune.protocol.wire import Refusal, Summand, decode_reply, encode
from cotune.testing import Faulty
from tests.parts import Unreliable, federation_of, iris, parts, problem_of, threads, unreliable

TABLES = parts(iris())
PARTIES = tuple(TABLES)
LOST = Refusal("lost", "the connection broke")
LATE = Refusal("timeout", "no reply within 5 seconds")


@pytest.fixture(scope="module")
def problem():
    return problem_of(*TABLES.values(), compare_by="parties")  # a weighted sum


def tree(*depths):
    return Evaluate(tuple(Configuration("decision_tree", {"max_depth": d}) for d in depths))


def failing(party, how, calls=range(1, 1000)):
    """A change of replies: `party` fails in the given calls, by a refusal or a function."""

    def change(call, name, reply):
        if name != party or call not in calls:
            return reply
        return how(reply) if callable(how) else how

    return change


def summand(change):
    """Applies `change` to the losses of a summed reply."""

    def apply(reply):
        terms = dict(decode_reply(reply).terms)
        terms["losses"] = change(np.frombuffer(terms["losses"])).astype("<f8").tobytes()
        return encode(Summand(terms))

    return apply


GARBLED = {
    "garbled": lambda reply: b"\x00" + reply,
    "cut short": lambda reply: reply[:-3],
    "empty": lambda reply: b"",
    "not a number": summand(lambda losses: losses * np.nan),
    "infinite": summand(lambda losses: losses + np.inf),
    "out of bounds": summand(lambda losses: losses + 1e6),
    "too long": summand(lambda losses: np.append(losses, 0.0)),
    "nested": lambda reply: b"\x81\xa1a" + b"\x91" * 100_000,
}


# The two verbs


def test_gather_returns_every_partys_reply_by_its_name():
    with federation_of(TABLES) as federation:
        replies = federation.gather(Inspect(2))
    assert tuple(replies) == PARTIES
    assert all(reply.classes == ("0", "1", "2") for reply in replies.values())


@pytest.mark.parametrize("weights", ["rows", "equal"])
def test_the_mean_of_a_sum_is_weighted_as_the_problem_says(weights):
    tables = {"large": iris().head(110), "small": iris().tail(40)}
    problem = problem_of(*tables.values(), weights=weights, compare_by="parties")
    with federation_of(tables, problem=problem) as federation:
        gathered = federation.gather(tree(2))
        sums = federation.sum(tree(2))
    losses = [gathered[name].losses[0] for name in tables]
    assert losses[0] != losses[1]
    expected = np.average(losses, weights=[110, 40] if weights == "rows" else None)
    assert sums.mean("losses")[0] == pytest.approx(expected, abs=1e-9)
    assert sums.weight == (150 if weights == "rows" else 2)


def test_a_sum_does_not_depend_on_who_had_to_be_asked_twice(problem):
    with federation_of(TABLES, problem=problem) as federation:
        plain = federation.sum(tree(1, 2)).sum("losses").tolist()
    with unreliable(TABLES, failing("party-1", LOST, [1]), problem=problem) as federation:
        assert federation.sum(tree(1, 2)).sum("losses").tolist() == plain


def test_the_problem_travels_once():
    problem = problem_of(*TABLES.values(), learners=("hgb", "random_forest", "decision_tree"))
    with federation_of(TABLES, problem=problem) as federation:
        federation.sum(tree(1))
        federation.sum(tree(2))
        first, second = (entry.bytes_down for entry in federation.ledger)
    assert second < first / 3


def test_the_ledger_says_what_was_sent_fitted_and_disclosed(problem):
    with unreliable(TABLES, lambda call, name, reply: reply, problem=problem) as federation:
        federation.sum(tree(1))
        (entry,) = federation.ledger
    assert entry.cost.fits == 3 * 3
    assert entry.cost.cpu_seconds > 0
    assert entry.bytes_up > 0
    assert entry.seconds > 0
    assert entry.disclosed.startswith(
        "evaluate: each party tells how each configuration asked predicts its rows"
    )


# Parties that fail


@pytest.mark.parametrize("how", GARBLED.values(), ids=GARBLED)
def test_a_party_whose_reply_is_garbled_is_left_out_of_the_sum(problem, how):
    with unreliable(TABLES, failing("party-2", how), problem=problem) as federation:
        sums = federation.sum(tree(1))
        (failure,) = federation.ledger.failures
    assert sums.parties == 2
    assert sums.weight == 100
    assert (failure.party, failure.code) == ("party-2", "malformed")


@pytest.mark.parametrize("how", GARBLED.values(), ids=GARBLED)
def test_a_reply_that_was_garbled_once_is_asked_for_again(problem, how):
    with unreliable(TABLES, failing("party-2", how, [1]), problem=problem) as federation:
        sums = federation.sum(tree(1))
        assert federation.engine.calls == [PARTIES, ("party-2",)]
        assert federation.ledger.failures == []
        assert federation.ledger.fits == 9
    assert sums.parties == 3


def test_a_gathered_loss_that_is_not_a_number_is_left_out(problem):
    nan = msgspec.msgpack.encode(float("nan"))

    def poison(reply):
        gathered = decode_reply(reply)
        body = msgspec.msgpack.decode(gathered.body)
        body["losses"] = [float("nan")]
        changed = msgspec.Raw(encode(body))
        assert nan in bytes(changed)
        return encode(msgspec.structs.replace(gathered, body=changed))

    with unreliable(TABLES, failing("party-2", poison), problem=problem) as federation:
        assert tuple(federation.gather(tree(1))) == ("party-1", "party-3")


@pytest.mark.parametrize("how", [LOST, lambda reply: None], ids=["refusal", "missing"])
def test_a_party_whose_reply_is_lost_is_left_out_and_named(problem, how):
    with unreliable(TABLES, failing("party-3", how), problem=problem) as federation:
        assert federation.sum(tree(1)).parties == 2
        assert [f.party for f in federation.ledger.failures] == ["party-3"]
        assert len(federation.engine.calls) == 2
        replies = federation.gather(Inspect(2))
    assert tuple(replies) == ("party-1", "party-2")


def test_a_reply_of_a_party_that_was_not_asked_is_not_heard(problem):
    class Crowded(Unreliable):
        def call(self, messages, timeout):
            replies = super().call(messages, timeout)
            return replies | {"stranger": replies["party-1"]}

    with federation_of(TABLES) as inner:
        engine = Crowded(inner.engine, lambda call, name, reply: reply)
        sums = Federation(engine, problem=problem).sum(tree(1))
    assert (sums.parties, sums.weight) == (3, 150)


def test_retries_are_as_many_as_asked_for(problem):
    broken = failing("party-3", LOST)
    for retries in (0, 3):
        with unreliable(TABLES, broken, problem=problem, retries=retries) as federation:
            federation.sum(tree(1))
            assert len(federation.engine.calls) == 1 + retries


def test_a_refusal_that_a_repetition_does_not_mend_is_not_repeated(problem):
    internal = Refusal("internal", "the party failed; its own log says why")
    with unreliable(TABLES, failing("party-3", internal), problem=problem) as federation:
        federation.sum(tree(1))
        federation.sum(tree(1))
        assert federation.engine.calls == [PARTIES, PARTIES]


@pytest.mark.parametrize("how", [LATE, LOST])
def test_an_absent_party_is_left_out_for_one_two_and_four_rounds(problem, how):
    change = failing("party-2", how)
    with unreliable(TABLES, change, problem=problem, retries=0) as federation:
        for _ in range(12):
            federation.sum(tree(1))
        asked = ["party-2" in call for call in federation.engine.calls]
    assert [number for number, was in enumerate(asked, 1) if was] == [1, 3, 6, 11]


def test_a_party_that_comes_back_is_asked_every_round_again(problem):
    change = failing("party-2", LATE, [1, 3])
    with unreliable(TABLES, change, problem=problem) as federation:
        counts = [federation.sum(tree(1)).parties for _ in range(8)]
    assert counts == [2, 2, 2, 2, 2, 3, 3, 3]


def test_all_are_asked_when_those_present_would_be_too_few(problem):
    change = failing("party-2", LATE, [1])
    with unreliable(TABLES, change, problem=problem, quorum=0.6) as federation:
        federation.sum(tree(1))
        assert federation.sum(tree(1)).parties == 2
    change = failing("party-2", LATE, [1])
    with unreliable(TABLES, change, problem=problem, quorum=1.0) as federation:
        with pytest.raises(FederationError):
            federation.sum(tree(1))
        assert federation.sum(tree(1)).parties == 3


@pytest.mark.parametrize(("quorum", "enough"), [(0.3, True), (0.34, False), (1.0, False)])
def test_too_few_answers_stop_the_run_and_name_the_party_and_the_fix(problem, quorum, enough):
    def change(call, name, reply):
        return reply if name == "party-3" else LOST

    with unreliable(TABLES, change, problem=problem, quorum=quorum) as federation:
        if enough:
            assert federation.sum(tree(1)).parties == 1
            return
        sentence = (
            r"1 of 3 parties answered, [23] are needed; party-1: the connection broke\. "
            "Mend it and resume, or lower the quorum"
        )
        with pytest.raises(FederationError, match=sentence):
            federation.sum(tree(1))


def test_data_that_the_user_must_mend_stops_the_run_whatever_the_quorum():
    tables = {**TABLES, "tiny": iris(3)}
    with (
        federation_of(tables, quorum=0.1) as federation,
        pytest.raises(DataError, match="tiny: 3 rows are fewer than the 5 folds"),
    ):
        federation.gather(Inspect(5))


def test_a_party_that_forgot_the_problem_is_told_again_and_not_booked_twice(problem):
    tables = parts(iris())
    with federation_of(tables, problem=problem) as federation:
        federation.sum(tree(1))
        for party in federation.engine._parties.values():
            party._problem = party._evaluator = None
        assert federation.sum(tree(2)).parties == 3
        restarted = list(federation.ledger)[1]
    with federation_of(tables, problem=problem) as federation:
        federation.sum(tree(1))
        federation.sum(tree(2))
        usual = list(federation.ledger)[1]
    assert (restarted.bytes_up, restarted.bytes_down) == (usual.bytes_up, usual.bytes_down)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"quorum": 0}, "the quorum is 0"),
        ({"quorum": 1.1}, "the quorum is 1.1"),
        ({"timeout": 0}, "the timeout is 0"),
        ({"timeout": float("nan")}, "the timeout is nan"),
    ],
)
def test_rules_out_of_range_are_refused(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        federation_of(TABLES, **options)


# Budgets


def test_a_round_over_the_budget_is_not_begun(problem):
    with unreliable(TABLES, lambda *a: a[2], problem=problem) as federation:
        federation.budget = Budget(rounds=2)
        federation.sum(tree(1))
        federation.sum(tree(2))
        with pytest.raises(BudgetSpent, match="2 rounds is spent"):
            federation.sum(tree(3))
        assert len(federation.engine.calls) == federation.ledger.rounds == 2


@pytest.mark.parametrize(("fits", "rounds"), [(8, 0), (9, 1), (26, 2), (27, 3)])
def test_fits_stay_within_the_budget(problem, fits, rounds):
    with federation_of(TABLES, problem=problem, budget=Budget(fits=fits)) as federation:
        spend(federation, lambda number: federation.sum(tree(number)))
        assert federation.ledger.rounds == rounds
        assert federation.ledger.fits <= fits


def test_fits_of_parties_that_failed_count_against_the_budget(problem):
    second = PARTIES[1]
    engine = Faulty(LocalEngine(TABLES, "target", executor=threads()), {second: "garbage"})
    with Federation(engine, problem=problem, budget=Budget(fits=27)) as federation:
        spend(federation, lambda number: federation.sum(tree(number)))
        assert {f.party: f.code for f in federation.ledger.failures} == {second: "malformed"}
        assert (federation.ledger.rounds, federation.ledger.fits) == (3, 18)
        assert federation.ledger.most_fits == 27


@pytest.mark.parametrize("broken", [None, LOST, GARBLED["garbled"]])
@pytest.mark.parametrize("limit", [100, 6000, 12_000])
def test_bytes_stay_within_the_budget_also_with_retries(problem, limit, broken):
    change = failing("party-2", broken) if broken else lambda *a: a[2]
    budget = Budget(bytes=limit)
    with unreliable(TABLES, change, problem=problem, budget=budget) as federation:
        spend(federation, lambda number: federation.sum(tree(number)))
        spend(federation, lambda number: federation.gather(Search(("decision_tree",), 1)))
        assert federation.ledger.bytes_up + federation.ledger.bytes_down <= limit
        assert (federation.ledger.rounds == 0) == (limit == 100)


def spend(federation, ask):
    """Ask round after round until the budget is spent."""

    def rounds():
        for number in range(1, 100):
            ask(number)

    with pytest.raises(BudgetSpent):
        rounds()


def test_seconds_stay_within_the_budget(problem):
    def slowly(call, name, reply):
        time.sleep(0.02)
        return reply

    with unreliable(TABLES, slowly, problem=problem) as federation:
        federation.sum(tree(1))  # from now on remembered: a round is short on a busy machine too
        limit = federation.ledger.seconds + 1.0
        federation.budget = Budget(seconds=limit)
        asked = len(federation.engine.timeouts)
        spend(federation, lambda number: federation.sum(tree(1)))
        assert limit - 0.5 < federation.ledger.seconds <= limit
        assert all(timeout <= 1.0 for timeout in federation.engine.timeouts[asked:])


def test_the_timeout_is_the_rounds_not_each_attempts(problem):
    def slowly_lost(call, name, reply):
        time.sleep(0.1)
        return LOST if name == "party-1" else reply

    with unreliable(TABLES, slowly_lost, problem=problem, timeout=0.8, retries=9) as federation:
        federation.sum(tree(1))
        assert sum(entry.seconds for entry in federation.ledger) < 1.5
        assert federation.engine.timeouts == sorted(federation.engine.timeouts, reverse=True)
        assert federation.engine.timeouts[-1] < 0.8


# The journal


def test_a_recorded_round_is_not_asked_again(problem, tmp_path):
    path = tmp_path / "journal.sqlite"

    def run():
        change = failing("party-3", LATE, [1])
        with unreliable(TABLES, change, problem=problem, journal=Journal(path)) as federation:
            totals = [federation.sum(tree(depth)).sum("losses").tolist() for depth in (1, 2)]
            replies = federation.gather(Inspect(2))
            rounds = [encode(entry) for entry in federation.ledger]
        return federation.engine.calls, totals, replies, rounds

    first, second = run(), run()
    assert len(first[0]) == 3
    assert second[0] == []
    assert second[1:] == first[1:]


def test_the_journal_of_a_sum_holds_no_partys_own_values(problem, tmp_path):
    path = tmp_path / "journal.sqlite"
    with federation_of(TABLES, problem=problem, journal=Journal(path)) as federation:
        federation.sum(tree(2))
        gathered = Federation(federation.engine, problem=problem).gather(tree(2))
    (blob,) = sqlite3.connect(path).execute("SELECT round FROM rounds").fetchone()
    entry = msgspec.msgpack.decode(blob, type=Round)
    assert entry.replies is None
    own = [reply.losses[0] for reply in gathered.values()]
    assert len(set(own)) == 3
    for value in own:
        for weight in (1, 50):
            for written in (encode(value * weight), np.float64(value * weight).tobytes()):
                assert written not in path.read_bytes()
    assert sum(entry.total.vector("losses")) == pytest.approx(sum(own) * 50, abs=1e-6)


def test_another_method_on_an_old_journal_is_refused(problem, tmp_path):
    path = tmp_path / "journal.sqlite"
    with federation_of(TABLES, problem=problem, journal=Journal(path)) as federation:
        federation.sum(tree(1))
    with (
        federation_of(TABLES, problem=problem, journal=Journal(path)) as federation,
        pytest.raises(FederationError, match="recorded for another question"),
    ):
        federation.sum(tree(2))


def test_a_run_of_its_own_has_its_own_ledger(problem):
    with federation_of(TABLES, problem=problem) as federation:
        federation.sum(tree(1))
        bound = federation.for_run("one", Journal(), Budget())
        assert bound.ledger.rounds == 0
        assert bound.problem is None
        assert bound.parties == federation.parties


def test_a_party_that_lost_its_place_is_asked_otherwise(problem):
    """One party forgets; the answer and the ledger are those of a round in which none did."""

    def forgetful(call, name, reply):
        forgot = encode(Refusal("no_state", "the party does not know this training"))
        return forgot if (call, name) == (1, "party-2") else reply

    with unreliable(TABLES, forgetful, problem=problem) as federation:
        mended = federation.sum(tree(1), otherwise=tree(1))
        assert federation.engine.calls == [("party-1", "party-2", "party-3"), ("party-2",)]
        assert not federation.ledger.failures
    with federation_of(TABLES, problem=problem) as federation:
        whole = federation.sum(tree(1))
    assert mended.mean("losses") == whole.mean("losses")
    with unreliable(TABLES, forgetful, problem=problem) as federation:
        federation.sum(tree(1))  # nothing else to ask: the party is left out of the round
        assert [failure.code for failure in federation.ledger.failures] == ["no_state"]


def test_a_computation_goes_on_from_its_checkpoint(problem, tmp_path):
    path = tmp_path / "journal.sqlite"
    with federation_of(TABLES, problem=problem, journal=Journal(path)) as federation:
        federation.sum(tree(1))
        assert federation.restored() is None
        federation.sum(tree(2))
        federation.checkpoint(b"after two")
        third = federation.sum(tree(3)).mean("losses")
        expected = [msgspec.structs.replace(r, total=None) for r in federation.ledger]
    with federation_of(TABLES, problem=problem, journal=Journal(path)) as federation:
        federation.sum(tree(1))
        assert federation.restored() == b"after two"
        assert [msgspec.structs.replace(r, total=None) for r in federation.ledger] == expected[:2]
        assert federation.sum(tree(3)).mean("losses") == third  # asked again: it was not kept
        assert federation.ledger.rounds == len(expected)


def test_a_sum_among_some_asks_these_and_needs_a_quorum_of_these(problem):
    with federation_of(TABLES, problem=problem) as federation:
        some = federation.sum(tree(2), among=["party-1", "party-3"])
        assert some.parties == 2
        assert federation.ledger.last.asked == ("party-1", "party-3")
        everyone = federation.sum(tree(2))
        assert everyone.parties == 3
    change = failing("party-1", LOST)
    with unreliable(TABLES, change, problem=problem) as federation:
        assert federation.sum(tree(2), among=["party-1", "party-2"]).parties == 1
        with pytest.raises(FederationError, match="0 of 1 parties answered, 1 are needed"):
            federation.sum(tree(2), among=["party-1"])
