from __future__ import annotations

import numpy as np
import pytest
import skops.io
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor

from cotune import learners
from cotune.coordinator.federation import Sums
from cotune.errors import Diverged, UsageError
from cotune.protocol.wire import Refusal
from cotune.training.averaging import EPOCHS
from tests.parts import diabetes, federation_of, iris, parts, problem_of, unreliable, wine
from tests.training.trained import known_rounds, resumed, rows_of, run, trained

FAST = {
    "hidden_layer_sizes": 32,
    "learning_rate_init": 0.01,
    "batch_size": 32,
    "tol": 1e-3,
    "n_iter_no_change": 5,
    "early_stopping": True,
}


def pooled(frame, problem, params):
    """scikit-learn's network, fitted on all rows in one place."""
    network = learners.learner("mlp").estimator(
        problem.defaults("mlp") | params, task=problem.task, seed=0, schema=problem.schema
    )
    return network.fit(*rows_of(frame, problem))


@pytest.mark.parametrize(
    "frame", [load_breast_cancer(as_frame=True).frame, load_digits(as_frame=True).frame]
)
def test_the_accuracy_is_that_of_a_network_with_all_rows(frame):
    kept, held = train_test_split(frame, test_size=0.3, random_state=0, stratify=frame["target"])
    model, problem, ledger = trained(parts(kept), "mlp", FAST)
    X, y = rows_of(held, problem)
    assert model.score(X, y) >= pooled(kept, problem, FAST).score(X, y) - 0.02
    assert model.score(X, y) > 0.93
    assert ledger.rounds < 60


def test_numbers_are_predicted_in_their_own_unit():
    kept, held = train_test_split(diabetes(), test_size=0.3, random_state=0)
    model, problem, _ = trained(parts(kept), "mlp", FAST)
    assert type(model) is MLPRegressor
    mean, scale = problem.schema.target_mean, problem.schema.target_scale
    standardised = kept.assign(target=(kept["target"] - mean) / scale)
    alone = pooled(standardised, problem, FAST)
    X, y = rows_of(held, problem)
    assert model.score(X, y) >= alone.score(X, (y - mean) / scale) - 0.05
    assert model.score(X, y) > 0.25


def test_a_party_may_lack_classes():
    frame = wine()
    tables = {"a": frame[frame["target"] < 2], "b": frame[frame["target"] > 0]}
    model, problem, _ = trained(tables, "mlp", FAST)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.score(*rows_of(frame, problem)) > 0.95


def test_a_party_may_have_one_class_and_too_few_rows_to_hold_any_back():
    frame = iris()
    tables = parts(frame, 2) | {"small": frame[frame["target"] == 2].iloc[:4]}
    model, problem, _ = trained(tables, "mlp", FAST)
    assert model.score(*rows_of(frame, problem)) > 0.9


@pytest.mark.parametrize("params", [{"early_stopping": False}, {"layers": 2, "activation": "tanh"}])
def test_the_network_is_the_one_that_was_configured(params):
    model, problem, _ = trained(parts(iris()), "mlp", FAST | params | {"max_iter": 12})
    assert type(model) is MLPClassifier
    assert len(model.coefs_) == params.get("layers", 1) + 1
    assert model.early_stopping == params.get("early_stopping", True)
    assert (model.learning_rate_init, model.batch_size) == (0.01, 32)
    assert model.score(*rows_of(iris(), problem)) > 0.9


def test_training_ends_when_the_loss_no_longer_falls_with_the_best_weights():
    params = FAST | {"n_iter_no_change": 3, "tol": 0.01}
    model, problem, ledger = trained(parts(iris()), "mlp", params)
    losses = model.loss_curve_
    assert len(losses) == ledger.rounds < 200
    assert min(losses[-4:]) > min(losses[:-4]) - 0.01  # four rounds without a fall
    fewer = params | {"max_iter": losses.index(min(losses))}
    best, *_ = trained(parts(iris()), "mlp", fewer, problem)
    np.testing.assert_array_equal(model.coefs_[0], best.coefs_[0])


def test_losses_over_other_parties_rows_are_not_compared():
    tables = parts(iris(), 3)
    for name in ("party-1", "party-2"):  # nothing can be learnt here: the loss stays high
        shuffled = tables[name]["target"].sample(frac=1.0, random_state=1).to_numpy()
        tables[name] = tables[name].assign(target=shuffled)

    def leave(call, party, reply):
        gone = party == "party-3" and call > 4
        return Refusal("timeout", "too late") if gone else reply

    problem = problem_of(*tables.values(), learners=("mlp",))
    with unreliable(tables, leave) as federation:
        federation.problem = problem
        model = run(federation, problem, "mlp", FAST | {"max_iter": 8})
    together, without = model.loss_curve_[:4], model.loss_curve_[4:]
    assert min(together) < min(without)
    assert model.best_loss_ == min(without)


def test_a_first_loss_that_is_no_number_ends_the_training(monkeypatch):
    tables = parts(iris(), 2)
    problem = problem_of(*tables.values(), learners=("mlp",))
    with federation_of(tables) as federation:
        federation.problem = problem
        total = Sums.sum
        monkeypatch.setattr(
            Sums, "sum", lambda sums, name: total(sums, name) * (np.nan if name == "loss" else 1.0)
        )
        with pytest.raises(Diverged, match="was no number after 0 stages"):
            run(federation, problem, "mlp", FAST | {"max_iter": 3})


def test_max_iter_counts_rounds_and_the_last_weights_are_judged_too():
    model, _, ledger = trained(parts(iris()), "mlp", FAST | {"max_iter": 2})
    assert (model.n_iter_, ledger.rounds, len(model.loss_curve_)) == (2, 3, 3)
    *_, before, last = ledger
    assert last.bytes_up < before.bytes_up / 2  # no weights come back


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_one_party_trains_like_scikit_learn():
    """A round of one party is `EPOCHS` epochs of `fit`, but for the order of the rows."""
    frame = iris()
    params = {"early_stopping": False, "batch_size": 150, "max_iter": 1, "shuffle": False}
    model, problem, _ = trained({"only": frame}, "mlp", params)
    expected = pooled(frame, problem, params | {"max_iter": EPOCHS})
    np.testing.assert_allclose(model.coefs_[0], expected.coefs_[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("stages", [3, 7])
def test_a_killed_training_resumes_to_the_same_network(stages, tmp_path):
    tables, params = parts(iris()), FAST | {"max_iter": 13}
    whole, problem, ledger = trained(tables, "mlp", params)
    again, _, longer = resumed(tables, "mlp", params, problem, tmp_path / "journal", stages)
    assert ledger.rounds > 7
    for one, other in zip(whole.coefs_, again.coefs_, strict=True):
        np.testing.assert_array_equal(one, other)
    assert known_rounds(ledger) == known_rounds(longer)


def test_the_network_can_be_saved():
    model, problem, _ = trained(parts(iris()), "mlp", FAST | {"max_iter": 2})
    saved = skops.io.dumps(model)
    X, _ = rows_of(iris(), problem)
    assert skops.io.get_untrusted_types(data=saved) == []
    np.testing.assert_array_equal(skops.io.loads(saved).predict(X), model.predict(X))


def test_another_solver_is_refused():
    with pytest.raises(UsageError, match="solver is 'lbfgs': the federation trains by 'adam' only"):
        trained(parts(iris()), "mlp", {"solver": "lbfgs"})
