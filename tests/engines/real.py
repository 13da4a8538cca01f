"""Federations of real processes on this machine, for tests: a server, sites, a lead's kit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from cotune.engines.nvflare.connection import BEAT

COTUNE = (sys.executable, "-m", "cotune.cli")
PATIENCE = 60.0


def until(reached: Callable[[], object], patience: float = PATIENCE) -> None:
    """Return when it is reached; fail if that takes too long."""
    end = time.monotonic() + patience
    while not reached():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def make_rows(seed: int, rows: int = 90) -> pd.DataFrame:
    """Numbers, categories, missing values and three classes, so that something can be learnt."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 3, rows)
    frame = pd.DataFrame(
        {
            "age": np.round(50 + 8 * group + rng.normal(0, 6, rows)),
            "dose": rng.normal(group, 1.0).round(3),
            "ward": np.array(["east", "high", "main"])[(group + rng.integers(0, 2, rows)) % 3],
            "outcome": np.array(["better", "same", "worse"])[group],
        }
    )
    frame.loc[rng.random(rows) < 0.05, "dose"] = np.nan
    return frame


class Real:
    """A federation in a folder: kits, files and processes of its own, all ended by `close`."""

    def __init__(self, folder: Path, tables: Mapping[str, pd.DataFrame]) -> None:
        self.folder = folder
        self.port = free_port()
        self.lead = folder / "anna"
        self.sites = sorted(tables)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._before: dict[str, int] = {}  # characters that earlier processes have printed
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            table.to_csv(folder / f"{name}.csv", index=False)
        sites = [part for name in self.sites for part in ("--site", name)]
        self.run(
            "federation", "create", "kits", "--server", f"localhost:{self.port}", *sites,
            "--lead", "anna",
        )  # fmt: skip
        for packed in (folder / "kits").glob("*.zip"):
            unpack(packed, folder)

    def start(
        self, *names: str, options: Iterable[str] = (), cotune: Iterable[str] = COTUNE
    ) -> None:
        """Start the server, or sites with their files; by `cotune`, or what stands for it."""
        for name in names:
            if name == "server":
                command = ["federation", "serve", "server"]
            else:
                command = ["party", "start", name, "--data", f"{name}.csv"]
                command += ["--target", "outcome", "--processes", "1", *options]
            with open(self.folder / f"{name}.out", "ab") as out:
                self._before[name] = len(self.said(name))
                self._processes[name] = subprocess.Popen(
                    [*cotune, *command],
                    cwd=self.folder,
                    env=os.environ | {"OMP_NUM_THREADS": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    def said(self, name: str) -> str:
        """What a process has printed."""
        return (self.folder / f"{name}.out").read_text()

    def await_sites(self, *names: str) -> None:
        """Return when the server and these sites are connected."""
        until(lambda: "serving" in self.said("server") or self._ended("server"))
        assert not self._ended("server"), self.said("server")
        for name in names:
            until(lambda name=name: self._ended(name) or self._has_link(name))
            assert not self._ended(name), self.said(name)
        until(lambda: self._connected().issuperset(names))

    def await_again(self, name: str) -> None:
        """Like that for a site that was there before, which the server may not have missed."""
        self.await_sites(name)
        time.sleep(BEAT)

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def send(self, name: str, number: signal.Signals) -> None:
        self._processes[name].send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._processes[name].wait(PATIENCE)

    def run(self, *arguments: str, code: int = 0) -> str:
        """One command; what it printed, on standard error too."""
        process = self.begin(*arguments)
        try:
            said = process.communicate(timeout=2 * PATIENCE)[0]
        finally:
            process.kill()
        assert process.returncode == code, said
        return said

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """A command that runs while something is done to it."""
        return subprocess.Popen(
            [*COTUNE, *arguments],
            cwd=self.folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def close(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()

    def _ended(self, name: str) -> bool:
        return self._processes[name].poll() is not None

    def _has_link(self, name: str) -> bool:
        """Whether the site's last process says that it has a connection to the server."""
        said = self.said(name)[self._before[name] :]
        return said.count("connected to the server") > said.count("no connection to the server")

    def _connected(self) -> set[str]:
        from cotune.engines.nvflare.session import status

        sites = status(self.lead).sites
        return {site for site, how in sites.items() if how == "connected"}


def unpack(packed: Path, folder: Path) -> None:
    """Like `unzip`, which keeps the modes of files."""
    with zipfile.ZipFile(packed) as archive:
        for entry in archive.infolist():
            path = Path(archive.extract(entry, folder))
            path.chmod(entry.external_attr >> 16 & 0o777)
