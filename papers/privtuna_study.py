"""PrivTuna's measurement study, run anew and scaled down: the server's settings from local grids.

Mitic, Pyrgelis, Sav: How to Privately Tune Hyperparameters in Federated Learning? Insights from a
Benchmark Study, 2024, section IV, on MNIST with 10 parties, for one skew of each kind (those of
figure 3) and for iid rows. Tuned are the learning rate and the momentum of the server.

1. LHO: every party tries all points of a grid alone, by 2-fold cross-validation.
2. GHO: a federated training at each point of the same grid, judged by rows set aside.
3. Every strategy makes one point of the local grids. It is judged by a federated training at that
   very point, not at the nearest of the grid. Its gap is what it lacks to the best of the grid,
   and is negative where a point between those of the grid is better.

What a local grid is about can be meant in two ways. The authors tried rate and momentum of the
party's own descent, and took them, by name, for the server's. Here a party tries the *server's*,
as if it were a federation with one client: it descends with rate and momentum 0.01 as in the
federated training, and its updates pass through the server's rate and momentum. Local and
federated grid then ask about the same parameters, so that a gap tells of the parties' skew and of
the strategy, and not of a rate of one thing being taken for that of another.

What else differs from the paper:

- 2,400 images and not 70,000, of which half are test rows; 10 rounds and not 30; batches of 8.
- With so few steps good server rates are above the paper's range, 0.01 to 0.5, at the end of which
  its best points are, too. The grid is 0.25 to 4, which was chosen after some trainings under label
  skew; four rates by the paper's four momenta. Every search begins with FedAvg's own rate and
  momentum, 1 and 0: a 17th point.
- A federated training leaves half of each party's rows out, as a fold of the local grid does, so
  that a round has as many steps in both. Otherwise a party alone would need the higher rates.
- Images have mean 0 and deviation 1, and the loss is the cross-entropy. The authors' is a square.
- `counted` is the network that has the 54,274 weights which the paper counts: pooling by 3 and by
  2 with strides as long, and 200 units. `described` is the one in its words: pooling by 2 with
  stride 1, and 64 units. It has 690,730 weights and takes more than three times as long.
- Feature skew is drawn here, for `noise:BETA` is for tables: noise of variance beta i / N, of
  pixels from 0 to 1, which are cut off at 0 and 1 as the authors do. Test rows have it, too.
- Of 17 points the best 5 % are one point, as they would be of the paper's 24: `best-mean` is
  `mean`. The paper's mean, median and trimmed mean were taken over all points, whatever their
  accuracy, and are a constant: the row of the grid's centre.
- Of clusters the first is the strategy's answer; the others are rows of their own. The authors
  report the one, of at most four, that is best in the federated grid.
- All trainings of a setting start from the same weights. There is one of each point, so gaps below
  the standard error of an accuracy, which is shown, are noise.

The column `authors` is the gap of the strategy on the authors' recorded grids of this skew (10
clients, batch size 16, the clients' training accuracies as they had them, the first of clusters).

    python papers/privtuna_study.py --workers 1   # some minutes for each skew; stops and goes on
    python papers/privtuna_study.py --quick       # 600 images, 2 rounds, a grid of 2 x 2
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
from common import WORK, Results, Table, Workers, need, parser, save

from cotune.methods.combine import STRATEGIES, combine
from cotune.party.tasks import Pair, Search, Searches
from cotune.space import Space
from cotune.trial import Step

if TYPE_CHECKING:
    from torch import nn

    from cotune.coordinator.federation import Federation
    from cotune.problem import Problem

PARTIES = 10
#: The share of every party's rows that only judges federated trainings.
HOLDOUT = 0.5
#: And the share of the others that these leave out: that of one of two folds.
FOLDS, LEFT_OUT = 2, 0.5
#: The skews of figure 3, and none.
SKEWS = {
    "label": "dirichlet:1.0",
    "feature": "noise:0.02",
    "quantity": "quantity:0.4",
    "iid": "iid",
}
#: Images, rounds of a training, values of each parameter in the grid.
WHOLE = {"rows": 2400, "rounds": 10, "resolution": 4}
QUICK = {"rows": 600, "rounds": 2, "resolution": 2}
#: Of both poolings the windows and strides; units of the dense layer.
NETWORKS: dict[str, dict[str, int]] = {
    "counted": {"first": 3, "second": 2, "first_stride": 3, "second_stride": 2, "hidden": 200},
    "described": {"first": 2, "second": 2, "first_stride": 1, "second_stride": 1, "hidden": 64},
}
NAME = "network_a"
METHOD = "local_grids"
CENTRE, DEFAULT, RANDOM = "centre of the grid", "FedAvg's own", "random point of the grid"
DENSE = ("dbscan", "pf-dbscan")
#: The authors look at so many clusters, and report the best.
MOST = 4

#: A rate and a momentum of the server.
Point = tuple[float, float]
Key = dict[str, Any]


def main() -> int:
    made = parser(__doc__ or "")
    made.add_argument("--quick", action="store_true", help="a run that only shows that it runs")
    made.add_argument("--seeds", type=int, default=1, help="runs of each skew")
    made.add_argument("--skew", choices=SKEWS, action="append", help="only this one; repeatable")
    made.add_argument("--network", choices=NETWORKS, default="counted")
    arguments = made.parse_args()
    need(arguments.data, ["mnist.npz"], "--data")
    store = Results(WORK / "privtuna_study.jsonl")
    scale = QUICK if arguments.quick else WHOLE
    settings = [
        {"skew": skew, "seed": seed, "network": arguments.network, **scale}
        for seed in range(arguments.seeds)
        for skew in arguments.skew or SKEWS
    ]
    with Workers(arguments.workers, arguments.minutes) as workers:
        left = [not _finished(setting, store, workers, arguments.data) for setting in settings]
    shown = []
    for setting, unfinished in zip(settings, left, strict=True):
        if not unfinished:
            shown.append(_compared(setting, store, arguments.recorded))
            print(_table(shown[-1]).text(), "\n")
    sentences = seen(shown)
    print("\n".join(sentences))
    save("privtuna_study" + "_quick" * arguments.quick, {"settings": shown, "seen": sentences})
    if any(left):
        print(f"\n{sum(left)} of {len(left)} are left: run the same command again")
    return 0


# What is done


def _finished(setting: Key, store: Results, workers: Workers, data: Path) -> bool:
    """Whether all trainings of the setting are in the store."""

    def submit(key: Key) -> list[Any]:
        print(f"running {key}", file=sys.stderr)
        return [workers.submit(trained if "point" in key else searched, data, key)]

    if setting not in store:
        if workers.time_is_up:
            return False
        store.put(setting, submit(setting)[0].result())
    points = [*grid(setting).values(), *_candidates(setting, store).values()]
    keys = [_at(setting, point) for point in points]
    return not workers.finish("training", keys, store, submit, lambda found: found[0])


def _at(setting: Key, point: Point) -> Key:
    """The key of a federated training; digits that are only rounding make no other one."""
    return {**setting, "point": [float(f"{value:.6g}") for value in point]}


def space_of(setting: Key) -> Space:
    """Rate and momentum of the server are free; the rest is the paper's, section IV-B4."""
    return Space(
        {
            "server_lr": (0.25, 4.0, "log"),
            "server_momentum": (0.0, 0.9),
            "lr": 0.01,
            "momentum": 0.01,
            "epochs": 2,
            "batch_size": 8,
            "rounds": setting["rounds"],
            **NETWORKS[setting["network"]],
        }
    )


