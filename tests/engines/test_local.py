from __future__ import annotations

import gc
import itertools
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from cotune.coordinator.federation import Federation
from cotune.engines.local import LocalEngine
from cotune.errors import FederationError
from cotune.learners import register_learner
from cotune.party.task import Configuration
from cotune.party.tasks import Evaluate, Inspect, Search
from cotune.protocol.wire import Gathered, Refusal, Request, decode_reply, encode
from tests.parts import (
    Hanging,
    OwnLearner,
    federation_of,
    iris,
    parts,
    problem_of,
    threads,
)

INSPECT = encode(Request("run", 1, "gather", Inspect(2)))


@pytest.fixture
def engine():
    made = LocalEngine(parts(iris()), "target", executor=threads())
    yield made
    made.close()


def test_parties_are_sorted_by_name():
    tables = parts(iris())
    engine = LocalEngine(dict(reversed(tables.items())), "target", executor=threads())
    assert engine.parties() == ["party-1", "party-2", "party-3"]
    engine.close()


def test_every_party_that_is_called_replies_and_no_other(engine):
    replies = engine.call(dict.fromkeys(["party-1", "party-3"], INSPECT), None)
    assert set(replies) == {"party-1", "party-3"}
    assert all(isinstance(decode_reply(reply), Gathered) for reply in replies.values())


def test_bytes_that_are_no_message_get_a_refusal(engine):
    replies = engine.call({"party-1": b"?", "party-2": INSPECT}, None)
    assert decode_reply(replies["party-1"]).code == "malformed"
    assert isinstance(decode_reply(replies["party-2"]), Gathered)


def test_no_party_is_an_error_that_says_so():
    with pytest.raises(FederationError, match="at least 1 party"):
        LocalEngine({}, "target")


def test_rows_do_not_outlive_the_engine(tmp_path):
    federation = federation_of(parts(iris()))
    federation.close()
    engine = LocalEngine(parts(iris()), "target", executor=threads(), scratch=tmp_path)
    problem = problem_of(*parts(iris()).values())
    task = Evaluate((Configuration("decision_tree", {"max_depth": 1}),))
    message = encode(Request("run", 1, "sum", task, problem.digest, problem))
    engine.call({"party-1": message}, None)
    assert list(tmp_path.rglob("y.npy"))
    engine.close()
    assert not list(tmp_path.iterdir())
    engine.close()


def test_an_engine_that_is_forgotten_cleans_up(tmp_path):
    LocalEngine(parts(iris()), "target", executor=threads(), scratch=tmp_path)
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_scratch_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FederationError, match="no scratch folder can be made in"):
        LocalEngine(parts(iris()), "target", scratch=tmp_path / "file")


def test_a_hung_fit_is_ended_at_the_timeout_and_the_next_round_works(registry, caplog):
    register_learner(Hanging())
    tables = parts(iris(), 2)
    problem = problem_of(*tables.values(), learners=("hanging",))
    engine = LocalEngine(tables, "target", processes=1)
    federation = Federation(engine, timeout=1.5, problem=problem)
    warm = Evaluate((Configuration("hanging", {"depth": 3}),))
    federation.timeout = None
    federation.sum(warm)
    federation.timeout = 1.5
    began = time.monotonic()
    with pytest.raises(FederationError, match=r"party-1: no reply within 1\.5 seconds"):
        federation.sum(Evaluate((Configuration("hanging", {"depth": 1}),)))
    assert time.monotonic() - began < 10
    federation.timeout = None
    sums = federation.sum(Evaluate((Configuration("hanging", {"depth": 2}),)))
    assert sums.parties == 2
    federation.close()
    assert caplog.records == []


def test_a_search_that_is_late_does_not_go_on_behind_the_next_round(registry):
    tables = parts(iris(), 1)
    problem = problem_of(*tables.values(), learners=("decision_tree",))
    engine = LocalEngine(tables, "target", executor=threads())
    endless = Search(("decision_tree",), trials=100_000, sampler="random")
    message = encode(Request("run", 1, "gather", endless, problem.digest, problem))
    assert engine.call({"party-1": message}, 0.5)["party-1"] == Refusal(
        "timeout", "no reply within 0.5 seconds"
    )
    began = time.monotonic()
    engine.call({"party-1": INSPECT}, None)
    assert time.monotonic() - began < 5
    engine.close()


