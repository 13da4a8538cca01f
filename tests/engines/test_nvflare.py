"""Real parties over mutual TLS on this machine: separate processes, separate files."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

import cotune
from cotune.coordinator.federation import Federation
from cotune.data.load import fingerprint
from cotune.engines.local import LocalEngine
from cotune.engines.nvflare.connection import Connection
from cotune.engines.nvflare.engine import NvflareEngine
from cotune.engines.nvflare.kits import create, open_kit
from cotune.engines.nvflare.signature import Verifier
from cotune.errors import FederationError, UsageError
from cotune.files import sealed
from cotune.party.key import SMALLEST_CELL, KeyFile
from cotune.party.tasks import Inspect
from cotune.protocol.wire import Refusal, Request, decode_reply, encode, too_long
from cotune.site.audit import Audit
from cotune.site.door import DOOR
from cotune.site.host import Host
from cotune.site.policy import Policy
from cotune.site.process import KEYS, STATE
from cotune.testing.engine import ENGINE_CHECKS, Make
from cotune.testing.tables import make_tables
from tests.engines.real import Real, free_port, make_rows, unpack, until
from tests.privacy.agents import ready

#: In a party's data, and nowhere else.
CANARY = "zq-canary-7731"
NUMBER = 61.73519846


def tables() -> dict[str, pd.DataFrame]:
    """Other orders of columns, a category and a class that one party lacks, and a canary."""
    north, south, west = (make_rows(seed) for seed in (1, 2, 3))
    south = south[["outcome", "ward", "age", "dose"]]
    west = west[(west.ward != "high") & (west.outcome != "worse")]
    north["note"] = north["age"] * 0 + 1.0
    south["note"], west["note"] = 2.0, 3.0
    north.loc[0, "dose"] = NUMBER
    north["comment"] = [f"{CANARY}-{row}" for row in range(len(north))]
    return {"north": north, "south": south, "west": west}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    federation = Real(tmp_path_factory.mktemp("real"), tables())
    try:
        federation.start("server", "south", "west")
        federation.start("north", options=["--drop", "comment"])
        federation.await_sites("north", "south", "west")
        yield federation
    finally:
        federation.close()


@pytest.fixture(scope="module")
def connected(real: Real) -> Iterator[Federation]:
    with cotune.connect(real.lead) as federation:
        yield federation


@pytest.fixture(scope="module")
def simulated(real: Real) -> Iterator[Federation]:
    files = {name: pd.read_csv(real.folder / f"{name}.csv") for name in real.sites}
    keys = {name: kept_key(real.folder / name, files[name]) for name in files}
    files["north"] = files["north"].drop(columns="comment")
    engine = LocalEngine(files, "outcome", processes=1, keys=keys, smallest_cell=SMALLEST_CELL)
    with Federation(engine) as federation:
        yield federation


def kept_key(kit: Path, rows: pd.DataFrame) -> KeyFile:
    """The key by which a site chooses these rows, as its own process has made it."""
    path = kit / STATE / KEYS / f"{fingerprint(rows)}.json"
    assert path.exists()
    return KeyFile.opened(path.parent, path.stem)


METHODS = {
    "dash, and boosted trees trained": (
        "dash",
        {"learners": ["hgb"], "fixed": {"hgb": {"max_iter": 10}}},
    ),
    "flora": ("flora", {"learners": ["decision_tree"], "few_shot": 4, "train": False}),
    "flash": (
        "flash",
        {"learners": ["decision_tree", "logistic_regression"], "holdout": 0.2, "train": False},
    ),
    "privtuna": (
        "privtuna",
        {"learners": ["decision_tree"], "privacy": "encrypted", "train": False},
    ),
}


@pytest.mark.parametrize(
    "name", [n if n != "privtuna" else pytest.param(n, marks=ready) for n in METHODS]
)
def test_the_answer_is_that_of_a_simulation(
    name: str, connected: Federation, simulated: Federation
) -> None:
    method, options = METHODS[name]
    found = []
    for federation in (connected, simulated):
        outcome = cotune.tune(
            federation, method, trials=3, folds=3, seed=5, progress=False, **options
        )
        assert not outcome.ledger.failures
        trials = [(trial.learner, trial.params, trial.loss) for trial in outcome.trials]
        rows = make_rows(9).assign(note=2.0)
        predicted = outcome.model.table(rows) if options.get("train", True) else None
        found.append((trials, outcome.best_params, outcome.ledger.rounds, predicted))
    assert found[0][:3] == found[1][:3]
    if found[0][3] is not None:
        pd.testing.assert_frame_equal(found[0][3], found[1][3])


def test_each_party_keeps_a_record_of_what_it_told(real: Real, connected: Federation) -> None:
    told = real.run("party", "audit", "north")
    assert "anna@cotune.local" in told
    assert "evaluate" in told
    assert "how each configuration asked predicts its rows" in told
    entries = json.loads(real.run("party", "audit", "north", "--json"))
    assert all(entry["bytes_out"] > 0 for entry in entries)
    assert "asked for evaluate" in real.said("north"), "the party shows it"


def test_what_only_one_party_has_is_in_no_file_of_the_others(
    real: Real, connected: Federation, tmp_path: Path
) -> None:
    cotune.tune(
        connected, learners=["decision_tree"], trials=2, run=tmp_path / "run", progress=False
    )
    searched = [path for path in (*real.folder.rglob("*"), *tmp_path.rglob("*")) if path.is_file()]
    mine = {real.folder / "north.csv"}
    assert len(searched) > 20
    for path in searched:
        if path not in mine and real.folder / "north" not in path.parents:
            content = path.read_bytes()
            assert CANARY.encode() not in content, path
            assert str(NUMBER).encode() not in content, path
            assert np.float64(NUMBER).tobytes() not in content, path


def test_nothing_but_the_servers_port_is_open(real: Real, connected: Federation) -> None:
    open_ports = set()
    for name in ("server", *real.sites):
        process = psutil.Process(real.pid(name))
        for one in (process, *process.children(recursive=True)):
            for link in one.net_connections():
                if link.status == psutil.CONN_LISTEN:
                    assert link.laddr.ip.removeprefix("::ffff:") == "127.0.0.1", name
                    open_ports.add((name, link.laddr.port))
    assert ("server", real.port) in open_ports


def test_a_kit_is_used_by_one_process_at_a_time(real: Real, connected: Federation) -> None:
    with pytest.raises(UsageError, match=r"uses the kit in .*anna already: stop it first"):
        cotune.connect(real.lead)
    said = real.run("party", "start", "north", "--data", "south.csv", "--target", "outcome", code=2)
    assert f"process {real.pid('north')} uses the kit" in said


def test_status_tells_who_is_there(real: Real, connected: Federation) -> None:
    told = json.loads(real.run("federation", "status", "anna", "--json"))
    assert told["sites"] == dict.fromkeys(real.sites, "connected")
    assert 350 < told["days_left"] < 361


def test_a_check_shows_the_data_and_the_connection(real: Real) -> None:
    said = real.run("party", "check", "south", "--data", "south.csv", "--target", "outcome")
    assert "90 rows" in said
    assert "the server answers and accepts this kit" in said
    said = real.run("party", "check", "south", "--data", "south.csv", "--target", "outcom", code=3)
    assert "did you mean 'outcome'" in said


def test_a_kit_of_another_federation_is_refused(real: Real, tmp_path: Path) -> None:
    create(tmp_path / "kits", f"localhost:{real.port}", ["north"], "anna")
    for name in ("anna", "north"):
        unpack(tmp_path / "kits" / f"{name}.zip", tmp_path)
    with pytest.raises(FederationError, match="is not of this federation"):
        cotune.connect(tmp_path / "anna")
    said = real.run(
        "party", "check", str(tmp_path / "north"), "--data", "south.csv", "--target", "outcome",
        code=4,
    )  # fmt: skip
    assert "is not of this federation" in said


class Doors:
    """Sites whose connections stay while their parties are exchanged, in this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parties = [f"party-{number}" for number in (1, 2, 3)]
        create(folder / "kits", f"localhost:{free_port()}", self._parties, "anna")
        for name in ("server", "anna", *self._parties):
            unpack(folder / "kits" / f"{name}.zip", folder)
        self._doors = Path(tempfile.mkdtemp(prefix="cotune-"))
        server = Connection.started(folder / "server", open_kit(folder / "server", "server"))
        self._connections = [server]
        for name in self._parties:
            door = {DOOR: str(self._doors / name)}
            kit = open_kit(folder / name, "site")
            self._connections.append(Connection.started(folder / name, kit, door))
        self._hosts: list[Host] = []
        self._behind: LocalEngine | None = None

    def make(self, tables: Mapping[str, pd.DataFrame], target: str) -> NvflareEngine:
        self._leave()
        self._behind = LocalEngine(tables, target, processes=1)
        for name in tables:
            audit = Audit(self._doors / f"{name}.jsonl")
            verifier = Verifier(self._folder / name, open_kit(self._folder / name, "site"))
            host = Host(
                self._behind.party(name),
                self._behind.workers,
                Policy(),
                audit,
                lambda ask, verifier=verifier: (
                    "anna" if verifier.signed(ask.certificate, ask.signature, ask.message) else None
                ),
            )
            host.start()
            self._hosts.append(host)
            door = self._doors / name
            door.unlink(missing_ok=True)
            door.symlink_to(host.address)
        path = self._folder / "anna" / "cotune.json"
        kit = json.loads(path.read_text()) | {"sites": sorted(tables)}
        del kit["digest"]
        path.write_bytes(sealed(kit))
        until(lambda: self._answers())
        return NvflareEngine(self._folder / "anna")

    def _answers(self) -> bool:
        from cotune.engines.nvflare.session import status

        try:
            return set(status(self._folder / "anna").sites.values()) == {"connected"}
        except FederationError:
            return False

    def _leave(self) -> None:
        for host in self._hosts:
            host.close()
            host._audit.close()
        self._hosts = []
        if self._behind is not None:
            self._behind.close()

    def close(self) -> None:
        self._leave()
        for connection in self._connections:
            connection.stop()
        shutil.rmtree(self._doors, ignore_errors=True)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    doors = Doors(tmp_path_factory.mktemp("doors"))
    try:
        yield doors
    finally:
        doors.close()


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
def test_the_engine_conforms(check, doors: Doors) -> None:
    make: Make = doors.make
    check(make)


def test_a_reply_that_is_too_long_stays_at_the_server(doors: Doors) -> None:
    with Federation(doors.make(make_tables(parties=2), "target")) as federation:
        engine, message = federation.engine, encode(Request("run", 1, "gather", Inspect(2)))
        (whole,) = engine.call({"party-1": message}, timeout=60).values()
        assert isinstance(whole, bytes)
        engine.longest_reply = len(whole) - 1
        (instead,) = engine.call({"party-1": message}, timeout=60).values()
        assert isinstance(instead, bytes)
        assert decode_reply(instead) == Refusal("malformed", too_long(len(whole) - 1))
