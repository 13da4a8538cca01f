"""FLoRA's surfaces from its authors' recorded pairs: what to recommend, and what that scores.

The recorded SVM and MLP searches ran in a wider box than the paper declares. `Space.encode_many`
maps what lies beyond the ends of the declared box to places beyond 0 and 1, so the forests learn
from those pairs too; only the minimum is sought inside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import flora_paper as paper
import numpy as np
import pandas as pd
from common import WORK, Params, Results, Workers, need, score_all, score_key
from flora_statistics import regret

from cotune.learners import learner as learner_named
from cotune.methods.surfaces import Evidence, minimise, surface
from cotune.space import Space

#: The cheap ones first.
DATASETS = ("sonar", "heart_statlog", "oil_spill", "eeg_eye_state")
SLOW = ("SVM", "eeg_eye_state")
HYPERPARAMETERS = {
    "HGB": ("max_iter", "learning_rate", "min_samples_leaf", "l2_regularization"),
    "SVM": ("C", "gamma", "tol"),
    "MLP": ("hidden_layer_sizes", "alpha", "learning_rate_init"),
}
#: The configurations of the single-shot baseline (appendix D.2).
BASELINES: dict[str, Params] = {
    learner: dict(zip(HYPERPARAMETERS[learner], values, strict=True))
    for learner, values in {
        "HGB": (100, 0.1, 20, 0.0),
        "SVM": (1.0, 0.1, 1e-3),
        "MLP": (100, 1e-4, 1e-3),
    }.items()
}
FILES = ("pairs", "central", "summary", "surfaces", "ablation")
ALL_PAIRS = 100


@dataclass(frozen=True)
class Case:
    """One surface for one learner and data set, from all pairs of the parties or some."""

    learner: str
    dataset: str
    surface: str
    seed: int
    selection: str = "first"
    pairs: int = ALL_PAIRS

    @property
    def key(self) -> dict[str, Any]:
        """Under which its recommendation is stored; other code may recommend otherwise."""
        return {**vars(self), "code": code_digest()}

    @property
    def is_slow(self) -> bool:
        return (self.learner, self.dataset) == SLOW


@cache
def code_digest() -> str:
    """What the code recommends on a small problem, in short.

    Stored recommendations are not used when that changes; other changes of the code do not matter.
    """
    space = declared_space("SVM")
    points = [space.sobol(16, seed=party) for party in range(2)]
    evidence = [
        Evidence(own, [abs(np.log10(params["gamma"])) / 10 + params["tol"] for params in own])
        for own in points
    ]
    found = [
        minimise(surface(name.lower(), space, evidence), space)[0][0] for name in paper.SURFACES
    ]
    text = str([f"{value:.6g}" for params in found for value in params.values()])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


# What the authors recorded


class Recorded:
    """The authors' tables."""

    pairs: pd.DataFrame
    central: pd.DataFrame
    summary: pd.DataFrame
    surfaces: pd.DataFrame
    ablation: pd.DataFrame

    def __init__(self, folder: Path) -> None:
        need(folder, [f"flora_{name}.parquet" for name in FILES], "--recorded")
        for name in FILES:
            setattr(self, name, pd.read_parquet(folder / f"flora_{name}.parquet"))

    def evidence(self, case: Case) -> list[Evidence]:
        """The pairs of each party: the first, or the best, so many of them."""
        rows = _of(self.pairs, case.learner, case.dataset).sort_values(["party", "trial"])
        kept = []
        for _, own in rows.groupby("party"):
            if case.selection == "best":
                own = own.sort_values("loss", kind="stable")
            own = own.head(case.pairs)
            kept.append(Evidence(configurations(own, case.learner), own["loss"].tolist()))
        return kept

    def scale(self, learner: str, dataset: str) -> tuple[float, float]:
        """The best central score and the baseline's, between which regret is measured."""
        row = _of(self.summary, learner, dataset).iloc[0]
        return float(row["best_central_stored"]), float(row["baseline_stored"])

    def best_central(self, learner: str, dataset: str) -> Params:
        rows = _of(self.central, learner, dataset).sort_values("loss", kind="stable")
        return configurations(rows.head(1), learner)[0]

    def restarts(self, learner: str, dataset: str) -> list[list[float]]:
        """The scores of each restart of the central search, in their order."""
        rows = _of(self.central, learner, dataset).sort_values("trial")
        return [own["balanced_accuracy"].tolist() for _, own in rows.groupby("restart")]

    def authors(self, learner: str, dataset: str, surface: str) -> tuple[Params, float]:
        """What the authors' own surface recommended, and its recorded score."""
        rows = _of(self.surfaces, learner, dataset)
        rows = rows[rows["surface"] == surface]
        return configurations(rows, learner)[0], float(rows["score_stored"].iloc[0])

    def authors_reruns(self, learner: str, dataset: str, surface: str) -> list[float]:
        """Regrets of SGM or SGM+U in the runs of Tables 12 and 13.

        The authors' SGM and SGM+U had all pairs in these runs too, so they are reruns.
        """
        rows = _of(self.ablation, learner, dataset)
        return rows.loc[rows["surface"] == surface, "regret_recomputed"].tolist()


