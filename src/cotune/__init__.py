"""cotune: tune machine learning over data that may not leave its owners."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

#: Where the public names live. They are imported when they are first used, so that the
#: command line starts at once.
_PUBLIC = {
    "simulate": "cotune.run.simulate",
    "connect": "cotune.engines.nvflare.engine",
    "tune": "cotune.run.tune",
    "resume": "cotune.run.tune",
    "evaluate": "cotune.run.evaluate",
    "Model": "cotune.model.model",
    "Outcome": "cotune.run.outcome",
    "Trial": "cotune.trial",
    "Step": "cotune.trial",
    "Federation": "cotune.coordinator.federation",
    "Engine": "cotune.protocol.engine",
    "RecordedEngine": "cotune.engines.recorded",
    "Ledger": "cotune.coordinator.ledger",
    "Space": "cotune.space",
    "when": "cotune.space",
    "Problem": "cotune.problem",
    "Metric": "cotune.problem",
    "Budget": "cotune.problem",
    "Learner": "cotune.learners.contract",
    "register_learner": "cotune.learners",
    "register_network": "cotune.learners.torch",
    "learner_names": "cotune.learners",
    "register_method": "cotune.methods",
    "method_names": "cotune.methods",
    "CotuneError": "cotune.errors",
    "DataError": "cotune.errors",
    "DataWarning": "cotune.errors",
    "FederationError": "cotune.errors",
    "UsageError": "cotune.errors",
}

__all__ = ["__version__", *_PUBLIC]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from cotune.coordinator.federation import Federation as Federation
    from cotune.coordinator.ledger import Ledger as Ledger
    from cotune.engines.nvflare.engine import connect as connect
    from cotune.engines.recorded import RecordedEngine as RecordedEngine
    from cotune.errors import CotuneError as CotuneError
    from cotune.errors import DataError as DataError
    from cotune.errors import DataWarning as DataWarning
    from cotune.errors import FederationError as FederationError
    from cotune.errors import UsageError as UsageError
    from cotune.learners import learner_names as learner_names
    from cotune.learners import register_learner as register_learner
    from cotune.learners.contract import Learner as Learner
    from cotune.learners.torch import register_network as register_network
    from cotune.methods import method_names as method_names
    from cotune.methods import register_method as register_method
    from cotune.model.model import Model as Model
    from cotune.problem import Budget as Budget
    from cotune.problem import Metric as Metric
    from cotune.problem import Problem as Problem
    from cotune.protocol.engine import Engine as Engine
    from cotune.run.evaluate import evaluate as evaluate
    from cotune.run.outcome import Outcome as Outcome
    from cotune.run.simulate import simulate as simulate
    from cotune.run.tune import resume as resume
    from cotune.run.tune import tune as tune
    from cotune.space import Space as Space
    from cotune.space import when as when
    from cotune.trial import Step as Step
    from cotune.trial import Trial as Trial


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'cotune' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
