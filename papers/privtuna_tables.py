"""PrivTuna's Tables II and III, and the costs of its two protocols, in both of cotune's editions.

Mitic, Pyrgelis, Sav: How to Privately Tune Hyperparameters in Federated Learning? Insights from a
Benchmark Study, section V-C. The faithful edition is CKKS with division and comparison encrypted,
as in the paper. The lean edition is BFV: exact sums, an exact mask, division in the clear.

Two hyperparameters, 10 points per party at most, cells of 0.15, MinPts = 4. The points are drawn
here, two clumps and some noise: neither times nor bytes depend on them.

What is compared with what:

- Times are processor seconds of one thread, all parties one after another, with everything that
  travels serialised and parsed. The paper's are of an Apple M2 Pro with Lattigo.
- Single operations are timed with the parties as objects of one process, the protocols with the key
  agent that a run has as well.
- PF-DBSCAN's two rounds have a session each, with keys of its own; the paper's share one key. What
  they take with one key, parties as objects, is in the results by stage.
- OpenFHE makes a party's secret key and its public share in one call. That is SecKeyGen here; it
  is a part of the pk generation as well.
- Encrypt is one ciphertext. The paper does not say how many its figure is of.
- DDecrypt is fusing the shares; making all of them is in a row of its own. The paper's 0.3 ms can
  hardly have 10 parties' shares in them.
- Bytes are what one party sends. The paper counts the ciphertexts, and names 13.1 MB for a
  bootstrapping of 10 parties, which PF-DBSCAN does 6 times. The faithful edition refreshes 4
  ciphertexts for the comparison and 2 for the division.
- The mean squared error is of the averaged hyperparameters, against the same averages in the clear.

    python papers/privtuna_tables.py           # 10 and 20 parties, 5 repetitions: 3 minutes
    python papers/privtuna_tables.py --quick   # 10 parties, 2 repetitions

It needs the key agent's interpreter (`cotune agent doctor`), no data and one process: `--data`,
`--recorded`, `--minutes` and `--workers` are unused. It fails if a mask is wrong, or if a mean
squared error is above 1e-6.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
from common import SEED, Table, parser, save
from scipy import ndimage

from cotune.errors import CotuneError
from cotune.privacy.agent import messages as say
from cotune.privacy.agent.approximate import Divisor, Threshold
from cotune.privacy.agent.microbenchmark import Density, Job, Mean, Report
from cotune.privacy.client import HOME, Agent, environment
from cotune.privacy.doctor import interpreter

#: Tables II and III: milliseconds by number of parties.
OPERATIONS = {
    "SecKeyGen": {10: 14.42, 20: 51.24},
    "pk": {10: 49.27, 20: 370.14},
    "ek": {10: 872.18, 20: 842.7},
    "Encrypt": {10: 180.94, 20: 189.637},
    "Add": {10: 4.92, 20: 71.024},
    "Mul_ct": {10: 3.73, 20: 3.49},
    "Divide": {10: 135.69, 20: 154.810},
    "DBootstrap (initialization)": {10: 91.42, 20: 185.85},
    "DBootstrap (whole)": {},
    "Compare": {10: 3474.72, 20: 5021.61},
    "fusion": {10: 0.31, 20: 0.29},
    "DDecrypt": {},
}
NAMES = {
    "SecKeyGen": "SecKeyGen (per client)",
    "pk": "DKeyGen (pk generation)",
    "ek": "DKeyGen ([ek] generation)",
    "Compare": "Compare (with bootstrapping)",
    "fusion": "DDecrypt (fusion)",
    "DDecrypt": "DDecrypt (whole)",
}
#: Section V-C1 to V-C3: seconds, megabytes of ciphertexts per party, mean squared error.
PROTOCOLS = {
    ("PF-Mean", 10): (1.6, 5.24, 2.4e-4),
    ("PF-Mean", 20): (1.8, 18.86, 1.8e-4),
    ("PF-DBSCAN", 10): (5.8, 7.86, 3.2e-4),
    ("PF-DBSCAN", 20): (18.3, 28.29, 1.02e-3),
}

CELL, MIN_POINTS, MOST = 0.15, 4, 10
ROWS = int(np.ceil(1 / CELL))
TOLERANCE = 1e-6
#: The lean edition's fixed point: parts of 2**-30, 40 bits in all.
RESOLUTION, BITS = 2.0**-30, 40


def main() -> int:
    made = parser(__doc__ or "")
    made.add_argument("--quick", action="store_true", help="10 parties, 2 repetitions")
    made.add_argument("--repeats", type=int, help="default 5, quick 2")
    arguments = made.parse_args()
    repeats = arguments.repeats or (2 if arguments.quick else 5)
    if repeats < 2:
        made.error("--repeats must be at least 2: a deviation needs two values")
    try:
        python = interpreter()
    except CotuneError as error:
        raise SystemExit(str(error)) from None
    found, wrong = list[dict[str, Any]](), list[str]()
    for parties in (10,) if arguments.quick else (10, 20):
        print(f"{parties} parties, {repeats} repetitions", file=sys.stderr)
        work = workload(parties)
        report = measured(python, Job(parties, repeats, work.mean, work.density))
        print(_operations(parties, report).text() + "\n")
        with Agent(python) as agent:
            runs = [*outcomes(agent, work, Lean()), *outcomes(agent, work, Faithful())]
        wrong += complaints(work, runs)
        found.append(_case(work, report, runs))
    print(_protocols(found).text())
    print("\n".join(["", *wrong]) if wrong else "", end="")
    save(
        "privtuna_tables" + ("_quick" if arguments.quick else ""), {"cases": found, "wrong": wrong}
    )
    return 1 if wrong else 0


# The work


@dataclass(frozen=True)
class Work:
    """What the parties bring to both protocols, and what must come out."""

    parties: int
    mean: Mean
    density: Density
    mask: list[int]


def workload(parties: int) -> Work:
    """Every party has 1 to 10 points: learning rate and momentum, scaled to 0..1, and accuracy."""
    random = np.random.default_rng([SEED, parties])
    points = [_points(random) for _ in range(parties)]
    sizes = [[float(len(own))] * 2 for own in points]
    mean = Mean([own[:, :2].sum(axis=0).tolist() for own in points], sizes, parties, MOST * parties)
    cells = [_cells(own) for own in points]
    dense = np.sum(cells, axis=0) >= MIN_POINTS
    clusters = [_in_clusters(own, dense) for own in points]
    averaged = Mean(
        [sums for sums, _ in clusters], [counts for _, counts in clusters],
        MIN_POINTS, MOST * parties,
    )  # fmt: skip
    clipped = [np.minimum(own, MIN_POINTS).ravel().tolist() for own in cells]
    return Work(
        parties, mean, Density(clipped, MIN_POINTS, averaged), dense.ravel().astype(int).tolist()
    )


def _points(random: np.random.Generator) -> np.ndarray:
    size = int(random.integers(1, MOST + 1))
    clumps = np.array([[0.25, 0.7], [0.75, 0.3]])[random.integers(2, size=size)]
    noise = random.random((size, 2))
    where = np.where(random.random((size, 1)) < 0.2, noise, random.normal(clumps, 0.07))
    return np.column_stack([np.clip(where, 0, 1), random.uniform(0.6, 0.95, size)])


def _cells(points: np.ndarray) -> np.ndarray:
    """M_i of Algorithm 3: how many points are in each cell."""
    counts = np.zeros((ROWS, ROWS))
    np.add.at(counts, tuple(_cell(points).T), 1)
    return counts


def _cell(points: np.ndarray) -> np.ndarray:
    return np.minimum(points[:, :2] // CELL, ROWS - 1).astype(int)


def _in_clusters(points: np.ndarray, dense: np.ndarray) -> tuple[list[float], list[float]]:
    """Lines 13 to 17 of Algorithm 3: sums of each cluster's points, and their number.

    Adjacent dense cells are a cluster. A point of another cell goes to the closest of the four
    cells around it if that is dense, and is dropped otherwise.
    """
    labels, clusters = ndimage.label(dense)
    sums, counts = np.zeros((clusters, 3)), np.zeros((clusters, 3))
    for point, cell in zip(points, _cell(points), strict=True):
        here = tuple(cell)
        if not dense[here]:
            around = cell + np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
            around = around[((around >= 0) & (around < ROWS)).all(axis=1)]
            apart = np.linalg.norm((around + 0.5) * CELL - point[:2], axis=1)
            here = tuple(around[np.argmin(apart)])
        if dense[here]:
            sums[labels[here] - 1] += point
            counts[labels[here] - 1] += 1
    return sums.ravel().tolist(), counts.ravel().tolist()


def averages(mean: Mean) -> np.ndarray:
    """In the clear."""
    return np.asarray(np.sum(mean.sums, axis=0) / np.sum(mean.counts, axis=0))


# Single operations, with the parties as objects of one process


def measured(python: Path, job: Job) -> Report:
    """What the agent's interpreter reports about the job."""
    ended = subprocess.run(
        [str(python), "-m", "agent.microbenchmark"],
        input=msgspec.json.encode(job), capture_output=True, env=environment(), cwd=HOME,
        check=False,
    )  # fmt: skip
    if ended.returncode:
        raise SystemExit(f"the micro-benchmark failed:\n{ended.stderr.decode()}")
    return msgspec.json.decode(ended.stdout, type=Report)


