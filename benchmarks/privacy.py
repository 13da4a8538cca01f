"""What private sums cost beside plain ones: one round, the same parties, in one run.

Parties remember what they computed, so a round asked again is messages and cryptography alone.
Seconds are wall-clock on this machine, with all parties and their key agent on it, one after the
other; a real party has a machine of its own.

    python benchmarks/privacy.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pandas as pd
import psutil
from sklearn.datasets import load_digits

from cotune.coordinator.agree import agree
from cotune.coordinator.federation import Federation
from cotune.coordinator.journal import Journal
from cotune.engines.local import LocalEngine
from cotune.methods.privtuna import dense_cells, proposals
from cotune.party.keys import FEWEST
from cotune.party.propose import Explore, Propose
from cotune.party.task import Configuration
from cotune.party.tasks import Candidates, Evaluate, Predict, Search
from cotune.privacy.sums import Privacy
from cotune.problem import Budget, Problem
from cotune.protocol.wire import Refusal, decode_request
from cotune.run.settings import Settings, spaces_as_json

#: Of the parties, for a total.
QUORUM = 0.5
SEARCH = Search(("decision_tree",), 20, "random")
SPACE = {"decision_tree": {"max_depth": (1, 12), "min_samples_leaf": (1, 20)}}


class Dropping(LocalEngine):
    """Loses the replies of some parties to one kind of task."""

    gone: tuple[str, ...] = ()

    def call(self, messages: Any, timeout: float | None) -> dict[str, bytes | Refusal]:
        replies = super().call(messages, timeout)
        for party in self.gone:
            if party in messages and decode_request(messages[party]).verb == "masked":
                replies[party] = Refusal("lost", "it dropped out")
        return replies


def federation_of(parties: int, privacy: Privacy) -> Federation:
    """Digits over so many parties, agreed on and searched."""
    frame = load_digits(as_frame=True).frame.iloc[:, -9:]
    tables = {
        f"party-{i:02d}": frame.iloc[i::parties].reset_index(drop=True) for i in range(parties)
    }
    engine = Dropping(tables, "target", executor=ThreadPoolExecutor(1))
    return Federation(engine, privacy=privacy, quorum=QUORUM, retries=0)


def problem_of(federation: Federation) -> Problem:
    settings = Settings(
        learners=("decision_tree",), folds=2, spaces=spaces_as_json(SPACE), train=False
    )
    return settings.problem(agree(federation, folds=2, task="classification"))


def timed(work: Callable[[], Any], repeats: int) -> float:
    """Median seconds of one call, after one that is not counted."""
    work()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def rounds(parties: int, privacy: Privacy, repeats: int) -> dict[str, float]:
    """Seconds of a short round (one configuration) and of a long one (thousands of candidates)."""
    with federation_of(parties, privacy) as federation:
        problem = federation.problem = problem_of(federation)
        tree = Configuration("decision_tree", problem.defaults("decision_tree"))
        drawn = Candidates(4096, 0)
        space = problem.space("decision_tree")
        asked = Candidates(4096, 0, digest=drawn.digest_of(space, drawn.drawn(space)))
        short, long = Evaluate((tree,)), Predict(SEARCH, (asked,), "forest", anew=True)
        found = {
            "short": timed(lambda: federation.sum(short), repeats),
            "long": timed(lambda: federation.sum(long), repeats),
        }
        if privacy == "masked":
            assert isinstance(federation.engine, Dropping)
            fewest = max(FEWEST, math.ceil(QUORUM * parties))
            for gone in range(1, min(2, parties - fewest) + 1):
                federation.engine.gone = tuple(federation.parties[:gone])
                federation._absent = {}
                began = time.perf_counter()
                federation.sum(short)
                found[f"short, {gone} dropped out"] = time.perf_counter() - began
                federation._absent = {}
        return found


def protocols(parties: int, repeats: int) -> dict[str, dict[str, float]]:
    """PF-Mean and PF-DBSCAN after the searches, key generation included.

    Seconds are of CPU, of this process and of both key agents, which have been started before.
    """
    found: dict[str, list[tuple[float, int, int]]] = {"PF-Mean": [], "PF-DBSCAN": []}
    with federation_of(parties, "plain") as plain:
        problem = plain.problem = problem_of(plain)
        plain.sum(Explore(SEARCH))
        for _ in range(1 + repeats):
            for name, runs in found.items():
                federation = plain.for_run("", Journal(), Budget(), "encrypted")
                federation.problem = problem
                began = cpu_seconds()
                if name == "PF-Mean":
                    proposals(problem, task := Propose(SEARCH, "best"), federation.sum(task))
                else:
                    dense = dense_cells(federation, problem, SEARCH, 4)
                    proposals(problem, t := Propose(SEARCH, "good", dense), federation.sum(t))
                ledger = federation.ledger
                runs.append((cpu_seconds() - began, ledger.bytes_up, ledger.bytes_down))
                federation.forget_keys()
    return {
        name: {
            "CPU seconds": statistics.median(seconds for seconds, _, _ in runs[1:]),
            "MB up per party": runs[-1][1] / 1e6 / parties,
            "MB down per party": runs[-1][2] / 1e6 / parties,
        }
        for name, runs in found.items()
    }


def cpu_seconds() -> float:
    """Of this process and of those that it started."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return float(sum(used.user + used.system for used in times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Fewer parties and repeats.")
    quick = parser.parse_args().quick
    repeats = 1 if quick else 5
    table: list[dict[str, Any]] = []
    plain: dict[tuple[int, str], float] = {}
    settings: list[tuple[int, Privacy]] = [(10, "plain"), (10, "masked"), (10, "encrypted")]
    if not quick:
        settings += [(20, "plain"), (20, "encrypted"), (50, "plain"), (50, "masked")]
    for parties, privacy in settings:
        for what, seconds in rounds(parties, privacy, repeats).items():
            if privacy == "plain":
                plain[parties, what] = seconds
            usual = plain.get((parties, what.split(",")[0]), float("nan"))
            table.append(
                {
                    "parties": parties,
                    "sum": privacy,
                    "round": what,
                    "seconds": round(seconds, 3),
                    "more than plain": round(seconds - usual, 3),
                }
            )
            print(json.dumps(table[-1]), flush=True)
    for parties in (10,) if quick else (10, 20):
        for name, figures in protocols(parties, repeats).items():
            rounded = {key: round(value, 3) for key, value in figures.items()}
            print(json.dumps({"protocol": name, "parties": parties, **rounded}), flush=True)
    print(pd.DataFrame(table).to_string(index=False))


if __name__ == "__main__":
    main()
