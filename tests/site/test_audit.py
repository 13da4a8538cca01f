from __future__ import annotations

import stat

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.errors import FederationError, UsageError
from cotune.party.keys import Aim, Keyed
from cotune.party.task import Configuration
from cotune.party.tasks import Evaluate, Inspect
from cotune.privacy.protection import Protection
from cotune.protocol.wire import Request
from cotune.site.audit import Audit, as_text, check, disclosed, entry_of, read, summary

TREE = Evaluate((Configuration("decision_tree", {}),))


def entries(count: int = 6):
    return [
        entry_of(
            Request("run", number, "sum", TREE),
            "anna",
            "told",
            bytes_in=100,
            bytes_out=200 + number,
            seconds=1.25,
            fits=5,
        )
        for number in range(count)
    ]


def recorded(path, count: int = 6):
    audit = Audit(path)
    for entry in entries(count):
        audit.write(entry)
    audit.close()
    return path


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    path = recorded(tmp_path_factory.mktemp("audit") / "audit.jsonl")
    return path.read_bytes().splitlines(keepends=True)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Where a changed record is put."""
    return tmp_path_factory.mktemp("changed") / "audit.jsonl"


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "deep" / "audit.jsonl"
    audit = Audit(path)
    written = entries()
    for entry in written:
        audit.write(entry)
    assert read(path) == written  # while the party runs
    assert check(path) is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_restarted_party_goes_on_with_its_record(tmp_path):
    path = tmp_path / "audit.jsonl"
    for _ in range(3):
        recorded(path, 2)
    assert len(read(path)) == 6
    assert check(path) is None


@given(st.data())
def test_a_changed_byte_is_found_in_its_line(lines, other, data):
    number = data.draw(st.integers(0, len(lines) - 1))
    line = bytearray(lines[number])
    position = data.draw(st.integers(0, len(line) - 2))
    line[position] = data.draw(st.integers(0, 255).filter(lambda byte: byte != line[position]))
    other.write_bytes(b"".join([*lines[:number], bytes(line), *lines[number + 1 :]]))
    told = check(other)
    assert told is not None
    assert f"line {number + 1} " in told


@given(st.data())
def test_removed_and_exchanged_lines_are_found(lines, other, data):
    kept = data.draw(st.lists(st.sampled_from(range(len(lines))), min_size=1, max_size=8))
    other.write_bytes(b"".join(lines[number] for number in kept))
    assert (check(other) is None) == (kept == list(range(len(kept))))


@given(st.data())
def test_a_torn_line_is_passed_over_and_the_record_goes_on(lines, other, data):
    whole = data.draw(st.integers(0, len(lines) - 1))
    torn = lines[whole][: data.draw(st.integers(1, len(lines[whole]) - 1))]
    other.write_bytes(b"".join(lines[:whole]) + torn)
    complete = torn == lines[whole][:-1]
    assert len(read(other)) == whole + complete
    assert check(other) is None
    recorded(other, 2)
    assert len(read(other)) == whole + complete + 2
    assert check(other) is None


def test_a_torn_line_covers_up_nothing(lines, other):
    other.write_bytes(b"".join([*lines[:2], lines[2][:40] + b"\n", *lines[4:]]))
    assert "line 3 " in check(other)
    with pytest.raises(FederationError, match="line 3 is no entry"):
        read(other)


def test_an_unreadable_line_is_named(lines, other):
    for content in ([*lines[:3], b"{}\n", *lines[4:]], [*lines[:3], b"{}\n"]):
        other.write_bytes(b"".join(content))
        with pytest.raises(FederationError, match="line 4 is no entry"):
            read(other)


def test_a_record_that_is_not_there_is_an_error_in_a_sentence(tmp_path):
    for look in (read, check):
        with pytest.raises(FederationError, match="cannot be read"):
            look(tmp_path / "nowhere.jsonl")
    with pytest.raises(FederationError, match="cannot be written"):
        Audit(tmp_path)


def test_another_file_is_not_written_to(tmp_path):
    path = tmp_path / "patients.csv"
    path.write_text("age,target\n1,2\n")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="no record of a party"):
        Audit(path)
    assert path.read_text() == "age,target\n1,2\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_two_processes_do_not_share_a_record(tmp_path):
    first = Audit(tmp_path / "audit.jsonl")
    with pytest.raises(UsageError, match="another party's process"):
        Audit(tmp_path / "audit.jsonl")
    first.close()
    Audit(tmp_path / "audit.jsonl").close()


def test_a_line_that_did_not_get_onto_the_disk_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "audit.jsonl"
    audit = Audit(path)
    first, second, third, *_ = entries()
    audit.write(first)
    file = audit._file

    class Full:
        def write(self, line):
            return file.write(line[:10])

    audit._file = Full()
    with pytest.raises(OSError, match="No space"):
        audit.write(second)
    audit._file = file
    audit.write(third)
    assert read(path) == [first, third]
    assert check(path) is None


@pytest.mark.parametrize(
    ("verb", "aim", "protection", "begins"),
    [
        ("gather", Aim(), None, "how each configuration asked predicts its rows"),
        ("sum", Aim(), None, "how each configuration asked predicts its rows"),
        ("masked", Aim(), None, "only the total over the parties (masked) is told of how each"),
        ("masked", Aim(3), None, "only the total over the parties (masked) is told of how each"),
        (
            "encrypted",
            Aim(),
            Protection(4.0, parties=16),
            "only the total over the parties (encrypted, noised: this party adds a deviation of 1 "
            "clipping norms, as one of 16 that make 4) is told of how each",
        ),
        ("encrypted", Aim(3), None, "only where the total over the parties reaches 3 is told of"),
        ("encrypted", Aim(0, 1.0, 2.0), None, "only quotients of totals over the parties"),
    ],
)
def test_what_is_disclosed_is_said_in_the_words_of_the_ledger(verb, aim, protection, begins):
    keyed = Keyed("session", ("a", "b"), aim) if verb in ("masked", "encrypted") else None
    request = Request("run", 1, verb, TREE, keyed=keyed, protection=protection)
    assert disclosed(request).startswith(begins)
    assert disclosed(request).endswith(Evaluate.discloses)


def test_a_summary_counts_by_task_and_way():
    request = Request("run", 1, "gather", Inspect(2))
    all_entries = [
        entry_of(request, "anna", "told", bytes_in=1, bytes_out=50),
        *entries(2),
        entry_of(request, "anna", "repeated", bytes_in=1, bytes_out=50),
        entry_of(request, "eve", "refused: refused no", bytes_in=1, bytes_out=9),
        entry_of(None, "eve", "refused: malformed no", bytes_in=1, bytes_out=9),
    ]
    inspect, evaluate, junk = summary(all_entries)
    assert (inspect.task, inspect.told, inspect.refused, inspect.bytes_out) == (
        "inspect",
        2,
        1,
        100,
    )
    assert inspect.discloses == Inspect.discloses
    assert (evaluate.way, evaluate.told, evaluate.bytes_out) == ("sum", 2, 401)
    assert (junk.task, junk.told, junk.refused, junk.discloses) == ("?", 0, 1, "")


def test_a_summary_has_every_amount_of_noise_that_was_added():
    noised = [
        entry_of(
            Request("run", 1, "masked", TREE, keyed=Keyed("s", ("a",)), protection=Protection(n)),
            "anna", "told", bytes_in=1, bytes_out=50,
        )
        for n in (4.0, 4.0, 0.5)
    ]  # fmt: skip
    (one,) = summary(noised)
    assert one.discloses == f"{noised[0].discloses}; {noised[2].discloses}"
    assert "that make 4)" in one.discloses
    assert "that make 0.5)" in one.discloses


def test_the_text_has_a_line_for_each_entry_and_says_once_what_was_told():
    text = as_text(entries(3))
    head, line, *_ = text.splitlines()
    assert head == "run run"
    assert line.endswith("anna  evaluate  round 0     sum        told 200 bytes in 1.2 s, 5 fits")
    assert text.count("told 20") == 3
    assert "evaluate (sum) was told 3 times, 603 bytes:" in text
    assert text.count("how each configuration asked predicts its rows") == 1
    assert max(map(len, text.splitlines())) <= 100
    assert as_text([]) == ""


def test_a_long_refusal_is_cut_to_one_line():
    refused = entry_of(None, "anna", "refused: data " + "x" * 200, bytes_in=1, bytes_out=1)
    (line,) = as_text([refused]).splitlines()
    assert len(line) == 120


def test_the_text_does_not_command_the_terminal():
    (entry,) = entries(1)
    assert "\x1b" not in as_text([msgspec.structs.replace(entry, asker="eve\x1b[2J")])
