"""What the tests of training share: a whole training, and one that is killed and resumed."""

from __future__ import annotations

from cotune.coordinator.journal import Journal
from cotune.data.encode import encode, encode_target
from cotune.party.task import Configuration
from cotune.problem import Budget
from cotune.training import trainer
from tests.parts import federation_of, problem_of


def stages_and_model(federation, problem, learner, params, merge_every=None):
    """All stages of a training, and the fitted estimator."""
    federation.problem = problem
    steps = trainer(learner, merge_every)(federation, problem, Configuration(learner, params))
    stages = []
    while True:
        try:
            stages.append(next(steps))
        except StopIteration as end:
            return stages, end.value


def run(federation, problem, learner, params, stages=None):
    """The fitted estimator; or None, given up after a number of stages."""
    steps = trainer(learner)(federation, problem, Configuration(learner, params))
    seen = []
    while stages is None or len(seen) < stages:
        try:
            seen.append(next(steps))
        except StopIteration as end:
            assert [stage.done for stage in seen] == sorted(stage.done for stage in seen)
            assert all(0 < stage.done <= stage.of for stage in seen)
            return end.value
    return None


def trained(tables, learner, params, problem=None, *, journal=None, stages=None, **settings):
    """The estimator, its problem, and the ledger of the training alone."""
    problem = problem or problem_of(*tables.values(), learners=(learner,), **settings)
    with federation_of(tables) as base:
        federation = base.for_run("run", journal or Journal(), Budget())
        federation.problem = problem
        return run(federation, problem, learner, params, stages), problem, federation.ledger


def resumed(tables, learner, params, problem, path, stages):
    """As `trained`, by a coordinator that was killed after so many stages."""
    for some in (stages, None):
        journal = Journal(path)
        result = trained(tables, learner, params, problem, journal=journal, stages=some)
        journal.close()
    return result


def rows_of(frame, problem):
    """The encoded rows of all parties in one place, and their target."""
    X = encode(frame, problem.schema, "dense", problem.scaling)
    return X, encode_target(frame, problem.schema)


def known_rounds(ledger):
    """What a resumed run must have in its ledger too."""
    return [(entry.number, entry.task, entry.asked, entry.bytes_up) for entry in ledger]
