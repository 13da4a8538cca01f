"""A run that stops in the middle and goes on later, with the same outcome as an unbroken one.

python examples/resume.py
"""

import tempfile
from pathlib import Path
from typing import Any

import cotune
from cotune.testing import Faulty, Killed

arguments: dict[str, Any] = {"learners": ["decision_tree"], "trials": 10, "folds": 3}

with cotune.simulate("sklearn:wine", parties=3) as federation:
    unbroken = cotune.tune(federation, **arguments)

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        # An engine that dies in round 7, as a coordinator does when its machine loses power.
        dying = cotune.Federation(Faulty(federation.engine, dies_at=7), origin=federation.origin)
        try:
            cotune.tune(dying, **arguments, run=run)
        except Killed:
            print("the coordinator died in round 7")
        resumed = cotune.resume(run, federation)

print("the same trials:", [t.loss for t in resumed.trials] == [t.loss for t in unbroken.trials])
print("the same best configuration:", resumed.best_params == unbroken.best_params)
