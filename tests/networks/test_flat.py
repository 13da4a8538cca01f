"""Local training against PyTorch's own optimiser, and what a network's one vector means."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from cotune.data.schema import Column, Schema
from cotune.networks.flat import Network, as_tensor
from cotune.networks.modules import convolutional, perceptron, set_dropout
from cotune.networks.parts import Local

SCHEMA = Schema("target", "classification", (Column("x", "numeric"),), ("a", "b", "c"))
NUMBERS = Schema(
    "target", "regression", (Column("x", "numeric"),), target_mean=50.0, target_scale=20.0
)


def network(seed=0, outputs=3, schema=SCHEMA):
    torch.manual_seed(seed)
    return Network(perceptron((5,), outputs, hidden=7, layers=2), schema)


def rows(n=40):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)


def by_hand(made, X, y, how, seed, prox=0.0):
    """The same epochs with torch.optim.SGD."""
    module = copy.deepcopy(made.module)
    set_dropout(module, how.dropout)
    module.train()
    begun = [p.detach().clone() for p in module.parameters()]
    optimizer = torch.optim.SGD(
        module.parameters(), lr=how.lr, momentum=how.momentum, weight_decay=how.weight_decay
    )
    torch.manual_seed(seed)
    for _ in range(how.epochs):
        for batch in torch.split(torch.randperm(len(y)), how.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(X[batch]), y[batch])
            pairs = zip(module.parameters(), begun, strict=True)
            loss = loss + prox / 2 * sum(((p - b) ** 2).sum() for p, b in pairs)
            loss.backward()
            optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


@pytest.mark.parametrize(
    "how",
    [
        Local(0.1),
        Local(0.1, momentum=0.9, weight_decay=1e-2, epochs=3, batch_size=16),
        Local(0.05, dropout=0.4, epochs=2, batch_size=7),
    ],
)
def test_local_training_is_torchs_sgd(how):
    made, (X, y) = network(), rows()
    X, y = as_tensor(X), made.target(y)
    expected = by_hand(made, X, y, how, seed=3)
    made.train(X, y, how, seed=3)
    assert torch.equal(made.flat, expected)


def test_the_proximal_term_holds_the_weights_back():
    made, (X, y) = network(), rows()
    X, y = as_tensor(X), made.target(y)
    how = Local(0.1, epochs=3, mu=0.5)
    expected = by_hand(made, X, y, how, seed=3, prox=0.5)
    begun = made.flat.clone()
    free, held = network(), made
    free.train(X, y, Local(0.1, epochs=3), seed=3)
    held.train(X, y, how, seed=3)
    assert torch.allclose(held.flat, expected, atol=1e-6)
    assert (held.flat - begun).norm() < (free.flat - begun).norm()


def test_a_drift_is_added_to_every_gradient():
    made, (X, y) = network(), rows()
    X, y = as_tensor(X), made.target(y)
    plain = network()
    plain.train(X, y, Local(0.1, batch_size=40), seed=1)
    drift = torch.ones_like(made.flat)
    made.train(X, y, Local(0.1, batch_size=40), seed=1, drift=drift)
    assert torch.allclose(made.flat, plain.flat - 0.1, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_mean_gradient_is_that_before_drift_and_momentum(momentum):
    """Written with autograd and a step by hand, the module's own parameters left alone."""
    made, (X, y) = network(), rows()
    X, y = as_tensor(X), made.target(y)
    how = Local(0.1, momentum=momentum, weight_decay=1e-2, epochs=2, batch_size=16, mu=0.3)
    drift = torch.linspace(-0.5, 0.5, len(made.flat))
    module, found = copy.deepcopy(network().module), []
    parameters = [p.detach().clone().requires_grad_() for p in module.parameters()]
    names, begun = [n for n, _ in module.named_parameters()], made.flat.clone()
    torch.manual_seed(5)
    velocity = torch.zeros_like(drift)
    for _ in range(how.epochs):
        for batch in torch.split(torch.randperm(len(y)), how.batch_size):
            called = dict(zip(names, parameters, strict=True))
            loss = nn.functional.cross_entropy(
                torch.func.functional_call(module, called, X[batch]), y[batch]
            )
            flat = torch.cat([p.detach().reshape(-1) for p in parameters])
            slopes = torch.autograd.grad(loss, parameters)
            raw = torch.cat([slope.reshape(-1) for slope in slopes])
            raw = raw + how.weight_decay * flat + how.mu * (flat - begun)
            found.append(raw)
            velocity = momentum * velocity + raw + drift
            flat = flat - how.lr * velocity
            sizes = [p.numel() for p in parameters]
            parameters = [
                part.reshape(p.shape).requires_grad_()
                for part, p in zip(flat.split(sizes), parameters, strict=True)
            ]
    mean = made.train(X, y, how, seed=5, drift=drift)
    assert torch.allclose(made.flat, flat, atol=1e-5)
    assert torch.allclose(mean.float(), torch.stack(found).mean(0), atol=1e-5)


