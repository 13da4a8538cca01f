"""Trainings that go wrong, and what is noticed of it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_classification

from cotune.coordinator.journal import Journal
from cotune.errors import Diverged
from cotune.problem import Budget
from cotune.training.watch import PATIENCE, check_loss
from tests.parts import diabetes, federation_of, iris, parts, problem_of
from tests.training.trained import run, trained

#: With leaves of so few rows, and curvatures near 0, steps of this rate overshoot ever farther.
COLLAPSING = {
    "learning_rate": 0.95,
    "max_iter": 60,
    "min_samples_leaf": 3,
    "max_leaf_nodes": 15,
    "l2_regularization": 1e-6,
}
SOUND = {"learning_rate": 0.1, "max_iter": 20, "max_leaf_nodes": 8}


def unequal(rows: int = 900) -> pd.DataFrame:
    """Three classes, one of them rare, and labels of which a fifth is noise."""
    X, y = make_classification(
        rows, 10, n_informative=6, n_classes=3, weights=[0.65, 0.25, 0.1], class_sep=0.6,
        flip_y=0.2, random_state=0,
    )  # fmt: skip
    return pd.DataFrame(X, columns=list("abcdefghij")).assign(target=np.array(["w", "l", "d"])[y])


def message_of(tables, params, **options):
    with pytest.raises(Diverged) as raised:
        trained(tables, "hgb", params, **options)
    return str(raised.value)


def test_boosted_trees_that_collapse_are_given_up_long_before_their_end():
    says = message_of(parts(unequal(), 5), COLLAPSING)
    assert "the loss over the parties' rows began at 0.95, was 0.691 after 1 stages" in says
    assert "a lower learning rate" in says
    stages = int(says.split(" after ")[2].split(";")[0])
    assert stages < 20


def test_the_same_rows_with_a_smaller_rate_are_trained_to_the_end():
    model, _, _ = trained(parts(unequal(), 5), "hgb", SOUND)
    assert model.num_boosted_rounds() == 20


def test_a_resumed_training_is_given_up_at_the_same_stage(tmp_path):
    tables = parts(unequal(), 5)
    problem = problem_of(*tables.values(), learners=("hgb",))
    params = COLLAPSING | {"learning_rate": 0.776, "max_leaf_nodes": 4}  # later
    whole = message_of(tables, params, problem=problem)
    journal = Journal(tmp_path / "journal.sqlite")
    trained(tables, "hgb", params, problem, journal=journal, stages=15)
    journal.close()
    journal = Journal(tmp_path / "journal.sqlite")
    assert message_of(tables, params, problem=problem, journal=journal) == whole
    journal.close()


@pytest.mark.parametrize("privacy", ["plain", "masked"])
@pytest.mark.parametrize("frame", [iris(), diabetes()])
def test_the_loss_is_that_of_the_model_over_all_rows_to_the_last_bit(frame, privacy, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "cotune.training.histogram.check_loss", lambda losses, *_, **__: seen.append(losses[-1])
    )
    problem = problem_of(frame, learners=("hgb",), privacy=privacy)
    few = frame.iloc[:20]
    for tables in (
        {"all": frame, "few": few},
        {"half": frame.iloc[::2], "other": frame.iloc[1::2], "few": few},
    ):
        with federation_of(tables) as base:
            federation = base.for_run("run", Journal(), Budget(), privacy)
            federation.problem = problem
            run(federation, problem, "hgb", SOUND)
    assert seen[:20] == seen[20:]
    assert len(seen) == 40
    assert seen[19] < seen[0]


@pytest.mark.parametrize(
    "losses",
    [
        [1.0],
        [1.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1],  # above the least, not above the start
        [1.0, 3.0, 3.0, 3.0],  # not for long
        [1.0, *(3.0 - 0.1 * i for i in range(15)), 0.9, *[2.0] * 9],  # it fell late
        list(np.random.default_rng(0).normal(1.0, 0.1, 50)),
    ],
)
def test_losses_that_may_still_fall_are_let_pass(losses):
    for stage in range(1, len(losses) + 1):
        check_loss(losses[:stage])


def test_a_loss_that_ends_high_is_no_model():
    losses = [1.0] * 8 + [0.5] + [2.0] * PATIENCE
    check_loss(losses)
    with pytest.raises(Diverged, match=r"was 0\.5 after 8 stages and 2 after 14"):
        check_loss(losses, ended=True)
    check_loss(losses, 1.5, ended=True)


def test_a_loss_that_is_no_number_stops_at_once():
    with pytest.raises(Diverged, match="no number after 1 stages"):
        check_loss([1.0, float("nan")])


def test_a_network_whose_rate_is_far_too_high_is_given_up():
    params = {"hidden": 8, "layers": 1, "rounds": 20, "epochs": 1, "lr": 1e6}
    with pytest.raises(Diverged, match="out of bounds at every party"):
        trained(parts(iris()), "torch_mlp", params)


def test_averaged_networks_that_only_get_worse_are_given_up():
    params = {
        "hidden_layer_sizes": 8, "learning_rate_init": 100.0, "batch_size": 8, "alpha": 0.0,
        "early_stopping": True, "n_iter_no_change": 30, "max_iter": 60, "tol": 1e-3,
    }  # fmt: skip
    noise = iris().assign(target=np.random.default_rng(0).permutation(iris()["target"]))
    with pytest.raises(Diverged, match="its training diverged"):
        trained(parts(noise), "mlp", params)
