"""Rounds of FedEx per second, beside the loop that one would write with PyTorch.

Ten clients of a hundred take part in a round, each with a configuration of its own (FedEx, appendix
D.2). By hand they train one after the other, with `torch.optim.SGD` and as many threads as the
library takes; cotune trains them on one process per core. Both do the same: the validation losses
of every round are compared. Rounds of the two alternate, so that a slow moment of the machine
meets both.

    python benchmarks/fedex.py
    python benchmarks/fedex.py --memory 2000    # rounds of cotune alone, and what they take
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from typing import Any

import numpy as np
import pandas as pd

#: As McMahan et al. share MNIST out: a hundred clients with 600 images each.
CLIENTS, PER_ROUND, ROWS, SIDE, CLASSES = 100, 10, 600, 28, 10
NETWORKS: dict[str, dict[str, Any]] = {
    "cnn": {"channels": 8, "hidden": 32},
    "torch_mlp": {"hidden": 200, "layers": 2},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="of each")
    parser.add_argument("--memory", type=int, metavar="ROUNDS", help="watch the memory instead")
    arguments = parser.parse_args()
    if arguments.memory:
        return memory(arguments.memory)
    print(f"{'network':<10} {'by hand':>10} {'cotune':>10} {'ratio':>6}  losses differ by at most")
    for learner, fixed in NETWORKS.items():
        hand, ours, gap = compared(learner, fixed, arguments.rounds)
        print(
            f"{learner:<10} {arguments.rounds / hand:>8.2f}/s {arguments.rounds / ours:>8.2f}/s "
            f"{hand / ours:>6.2f}  {gap:.1e}"
        )
    return 0


def tables() -> dict[str, pd.DataFrame]:
    """Images of ten noisy shapes, for each client in another mixture."""
    rng = np.random.default_rng(0)
    shapes = rng.random((CLASSES, SIDE, SIDE))
    made = {}
    for number in range(CLIENTS):
        labels = rng.choice(CLASSES, ROWS, p=rng.dirichlet(np.ones(CLASSES)))
        images = shapes[labels] * 100 + rng.random((ROWS, SIDE, SIDE)) * 155
        cells = pd.Series(list(images.astype(np.uint8)), dtype=object)
        made[f"client-{number:02}"] = pd.DataFrame({"image": cells, "label": labels.astype(str)})
    return made


class Ours:
    """FedEx as `tune` runs it, round by round."""

    def __init__(self, learner: str, fixed: dict[str, Any]) -> None:
        import cotune
        from cotune.coordinator.agree import agree
        from cotune.methods.exponentiated import Instance, Options
        from cotune.run.settings import Settings

        self.federation = cotune.simulate(tables(), target="label")
        settings = Settings("fedex", (learner,), fixed={learner: fixed}, holdout=0.0)
        schema = agree(self.federation, folds=2, task="classification")
        self.problem = self.federation.problem = settings.problem(schema)
        self.options = Options(
            PER_ROUND, "personalized", 27, 0.3, "aggressive", 0.5, True, 0.0, 0.0, False, 0.0,
            "mode", 0.1,
        )  # fmt: skip
        self.instance = Instance.drawn(self.problem, 0, self.options)
        self.federation.restored()

    def round(self) -> float:
        """The round's mean validation loss."""
        self.instance.round(self.federation, self.problem, self.options)
        mean = self.instance.scores.mean
        assert mean is not None
        return mean