def grid(setting: Key) -> dict[str, Point]:
    """The points of the grid by their numbers, then what is compared with and needs no search."""
    space = space_of(setting)
    points = [_point(params) for params in space.grid(setting["resolution"])]
    return {
        **{str(number): point for number, point in enumerate(points)},
        DEFAULT: (1.0, 0.0),
        CENTRE: _point(space.clip({})),
    }


def _point(params: Mapping[str, Any]) -> Point:
    return params["server_lr"], params["server_momentum"]


def searched(folder: Path, setting: Key) -> dict[str, Any]:
    """The LHO: every party's pairs of point and loss, and the clusters of PF-DBSCAN.

    It takes minutes and goes on where it was stopped.
    """
    import cotune

    register()
    cotune.register_method(METHOD, local_grids)
    named = hashlib.blake2b(json.dumps(setting, sort_keys=True).encode(), digest_size=6)
    run = WORK / "runs" / f"privtuna_study-{named.hexdigest()}"
    with (
        ThreadPoolExecutor(1) as executor,
        federated(folder, setting, executor, run / "parties") as federation,
    ):
        if (run / "run.json").exists():
            outcome = cotune.resume(run, federation, train=False, progress=False)
        else:
            outcome = cotune.tune(
                federation,
                METHOD,
                learners=[NAME],
                space={NAME: space_of(setting)},
                trials=setting["resolution"] ** 2 + 1,
                metric="accuracy",
                compare_by="parties",
                folds=FOLDS,
                holdout=HOLDOUT,
                seed=setting["seed"],
                train=False,
                progress=False,
                run=run,
            )
    shutil.rmtree(run)
    return dict(outcome.report)