def test_floating_buffers_belong_to_the_weights():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    made, (X, y) = Network(module, SCHEMA), rows()
    assert len(made.flat) == sum(p.numel() for p in module.parameters()) + 2 * 4
    before = made.flat[-8:].clone()
    made.train(as_tensor(X), made.target(y), Local(0.1), seed=0)
    assert not torch.equal(made.flat[-8:], before)
    other = Network(copy.deepcopy(module), SCHEMA)
    other.load(made.weights)
    np.testing.assert_array_equal(other.predict_proba(X), made.predict_proba(X))


def test_a_last_row_alone_is_no_batch_to_normalise():
    torch.manual_seed(0)
    made = Network(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), SCHEMA)
    X, y = rows(17)
    drift = torch.zeros_like(made.flat)  # SCAFFOLD's, as long as all weights
    mean = made.train(as_tensor(X), made.target(y), Local(0.1, batch_size=8), seed=0, drift=drift)
    assert made.flat.isfinite().all()
    assert not mean[-made.buffers :].any()  # running means have no gradient


def test_counters_begin_anew_with_the_weights():
    torch.manual_seed(0)
    made = Network(nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3, momentum=None)), SCHEMA)
    X, y = rows()
    begun, found = made.weights, []
    for _ in range(2):
        made.load(begun)
        made.train(as_tensor(X), made.target(y), Local(0.1), seed=0)
        found.append(made.weights)
    np.testing.assert_array_equal(*found)


def test_a_network_that_went_off_predicts_no_class():
    made, (X, _) = network(), rows()
    made.flat.fill_(float("nan"))
    assert np.isnan(made.predict(X)).all()


def test_predictions_are_classes_and_their_shares():
    made, (X, _) = network(), rows()
    shares = made.predict_proba(X)
    assert shares.shape == (40, 3)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    np.testing.assert_array_equal(made.predict(X), shares.argmax(axis=1))


def test_numbers_are_learnt_and_predicted_in_their_own_unit():
    made, (X, _) = network(outputs=1, schema=NUMBERS), rows(200)
    y = 50.0 + 20.0 * X[:, 0].astype(float)
    made.train(as_tensor(X), made.target(y), Local(0.1, epochs=60), seed=0)
    assert np.mean((made.predict(X) - y) ** 2) < 0.1 * np.var(y)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_is_whole_and_its_own(again):
    made, (X, y) = network(), rows()
    copied = again(made)
    np.testing.assert_array_equal(copied.weights, made.weights)
    copied.train(as_tensor(X), copied.target(y), Local(0.1), seed=0)
    assert not np.array_equal(copied.weights, made.weights)
    made.train(as_tensor(X), made.target(y), Local(0.1), seed=0)
    np.testing.assert_array_equal(copied.predict_proba(X), made.predict_proba(X))


@pytest.mark.parametrize("shape", [(12, 12), (12, 12, 3)])
@pytest.mark.parametrize("kind", ["cifar", "femnist"])
def test_convolutions_take_grey_and_coloured_images(shape, kind):
    made = Network(convolutional(shape, 3, network=kind, channels=2, hidden=4), SCHEMA)
    assert made.predict(np.zeros((6, *shape), dtype=np.float32)).shape == (6,)
