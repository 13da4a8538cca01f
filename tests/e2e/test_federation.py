"""A federation of real processes that are killed, hang, differ or were never started."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines.real import PATIENCE, Real, make_rows, until

#: Trials of a run that is still going on when a party that was killed is back: on a quick machine
#: a hundred rounds may pass by then.
LONG = 400
TUNING = (
    "tune", "--federation", "anna", "--learner", "decision_tree", "--folds", "3", "--no-train",
    "--quorum", "0.3", "--sampler", "random",
)  # fmt: skip
#: Starts cotune as if it were another version.
OTHER_VERSION = (
    sys.executable,
    "-c",
    "import cotune; cotune.__version__ = '9.9.9'; from cotune.cli.commands import main; main()",
)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    tables = {
        name: make_rows(seed).assign(patient=range(90))
        for seed, name in enumerate(("north", "south", "west"))
    }
    federation = Real(tmp_path_factory.mktemp("real"), tables)
    try:
        federation.start("server", *federation.sites)
        federation.await_sites(*federation.sites)
        yield federation
    finally:
        federation.close()


def tuned(real: Real, *options: str) -> dict:
    """The outcome of a short run. It waits for sites that are being started."""
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
            real.await_again(site)
        yield
    finally:
        if how:
            real.send(site, signal.SIGTERM)
        real.start(site)


def test_each_site_warns_its_own_operator_and_the_lead_is_shown_nothing(real: Real) -> None:
    for site in real.sites:
        assert "warning: column 'patient' has another whole number in each row" in real.said(site)
        assert "--drop patient" in real.said(site)
    printed = real.run(*TUNING, "--trials", "1", "--quiet", "--json")
    assert printed.count("\n") == 1
    assert "warning" not in printed


def test_a_run_outlives_its_parties_its_server_and_its_lead(real: Real) -> None:
    run = real.folder / "run"
    lead = real.begin(*TUNING, "--trials", str(LONG), "--run", "run")
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
    assert "connected again: north" in said
    first = finished(run)
    outcome = json.loads(real.run("resume", "run", "--quiet", "--json").splitlines()[-1])
    assert outcome["trials"] == LONG
    assert set(failures(outcome)) == {"north"}
    last = finished(run)
    assert {number: last[number] for number in first} == first, "no finished round is repeated"


def test_parties_that_hang_or_are_not_there_are_named_with_what_to_do(real: Real) -> None:
    with another(real, "west"):
        real.send("south", signal.SIGSTOP)
        try:
            said = failures(tuned(real, "--timeout", "10"))
        finally:
            real.send("south", signal.SIGCONT)
    assert set(said) == {"south", "west"}
    assert "does not answer" in said["south"] or "no reply within" in said["south"]
    assert "see that `cotune party start` runs there and reaches localhost" in said["west"]


def test_parties_of_another_version_or_policy_are_named_with_what_to_do(real: Real) -> None:
    careful = ["--at-least", "masked", "--learner", "decision_tree"]
    with (
        another(real, "north", cotune=OTHER_VERSION),
        another(real, "west", options=careful),
    ):
        said = failures(tuned(real))
        assert "cotune 9.9.9 runs there" in said["north"]
        assert "install the same version" in said["north"]
        assert "tells nothing of its own in the clear" in said["west"]
        assert set(failures(tuned(real, "--privacy", "masked"))) == {"north"}
        assert "refused: this party tells nothing" in real.run("party", "audit", "west")


def test_a_site_sets_one_share_of_its_rows_aside_in_all_runs(real: Real) -> None:
    """Two runs with neighbouring shares once differed by one patient."""
    beside = [
        real.run(*TUNING, "--trials", "1", "--quiet", "--holdout", share, code=4)
        for share in ("0.20032", "0.20033")
    ]
    assert "this party takes shares of its rows in whole percents" in beside[0]
    last = [said.splitlines()[-1] for said in beside]
    first, second = (re.sub(r"0\.2003[23]|north|south|west", "...", said) for said in last)
    assert first == second  # but for who is named, the first to answer
    assert not failures(tuned(real, "--holdout", "0.2"))
    with another(real, "west", options=[]):
        refused = real.run(*TUNING, "--trials", "1", "--quiet", "--holdout", "0.21", code=4)
        assert "this party sets 0.2 of these rows aside, in every run" in refused
        assert not failures(tuned(real, "--holdout", "0.2", "--seed", "3"))


def test_a_party_with_a_wrong_column_is_refused_with_the_column_named(real: Real) -> None:
    file = real.folder / "west.csv"
    right = file.read_text()
    file.write_text(right.replace("dose", "doze", 1))
    with another(real, "west", options=[]):
        file.write_text(right)  # for the next start
        printed = real.run(*TUNING, "--trials", "3", "--quiet", code=3)
    assert "west" in printed
    assert "'dose'" in printed
    assert "'doze'" in printed


def job_of(folder: Path, executor: dict, custom: str | None = None) -> Path:
    """A job like cotune's own, but with another class at the sites."""
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    relay = {"id": "relay", "path": "cotune.engines.nvflare.relay.Relay", "args": {}}
    files = {
        folder / "meta.json": {
            "name": folder.name,
            "resource_spec": {},
            "min_clients": 1,
            "deploy_map": {"app": ["@ALL"]},
        },
        config / "config_fed_server.json": {"format_version": 2, "workflows": [relay]},
        config / "config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["cotune"], "executor": executor}],
        },
    }
    for path, content in files.items():
        path.write_text(json.dumps(content))
    if custom is not None:
        (folder / "app" / "custom").mkdir()
        (folder / "app" / "custom" / "shipped.py").write_text(custom)
    return folder


def test_a_class_that_is_not_ours_and_shipped_code_do_not_run_at_a_site(
    real: Real, tmp_path: Path
) -> None:
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    made = {kind: tmp_path / f"made-by-{kind}" for kind in ("foreign", "shipped")}
    args = {"filename": str(made["foreign"])}
    jobs = [
        job_of(tmp_path / "foreign", {"path": "logging.FileHandler", "args": args}),
        job_of(
            tmp_path / "shipped",
            {"path": "shipped.Executor", "args": {}},
            f"open({str(made['shipped'])!r}, 'w')",
        ),
    ]
    session = new_secure_session("anna@cotune.local", str(real.lead))
    try:
        foreign, shipped = (session.submit_job(str(job)) for job in jobs)
        log = real.folder / "north" / foreign / "log.txt"
        until(lambda: log.exists() and "'logging.FileHandler'" in log.read_text())
        assert "is not in allow_list" in log.read_text()
        session.abort_job(foreign)
        until(lambda: "BYOC not permitted" in str(session.get_job_meta(shipped)))
    finally:
        session.close()
    assert not [path for path in made.values() if path.exists()]