# Both editions, by the key agent


@dataclass(frozen=True)
class Outcome:
    """One protocol in one edition: seconds, bytes that a party sends, and the results."""

    protocol: str
    edition: str
    seconds: float
    ciphertexts: int
    sent: int
    values: np.ndarray
    mask: list[int] = field(default_factory=list)


class Session:
    """All parties of one session in one agent; counts what the lead sends."""

    def __init__(self, agent: Agent, name: str, scheme: say.Scheme) -> None:
        self._agent, self._name, self._parties = agent, name, range(scheme.parties)
        self.ciphertexts = self.sent = 0
        agent.ask(say.Open(name, scheme))
        lead = self._counted(agent.ask(say.Generate("0", name, scheme)).made)
        others = [
            agent.ask(say.Generate(str(party), name, scheme, lead)).made
            for party in self._parties[1:]
        ]
        public = agent.ask(say.JoinKeys(name, (lead, *others))).made
        for party in self._parties:
            agent.ask(say.Adopt(str(party), name, public))
        if scheme.name != "sum":
            self._relinearise()

    def _relinearise(self) -> None:
        ask, name = self._agent.ask, self._name
        lead = self._counted(ask(say.Switch("0", name)).made)
        others = [ask(say.Switch(str(party), name, lead)).made for party in self._parties[1:]]
        joined = ask(say.JoinSwitches(name, (lead, *others))).made
        parts = [ask(say.Relinearise(str(party), name, joined)).made for party in self._parties]
        self._counted(parts[0])
        ask(say.JoinRelinearisations(name, tuple(parts)))

    def _counted(self, *made: bytes) -> bytes:
        self.sent += sum(map(len, made))
        return made[0]

    def totals(self, values: Sequence[np.ndarray]) -> tuple[bytes, ...]:
        """Of each party's int64 or float64."""
        made = [
            self._agent.ask(say.Encrypt(str(party), self._name, own.tobytes())).made
            for party, own in enumerate(values)
        ]
        self.ciphertexts += sum(map(len, made[0]))
        self._counted(*made[0])
        return self._agent.ask(say.Add(self._name, tuple(made))).made

    def computed(self, ask: say.Reaching | say.Divide) -> tuple[bytes, ...]:
        """The result, after all the refreshes that it wants."""
        answer = self._agent.ask(ask)
        while isinstance(answer, say.Wanting):
            parts = [
                self._agent.ask(
                    say.Refresh(str(party), self._name, answer.asked, answer.common)
                ).made
                for party in self._parties
            ]
            self._counted(*parts[0])
            answer = self._agent.ask(say.Refreshed(self._name, tuple(parts)))
        return answer.made

    def decrypted(self, ciphertexts: tuple[bytes, ...], count: int) -> bytes:
        shares = [
            self._agent.ask(say.Decrypt(str(party), self._name, ciphertexts)).made
            for party in self._parties
        ]
        self._counted(*shares[0])
        return self._agent.ask(say.Fuse(self._name, tuple(shares), count)).values


