"""Tune so that the coordinator sees totals only, and show who learnt what.

    python examples/private_sums.py

With the key agent (`cotune agent doctor --setup`), write "encrypted" for "masked": the result is
the same, and the coordinator can open no total without every party.
"""

from __future__ import annotations

import cotune
from cotune.privacy.sums import Privacy
from cotune.report.disclosure import as_text


def tuned(federation: cotune.Federation, privacy: Privacy) -> cotune.Outcome:
    return cotune.tune(
        federation,
        "privtuna",
        learners=["logistic_regression", "decision_tree"],
        trials=8,
        folds=3,
        privacy=privacy,
        train=False,
    )


def main() -> None:
    with cotune.simulate("sklearn:breast_cancer", parties=5, split="dirichlet:1.0") as federation:
        plain, private = tuned(federation, "plain"), tuned(federation, "masked")

    assert private.best_params == plain.best_params
    assert private.best_loss == plain.best_loss  # to the last bit: totals are exact
    print(f"the best, in the clear and not: {private.best_learner}, {private.best_value:.4f}\n")
    print(as_text(private))


if __name__ == "__main__":
    main()
