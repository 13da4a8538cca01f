from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from cotune.learners import learner, register_learner
from cotune.methods.evaluate import evaluate, evaluate_openly
from cotune.party.rows import fold_indices
from cotune.party.task import Configuration
from cotune.party.tasks import REASONS, Evaluate, Evaluations
from cotune.problem import METRICS
from tests.parts import (
    OwnLearner,
    Raising,
    ask,
    diabetes,
    federation_of,
    iris,
    parts,
    party_of,
    problem_of,
    wine,
)
from tests.protocol.test_tally import pooled

TABLES = parts(iris())
CONFIGURATIONS = [
    Configuration("decision_tree", {"max_depth": 1}),
    Configuration("decision_tree", {"max_depth": 4}),
]


def test_a_trials_loss_is_the_mean_of_the_parties_losses_where_these_are_compared():
    problem = problem_of(*TABLES.values(), compare_by="parties")
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


@pytest.mark.parametrize(
    ("weights", "compare_by"), [("rows", "federation"), ("rows", "parties"), ("equal", "parties")]
)
def test_gathered_trials_are_those_that_a_sum_gives(weights, compare_by):
    uneven = {"big": iris(90), "small": iris().iloc[90:]}
    problem = problem_of(*uneven.values(), weights=weights, compare_by=compare_by)
    with federation_of(uneven, problem=problem) as federation:
        summed = evaluate(federation, CONFIGURATIONS)
        gathered, own = evaluate_openly(federation, CONFIGURATIONS)
        told = federation.gather(Evaluate(tuple(CONFIGURATIONS)))
    for one, other in zip(summed, gathered, strict=True):
        assert (one.loss, one.error) == (other.loss, other.error)
        assert (one.params, one.parties, one.weight) == (other.params, other.parties, other.weight)
    assert own == {party: reply.losses for party, reply in told.items()}


class Answering:
    """A federation of three parties with these losses."""

    problem = problem_of(iris(), compare_by="parties")

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


def test_a_trial_knows_its_standard_error_where_parties_are_compared():
    """Parties of 50 rows with the same spread between folds: a third of one's variance."""
    problem = problem_of(*TABLES.values(), folds=5, compare_by="parties")
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


#: The first party has one class, the second has two of three, and few rows of one of these.
SKEWED = {
    "party-1": wine().query("target == 0").iloc[:40],
    "party-2": wine().query("target == 1 or target == 2").iloc[:60].iloc[::-1],
    "party-3": wine().iloc[100:],
}


def judged_rows(party, problem, asked):
    """Targets and out-of-fold predictions of a party, fitted without cotune's workers.

    Of classes they are those of a model that knows the federation's shares; scores for AUC are not.
    """
    chosen = learner(asked.learner)
    X, y = party.arrays(chosen.features)
    predicted = []
    for train, test in fold_indices(party.folder(chosen.features), 1.0):
        model = chosen.estimator(asked.params, task=problem.task, seed=0, schema=problem.schema)
        present, labels = np.unique(y[train], return_inverse=True)
        if problem.task == "regression":
            model.fit(X[train], y[train])
        elif len(present) == 1:
            model = DummyClassifier().fit(X[train], labels)
        else:
            model.fit(X[train], labels)
        if problem.task == "regression":
            predicted.append((y[test], model.predict(X[test])))
            continue
        scores = np.zeros((len(test), len(problem.schema.classes)))
        scores[:, present] = model.predict_proba(X[test])
        if problem.metric_name != "roc_auc":
            scores[:, present] *= np.array(problem.schema.class_rows)[present] / np.bincount(labels)
            scores /= scores.sum(axis=1, keepdims=True)
        of_scores = problem.metric_name in ("roc_auc", "log_loss")
        predicted.append((y[test], scores if of_scores else scores.argmax(axis=1)))
    targets, values = zip(*predicted, strict=True)
    return np.concatenate(targets), np.concatenate(values)