class Meeting(OwnLearner):
    """Its first fits wait for each other: as many as there are parties."""

    name = "meeting"

    def __init__(self, parties: int) -> None:
        self._met = threading.Barrier(parties)
        self._waits = itertools.count(parties, -1)

    def estimator(self, params, *, task, seed, schema):
        if next(self._waits) > 0:
            self._met.wait(timeout=10)
        return super().estimator(params, task=task, seed=seed, schema=schema)


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_the_next_party_begins_while_one_waits_for_its_fits(registry, timeout):
    tables = parts(iris(), 3)
    register_learner(Meeting(3))
    problem = problem_of(*tables.values(), learners=("meeting",), folds=2)
    with ThreadPoolExecutor(6) as executor:
        engine = LocalEngine(tables, "target", executor=executor)
        with Federation(engine, timeout=timeout, problem=problem) as federation:
            sums = federation.sum(Evaluate((Configuration("meeting", {"depth": 2}),)))
    assert sums.parties == 3
    assert not sums.sum("failed").any()


class Unwell:
    """A party that does something else than to answer, in this process."""

    def __init__(self, does) -> None:
        self.perform = does


def test_with_a_timeout_a_slow_party_is_late_alone(engine):
    engine._parties["party-1"] = Unwell(lambda message: time.sleep(2.0))
    replies = engine.call(dict.fromkeys(engine.parties(), INSPECT), 1.0)
    late = [name for name, reply in replies.items() if isinstance(reply, Refusal)]
    assert late == ["party-1"]


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_what_is_no_ordinary_error_ends_the_call(engine, timeout):
    def leaves(message):
        raise SystemExit

    engine._parties["party-2"] = Unwell(leaves)
    with pytest.raises(SystemExit):
        engine.call(dict.fromkeys(engine.parties(), INSPECT), timeout)


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_ctrl_c_strikes_no_party_at_work(engine, timeout):
    at_work = []
    engine._parties["party-2"] = Unwell(lambda _: at_work.append(threading.current_thread()) or b"")
    engine.call(dict.fromkeys(engine.parties(), INSPECT), timeout)
    assert at_work
    assert threading.main_thread() not in at_work  # where signals are handled


def test_an_engine_whose_caller_is_interrupted_at_any_moment_works_on(engine):
    class Stopped(KeyboardInterrupt):
        pass

    def stop(*_):
        raise Stopped

    problem = problem_of(*parts(iris()).values())
    moments = np.random.default_rng(0).uniform(1e-4, 2e-2, 60)
    before = signal.signal(signal.SIGALRM, stop)
    stopped = 0
    try:
        for depth, moment in enumerate(moments, start=1):
            task = Evaluate((Configuration("decision_tree", {"max_depth": depth}),))
            message = encode(Request("run", depth, "sum", task, problem.digest, problem))
            try:
                signal.setitimer(signal.ITIMER_REAL, moment)
                engine.call(dict.fromkeys(engine.parties(), message), None)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Stopped:
                stopped += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    assert stopped
    replies = engine.call(dict.fromkeys(engine.parties(), INSPECT), 10.0)
    assert all(isinstance(decode_reply(reply), Gathered) for reply in replies.values())


def test_a_party_that_was_interrupted_answers_as_if_nothing_had_been(engine, monkeypatch):
    problem = problem_of(*parts(iris()).values())
    task = Evaluate((Configuration("decision_tree", {"max_depth": 2}),))
    federation, save = Federation(engine, problem=problem), np.save
    for interrupted in range(3):  # at the target, and at the rows
        saves = itertools.count()

        def interrupt(path, values, saves=saves, interrupted=interrupted):
            save(path, values[: len(values) // 2])
            if next(saves) == interrupted:
                raise KeyboardInterrupt
            save(path, values)

        monkeypatch.setattr(np, "save", interrupt)
        with pytest.raises(KeyboardInterrupt):
            federation.sum(task)
        monkeypatch.setattr(np, "save", save)
    assert federation.sum(task).parties == 3


def test_fits_are_counted_for_progress_displays(engine):
    problem = problem_of(*parts(iris()).values())
    federation = Federation(engine, problem=problem)
    federation.sum(Evaluate((Configuration("decision_tree", {"max_depth": 2}),)))
    assert engine.progress() == 3 * 3


def test_all_rows_in_one_place_set_aside_what_the_parties_set_aside():
    """Else the reference would learn from rows that the parties' model is judged by."""
    frame = iris().assign(row=np.arange(len(iris())))
    tables = parts(frame, 3)
    problem = problem_of(frame, holdout=0.3)
    task = Evaluate((Configuration("decision_tree", {"max_depth": 3}),))
    message = encode(Request("run", 1, "sum", task, problem.digest, problem))
    with closing(LocalEngine(tables, "target", executor=threads())) as engine:
        reply = decode_reply(engine.call({engine.pooled: message}, None)[engine.pooled])
        assert not isinstance(reply, Refusal), reply
        pooled = engine.party(engine.pooled)
        members = [engine.party(name) for name in engine.parties()]
        held = [set(member.divided(problem)[1]["row"]) for member in members]
    assert set(pooled.held_out["row"]) == set().union(*held)
    assert len(pooled.held_out) == sum(map(len, held)) > 0
    assert set(pooled.frame["row"]).isdisjoint(pooled.held_out["row"])
