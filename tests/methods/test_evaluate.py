from __future__ import annotations

import numpy as np
import pytest

from cotune.learners import register_learner
from cotune.methods.evaluate import evaluate
from cotune.party.tasks import REASONS, Configuration, Evaluate
from tests.parts import Raising, federation_of, iris, parts, problem_of

TABLES = parts(iris())
CONFIGURATIONS = [
    Configuration("decision_tree", {"max_depth": 1}),
    Configuration("decision_tree", {"max_depth": 4}),
]


def test_a_trials_loss_is_the_mean_of_the_parties_losses():
    problem = problem_of(*TABLES.values())
    with federation_of(TABLES, problem=problem) as federation:
        trials = evaluate(federation, CONFIGURATIONS)
        told = federation.gather(Evaluate(tuple(CONFIGURATIONS)))
    expected = np.mean([reply.losses for reply in told.values()], axis=0)
    assert [trial.loss for trial in trials] == pytest.approx(expected, abs=1e-8)
    assert [trial.params for trial in trials] == [c.params for c in CONFIGURATIONS]
    assert [(t.parties, t.fits, t.reasons) for t in trials] == [(3, 9, {}), (3, 9, {})]
    assert all(trial.cpu_seconds > 0 for trial in trials)


def test_all_configurations_travel_in_one_round():
    with federation_of(TABLES, problem=problem_of(*TABLES.values())) as federation:
        evaluate(federation, CONFIGURATIONS)
        (entry,) = federation.ledger
    assert entry.verb == "sum"
    assert entry.replies is None


def test_failed_fits_are_counted_by_reason(registry):
    register_learner(Raising())
    problem = problem_of(*TABLES.values(), learners=("raising", "decision_tree"))
    with federation_of(TABLES, problem=problem) as federation:
        failed, fine = evaluate(
            federation, [Configuration("raising", {"depth": 1}), CONFIGURATIONS[0]]
        )
    assert failed.reasons == {REASONS[1]: 3}
    assert failed.loss == 1.0
    assert fine.reasons == {}
