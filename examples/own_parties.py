"""One file per party: columns in another order, gaps, and a class that one party lacks.

python examples/own_parties.py
"""

import tempfile
from pathlib import Path

import pandas as pd

import cotune

north = pd.DataFrame({"age": range(30, 60), "smoker": ["yes", "no", "no"] * 10})
north["pressure"] = 80 + north["age"]
north["outcome"] = pd.cut(north["age"], [0, 39, 49, 99], labels=["well", "watch", "treat"])

south = pd.DataFrame({"pressure": range(105, 130), "age": range(25, 50)})
south.loc[4, "age"] = None
south["outcome"] = pd.cut(south["pressure"], [0, 117, 999], labels=["well", "watch"])
south["smoker"] = "no"

with tempfile.TemporaryDirectory() as folder:
    files = [Path(folder) / "north.csv", Path(folder) / "south.csv"]
    north.to_csv(files[0], index=False)
    south.to_csv(files[1], index=False)
    with cotune.simulate(files, target="outcome") as federation:
        outcome = cotune.tune(federation, learners=["decision_tree"], trials=5, folds=3)

schema = outcome.problem.schema
print("parties:", ", ".join(outcome.parties))
print("classes:", ", ".join(schema.classes))
for column in schema.columns:
    figures = column.categories or f"mean {column.mean:.2f}, deviation {column.scale:.2f}"
    print(f"{column.name} ({column.kind}): {figures}")
print("best:", outcome.best_params, f"balanced accuracy {outcome.best_value:.3f}")
