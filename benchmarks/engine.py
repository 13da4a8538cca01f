"""What real parties cost beside simulated ones: rounds, large messages, memory, the start.

All run on this machine as they would on many: a process for the server and one for each site, with
mutual TLS between them. Parties answer a message that they know from memory, so every message has
a round number of its own. The same messages go to a local engine in between; the overhead is the
difference of the medians.

    python benchmarks/engine.py [--quick] [--sites 3 10] [--rounds 1000] [--json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import psutil

from cotune.data.load import load
from cotune.engines.local import LocalEngine
from cotune.engines.nvflare.engine import NvflareEngine
from cotune.engines.nvflare.kits import create
from cotune.engines.nvflare.session import status
from cotune.errors import FederationError
from cotune.party.tasks import Inspect
from cotune.protocol.engine import Engine
from cotune.protocol.wire import Gathered, Request, decode_reply, encode
from cotune.testing.tables import make_tables

#: Seconds that a small round may take over the local engine's, by the number of sites.
OVERHEAD = {3: 0.1, 10: 0.3}
#: Seconds in which `LARGE` bytes must have gone each way, with 3 sites.
TRANSFER = 3.0
LARGE = 10_000_000
#: NVFlare holds a thread for every message for some seconds: growth is looked for after so many
#: rounds, in samples that are taken every so many.
SETTLED, STEP = 200, 100
#: Memory goes up and down between two garbage collections: fewer rounds say nothing of its growth.
MANY = 1000
#: What counts as growth: more than both the share and the amount, of MB and of threads. Threads
#: that wait are as many as rounds in some seconds, and so vary with the speed.
MEMORY, THREADS = (0.05, 10.0), (0.25, 10.0)
#: Seconds: for a call, for all sites to connect, and for a process to end by itself.
PATIENCE, START, END = 60.0, 180.0, 20.0

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Row:
    """A line of the table; without a goal it is only told."""

    what: str
    measured: str
    goal: str = ""
    met: bool = True


@dataclass(frozen=True)
class Use:
    """Of the processes of one role, together."""

    rss: float  # MB
    threads: int

    def __str__(self) -> str:
        return f"{self.rss:.0f} MB, {self.threads} threads"


def small() -> bytes:
    """About 1 kB; the reply is half as long."""
    return _inspect("long", "x" * 900)


def large() -> bytes:
    """`LARGE` bytes, for a reply with the long texts that `tables` has."""
    return _inspect(*(secrets.token_hex(LARGE // 200) for _ in range(100)))


def _inspect(*drop: str) -> bytes:
    return encode(Request("benchmark", next(_numbers), "gather", Inspect(2, None, drop)))


def tables(sites: int) -> dict[str, pd.DataFrame]:
    """Small ones, but for a column with 4 texts of `LARGE` bytes together."""
    made = make_tables(parties=sites)
    for table in made.values():
        texts = [secrets.token_hex(LARGE // 8) for _ in range(4)]
        table["long"] = texts + [None] * (len(table) - 4)
    return made


class Deployment:
    """The processes of a federation; the lead's kit is `lead`."""

    def __init__(self, folder: Path, sites: int) -> None:
        self.lead = folder / "lead"
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self.tables: dict[str, pd.DataFrame] = {}
        for name, table in tables(sites).items():
            table.to_csv(folder / f"{name}.csv", index=False)
            self.tables[name] = load(folder / f"{name}.csv")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for packed in create(folder / "kits", f"localhost:{port}", list(self.tables), "lead"):
            with zipfile.ZipFile(packed) as archive:
                archive.extractall(folder)

    def start(self) -> None:
        """Return when all sites are connected."""
        self._run("server", "federation", "serve", "server")
        for name in self.tables:
            self._run(
                name, "party", "start", name, "--data", f"{name}.csv", "--processes", "1", "--quiet"
            )
        until = time.monotonic() + START
        while not self._connected():
            self._check_alive()
            if time.monotonic() > until:
                raise FederationError(f"not all sites have connected within {START:.0f} s")
            time.sleep(0.5)

    def stop(self) -> None:
        """End all that was started, and see that nothing is left."""
        left = [each for process in self._started for each in _family(process.pid)]
        for process in self._started:
            process.terminate()
        _, late = psutil.wait_procs(left, END)
        for process in late:
            say(f"process {process.pid} does not end, and is killed")
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for own in self._started:
            own.wait()

    def uses(self) -> dict[str, Use]:
        """Memory and threads now, by role."""
        rss: Counter[str] = Counter()
        threads: Counter[str] = Counter()
        roots = [os.getpid(), *(process.pid for process in self._started)]
        for pid in roots:
            family = [psutil.Process(pid)] if pid == os.getpid() else _family(pid)
            for process in family:
                with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    role = self._role(process)
                    rss[role] += process.memory_info().rss
                    threads[role] += process.num_threads()
        return {role: Use(rss[role] / 1e6, threads[role]) for role in rss}

    def _role(self, process: psutil.Process) -> str:
        if process.pid == os.getpid():
            return "coordinator"
        line = " ".join(process.cmdline())
        for part, role in (
            ("cotune.engines.nvflare.connection", "keepers"),
            ("cotune.engines.nvflare.guard server", "server"),
            ("runner_process", "server's job"),
            ("cotune.engines.nvflare.guard client", "sites"),
            ("worker_process", "sites' jobs"),
            ("federation serve", "serve command"),
            ("party start", "parties"),
        ):
            if part in line:
                return role
        return "other"

    def _run(self, name: str, *command: str) -> None:
        cotune = str(Path(sys.executable).with_name("cotune"))
        with (self._folder / f"{name}.out").open("wb") as out:
            self._started.append(
                subprocess.Popen(
                    [cotune, *command],
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            )

    def _connected(self) -> bool:
        try:
            return set(status(self.lead).sites.values()) == {"connected"}
        except FederationError:
            return False

    def _check_alive(self) -> None:
        for name, process in zip(("server", *self.tables), self._started, strict=True):
            if process.poll() is not None:
                said = (self._folder / f"{name}.out").read_text()
                raise FederationError(f"{name} has ended:\n{said}")


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@contextmanager
def deployed(sites: int) -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory(prefix="cotune-") as folder:
        deployment = Deployment(Path(folder), sites)
        try:
            deployment.start()
            yield deployment
        finally:
            deployment.stop()


def timed(engine: Engine, message: bytes) -> float:
    """Seconds of one round; every party must have answered."""
    began = time.perf_counter()
    replies = engine.call(dict.fromkeys(engine.parties(), message), PATIENCE)
    seconds = time.perf_counter() - began
    for party, reply in replies.items():
        answer = decode_reply(reply) if isinstance(reply, bytes) else reply
        if not isinstance(answer, Gathered):
            raise FederationError(f"{party}: {answer}")
    return seconds


def rounds(real: Engine, local: Engine, repeats: int) -> list[Row]:
    """Small rounds, in turn with the local engine's."""
    sites = len(real.parties())
    for _ in range(5):
        timed(real, small())
        timed(local, small())
    pairs = [(timed(real, m), timed(local, m)) for m in (small() for _ in range(repeats))]
    here, there = [r for r, _ in pairs], [t for _, t in pairs]
    overhead = statistics.median(here) - statistics.median(there)
    goal = OVERHEAD.get(sites)
    return [
        Row(f"round of 1 kB, {sites} sites", _spread(here)),
        Row(f"round of 1 kB, {sites} parties, local engine", _spread(there)),
        Row(
            f"overhead of a round, {sites} sites",
            f"{1000 * overhead:.0f} ms",
            f"at most {1000 * goal:.0f} ms" if goal else "",
            goal is None or overhead <= goal,
        ),
    ]


def _spread(seconds: Sequence[float]) -> str:
    tenth = statistics.quantiles(seconds, n=10, method="inclusive")[-1]
    return f"median {1000 * statistics.median(seconds):.0f} ms, 90 % {1000 * tenth:.0f} ms"


def transfers(real: Engine, local: Engine, repeats: int) -> list[Row]:
    """Large messages and large replies; in the first, all processes take the memory for it."""
    sites = len(real.parties())
    pairs = [(timed(real, m), timed(local, m)) for m in (large() for _ in range(1 + repeats))]
    first, *here = [r for r, _ in pairs]
    worst = max(here)
    local_median = statistics.median(t for _, t in pairs[1:])
    size = f"{LARGE // 10**6} MB each way, {sites}"
    return [
        Row(f"{size} sites, the first time", f"{first:.2f} s"),
        Row(
            f"{size} sites",
            f"median {statistics.median(here):.2f} s, longest {worst:.2f} s",
            f"under {TRANSFER:.0f} s" if sites == 3 else "",
            sites != 3 or worst < TRANSFER,
        ),
        Row(f"{size} parties, local engine", f"median {local_median:.2f} s"),
    ]


def endurance(deployment: Deployment, engine: Engine, count: int) -> list[Row]:
    """Growth over many rounds."""
    samples: list[dict[str, Use]] = []
    took: list[float] = []
    for number in range(1, count + 1):
        took.append(timed(engine, small()))
        if number % STEP == 0:
            uses = deployment.uses()
            say(f"round {number}: " + "; ".join(f"{role} {use}" for role, use in uses.items()))
            if number >= SETTLED:
                samples.append(uses)
    table = []
    for role in (role for role in samples[0] if all(role in sample for sample in samples)):
        # What is kept for good lifts even the least memory that is seen.
        rss = _halves([sample[role].rss for sample in samples], min)
        threads = _halves([sample[role].threads for sample in samples], statistics.median)
        table.append(
            Row(
                f"{role}, rounds {SETTLED} to {count}",
                f"{rss[0]:.0f} to {rss[1]:.0f} MB, {threads[0]:.0f} to {threads[1]:.0f} threads",
                "flat" if count >= MANY else "threads flat",
                _flat(threads, *THREADS) and (count < MANY or _flat(rss, *MEMORY)),
            )
        )
    return [*table, Row(f"the {count} rounds", _spread(took))]


def _halves(values: Sequence[float], of: Callable[[Sequence[float]], float]) -> tuple[float, float]:
    """What is typical of the earlier half of the samples, and of the later."""
    half = len(values) // 2
    return of(values[:half]), of(values[-half:])


def _flat(halves: tuple[float, float], share: float, amount: float) -> bool:
    early, late = halves
    return late - early <= max(share * early, amount)


def measured(sites: int, repeats: int, large_repeats: int, count: int) -> list[Row]:
    """All of one federation; `count` is 0 where growth is not looked at."""
    load_average = os.getloadavg()[0]
    say(f"{sites} sites: making kits and starting (load average {load_average:.1f})")
    began = time.perf_counter()
    with ExitStack() as stack:
        deployment = stack.enter_context(deployed(sites))
        up = time.perf_counter()
        real = NvflareEngine(deployment.lead)
        stack.callback(real.close)
        timed(real, small())
        answered = time.perf_counter()
        table = [
            Row(f"kits, server and {sites} sites up", f"{up - began:.1f} s"),
            Row(f"connect to first answer, {sites} sites", f"{answered - up:.1f} s"),
            Row(f"start, from nothing to first answer, {sites} sites", f"{answered - began:.1f} s"),
        ]
        local = LocalEngine(deployment.tables, "target", processes=1)
        stack.callback(local.close)
        say(f"{sites} sites: {repeats} small rounds")
        table += rounds(real, local, repeats)
        if count:
            say(f"{sites} sites: {count} rounds")
            table += endurance(deployment, real, count)
        if large_repeats:
            say(f"{sites} sites: {large_repeats} large rounds")
            table += transfers(real, local, large_repeats)
    return table


def say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def as_text(table: Sequence[Row]) -> str:
    lines = [("", "goal", "measured", "")]
    lines += [(r.what, r.goal, r.measured, "" if r.met else "MISSED") for r in table]
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    return "\n".join(
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10], metavar="N")
    parser.add_argument("--rounds", type=int, default=1000, metavar="N", help="0 for none.")
    parser.add_argument("--quick", action="store_true", help="3 sites, 600 rounds.")
    parser.add_argument("--json", action="store_true", help="The table as JSON.")
    options = parser.parse_args()
    if options.quick:
        options.sites, options.rounds = [3], 600
    fewest = SETTLED + STEP  # two samples
    if options.rounds and options.rounds < fewest:
        parser.error(f"--rounds must be 0, or {fewest} or more")
    os.umask(0o077)  # unpacked keys are for the owner alone
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    repeats = 20 if options.quick else 50
    table: list[Row] = []
    for number, sites in enumerate(options.sites):
        first = number == 0
        table += measured(sites, repeats, 5 if first else 0, options.rounds if first else 0)
    if options.json:
        print(json.dumps([asdict(row) for row in table], indent=1))
    else:
        print(as_text(table))
    return 0 if all(row.met for row in table) else 1


if __name__ == "__main__":
    sys.exit(main())