def local_grids(federation: Federation, problem: Problem, *, trials: int) -> Iterator[Step]:
    """What the parties tell of their grids, and what PF-DBSCAN learns of them without that."""
    from cotune.methods.privtuna import privtuna

    search = Search(problem.learners, trials, "grid", pruning=False)
    told = cast("dict[str, Searches]", federation.gather(search))
    pairs = [
        [[*_point(pair.params), pair.loss] for pair in told[party].found[0].pairs]
        for party in sorted(told)
    ]
    for step in privtuna(
        federation, problem, trials=trials, sampler="grid", single_shot=True, pruning=False
    ):
        found = [[*_point(one["params"]), one["loss"]] for one in step.report["clusters"][NAME]]
        report = {"pairs": pairs, "clusters": found}
        yield Step(step.trials, step.done, step.of, report)


def trained(folder: Path, key: Key) -> dict[str, Any]:
    """One point of the GHO: a grid of this point alone, judged by the rows set aside.

    One run for each point makes the script resumable, and lets all start from the same weights.
    """
    import cotune

    register()
    rate, momentum = key["point"]
    with ThreadPoolExecutor(1) as executor, federated(folder, key, executor) as federation:
        outcome = cotune.tune(
            federation,
            "fedex",
            learners=[NAME],
            space={NAME: space_of(key).fix(server_lr=rate, server_momentum=momentum)},
            holdout=HOLDOUT,
            seed=key["seed"],
            train=False,
            progress=False,
            wrapper="grid",
            arms=1,
            objective="global",
            rounds=key["rounds"],
            max_rounds=key["rounds"],
            clients_per_round=PARTIES,
            validation=LEFT_OUT,
            curve=0,
        )
    return {"accuracy": 1.0 - outcome.report["test"]["global"]}


# Parties and their network


def federated(
    folder: Path, setting: Key, executor: Executor, state: Path | None = None
) -> Federation:
    """The parties of a setting."""
    import cotune
    from cotune.data.split import split

    frame = images(folder, setting["rows"])
    kind, seed = SKEWS[setting["skew"]], setting["seed"]
    if not kind.startswith("noise:"):
        return cotune.simulate(
            frame, target="label", parties=PARTIES, split=kind, seed=seed, executor=executor,
            state=state,
        )  # fmt: skip
    beta = float(kind.removeprefix("noise:"))
    parts = noisy(split(frame, "label", PARTIES, "iid", seed), beta, seed)
    return cotune.simulate(parts, target="label", executor=executor, state=state)


