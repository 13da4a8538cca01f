"""What every engine keeps to, so that methods need not know which one they run on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pandas as pd

from cotune.coordinator.federation import Federation
from cotune.party.tasks import Inspect
from cotune.protocol.engine import Engine
from cotune.protocol.wire import Gathered, Refusal, Request, decode_reply, encode
from cotune.run.tune import tune
from cotune.testing.tables import make_tables

#: Starts an engine whose parties hold these tables, with the column of that name to predict.
Make = Callable[[Mapping[str, pd.DataFrame], str], Engine]

#: Seconds after its timeout within which a call must have returned.
GRACE = 10.0


def parties_are_named_in_order(make: Make) -> None:
    with Federation(make(make_tables(parties=3), "target")) as federation:
        assert federation.parties == ["party-1", "party-2", "party-3"]


def each_party_answers_its_own_message(make: Make) -> None:
    with Federation(make(make_tables(parties=3), "target")) as federation:
        replies = federation.engine.call(
            {"party-1": _inspect(2), "party-3": _inspect(10_000)}, timeout=60
        )
    assert set(replies) == {"party-1", "party-3"}
    assert isinstance(_decoded(replies["party-1"]), Gathered)
    assert isinstance(_decoded(replies["party-3"]), Refusal), "10,000 folds are too many"


def garbage_is_refused_and_forgotten(make: Make) -> None:
    with Federation(make(make_tables(parties=1), "target")) as federation:
        for junk in (b"", b"\xc1", b"\x00" * 1000, encode({"task": "os.system"})):
            (reply,) = federation.engine.call({"party-1": junk}, timeout=60).values()
            refusal = _decoded(reply)
            assert isinstance(refusal, Refusal)
            assert refusal.code == "malformed"
        (reply,) = federation.engine.call({"party-1": _inspect(2)}, timeout=60).values()
        assert isinstance(_decoded(reply), Gathered)


def large_messages_arrive_whole(make: Make) -> None:
    columns = tuple(f"column {number} {'x' * 1000}" for number in range(1000))
    message = encode(Request("run", 1, "gather", Inspect(2, None, columns)))
    with Federation(make(make_tables(parties=2), "target")) as federation:
        replies = federation.engine.call(dict.fromkeys(federation.parties, message), timeout=60)
    assert all(isinstance(_decoded(reply), Gathered) for reply in replies.values())


def a_call_returns_at_its_timeout(make: Make) -> None:
    """Whatever the parties do; and the engine works afterwards."""
    with Federation(make(make_tables(parties=2), "target")) as federation:
        engine = federation.engine
        engine.call({p: _inspect(2) for p in federation.parties}, timeout=60)
        began = time.monotonic()
        engine.call({p: _inspect(2) for p in federation.parties}, timeout=1e-6)
        assert time.monotonic() - began < GRACE
        replies = engine.call({p: _inspect(2) for p in federation.parties}, timeout=60)
        assert all(isinstance(_decoded(reply), Gathered) for reply in replies.values())


def every_engine_gives_the_same_outcome(make: Make) -> None:
    """The losses are those of the local engine, to the last bit."""
    from cotune.engines.local import LocalEngine

    found = []
    for engine in (make(make_tables(), "target"), LocalEngine(make_tables(), "target")):
        with Federation(engine) as federation:
            outcome = tune(
                federation,
                learners=["decision_tree"],
                folds=3,
                trials=3,
                progress=False,
                train=False,
            )
            found.append([(trial.params, trial.loss, trial.fits) for trial in outcome.trials])
    assert found[0] == found[1]


def closing_twice_is_harmless(make: Make) -> None:
    engine = make(make_tables(parties=1), "target")
    engine.close()
    engine.close()


ENGINE_CHECKS: tuple[Callable[[Make], None], ...] = (
    parties_are_named_in_order,
    each_party_answers_its_own_message,
    garbage_is_refused_and_forgotten,
    large_messages_arrive_whole,
    a_call_returns_at_its_timeout,
    every_engine_gives_the_same_outcome,
    closing_twice_is_harmless,
)


def check_engine(make: Make) -> None:
    """Run all checks; `make(tables, target)` starts an engine over these tables."""
    for check in ENGINE_CHECKS:
        check(make)


def _inspect(folds: int) -> bytes:
    return encode(Request("run", 1, "gather", Inspect(folds)))


def _decoded(reply: bytes | Refusal) -> object:
    return decode_reply(reply) if isinstance(reply, bytes) else reply