@pytest.mark.parametrize("metric", METRICS)
def test_a_trials_loss_is_that_of_all_parties_rows_predicted_out_of_fold(metric, tmp_path):
    if METRICS[metric].task == "regression":
        tables, asked = parts(diabetes()), Configuration("decision_tree", {"max_depth": 1})
    else:
        tables, asked = SKEWED, Configuration("logistic_regression", {"C": 0.01})
    problem = problem_of(*tables.values(), metric=metric, learners=(asked.learner,))
    with federation_of(tables, problem=problem) as federation:
        (trial,) = evaluate(federation, [asked])
    rows = []
    for name, frame in tables.items():
        party = party_of(frame, tmp_path, name=name)
        ask(party, Evaluate((asked,)), problem)
        rows.append(judged_rows(party, problem, asked))
    y, predicted = (np.concatenate(columns) for columns in zip(*rows, strict=True))
    near = 0.002 if metric == "roc_auc" else 1e-9
    assert trial.loss == pytest.approx(pooled(metric, y, predicted), abs=near, rel=1e-9)
    assert trial.error > 0.0
    assert trial.left_out == 0


def test_a_party_with_one_class_makes_no_configuration_better_than_another():
    """It was 0 for all of them, and the mean of the parties' losses the lower the more it had."""
    many = SKEWED | {"party-1": wine().query("target == 0")}
    shallow = [Configuration("decision_tree", {"max_depth": depth}) for depth in (1, 3)]
    problem = problem_of(*many.values())
    with federation_of(many, problem=problem) as federation:
        own = federation.gather(Evaluate(tuple(shallow)))["party-1"]
        whole = evaluate(federation, shallow)
    counts = np.split(np.array(own.counts), 2)
    assert counts[0].tolist() == counts[1].tolist() == [0, 59, 0, 0, 59, 0, 0]
    others = {name: table for name, table in many.items() if name != "party-1"}
    with federation_of(others, problem=problem) as federation:
        without = evaluate(federation, shallow)
    assert (whole[0].loss > whole[1].loss) == (without[0].loss > without[1].loss)
    assert all(trial.loss > 0.0 for trial in whole)


def test_local_losses_weigh_up_to_the_federations_balanced_accuracy():
    problem = problem_of(*SKEWED.values())
    with federation_of(SKEWED, problem=problem) as federation:
        trials = evaluate(federation, CONFIGURATIONS)
        told = federation.gather(Evaluate(tuple(CONFIGURATIONS)))
    weights = [reply.weight for reply in told.values()]
    means = np.average([reply.losses for reply in told.values()], axis=0, weights=weights)
    assert [trial.loss for trial in trials] == pytest.approx(means, abs=0.01)  # whole weights


class Failing(OwnLearner):
    """Fails where there are fewer rows than `least`."""

    name = "failing"
    tasks = ("classification", "regression")
    least = 0

    def estimator(self, params, *, task, seed, schema):
        kind = DecisionTreeRegressor if task == "regression" else DecisionTreeClassifier
        least = self.least

        class Tree(kind):
            def fit(self, X, y):
                if len(X) < least:
                    raise ValueError
                return super().fit(X, y)

        return Tree(max_depth=params["depth"], random_state=seed)


@pytest.mark.parametrize("metric", METRICS)
def test_a_party_whose_fits_fail_does_not_look_better_for_it(metric, registry):
    chosen = Failing()
    register_learner(chosen)
    frame = diabetes() if METRICS[metric].task == "regression" else wine()
    tables = {"party-1": frame.iloc[:30], "party-2": frame.iloc[30:]}
    problem, trials = problem_of(*tables.values(), learners=("failing",), metric=metric), []
    for chosen.least in (0, 25, 1000):
        with federation_of(tables, problem=problem) as federation:
            trials += evaluate(federation, [Configuration("failing", {"depth": 3})])
    fine, one, both = trials
    assert [sum(trial.reasons.values()) for trial in trials] == [0, 1, 2]
    assert fine.loss < one.loss <= both.loss
    assert both.loss > 0.95


def test_rows_of_a_class_that_a_party_has_few_of_are_left_out_and_counted(monkeypatch):
    few = SKEWED | {"party-1": wine().query("target == 0").iloc[:40]}
    few["party-1"] = pd.concat([few["party-1"], wine().query("target == 2").iloc[:4]])
    problem = problem_of(*few.values(), learners=("logistic_regression",))
    asked = [Configuration("logistic_regression", {"C": 1.0})]
    with federation_of(few, problem=problem) as federation:
        (all_rows,) = evaluate(federation, asked)
    with federation_of(few, problem=problem) as federation:
        for party in federation.engine._parties.values():
            party.smallest_cell = 5
        told = federation.gather(Evaluate(tuple(asked)))
        (trial,) = evaluate(federation, asked)
    assert (all_rows.left_out, trial.left_out) == (0, 4)
    assert told["party-1"].counts[:4] == (4, 40, 0, 0)
