"""Agg_b by the formulas of the papers."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.networks.parts import TAU, Common, Local, Server

UPDATES = [np.array([1.0, -2.0]), np.array([0.5, 0.5]), np.array([-1.0, 3.0])]


def taken(server, updates=UPDATES):
    common = Common(np.array([10.0, 20.0]))
    for update in updates:
        common.take(update, server)
    return common


def test_fedavg_takes_the_mean_of_the_clients():
    np.testing.assert_allclose(taken(Server()).weights, [10.5, 21.5], atol=1e-12)


@given(st.floats(0.1, 10.0), st.floats(0.0, 0.1))
def test_equation_11_with_a_decaying_rate(rate, decay):
    expected = np.array([10.0, 20.0])
    for t, update in enumerate(UPDATES):
        alpha = rate * (1 - decay) ** t
        mean_of_clients = expected + update
        expected = (1 - alpha) * expected + alpha * mean_of_clients
    found = taken(Server(server_lr=rate, server_decay=decay)).weights
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_server_momentum():
    expected, velocity = np.array([10.0, 20.0]), np.zeros(2)
    for update in UPDATES:
        velocity = 0.9 * velocity + update
        expected = expected + 0.5 * velocity
    found = taken(Server(server_lr=0.5, server_momentum=0.9)).weights
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_adaptive_servers(kind):
    """Reddi et al., algorithm 2."""
    expected, m, v = np.array([10.0, 20.0]), np.zeros(2), np.full(2, TAU**2)
    for update in UPDATES:
        m = 0.8 * m + 0.2 * update
        if kind == "adam":
            v = 0.99 * v + 0.01 * update**2
        else:
            v = v - 0.01 * update**2 * np.sign(v - update**2)
        expected = expected + 0.3 * m / (np.sqrt(v) + TAU)
    found = taken(Server(server=kind, server_lr=0.3, server_momentum=0.8)).weights
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("how", [Server(server_lr=5.0, server_momentum=0.9), Server("adam")])
def test_buffers_take_the_clients_mean_whatever_the_server(how):
    common = Common(np.array([10.0, 20.0]), buffers=1)
    for update in UPDATES:
        common.take(update, how)
    assert common.weights[1] == pytest.approx(20.0 + sum(update[1] for update in UPDATES))


def test_the_common_control_variate_moves_by_the_share_of_the_clients():
    common = Common(np.zeros(2))
    common.take_control(np.array([1.0, 2.0]), 0.5)
    common.take_control(np.array([1.0, 0.0]), 0.25)
    assert common.control is not None
    np.testing.assert_allclose(common.control, [0.75, 1.0])


def test_settings_are_read_from_a_configuration_and_checked():
    params = {"lr": 0.5, "epochs": 2, "server_lr": 3.0, "hidden": 7}
    assert Local.of(params) == Local(0.5, epochs=2)
    assert Server.of(params) == Server(server_lr=3.0)
    for wrong in ({"lr": 0.0}, {"lr": 0.1, "epochs": 0}, {"lr": 0.1, "dropout": 2.0}):
        with pytest.raises(msgspec.ValidationError):
            Local.of(wrong)
    with pytest.raises(msgspec.ValidationError):
        Server.of({"server": "adagrad"})
