from __future__ import annotations

import os
import socket
import stat
import tempfile
import threading
import time
from multiprocessing.connection import Client
from pathlib import Path

import pytest

import cotune
from cotune.errors import FederationError
from cotune.learners import register_learner
from cotune.party.task import Configuration
from cotune.party.tasks import Evaluate, Inspect
from cotune.party.workers import Workers
from cotune.protocol.wire import Gathered, Refusal, Request, decode_reply, encode
from cotune.site import door
from cotune.site.audit import Audit, check, read
from cotune.site.door import Ask, knock
from cotune.site.host import MOST_JUNK, MOST_SERVED, MOST_SILENT, Host
from cotune.site.policy import Policy
from tests.parts import Counting, iris, party_of, problem_of, threads

INSPECT = encode(Request("run", 1, "gather", Inspect(2)))
ALL = Policy()
JUNK = b"\xc1 no message"


class Slow(Counting):
    """Each fit waits until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.begun = threading.Event()

    def estimator(self, params, **context):
        self.begun.set()
        assert self.go_on.wait(20)
        return super().estimator(params, **context)


@pytest.fixture
def record(tmp_path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def make(tmp_path, record, monkeypatch):
    """Opens the door of a party; closes all at the end."""
    hosts = []

    def open_door(policy: Policy = ALL, **options) -> Host:
        workers = Workers(threads())
        party = party_of(iris(), tmp_path / "rows", workers=workers)
        host = Host(party, workers, policy, Audit(record), asker, **options)
        hosts.append(host)
        host.start()
        monkeypatch.setenv(door.DOOR, host.address)
        return host

    yield open_door
    for host in hosts:
        host.close()


@pytest.fixture
def slow(registry):
    learner = Slow()
    register_learner(learner)
    yield learner
    learner.go_on.set()


def asker(ask: Ask) -> str | None:
    """Stands for a signature: eve cannot sign."""
    return None if ask.certificate == "eve" else ask.certificate


def long_call(problem_of_counting, round: int = 1) -> bytes:
    task = Evaluate((Configuration("counting", {"depth": 2}),))
    return encode(
        Request("run", round, "gather", task, problem_of_counting.digest, problem_of_counting)
    )


def outcomes(record: Path) -> list[str]:
    return [entry.outcome for entry in read(record)]


def until(condition) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_door_says_who_is_there(make):
    make()
    told = knock(Ask("hello"))
    assert (told.state, told.version, told.party) == ("hello", cotune.__version__, "party-1")


def test_the_socket_is_for_its_user_alone_and_gone_afterwards(make):
    host = make()
    folder = Path(host.address).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    host.close()
    host.close()
    assert not folder.exists()
    with pytest.raises(FederationError, match="does not answer"):
        knock(Ask("hello"))


def test_a_long_temporary_path_does_not_keep_the_door_shut(make, tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    make()
    assert knock(Ask("hello")).state == "hello"


def test_a_call_is_answered_as_the_party_answers(make, record):
    make()
    told = knock(Ask("call", "1", "anna", INSPECT, wait=20))
    assert told.state == "done"
    assert isinstance(decode_reply(told.reply), Gathered)
    (entry,) = read(record)
    assert (entry.asker, entry.run, entry.round, entry.task) == ("anna", "run", 1, "inspect")
    assert (entry.way, entry.outcome, entry.discloses) == ("gather", "told", Inspect.discloses)
    assert (entry.bytes_in, entry.bytes_out) == (len(INSPECT), len(told.reply))


def test_what_was_answered_is_not_computed_twice(make, record, registry):
    counting = Counting()
    register_learner(counting)
    message = long_call(problem_of(iris(), learners=("counting",)))
    make()
    first = knock(Ask("call", "1", message=message, wait=20))
    fits = len(counting.fits)
    again = knock(Ask("call", "2", message=message, wait=20))
    assert again.reply == first.reply
    assert len(counting.fits) == fits
    assert again.fits == fits
    assert knock(Ask("collect", "2", wait=20)).reply == first.reply
    assert outcomes(record) == ["told", "repeated"]
    assert [entry.fits for entry in read(record)] == [fits, 0]


def test_what_was_refused_is_tried_again_when_it_is_asked_anew(make, record, monkeypatch):
    host, performed = make(), []
    perform = host._party.perform

    def noted(message):
        performed.append(message)
        return perform(message)

    monkeypatch.setattr(host._party, "perform", noted)
    message = encode(Request("run", 1, "gather", Inspect(10_000)))
    for name in ("1", "1", "2"):
        assert knock(Ask("call", name, message=message, wait=20)).state == "done"
    told = outcomes(record)
    assert len(set(told)) == 1
    assert told[0].startswith("refused: data")
    assert performed == [message] * 2


def test_a_slow_call_is_joined_and_collected(make, slow, record):
    make()
    message = long_call(problem_of(iris(), learners=("counting",)))
    assert knock(Ask("call", "1", message=message)).state == "working"
    assert knock(Ask("call", "2", message=message, wait=0.05)).state == "working"
    assert knock(Ask("collect", "1")).state == "working"
    assert knock(Ask("collect", "3")).state == "unknown"
    slow.go_on.set()
    replies = {knock(Ask("collect", name, wait=20)).reply for name in "12"}
    assert len(replies) == 1
    assert isinstance(decode_reply(replies.pop()), Gathered)
    assert len(slow.fits) == 3
    assert outcomes(record) == ["told"]


def test_a_cancelled_call_is_given_up_and_can_be_asked_again(make, slow, record):
    make()
    message = long_call(problem_of(iris(), learners=("counting",)))
    assert knock(Ask("cancel")).state == "unknown"
    assert knock(Ask("call", "1", message=message)).state == "working"
    assert slow.begun.wait(20)
    assert knock(Ask("cancel", "1")).state == "working"
    assert decode_reply(knock(Ask("collect", "1", wait=20)).reply).code == "cancelled"
    slow.go_on.set()
    told = knock(Ask("call", "2", message=message, wait=20))
    assert isinstance(decode_reply(told.reply), Gathered)
    assert outcomes(record) == ["given up", "told"]


def test_a_newer_call_ends_an_older_one(make, slow, record):
    make()
    message = long_call(problem_of(iris(), learners=("counting",)))
    assert knock(Ask("call", "1", message=message)).state == "working"
    assert slow.begun.wait(20)
    began = time.monotonic()
    told = knock(Ask("call", "2", message=INSPECT, wait=20))
    assert isinstance(decode_reply(told.reply), Gathered)
    assert time.monotonic() - began < 5
    assert knock(Ask("collect", "1")).state == "unknown"
    assert outcomes(record) == ["given up", "told"]


def test_of_many_calls_the_last_one_is_performed(make, slow, record):
    host = make()
    problem = problem_of(iris(), learners=("counting",))
    for round in range(1, 6):
        host.answer(Ask("call", str(round), message=long_call(problem, round)))
    slow.go_on.set()
    told = knock(Ask("collect", "5", wait=20))
    assert isinstance(decode_reply(told.reply), Gathered)
    assert sorted(outcomes(record)) == ["given up"] * 4 + ["told"]


def test_work_that_missed_that_it_was_given_up_is_given_up_again(make, slow, monkeypatch):
    host = make()
    workers = host._workers
    cancel, missed = workers.cancel, []
    monkeypatch.setattr(
        workers, "cancel", lambda: cancel() if missed else missed.append("the first time")
    )
    message = long_call(problem_of(iris(), learners=("counting",)))
    assert knock(Ask("call", "1", message=message)).state == "working"
    assert slow.begun.wait(20)
    told = knock(Ask("call", "2", message=INSPECT, wait=20))
    assert isinstance(decode_reply(told.reply), Gathered)


def test_junk_is_refused_as_the_party_does_and_written_down(make, slow, record):
    host = make()
    message = long_call(problem_of(iris(), learners=("counting",)))
    knock(Ask("call", "1", message=message))
    told = knock(Ask("call", "2", "anna", JUNK, wait=20))  # the work under way goes on
    slow.go_on.set()
    assert isinstance(decode_reply(knock(Ask("collect", "1", wait=20)).reply), Gathered)
    assert told.reply == host._party.perform(JUNK)
    junk, _ = read(record)
    assert (junk.task, junk.asker, junk.bytes_in) == ("?", "anna", len(JUNK))
    assert junk.outcome.startswith("refused: malformed")


def test_clients_that_hang_or_talk_nonsense_disturb_nobody(make, record):
    host = make()
    silent = socket.socket(socket.AF_UNIX)
    silent.connect(host.address)
    for raw in (b"", b"\x00", b"\xff\xff\xff\xff" + b"\x7f" * 8, b"GET / HTTP/1.1\r\n\r\n"):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(host.address)
            client.sendall(raw)
    with Client(host.address, family="AF_UNIX") as client:
        client.send_bytes(JUNK)
        with pytest.raises((EOFError, OSError)):
            client.recv_bytes()
    assert isinstance(
        decode_reply(knock(Ask("call", "1", message=INSPECT, wait=20)).reply), Gathered
    )
    until(lambda: outcomes(record)[-1] == "told")
    assert "?" in {entry.task for entry in read(record)}
    silent.close()


def test_a_client_that_dies_while_it_waits_can_come_back(make, slow):
    host = make()
    message = long_call(problem_of(iris(), learners=("counting",)))
    with Client(host.address, family="AF_UNIX") as client:
        client.send_bytes(door._encode(Ask("call", "1", message=message, wait=30)))
        assert slow.begun.wait(20)
    slow.go_on.set()
    assert isinstance(decode_reply(knock(Ask("collect", "1", wait=20)).reply), Gathered)


def test_who_may_not_ask_disturbs_nothing_and_learns_nothing(make, slow, record):
    make()
    message = long_call(problem_of(iris(), learners=("counting",)))
    assert knock(Ask("call", "1", "anna", message)).state == "working"
    assert slow.begun.wait(20)
    for asked in (message, INSPECT):
        refusal = decode_reply(knock(Ask("call", "2", "eve", asked, wait=20)).reply)
        assert refusal == Refusal("refused", "the federation's lead has not signed this message")
    for op in ("cancel", "collect"):
        assert knock(Ask(op, "2")).state == "unknown", "of another call"
    slow.go_on.set()
    told = knock(Ask("collect", "1", wait=20))
    assert isinstance(decode_reply(told.reply), Gathered)
    assert [entry.asker for entry in read(record)] == ["?", "?", "anna"]


@pytest.mark.parametrize("at_least", ["plain", "masked"])
def test_fits_are_not_counted_aloud_where_sums_are_private(make, slow, at_least):
    slow.go_on.set()
    host = make(Policy(at_least=at_least))
    message = long_call(problem_of(iris(), learners=("counting",)))
    knock(Ask("call", "1", message=message, wait=20))
    host._workers.done += 1
    assert (knock(Ask("collect", "1")).fits > 0) == (at_least == "plain")


def test_a_party_that_cannot_even_refuse_is_heard_of(make, monkeypatch):
    host = make()

    def fail(message):
        raise MemoryError

    monkeypatch.setattr(host._party, "perform", fail)
    told = knock(Ask("call", "1", message=INSPECT, wait=20))
    assert decode_reply(told.reply).code == "internal"


def test_what_the_policy_refuses_the_party_does_not_see(make, record, monkeypatch):
    host = make(Policy(refused=("inspect",)))
    monkeypatch.setattr(host._party, "perform", lambda message: pytest.fail("it was asked"))
    told = knock(Ask("call", "1", message=INSPECT, wait=20))
    assert decode_reply(told.reply).code == "refused"
    (entry,) = read(record)
    assert entry.outcome.startswith("refused: this party does not perform")
    assert entry.discloses == ""


def test_what_cannot_be_written_down_is_not_told(make, record, monkeypatch):
    host = make()

    def full(entry):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(host._audit, "write", full)
        told = knock(Ask("call", "1", message=INSPECT, wait=20))
        assert decode_reply(told.reply).code == "storage"
    told = knock(Ask("call", "2", message=INSPECT, wait=20))
    assert isinstance(decode_reply(told.reply), Gathered)
    monkeypatch.setattr(host._audit, "write", full)
    assert decode_reply(knock(Ask("call", "3", message=INSPECT)).reply).code == "storage"


def test_entries_are_shown_and_a_broken_display_harms_nothing(make):
    shown = []

    def show(entry):
        shown.append(entry.task)
        raise BrokenPipeError

    make(show=show)
    told = knock(Ask("call", "1", message=INSPECT, wait=20))
    assert isinstance(decode_reply(told.reply), Gathered)
    until(lambda: shown == ["inspect"])


def test_many_knock_at_once(make, record):
    make()
    messages = [encode(Request("run", round, "gather", Inspect(2))) for round in range(4)]
    states = []

    def client(number: int) -> None:
        for turn in range(10):
            message = messages[(number + turn) % 4]
            told = knock(Ask("call", f"{number}-{turn}", message=message, wait=20))
            states.append(told.state)

    clients = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for one in clients:
        one.start()
    for one in clients:
        one.join(30)
    assert states == ["done"] * 80
    assert check(record) is None


def test_closing_gives_up_what_is_under_way(make, slow, record):
    host = make()
    message = long_call(problem_of(iris(), learners=("counting",)))
    knock(Ask("call", "1", message=message))
    assert slow.begun.wait(20)
    host.close()
    assert outcomes(record) == ["given up"]
    assert host.answer(Ask("call", "2", message=INSPECT)).state == "unknown"


def silent_clients(host, count):
    clients = [socket.socket(socket.AF_UNIX) for _ in range(count)]
    for client in clients:
        client.connect(host.address)
    return clients


def test_clients_that_say_nothing_take_no_threads_and_keep_nobody_out(make):
    host = make()
    before = threading.active_count()
    clients = silent_clients(host, 300)
    until(lambda: len(still_open(clients)) <= MOST_SILENT + 1)
    assert threading.active_count() <= before + 2
    assert knock(Ask("hello")).state == "hello"
    for client in clients:
        client.close()


def still_open(clients):
    """Those whose connection the party has not closed."""
    found = []
    for client in clients:
        client.setblocking(False)
        try:
            if client.recv(1):
                found.append(client)
        except BlockingIOError:
            found.append(client)
    return found


def test_clients_that_begin_a_message_and_hang_are_left_after_a_while(make, monkeypatch):
    monkeypatch.setattr("cotune.site.host.PATIENCE", 1.0)
    host = make()
    before = threading.active_count()
    clients = silent_clients(host, MOST_SERVED)
    for client in clients:
        client.sendall(b"\x00\x00\x00\x10")
    until(lambda: not still_open(clients))
    until(lambda: threading.active_count() <= before)
    assert knock(Ask("hello")).state == "hello"


def test_much_junk_is_counted_and_not_written_down_one_by_one(make, record):
    host = make()
    for number in range(500):
        knock(Ask("call", str(number), "anna", JUNK, wait=1))
    lines = read(record)
    assert len(lines) == MOST_JUNK + 1
    assert lines[-1].outcome.endswith("(further ones of this hour are counted)")
    assert knock(Ask("call", "1", "anna", INSPECT, wait=20)).state == "done"
    host.close()
    assert read(record)[-1].outcome == "refused: malformed 480 more messages of that hour"
    assert read(record)[-1].bytes_in == 480 * len(JUNK)
    assert check(record) is None


def test_junk_of_the_next_hour_is_written_down_again(make, record, monkeypatch):
    monkeypatch.setattr("cotune.site.host.JUNK_PERIOD", 0.5)
    make()
    for number in range(2 * MOST_JUNK):
        knock(Ask("call", str(number), "anna", JUNK, wait=1))
        if number == MOST_JUNK + 5:
            time.sleep(0.6)
    lines = [entry.outcome for entry in read(record)]
    assert "refused: malformed 6 more messages of that hour" in lines
    assert len(lines) > MOST_JUNK + 2