def plain(learner: str, params: dict[str, Any]) -> Any:
    """The same network as a tutorial has it."""
    from torch import nn

    hidden = params["hidden"]
    if learner == "torch_mlp":
        assert params["layers"] == 2
        first = [nn.Flatten(), nn.Linear(SIDE * SIDE, hidden), nn.ReLU(), nn.Dropout()]
        return nn.Sequential(
            *first, nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(), nn.Linear(hidden, CLASSES)
        )
    small, large = params["channels"], 2 * params["channels"]
    return nn.Sequential(
        nn.Unflatten(1, (1, SIDE)),
        *(nn.Conv2d(1, small, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(small, large, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(large, large, 3, padding=1), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(large * (SIDE // 4) ** 2, hidden), nn.ReLU(), nn.Dropout()),
        nn.Linear(hidden, CLASSES),
    )


class Hand:
    """The same by a loop over clients; arms are drawn as cotune's parties do."""

    def __init__(self, ours: Ours) -> None:
        import torch

        from cotune.data.encode import encode, encode_target

        torch.set_num_threads(len(os.sched_getaffinity(0)))  # PyTorch's own default
        self.ours, schema = ours, ours.problem.schema
        self.module = plain(ours.instance.learner, ours.instance.params)
        self.rows = {
            name: (
                torch.from_numpy(encode(frame, schema, "tensor")),
                torch.from_numpy(encode_target(frame, schema)),
            )
            for name, frame in tables().items()
        }

    def round(self, state: Any) -> float:
        """The mean validation loss of the round that begins as cotune's did."""
        import torch

        from cotune.methods.exponentiated import some_of
        from cotune.problem import seed_of

        problem, number = self.ours.problem, state.common.round
        seed = seed_of(problem.seed, "clients", state.number, number)
        clients = some_of(
            list(self.ours.federation.parties), PER_ROUND, np.random.default_rng(seed)
        )
        begun = torch.from_numpy(state.common.weights.astype(np.float32))
        total, wrong, judged, weight = torch.zeros_like(begun), 0.0, 0, 0
        for name in clients:
            torch.nn.utils.vector_to_parameters(begun.clone(), self.module.parameters())
            seed = seed_of(problem.seed, "improve", str(state.number), number, name)
            arms = state.arms
            how = state.params | arms.configuration(arms.draw(np.random.default_rng(seed)))
            X, y = self.rows[name]
            split = np.random.default_rng(seed_of(problem.seed, "validation"))
            order = torch.from_numpy(split.permutation(len(y)))
            held, kept = order[: len(y) // 10], order[len(y) // 10 :]
            X_train, y_train = X[kept], y[kept]
            optimizer = torch.optim.SGD(
                self.module.parameters(),
                lr=how["lr"],
                momentum=how["momentum"],
                weight_decay=how["weight_decay"],
            )
            torch.manual_seed(seed)
            for part in self.module.modules():
                if isinstance(part, torch.nn.Dropout):
                    part.p = how["dropout"]
            self.module.train()
            for _ in range(how["epochs"]):
                for batch in torch.split(torch.randperm(len(y_train)), how["batch_size"]):
                    optimizer.zero_grad()
                    outputs = self.module(X_train[batch])
                    loss = torch.nn.functional.cross_entropy(outputs, y_train[batch])
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
            self.module.eval()
            with torch.inference_mode():
                wrong += int((self.module(X[held]).argmax(1) != y[held]).sum())
            judged += len(held)
            weights = torch.nn.utils.parameters_to_vector(self.module.parameters()).detach()
            total += len(kept) * weights
            weight += len(kept)
        self.averaged = total / weight
        return wrong / judged


def compared(learner: str, fixed: dict[str, Any], rounds: int) -> tuple[float, float, float]:
    """Seconds of all rounds by hand and by cotune, and the largest difference of a loss."""
    ours = Ours(learner, fixed)
    hand = Hand(ours)
    seconds, gaps = [0.0, 0.0], []
    for number in range(-2, rounds):  # two to warm up
        state = copy.deepcopy(ours.instance)
        marks = [time.perf_counter()]
        by_hand = hand.round(state)
        marks.append(time.perf_counter())
        by_us = ours.round()
        marks.append(time.perf_counter())
        if number >= 0:
            seconds = [seconds[0] + marks[1] - marks[0], seconds[1] + marks[2] - marks[1]]
            gaps.append(abs(by_hand - by_us))
    ours.federation.close()
    return seconds[0], seconds[1], max(gaps)


def memory(rounds: int) -> int:
    """Megabytes of the coordinator and its workers, as rounds go by."""
    import psutil

    ours = Ours("torch_mlp", {"hidden": 32})
    here = psutil.Process()
    for number in range(rounds + 1):
        if number % max(1, rounds // 10) == 0:
            family = [here, *here.children(recursive=True)]
            used = sum(process.memory_info().rss for process in family if process.is_running())
            print(f"round {number:>6}: {used / 2**20:8.0f} MB")
        ours.round()
        if number % 10 == 0:
            ours.federation.checkpoint(b"")
    ours.federation.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
