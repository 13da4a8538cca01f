"""A federation of real processes that are killed, hang, differ or were never started."""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.federation.real import PATIENCE, Real, make_rows, until

TUNING = (
    "tune", "--federation", "anna", "--learner", "decision_tree", "--folds", "3", "--no-train",
    "--quorum", "0.3", "--sampler", "random",
)  # fmt: skip
#: Starts cotune as if it were another version.
OTHER_VERSION = (
    sys.executable,
    "-c",
    "import sys, cotune; cotune.__version__ = '9.9.9'; from cotune.cli import main; main()",
)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    tables = {name: make_rows(seed) for seed, name in enumerate(("north", "south", "west"))}
    federation = Real(tmp_path_factory.mktemp("real"), tables)
    try:
        federation.start("server", *federation.sites)
        federation.await_sites(*federation.sites)
        yield federation
    finally:
        federation.close()


def tuned(real: Real, *options: str) -> dict:
    """The outcome of a short run."""
    printed = real.run(*TUNING, "--trials", "3", "--quiet", "--json", *options)
    return json.loads(printed.splitlines()[-1])


def failures(outcome: dict) -> dict[str, str]:
    """By party, what it or the engine said last."""
    return {failure["party"]: failure["sentence"] for failure in outcome["failures"]}


def finished(run: Path) -> dict[int, bytes]:
    """The rounds that a run has written down."""
    try:
        with sqlite3.connect(run / "journal.sqlite", timeout=0.1) as journal:
            return dict(journal.execute("SELECT number, round FROM rounds"))
    except sqlite3.Error:
        return {}


def await_more(run: Path, rounds: int) -> None:
    before = len(finished(run))
    until(lambda: len(finished(run)) >= before + rounds, 2 * PATIENCE)


def asked(real: Real, site: str) -> int:
    """How often a party was asked, by its own record."""
    return (real.folder / site / "audit.jsonl").read_bytes().count(b"\n")


@contextmanager
def another(real: Real, site: str, **how) -> Iterator[None]:
    """The site's process is another one for a while, or none."""
    real.send(site, signal.SIGTERM)
    try:
        if how:
            real.start(site, **how)
            real.await_sites(*real.sites)
        yield
    finally:
        if how:
            real.send(site, signal.SIGTERM)
        real.start(site)
        real.await_sites(*real.sites)


def test_a_run_outlives_its_parties_its_server_and_its_lead(real: Real) -> None:
    run = real.folder / "run"
    lead = real.begin(*TUNING, "--trials", "250", "--run", "run")
    try:
        await_more(run, 5)
        real.send("north", signal.SIGKILL)
        await_more(run, 5)  # goes on without it
        before = asked(real, "north")
        real.start("north")
        until(lambda: asked(real, "north") > before, 2 * PATIENCE)  # is used again
        real.send("server", signal.SIGKILL)
        real.start("server")
        await_more(run, 5)
        assert lead.poll() is None
    finally:
        lead.kill()
        said = lead.communicate(timeout=PATIENCE)[0]
    assert "north is connected again" in said
    first = finished(run)
    outcome = json.loads(real.run("resume", "run", "--quiet", "--json").splitlines()[-1])
    assert outcome["trials"] == 250
    assert set(failures(outcome)) == {"north"}
    last = finished(run)
    assert {number: last[number] for number in first} == first, "no finished round is repeated"


def test_a_party_that_hangs_is_left_out_and_taken_in_again(real: Real) -> None:
    real.send("south", signal.SIGSTOP)
    try:
        outcome = tuned(real, "--timeout", "15")
    finally:
        real.send("south", signal.SIGCONT)
    assert set(failures(outcome)) == {"south"}
    assert not failures(tuned(real))


def test_a_party_that_is_not_there_is_named_with_what_to_do(real: Real) -> None:
    with another(real, "west"):
        said = failures(tuned(real))["west"]
        assert "the site west is not connected: is `cotune party start` running there" in said
        printed = real.run(*TUNING, "--trials", "3", "--quorum", "1", "--quiet", code=4)
        assert "2 of 3 parties answered, 3 are needed; west: the site west is not" in printed


def test_a_party_of_another_version_is_named_with_what_to_do(real: Real) -> None:
    with another(real, "west", cotune=OTHER_VERSION):
        said = failures(tuned(real))["west"]
    assert "cotune 9.9.9 runs there" in said
    assert "install the same version" in said


def test_a_party_with_a_wrong_column_is_refused_with_the_column_named(real: Real) -> None:
    file = real.folder / "west.csv"
    right = file.read_text()
    file.write_text(right.replace("dose", "doze", 1))
    try:
        with another(real, "west", options=[]):
            printed = real.run(*TUNING, "--trials", "3", "--quiet", code=3)
            file.write_text(right)
    finally:
        file.write_text(right)
    assert "west" in printed
    assert "'dose'" in printed
    assert "'doze'" in printed


def test_a_party_refuses_what_discloses_more_than_it_allows(real: Real) -> None:
    with another(real, "west", options=["--at-least", "masked", "--learner", "decision_tree"]):
        said = failures(tuned(real))["west"]
        assert "tells nothing of its own in the clear" in said
        assert not failures(tuned(real, "--privacy", "masked"))
        other = tuned(real, "--privacy", "masked", "--learner", "logistic_regression")
        assert "does not take the learner 'logistic_regression'" in failures(other)["west"]
        assert "refused: refused this party" in real.run("party", "audit", "west")