class Lean:
    """BFV. Totals of sums and counts are decrypted together, and divided in the clear."""

    name = "lean"

    def averages(self, agent: Agent, mean: Mean, session: str) -> tuple[Session, np.ndarray]:
        opened = Session(agent, session, say.Scheme("sum", len(mean.sums), BITS))
        both = np.hstack([mean.sums, mean.counts])
        told = opened.totals(list(np.rint(both / RESOLUTION).astype("<i8")))
        total = np.frombuffer(opened.decrypted(told, both.shape[1]), "<i8") * RESOLUTION
        sums, counts = np.split(total, 2)
        return opened, np.asarray(sums / counts)

    def mask(self, agent: Agent, density: Density) -> tuple[Session, list[int]]:
        parties, least = len(density.cells), density.least
        opened = Session(agent, "mask", say.Scheme("mask", parties, least=least))
        totals = opened.totals(list(np.array(density.cells).astype("<i8")))
        reached = opened.computed(say.Reaching("mask", totals, least))
        told = opened.decrypted(reached, len(density.cells[0]))
        return opened, np.frombuffer(told, "<i8").tolist()


class Faithful:
    """CKKS. Neither totals nor counts are decrypted, only quotients and the mask."""

    name = "faithful"

    def averages(self, agent: Agent, mean: Mean, session: str) -> tuple[Session, np.ndarray]:
        opened = Session(agent, session, say.Scheme("mean", len(mean.sums)))
        scaled = Divisor(mean.low, mean.high).scaled
        sums, counts = (
            opened.totals([np.array(scaled(own), "<f8") for own in told])
            for told in (mean.sums, mean.counts)
        )
        found = opened.computed(say.Divide(session, sums, counts, mean.low, mean.high))
        return opened, np.frombuffer(opened.decrypted(found, len(mean.sums[0])), "<f8")

    def mask(self, agent: Agent, density: Density) -> tuple[Session, list[int]]:
        parties, least = len(density.cells), density.least
        opened = Session(agent, "density", say.Scheme("density", parties, least=least))
        scaled = Threshold(parties, least).scaled
        totals = opened.totals([np.array(scaled(own), "<f8") for own in density.cells])
        reached = opened.computed(say.Reaching("density", totals, least))
        told = opened.decrypted(reached, len(density.cells[0]))
        return opened, np.frombuffer(told, "<f8").astype(int).tolist()