def _of(table: pd.DataFrame, learner: str, dataset: str) -> pd.DataFrame:
    return table[(table["learner"] == learner) & (table["dataset"] == dataset)]


def configurations(rows: pd.DataFrame, learner: str) -> list[Params]:
    """The hyperparameters of recorded rows, as plain Python numbers."""
    names = list(HYPERPARAMETERS[learner])
    return [
        {name: value.item() if isinstance(value, np.generic) else value for name, value in row}
        for row in (
            zip(names, values, strict=True) for values in rows[names].itertuples(index=False)
        )
    ]


def declared_space(learner: str) -> Space:
    """The paper's box, without the parameters that it fixes."""
    space = learner_named(learner.lower()).space("classification", "paper")
    return Space({name: space[name] for name in HYPERPARAMETERS[learner]})


# The work


def recommend(case: Case, folder: Path) -> Params:
    """Build the surface and minimise it: lines 6 and 7 of FLoRA's Algorithm 1."""
    space = declared_space(case.learner)
    evidence = recorded_in(folder).evidence(case)
    built = surface(case.surface.lower(), space, evidence, seed=case.seed)
    params, _ = minimise(built, space, seed=case.seed)[0]
    return params


recorded_in = cache(Recorded)


def main_cases(seeds: Sequence[int], quick: bool) -> list[Case]:
    """Tables 7-9: the cheap data sets first, and every case of one seed before the next seed."""
    cases = [
        Case(learner, dataset, surface, seed)
        for seed in seeds
        for dataset in DATASETS
        for learner in paper.LEARNERS
        for surface in paper.SURFACES
    ]
    return [case for case in cases if not (quick and case.is_slow)]


def ablation_cases(seeds: Sequence[int], quick: bool) -> list[Case]:
    """Tables 12 and 13."""
    cases = [
        Case(row.learner, row.dataset, surface, seed, selection, row.pairs)
        for seed in seeds
        for selection, table in (("first", paper.TABLE_12), ("best", paper.TABLE_13))
        for row in table
        for surface in paper.SURFACES
    ]
    return [case for case in cases if not (quick and case.is_slow)]


def in_order(cases: Iterable[Case]) -> list[list[Case]]:
    """The parts of the work: the slow cases last, before that seed by seed, all pairs first."""
    parts: dict[tuple[bool, bool, int], list[Case]] = {}
    for case in cases:
        parts.setdefault((case.is_slow, case.pairs < ALL_PAIRS, case.seed), []).append(case)
    return [parts[place] for place in sorted(parts)]


class Run:
    """The cases that are scored so far."""

    def __init__(self, recorded: Recorded, quick: bool) -> None:
        self.recorded = recorded
        self.quick = quick
        self.recommended = Results(WORK / "flora_recommended.jsonl")
        self.scores = Results(WORK / "scores.jsonl")
        self.left = 0

    def work(self, cases: Sequence[Case], workers: Workers, arguments: Any) -> None:
        """Recommend and score, until done or out of time."""

        def submit(key: dict[str, Any]) -> list[Future[Params]]:
            case = Case(**{name: value for name, value in key.items() if name != "code"})
            return [workers.submit(recommend, case, arguments.recorded)]

        keys = [case.key for case in cases]
        self.left += workers.finish(
            "recommend", keys, self.recommended, submit, lambda made: made[0]
        )
        wanted: list[tuple[str, str, Params]] = []
        for case in cases:
            if (params := self.recommended.get(case.key)) is not None:
                pair = case.learner, case.dataset
                wanted.append((*pair, BASELINES[case.learner]))
                wanted.append((*pair, self.recorded.best_central(*pair)))
                wanted.append((*pair, params))
                wanted.append((*pair, self.recorded.authors(*pair, case.surface)[0]))
        self.left += score_all(wanted, self.scores, workers, arguments.data)

    def _pairs(self) -> list[tuple[str, str]]:
        every = [(learner, dataset) for dataset in DATASETS for learner in paper.LEARNERS]
        return [pair for pair in every if not (self.quick and pair == SLOW)]

    def score(self, case: Case) -> float | None:
        params = self.recommended.get(case.key)
        return None if params is None else self.score_of(case.learner, case.dataset, params)

    def score_of(self, learner: str, dataset: str, params: Params) -> float | None:
        found: float | None = self.scores.get(score_key(learner, dataset, params))
        return found

    def regret(self, case: Case) -> float | None:
        params = self.recommended.get(case.key)
        return None if params is None else self.regret_of(case.learner, case.dataset, params)

    def regret_of(self, learner: str, dataset: str, params: Params) -> float | None:
        score = self.score_of(learner, dataset, params)
        return None if score is None else regret(score, *self.recorded.scale(learner, dataset))

    def regrets(self, case: Case, seeds: Iterable[int]) -> list[float]:
        """Over the seeds that are scored."""
        each = [self.regret(Case(**{**vars(case), "seed": seed})) for seed in seeds]
        return [value for value in each if value is not None]

    def datasets(self, learner: str) -> list[str]:
        return [name for own, name in self._pairs() if own == learner]
