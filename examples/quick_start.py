"""Tune two learners over five unequal parties, and look at what came out.

python examples/quick_start.py
"""

import cotune

with cotune.simulate("sklearn:iris", parties=5, split="dirichlet:2.0", seed=1) as federation:
    outcome = cotune.tune(
        federation,
        "dash",
        learners=["decision_tree", "logistic_regression"],
        trials=8,
        folds=3,
        metric="balanced_accuracy",
    )

print(f"best: {outcome.best_learner} {outcome.best_params}")
print(f"balanced accuracy, mean over the parties by rows: {outcome.best_value:.3f}")
print(outcome.leaderboard().drop(columns="params").to_string())
print("what the coordinator learnt:")
for line in outcome.ledger.disclosed:
    print(" -", line)
