from __future__ import annotations

import sqlite3

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.coordinator.journal import Journal
from cotune.coordinator.ledger import Round, Total
from cotune.errors import FederationError
from cotune.protocol.wire import Cost, Refusal, encode
from tests.coordinator.test_ledger import entry

finite = st.floats(allow_nan=False)
names = st.text(max_size=10)
rounds = st.builds(
    Round,
    number=st.integers(1, 100),
    task=names,
    verb=st.sampled_from(["gather", "sum"]),
    asked=st.lists(names, max_size=3).map(tuple),
    bytes_up=st.integers(0, 2**40),
    bytes_down=st.integers(0, 2**40),
    seconds=finite,
    cost=st.builds(Cost, st.integers(0, 2**40), finite),
    disclosed=names,
    failures=st.dictionaries(names, st.builds(Refusal, st.just("lost"), names), max_size=3),
    replies=st.none()
    | st.dictionaries(names, st.lists(finite).map(lambda v: msgspec.Raw(encode(v))), max_size=3),
    total=st.none() | st.dictionaries(names, st.binary(), max_size=3).map(Total),
)


@given(rounds)
def test_a_round_comes_back_as_it_was_recorded(recorded):
    journal = Journal()
    journal.record(recorded, "question")
    assert encode(journal.recorded(recorded.number, "question")) == encode(recorded)
    journal.close()


def test_a_journal_outlives_its_process(tmp_path):
    path = tmp_path / "journal.sqlite"
    first = Journal(path)
    for number in (1, 2):
        first.record(entry(number), f"question {number}")
    again = Journal(path)  # without closing the first: it may have been killed
    assert len(again) == 2
    assert again.recorded(2, "question 2") == entry(2)
    assert again.recorded(3, "question 3") is None


def test_another_question_than_was_recorded_is_an_error():
    journal = Journal()
    journal.record(entry(1), "question")
    with pytest.raises(FederationError, match=r"round 1 .* another question.* start a new one"):
        journal.recorded(1, "another")


def test_a_round_is_recorded_once():
    journal = Journal()
    journal.record(entry(1), "question")
    with pytest.raises(FederationError):
        journal.record(entry(1), "question")


def test_a_file_that_is_no_journal_is_named_in_one_sentence(tmp_path):
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"this is not a database, and it is long enough to be seen as none" * 20)
    with pytest.raises(FederationError, match="cannot be used") as caught:
        Journal(path)
    assert str(path) in str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FederationError, match="make the folder writable"):
        Journal(tmp_path / "missing" / "journal.sqlite")


def test_a_full_disk_is_an_error_that_names_the_fix(tmp_path):
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    journal._database.execute("PRAGMA max_page_count = 3")
    with pytest.raises(FederationError, match=r"full.*free disk space.*cotune resume"):
        journal.record(entry(1, disclosed="x" * 100_000), "question")
    journal.close()
    assert sqlite3.connect(path).execute("SELECT COUNT(*) FROM rounds").fetchone() == (0,)


def test_a_checkpoint_keeps_the_state_and_its_rounds(tmp_path):
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    for number in (1, 2):
        journal.record(entry(number), f"question {number}")
    journal.checkpoint(2, [entry(3), entry(4)], b"half")
    assert Journal(path).restored(2) == ([entry(3), entry(4)], b"half")
    assert journal.restored(1) is None
    journal.checkpoint(2, [entry(5)], b"whole")
    assert journal.restored(2) == ([entry(3), entry(4), entry(5)], b"whole")


def filled(path):
    """A journal with rounds, a checkpoint with parts, and noises."""
    journal = Journal(path)
    for number in (1, 2):
        journal.record(entry(number), f"question {number}")
    journal.checkpoint(2, [entry(3), entry(4)], b"half", {"one": b"1", "two": b"2"})
    journal.checkpoint(2, [], b"whole", {"two": b"zwei"})
    for noise in (2.0, 3.0):
        journal.note_noise(noise)
    journal.close()