@cache
def images(folder: Path, count: int) -> pd.DataFrame:
    """So many images of MNIST, the same in all settings."""
    from cotune.data.load import load

    frame = load(str(folder / "mnist.npz"))
    chosen = np.random.default_rng(0).permutation(len(frame))[:count]
    return frame.iloc[np.sort(chosen)].reset_index(drop=True)


def noisy(parts: Mapping[str, pd.DataFrame], beta: float, seed: int) -> dict[str, pd.DataFrame]:
    """Party i's images with noise of variance beta i / N, where 1 is the brightest."""
    random = np.random.default_rng(seed)

    def blurred(image: np.ndarray, deviation: float) -> np.ndarray:
        noise = random.normal(scale=255.0 * deviation, size=image.shape)
        return np.clip(np.round(image + noise), 0.0, 255.0).astype(np.uint8)

    def with_noise(part: pd.DataFrame, deviation: float) -> pd.DataFrame:
        images = [blurred(image, deviation) for image in part["image"]]
        return part.assign(image=pd.Series(images, part.index, dtype=object))

    return {
        name: with_noise(part, math.sqrt(beta * i / len(parts)))
        for i, (name, part) in enumerate(parts.items(), start=1)
    }


def register() -> None:
    """Make network A known as a learner."""
    from cotune.learners.torch import register_network

    register_network(NAME, network_a, replace=True, **NETWORKS["counted"])


def network_a(
    shape: tuple[int, ...],
    outputs: int,
    *,
    first: int,
    second: int,
    first_stride: int,
    second_stride: int,
    hidden: int,
) -> nn.Module:
    """Two 5x5 convolutions of 32 channels, each with an average pooling, and a dense layer."""
    from torch import nn

    left = shape[0]
    for window, stride in ((first, first_stride), (second, second_stride)):
        left = (left - 4 - window) // stride + 1
    return nn.Sequential(
        nn.Unflatten(1, (1, shape[0])),
        *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.AvgPool2d(first, first_stride)),
        *(nn.Conv2d(32, 32, 5), nn.ReLU(), nn.AvgPool2d(second, second_stride)),
        *(nn.Flatten(), nn.Linear(32 * left**2, hidden), nn.ReLU()),
        nn.Linear(hidden, outputs),
    )


# What comes out


def _candidates(setting: Key, store: Results) -> dict[str, Point]:
    """What each strategy makes of the local grids; the clusters after the first by number."""
    found, space = store.get(setting), space_of(setting)
    tried = [[_pair(space, *each) for each in own] for own in found["pairs"]]
    made: dict[str, list[Point]] = {
        name: [_point(one.params) for one in combine(name, space, tried)] for name in STRATEGIES
    }
    made["pf-dbscan"] = [(rate, momentum) for rate, momentum, _ in found["clusters"]]
    return {
        f"{name}, cluster {i + 1}" if i else name: point
        for name, points in made.items()
        for i, point in enumerate(points[:MOST])
    }


def _pair(space: Space, rate: float, momentum: float, loss: float) -> Pair:
    return Pair(space.clip({"server_lr": rate, "server_momentum": momentum}), loss)


def _compared(setting: Key, store: Results, recorded: Path) -> dict[str, Any]:
    """The accuracies of a setting that is finished."""

    def accuracy(point: Point) -> float:
        return float(store.get(_at(setting, point))["accuracy"])

    points, made = grid(setting), _candidates(setting, store)
    cells = {point: accuracy(point) for name, point in points.items() if name.isdigit()}
    best = max(cells, key=lambda point: cells[point])
    authors = of_authors(recorded, setting["skew"])
    rows = [
        {
            "strategy": name,
            "point": point,
            "accuracy": accuracy(point),
            "gap": cells[best] - accuracy(point),
            "authors": authors.get(name),
        }
        for name, point in {**made, CENTRE: points[CENTRE], DEFAULT: points[DEFAULT]}.items()
    ]
    mean = float(np.mean(list(cells.values())))
    random = {"strategy": RANDOM, "point": None, "accuracy": mean, "gap": cells[best] - mean}
    test_rows = HOLDOUT * setting["rows"]
    bests = [min(own, key=lambda pair: pair[2])[:2] for own in store.get(setting)["pairs"]]
    return {
        **setting,
        "best": best,
        "accuracy": cells[best],
        "error": math.sqrt(cells[best] * (1.0 - cells[best]) / test_rows),
        "grid": [[*point, accuracy] for point, accuracy in cells.items()],
        "bests_of_parties": bests,
        "strategies": [*rows, random | {"authors": authors.get(RANDOM)}],
    }


