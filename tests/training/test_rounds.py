"""Federated training of networks in rounds, with every way of aggregating."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from cotune.data.split import split
from cotune.errors import UsageError
from cotune.model.model import Model
from cotune.networks.parts import Common
from cotune.party.task import Configuration
from cotune.party.train.network import Arms, Improve
from cotune.protocol.wire import Refusal
from cotune.training.rounds import advance, fresh, network_learner
from tests.parts import diabetes, federation_of, iris, parts, pictures, problem_of, unreliable, wine
from tests.training.trained import known_rounds, resumed, rows_of, run, trained

FAST = {"hidden": 16, "layers": 1, "rounds": 15, "epochs": 2, "batch_size": 16}

WAYS = {
    "FedAvg": {},
    "FedProx": {"mu": 0.1},
    "Reptile": {"server_lr": 0.7, "server_momentum": 0.5, "server_decay": 0.01},
    "SCAFFOLD": {"scaffold": True},
    "FedAdam": {"server": "adam", "server_lr": 0.1, "server_momentum": 0.9},
    "FedYogi": {"server": "yogi", "server_lr": 0.1, "server_momentum": 0.9},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_learns(way):
    frame = wine()
    kept, held = train_test_split(frame, test_size=0.3, random_state=0, stratify=frame["target"])
    model, problem, ledger = trained(parts(kept), "torch_mlp", FAST | WAYS[way])
    X, y = rows_of(held, problem)
    assert np.mean(model.predict(X.astype(np.float32)) == y) > 0.9
    assert ledger.rounds == 15


def test_scaffold_with_momentum_stays_bounded_and_learns():
    """A control taken from the distance would grow by beta / (1 - beta) each round."""
    digits = load_digits(as_frame=True).frame
    kept, held = train_test_split(digits, test_size=0.3, random_state=0, stratify=digits["target"])
    tables = split(kept, "target", 5, "dirichlet:0.3", seed=0)
    problem = problem_of(*tables.values(), learners=("torch_mlp",))
    params = network_learner("torch_mlp").defaults("classification")
    params |= FAST | {"hidden": 32, "epochs": 1, "lr": 0.01, "momentum": 0.9, "scaffold": True}
    network = fresh(problem, "torch_mlp", params, 0)
    common, lengths = Common(network.weights.astype(float)), []
    with federation_of(tables) as federation:
        federation.problem = problem
        for number in range(25):
            task = Improve("torch_mlp", params, Arms((params,), ((1.0,),)), "test", number)
            sums = advance(federation, task, common)
            assert not sums.sum("failed")[0], f"a party went off in round {number}"
            lengths.append(np.linalg.norm(common.control))
    assert max(lengths) <= 2 * lengths[0]
    network.load(common.weights.astype(np.float32))
    X, y = rows_of(held, problem)
    assert np.mean(network.predict(X.astype(np.float32)) == y) > 0.9


def test_one_epoch_of_one_batch_is_gradient_descent_on_all_rows():
    """With full batches and plain averaging the parties' number does not matter."""
    frame, whole = iris(120), {"batch_size": 1024, "epochs": 1, "rounds": 5, "lr": 0.5}
    one, problem, _ = trained({"all": frame}, "torch_mlp", FAST | whole)
    X, _ = rows_of(frame, problem)
    several, _, _ = trained(parts(frame), "torch_mlp", FAST | whole, problem)
    # some rows are held back, other ones in each case: alike, not equal
    X = X.astype(np.float32)
    assert np.abs(one.predict_proba(X) - several.predict_proba(X)).mean() < 0.02


def test_numbers_are_predicted_in_their_own_unit():
    kept, held = train_test_split(diabetes(), test_size=0.3, random_state=0)
    model, problem, _ = trained(parts(kept), "torch_mlp", FAST | {"lr": 0.03})
    X, y = rows_of(held, problem)
    assert np.mean((model.predict(X.astype(np.float32)) - y) ** 2) < 0.7 * np.var(y)


@pytest.mark.parametrize("way", ["FedAvg", "Reptile", "FedYogi"])
def test_a_killed_training_goes_on_as_if_it_had_not_been(way, tmp_path):
    tables, params = parts(iris()), FAST | WAYS[way]
    model, problem, ledger = trained(tables, "torch_mlp", params)
    again, _, books = resumed(tables, "torch_mlp", params, problem, tmp_path / "journal", 12)
    np.testing.assert_array_equal(again.weights, model.weights)
    assert known_rounds(books) == known_rounds(ledger)


def test_a_party_that_is_lost_on_the_way_is_left_out():
    tables = parts(wine())

    def change(call, party, reply):
        return Refusal("lost", "gone") if party == "party-2" and call > 3 else reply

    problem = problem_of(*tables.values(), learners=("torch_mlp",))
    with unreliable(tables, change, problem=problem) as federation:
        model = run(federation, problem, "torch_mlp", FAST)
    X, y = rows_of(wine(), problem)
    assert np.mean(model.predict(X.astype(np.float32)) == y) > 0.9


def test_a_model_is_saved_and_read_without_running_code(tmp_path):
    frame = pictures(60, side=8)
    settings = {"hidden": 4, "channels": 2, "rounds": 3}
    estimator, problem, _ = trained(parts(frame), "cnn", settings)
    made = Model.of(problem, Configuration("cnn", settings), estimator, {})
    made.save(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"model.json", "weights.npy"}
    read = Model.load(tmp_path)
    np.testing.assert_array_equal(read.predict_proba(frame), made.predict_proba(frame))
    np.save(tmp_path / "weights.npy", np.zeros(3, dtype=np.float32))
    with pytest.raises(UsageError, match=r"not what model\.json says"):
        Model.load(tmp_path)


def test_other_learners_have_no_rounds():
    with pytest.raises(UsageError, match=r"'hgb' is not trained in rounds.*use torch_mlp"):
        network_learner("hgb")
