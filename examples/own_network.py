"""Tune a network of your own while twenty clients train it, and watch its settings being learnt.

python examples/own_network.py
"""

from __future__ import annotations

from torch import nn

import cotune


def bottleneck(shape: tuple[int, ...], outputs: int, width: int) -> nn.Module:
    """Any module that takes rows of that shape and gives a score for each class."""
    (columns,) = shape
    return nn.Sequential(nn.Linear(columns, width), nn.Tanh(), nn.Linear(width, outputs))


def main() -> None:
    cotune.register_network("bottleneck", bottleneck, width=16)
    with cotune.simulate("sklearn:digits", parties=20, split="dirichlet:0.5") as federation:
        outcome = cotune.tune(
            federation,
            "fedex",
            learners=["bottleneck"],
            rounds=80,
            max_rounds=40,
            eliminations=2,
            clients_per_round=5,
            folds=2,
        )
    print("best settings of the clients", outcome.report["client"])
    print("test error, common model and fine-tuned", outcome.report["test"])
    for point in outcome.report["online"][::5]:
        print(f"after {point['rounds']:>3} rounds: {point['personalized']:.3f}")


if __name__ == "__main__":
    main()