def of_authors(folder: Path, skew: str) -> dict[str, float]:
    """The gaps of the strategies on the authors' grids; none for iid rows, or without these."""
    from privtuna_replay import PLAIN, Rule, authors_dbscan, by, experiments, over_all

    if skew == "iid" or not (folder / "privtuna_lho.parquet").is_file():
        return {}
    wanted = ("mnist", skew, float(SKEWS[skew].partition(":")[2]), PARTIES)
    case = next(each for each in experiments(folder) if each.key == wanted)
    rules = {name: by(name, PLAIN) for name in STRATEGIES}
    rules |= {"dbscan": Rule(authors_dbscan), CENTRE: over_all(np.mean)}
    tried = case.tried("train", "trial")
    gaps = {name: case.gap(rule.make(case, tried)[0], 16) for name, rule in rules.items()}
    return gaps | {RANDOM: case.mean_gap(16)}


def _table(setting: Key) -> Table:
    bests = Counter(map(tuple, setting["bests_of_parties"])).most_common()
    own = ", ".join(f"({rate:.3g}, {momentum:.2g}) {count}x" for (rate, momentum), count in bests)
    lines = [("best of the grid", *_cells(setting["best"]), f"{setting['accuracy']:.3f}", "", "")]
    for row in setting["strategies"]:
        authors = "" if row["authors"] is None else f"{row['authors']:.3f}"
        accuracy, gap = f"{row['accuracy']:.3f}", f"{row['gap']:+.3f}"
        lines.append((row["strategy"], *_cells(row["point"]), accuracy, gap, authors))
    return Table(
        f"{setting['skew']} ({SKEWS[setting['skew']]}), seed {setting['seed']}: accuracy, "
        f"+- {setting['error']:.3f}",
        ("strategy", "server lr", "momentum", "accuracy", "gap", "authors"),
        lines,
        f"The parties' own best points: {own}.",
    )


def _cells(point: Point | None) -> tuple[str, str]:
    return ("", "") if point is None else (f"{point[0]:.3g}", f"{point[1]:.2f}")


def seen(settings: Sequence[Key]) -> list[str]:
    """Whether the paper's two claims are seen: the mean for iid rows, clusters for the others."""
    sentences = []
    for setting in settings:
        gaps = {row["strategy"]: row["gap"] for row in setting["strategies"]}
        strategies = (*STRATEGIES, "pf-dbscan")
        enough = min(gaps[name] for name in strategies) + setting["error"]
        tied = [name for name in strategies if gaps[name] <= enough]
        claimed = ("mean",) if setting["skew"] == "iid" else DENSE
        first = [name for name in tied if name in claimed]
        others = [name for name in tied if name not in claimed]
        if not first:
            verdict = f"not seen, ahead of {' and '.join(claimed)}: {', '.join(others)}"
        elif others:
            verdict = f"no difference, {', '.join(first)} as good as {', '.join(others)}"
        else:
            verdict = f"seen, ahead of all others: {', '.join(first)}"
        constants = [name for name in (CENTRE, DEFAULT) if gaps[name] <= enough]
        beside = f"; a constant is as good: {', '.join(constants)}" if constants else ""
        sentences.append(f"{setting['skew']}, seed {setting['seed']}: {verdict}{beside}.")
    if all(setting["skew"] != "iid" for setting in settings):
        sentences.append("iid rows were not run: nothing is said of the mean there.")
    return sentences


if __name__ == "__main__":
    raise SystemExit(main())