def outcomes(agent: Agent, work: Work, edition: Lean | Faithful) -> list[Outcome]:
    """PF-Mean, and PF-DBSCAN with its two rounds."""
    begun = _spent(agent)
    only, values = edition.averages(agent, work.mean, f"{edition.name} mean")
    ended = _spent(agent)
    mean = Outcome("PF-Mean", edition.name, ended - begun, only.ciphertexts, only.sent, values)
    first, mask = edition.mask(agent, work.density)
    second, values = edition.averages(agent, work.density.clusters, f"{edition.name} clusters")
    density = Outcome(
        "PF-DBSCAN", edition.name, _spent(agent) - ended, first.ciphertexts + second.ciphertexts,
        first.sent + second.sent, values, mask,
    )  # fmt: skip
    return [mean, density]


def _spent(agent: Agent) -> float:
    """Processor seconds of the agent's process."""
    times = psutil.Process(agent.pid).cpu_times()
    return float(times.user + times.system)


# What comes out


def complaints(work: Work, runs: Sequence[Outcome]) -> list[str]:
    """What is out of tolerance."""
    said = []
    for run in runs:
        name = f"{run.protocol}, {run.edition}, {work.parties} parties"
        if run.protocol == "PF-DBSCAN" and run.mask != work.mask:
            said.append(f"{name}: the mask is wrong")
        if not error(work, run) <= TOLERANCE:
            said.append(f"{name}: the mean squared error is {error(work, run):.1e}")
    return said


def error(work: Work, run: Outcome) -> float:
    """The mean squared error of the averages."""
    mean = work.mean if run.protocol == "PF-Mean" else work.density.clusters
    return float(np.mean((run.values - averages(mean)) ** 2))


def _case(work: Work, report: Report, runs: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "parties": work.parties,
        "openfhe": report.openfhe,
        "milliseconds": {
            name: {"mean": np.mean(report.operations[name]), "deviation": _deviation(report, name)}
            for name in OPERATIONS
        },
        "bytes": report.bytes,
        "seconds_by_stage_with_one_key": {
            "PF-Mean": report.mean.seconds,
            "PF-DBSCAN": report.density.seconds,
        },
        "protocols": [
            {
                "protocol": run.protocol,
                "edition": run.edition,
                "seconds": run.seconds,
                "ciphertext_bytes": run.ciphertexts,
                "sent_bytes": run.sent,
                "mean_squared_error": f"{error(work, run):.1e}",
            }
            for run in runs
        ],
    }


def _deviation(report: Report, name: str) -> float:
    return float(np.std(report.operations[name], ddof=1))


def _operations(parties: int, report: Report) -> Table:
    rows = [
        [
            NAMES.get(name, name),
            f"{paper[parties]:.2f}" if parties in paper else "-",
            f"{np.mean(report.operations[name]):.2f}",
            f"±{_deviation(report, name):.2f}",
        ]
        for name, paper in OPERATIONS.items()
    ]
    repeats = len(report.operations["pk"])
    title = (
        f"Table {'II' if parties == 10 else 'III'}, milliseconds: {parties} parties, ring "
        f"2^{14 if parties == 10 else 15}, {repeats} repetitions"
    )
    size = report.bytes["ciphertext"] / 1e6
    note = f"A ciphertext has {size:.2f} MB, in the paper {2.62 if parties == 10 else 9.43} MB."
    return Table(title, ["operation", "paper", "cotune", "deviation"], rows, note)


def _protocols(cases: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for case in cases:
        for run in sorted(case["protocols"], key=lambda each: each["protocol"], reverse=True):
            seconds, megabytes, squared = PROTOCOLS[run["protocol"], case["parties"]]
            rows.append(
                [
                    run["protocol"],
                    str(case["parties"]),
                    run["edition"],
                    f"{seconds:.1f} | {run['seconds']:.2f}",
                    f"{megabytes:.2f} | {run['ciphertext_bytes'] / 1e6:.2f}",
                    f"{run['sent_bytes'] / 1e6:.1f}",
                    f"{squared:.1e} | {run['mean_squared_error']}",
                ]
            )
    return Table(
        "Both protocols, keys included: paper | cotune",
        ["protocol", "N", "edition", "seconds", "MB ciphertexts", "MB all", "MSE"],
        rows,
        "MB are what one party sends: its ciphertexts; all with keys, refreshes and shares.",
    )


if __name__ == "__main__":
    sys.exit(main())
