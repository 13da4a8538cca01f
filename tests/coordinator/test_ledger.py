from __future__ import annotations

from cotune.coordinator.ledger import Failure, Ledger, Round
from cotune.protocol.wire import Cost, Refusal


def entry(number, task="evaluate", **changes):
    fields = {
        "number": number,
        "task": task,
        "verb": "sum",
        "asked": ("a", "b"),
        "bytes_up": 10,
        "bytes_down": 100,
        "seconds": 0.5,
        "cost": Cost(3, 0.25),
        "disclosed": f"{task}: each party tells something",
    }
    return Round(**(fields | changes))


def test_an_empty_ledger_is_all_zero():
    assert set(Ledger().summary().values()) == {0}
    assert Ledger().disclosed == []


def test_rounds_add_up():
    ledger = Ledger([entry(1)])
    ledger.add(entry(2, cost=Cost(5, 0.5), bytes_up=1, bytes_down=2, seconds=1.0))
    assert ledger.summary() == {
        "rounds": 2,
        "bytes_up": 11,
        "bytes_down": 102,
        "fits": 8,
        "cpu_seconds": 0.75,
        "seconds": 1.5,
    }


def test_each_disclosure_is_said_once_in_the_order_of_asking():
    ledger = Ledger([entry(1, "inspect"), entry(2), entry(3), entry(4, "inspect")])
    assert [sentence.partition(":")[0] for sentence in ledger.disclosed] == ["inspect", "evaluate"]


def test_who_failed_is_listed_with_the_round_and_the_reason():
    failed = entry(2, failures={"b": Refusal("timeout", "no reply within 5 seconds")})
    assert failed.answered == 1
    ledger = Ledger([entry(1), failed])
    assert ledger.failures == [Failure(2, "b", "timeout", "no reply within 5 seconds")]