def test_a_journal_goes_on_where_it_was_left(tmp_path):
    path = tmp_path / "journal.sqlite"
    filled(path)
    journal = Journal(path)
    journal.checkpoint(2, [entry(5)], b"more")
    journal.record(entry(6), "question 6")
    journal.note_noise(4)
    journal.close()
    again = Journal(path)
    assert again.rounds(2) == [entry(n) for n in (3, 4, 5, 6)]
    assert again.restored(2) == ([entry(n) for n in (3, 4, 5)], b"more"), "6 was none of its own"
    assert again.part(2, "two") == b"zwei"
    assert again.noises() == (2.0, 3.0, 4.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE rounds SET round = (SELECT round FROM rounds WHERE number = 1) WHERE number = 2",
         "round 2 of the journal was changed or damaged"),
        ("UPDATE rounds SET request = 'question' WHERE number = 1", "round 1 of the journal was"),
        ("UPDATE rounds SET number = 7 WHERE number = 4", "round 7 of the journal was changed"),
        ("UPDATE rounds SET round = 'text' WHERE number = 3", "round 3 of the journal was"),
        ("DELETE FROM rounds WHERE number = 1", "round 2 of the journal was changed or damaged"),
        ("DELETE FROM rounds WHERE number = 4", "the checkpoint after round 2 of the journal was"),
        ("UPDATE checkpoints SET state = x'00'", "the checkpoint after round 2 of the journal was"),
        ("UPDATE checkpoints SET since = 1", "the checkpoint after round 1 of the journal was"),
        ("UPDATE parts SET part = x'00' WHERE name = 'one'", "a part of the checkpoint after"),
        ("DELETE FROM parts WHERE name = 'one'", "the checkpoint after round 2 of the journal was"),
        ("UPDATE noises SET noise = 9 WHERE number = 2", "noise 2 of the journal was changed"),
        ("DELETE FROM noises WHERE number = 1", "noise 2 of the journal was changed or damaged"),
        ("DROP TABLE parts", "no such table.* restore the folder from a copy"),
    ],
)  # fmt: skip
def test_what_was_changed_in_a_journal_is_named_with_what_can_be_done(tmp_path, change, said):
    path = tmp_path / "journal.sqlite"
    filled(path)
    with sqlite3.connect(path) as database:
        database.execute(change)
    with pytest.raises(FederationError, match=rf"(?s){said}.*or start a new run"):
        Journal(path)


def test_opening_a_journal_writes_nothing(tmp_path):
    path = tmp_path / "journal.sqlite"
    filled(path)
    before = path.read_bytes(), path.stat().st_mtime_ns
    path.chmod(0o400)
    assert len(Journal(path)) == 4
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize("version", [0, 1, 3, 99])
def test_a_journal_of_another_version_is_refused(version, tmp_path):
    path = tmp_path / "journal.sqlite"
    Journal(path).close()
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version={version}")
    database.close()
    with pytest.raises(FederationError, match=r"journal\.sqlite was made by another version"):
        Journal(path)


def test_parts_of_a_checkpoint_are_kept_one_by_one(tmp_path):
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    journal.checkpoint(2, [], b"first", {"one": b"1", "two": b"2"})
    journal.checkpoint(2, [], b"second", {"two": b"two"})
    again = Journal(path)
    assert (again.part(2, "one"), again.part(2, "two")) == (b"1", b"two")
    assert again.part(2, "three") is None
    assert again.part(1, "one") is None


def test_a_journal_that_could_not_be_made_can_be_made_later(tmp_path, monkeypatch):
    path = tmp_path / "journal.sqlite"
    with monkeypatch.context() as patched:
        patched.setattr("cotune.coordinator.journal._TABLES", ("CREATE TABLE a (b)", "nonsense"))
        with pytest.raises(FederationError):
            Journal(path)
    assert len(Journal(path)) == 0
