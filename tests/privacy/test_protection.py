from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

import cotune
from cotune.errors import UsageError
from cotune.federation.federation import Federation
from cotune.federation.journal import Journal
from cotune.party.task import Term
from cotune.privacy.protection import FARTHEST, Protection, epsilon
from cotune.testing import Faulty, Killed
from tests.parts import federation_of, iris, parts

TERMS = {
    "losses": Term(50, 0.0, 4.0, 2.0**-30),
    "cost": Term(3, 0.0, 2.0**31, 1.0, spare=True),
    "own": Term(3, 0.0, 2.0**31, 2.0**-20),
}
VALUES = {"losses": np.full(50, 2.0), "cost": np.full(3, 7.0), "own": np.array([1.0, 5.0, 2.0])}


def test_the_total_has_the_noise_that_was_asked_for():
    protection = Protection(0.5, parties=8)
    totals = [
        np.sum([protection.applied(TERMS, VALUES)["losses"] for _ in range(8)], axis=0)
        for _ in range(200)
    ]
    deviation = np.std(totals) / 4.0  # in units of the term's largest magnitude
    assert deviation == pytest.approx(0.5 * math.sqrt(50), rel=0.05)
    assert np.mean(totals) == pytest.approx(16.0, abs=1.0)


def test_a_part_is_cut_to_the_clipping_norm():
    tiny = Protection(1e-9, clip=1.0)
    told = tiny.applied(TERMS, VALUES)["losses"] / 4.0
    assert np.linalg.norm(told) == pytest.approx(1.0, abs=1e-6)
    inside = Protection(1e-9, clip=10.0).applied(TERMS, VALUES)["losses"]
    assert inside == pytest.approx(VALUES["losses"], abs=1e-6)


def test_costs_are_not_told():
    told = Protection(1.0).applied(TERMS, VALUES)
    assert told["cost"].tolist() == [0.0] * 3
    assert told["own"].tolist() == [1.0, 0.0, 0.0]


def test_noised_values_keep_to_the_widened_bounds():
    protection = Protection(3.0, parties=2)
    widened = protection.widened(TERMS)
    for _ in range(50):
        told = protection.applied(TERMS, VALUES)
        assert all(widened[name].holds(told[name], 1.0) for name in ("losses", "cost"))
    assert widened["losses"].high == 4.0 * (1.0 + FARTHEST * protection.deviation(TERMS))


def test_a_term_of_small_norm_needs_little_noise():
    votes = {"votes": Term(100, 0.0, 1.0, 1.0, norm=math.sqrt(3))}
    assert Protection(1.0).norm(votes) == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize(("noise", "count"), [(1.0, 1), (2.0, 10), (5.0, 100)])
def test_epsilon_is_at_most_the_bound_of_renyi_by_hand(noise, count):
    """alpha k s^2 / (2 sigma^2) + log(1 / delta) / (alpha - 1) for the best alpha, s = 2."""
    alphas = np.linspace(1.01, 200, 5000)
    by_hand = np.min(alphas * count * 4 / (2 * noise**2) + math.log(1e5) / (alphas - 1))
    found = epsilon([noise] * count, 1e-5)
    assert 0.5 * by_hand < found <= by_hand * 1.01


def test_more_sums_cost_more_and_more_noise_less():
    assert epsilon([1.0] * 4, 1e-5) > epsilon([1.0], 1e-5) > epsilon([2.0], 1e-5)


def test_a_noised_run_shows_its_epsilon_and_others_have_none():
    options = {"learners": ["decision_tree"], "folds": 2, "trials": 2, "progress": False,
               "train": False}  # fmt: skip
    with federation_of(parts(iris(), 5)) as federation:
        noised = cotune.tune(federation, privacy="masked", weights="equal", noise=2.0, **options)
        exact = cotune.tune(federation, privacy="masked", weights="equal", **options)
    assert exact.epsilon is None
    assert noised.epsilon == pytest.approx(epsilon([2.0, 2.0], 1e-5))
    assert [entry.noise for entry in noised.ledger] == [0.0, 0.0, 2.0, 2.0]
    assert noised.noises == (2.0, 2.0)
    assert noised.summary()["epsilon"] == noised.epsilon
    assert [t.loss for t in noised.trials] != [t.loss for t in exact.trials]


def test_totals_of_rounds_that_were_lost_count_too(tmp_path):
    """Killed between two checkpoints of the training: what was opened stays opened."""
    tables = parts(iris(), 5)
    options = {"learners": ["logistic_regression"], "folds": 2, "trials": 2, "progress": False,
               "privacy": "masked", "weights": "equal", "noise": 5.0}  # fmt: skip
    with federation_of(tables) as federation:
        dying = Faulty(federation.engine, dies_at=11)
        with pytest.raises(Killed):
            cotune.tune(Federation(dying), run=tmp_path / "run", **options)
        before = len(Journal(tmp_path / "run" / "journal.sqlite").noises())
        outcome = cotune.resume(tmp_path / "run", Federation(federation.engine), progress=False)
    booked = sum(entry.noise > 0 for entry in outcome.ledger)
    assert before >= 2
    assert len(outcome.noises) >= booked
    with pytest.raises(UsageError, match="the run's sums were noised"):
        cotune.evaluate(msgspec.structs.replace(outcome, run=None), federation)


def test_voting_finds_a_good_configuration_under_noise():
    with federation_of(parts(iris(), 10)) as federation:
        outcome = cotune.tune(
            federation, "vote", learners=["decision_tree"], folds=2, trials=8, privacy="masked",
            weights="equal", noise=0.3, progress=False, train=False,
        )  # fmt: skip
    votes = [entry["votes"] for entry in outcome.report["votes"]]
    assert outcome.best_params == outcome.report["votes"][int(np.argmax(votes))]["params"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"noise": 1.0}, "sums must be private: add privacy='masked'"),
        ({"noise": 1.0, "privacy": "masked"}, "add weights='equal'"),
        ({"noise": 0.0, "privacy": "masked", "weights": "equal"}, "the noise is 0.0"),
        ({"clip": 1.0}, "clip is about noise"),
        (
            {"method": "privtuna", "noise": 1.0, "privacy": "masked", "weights": "equal"},
            "noise is for the methods dash",
        ),
        ({"fits": 100, "noise": 1.0, "privacy": "masked", "weights": "equal"}, "tells its fits"),
        ({"noise": 1.0, "clip": -1.0, "privacy": "masked", "weights": "equal"}, "norm is -1.0"),
        ({"noise": 1.0, "delta": 1.0, "privacy": "masked", "weights": "equal"}, "delta is 1.0"),
    ],
)
def test_noise_that_would_protect_nobody_is_refused_before_any_work(options, sentence):
    with federation_of(parts(iris())) as federation, pytest.raises(UsageError, match=sentence):
        cotune.tune(federation, learners=["decision_tree"], **options)
