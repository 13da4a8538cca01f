from __future__ import annotations

import numpy as np
import pytest

from cotune.learners import register_learner
from cotune.methods.evaluate import evaluate, evaluate_openly
from cotune.party.task import Configuration
from cotune.party.tasks import REASONS, Evaluate, Evaluations
from tests.parts import Raising, diabetes, federation_of, iris, parts, problem_of

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


@pytest.mark.parametrize("weights", ["rows", "equal"])
def test_gathered_trials_are_those_that_a_sum_gives(weights):
    uneven = {"big": iris(90), "small": iris().iloc[90:]}
    problem = problem_of(*uneven.values(), weights=weights)
    with federation_of(uneven, problem=problem) as federation:
        summed = evaluate(federation, CONFIGURATIONS)
        gathered, own = evaluate_openly(federation, CONFIGURATIONS)
        told = federation.gather(Evaluate(tuple(CONFIGURATIONS)))
    for one, other in zip(summed, gathered, strict=True):
        assert one.loss == pytest.approx(other.loss, abs=1e-8)
        assert (one.params, one.parties, one.weight) == (other.params, other.parties, other.weight)
    assert own == {party: reply.losses for party, reply in told.items()}


class Answering:
    """A federation of three parties with these losses."""

    problem = problem_of(iris())

    def __init__(self, *losses):
        self._losses = losses

    def gather(self, task):
        return {
            f"party-{i}": Evaluations(
                list(told), [0.0] * 2, [3] * 2, [0.1] * 2, [0] * 2 * len(REASONS)
            )
            for i, told in enumerate(self._losses)
        }


def test_gathered_trials_tie_wherever_a_sum_would():
    trials, _ = evaluate_openly(Answering((0.1, 0.3), (0.2, 0.2), (0.3, 0.1)), CONFIGURATIONS)
    assert trials[0].loss == trials[1].loss


def test_a_trial_says_on_what_share_of_the_rows_it_was_judged():
    half = Configuration("decision_tree", {"max_depth": 4}, fraction=0.5)
    with federation_of(TABLES, problem=problem_of(*TABLES.values())) as federation:
        trials = evaluate(federation, [*CONFIGURATIONS, half])
    assert [trial.fraction for trial in trials] == [1.0, 1.0, 0.5]
    assert [trial.fits for trial in trials] == [9] * 3
    assert not any(trial.predicted for trial in trials)


def test_a_trial_knows_its_standard_error():
    """Parties of 50 rows with the same spread between folds: a third of one's variance."""
    problem = problem_of(*TABLES.values(), folds=5)
    with federation_of(TABLES, problem=problem) as federation:
        (trial,) = evaluate(federation, CONFIGURATIONS[:1])
        told = federation.gather(Evaluate(tuple(CONFIGURATIONS[:1])))
    variances = [reply.variances[0] for reply in told.values()]
    assert trial.error == pytest.approx(np.sqrt(np.mean(variances) / 3), abs=1e-4)
    assert 0.0 < trial.error < 0.2


@pytest.mark.parametrize("scale", [1e-160, 1.0, 1e150])
def test_standard_errors_are_in_the_unit_of_the_target(scale):
    frame = diabetes()
    tables = parts(frame.assign(target=frame["target"] * scale))
    with federation_of(tables, problem=problem_of(*tables.values())) as federation:
        (trial,) = evaluate(federation, CONFIGURATIONS[:1])
    assert 0.0 < trial.error < trial.loss
    assert trial.error == pytest.approx(trial.loss / 20, rel=0.9)
