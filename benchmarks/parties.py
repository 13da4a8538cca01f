"""Cost and memory of a simulation as the number of parties grows.

Every size runs in a process of its own: the parties have the same number of rows each, so the
data grows with them; the workers are sent paths, not rows. Shown are seconds and messages per
party and round, and the peak memory of coordinator and workers together, without what an empty
federation of one party takes.

    python benchmarks/parties.py
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


def measure(parties: int, rows: int, trials: int) -> dict[str, float]:
    """One run; the peak is sampled ten times a second from the process table."""
    import numpy as np
    import pandas as pd

    import cotune

    rng = np.random.default_rng(0)
    X = rng.normal(size=(parties * rows, 20))
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(20)])
    frame["target"] = np.where(X[:, 0] + X[:, 1] + rng.normal(size=len(X)) > 0, "yes", "no")
    peak = _Peak()
    with peak, cotune.simulate(frame, parties=parties) as federation:
        # workers start and import here, before the clock does
        cotune.tune(
            federation, "defaults", learners=["decision_tree"], folds=5, progress=False, train=False
        )
        began = time.perf_counter()
        outcome = cotune.tune(
            federation,
            learners=["decision_tree"],
            trials=trials,
            folds=5,
            progress=False,
            train=False,
        )
        seconds = time.perf_counter() - began
    ledger = outcome.ledger
    return {
        "parties": parties,
        "seconds": seconds,
        "milliseconds_per_party_and_round": 1000 * seconds / parties / ledger.rounds,
        "bytes_per_party_and_round": (ledger.bytes_up + ledger.bytes_down)
        / parties
        / ledger.rounds,
        "fits": ledger.fits,
        "peak_mib": peak.mib,
    }


class _Peak:
    """The largest resident memory of this process and its children, in MiB."""

    def __init__(self) -> None:
        self.mib = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        import psutil

        while not self._stop.wait(0.1):
            try:
                me = psutil.Process()
                total = sum(p.memory_info().rss for p in (me, *me.children(recursive=True)))
                self.mib = max(self.mib, total / 2**20)
            except psutil.NoSuchProcess:
                pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parties", type=int, nargs="+", default=[1, 25, 50, 100, 200])
    parser.add_argument("--rows", type=int, default=50, help="of each party")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(measure(arguments.one, arguments.rows, arguments.trials)))
        return
    results = [_in_own_process(parties, arguments) for parties in arguments.parties]
    few, most = results[1], results[-1]
    per_party = "milliseconds_per_party_and_round"
    summary = {
        "ratio": most[per_party] / few[per_party],
        "memory_ratio": most["peak_mib"] / results[0]["peak_mib"],
        "results": results,
    }
    if arguments.json:
        print(json.dumps(summary))
        return
    print(f"{'parties':>8}{'seconds':>10}{'ms/party/round':>16}{'bytes/p./r.':>13}{'peak MiB':>10}")
    for row in results:
        print(
            f"{row['parties']:8.0f}{row['seconds']:10.2f}{row[per_party]:16.2f}"
            f"{row['bytes_per_party_and_round']:13.0f}{row['peak_mib']:10.0f}"
        )
    print(
        f"cost per party, {most['parties']:.0f} over {few['parties']:.0f} parties: "
        f"{summary['ratio']:.2f} (1 is linear)"
    )
    print(f"peak memory, {most['parties']:.0f} parties over 1: {summary['memory_ratio']:.2f}")


def _in_own_process(parties: int, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__)), "--one", str(parties)]
    command += ["--rows", str(arguments.rows), "--trials", str(arguments.trials)]
    print(f"{parties} parties ...", file=sys.stderr)
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=-1).stdout)
    return found


if __name__ == "__main__":
    main()
