from __future__ import annotations

import hashlib
import math
import os
from contextlib import closing
from inspect import signature

import msgspec
import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import cotune
from cotune.coordinator.federation import Federation
from cotune.coordinator.journal import Journal
from cotune.engines.local import LocalEngine
from cotune.errors import FederationError, UsageError
from cotune.party.task import Configuration, Term
from cotune.party.tasks import Evaluate
from cotune.privacy.fixed import WIDTHS, Digits
from cotune.privacy.protection import FARTHEST, Protection, epsilon, gaussians
from cotune.protocol.wire import Masked, decode_reply, decode_request, encode
from cotune.testing import Faulty, Killed
from tests.parts import federation_of, iris, parts, problem_of, threads

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


def injected(seed):
    """A source of bytes that are the same for the same seed."""
    calls = iter(range(1_000_000))
    return lambda length: hashlib.shake_256(f"{seed} {next(calls)}".encode()).digest(length)


def test_noise_is_normal():
    drawn = gaussians(200_000, injected("normal"))
    assert abs(drawn.mean()) < 3 / math.sqrt(len(drawn))
    assert drawn.std() == pytest.approx(1.0, abs=0.005)
    assert stats.kstest(drawn, "norm").pvalue > 0.01
    beyond = [np.mean(np.abs(drawn) > reach) for reach in (1, 2, 3)]
    assert beyond == pytest.approx(2 * stats.norm.sf([1, 2, 3]), rel=0.1)


@given(st.binary(min_size=8, max_size=400).map(lambda drawn: drawn[: len(drawn) // 8 * 8]))
def test_any_bytes_become_finite_noise_within_reach(drawn):
    noise = gaussians(len(drawn) // 8, lambda length: drawn[:length])
    assert np.all(np.abs(noise) < FARTHEST)


def test_the_ends_of_the_random_numbers_are_the_ends_of_the_noise():
    ends = np.array([0, 1, 2**64 - 2, 2**64 - 1, 2**63], dtype="<u8").tobytes()
    noise = gaussians(5, lambda length: ends)
    assert noise == pytest.approx([9.16, -9.16, 0.0, 0.0, 0.674], abs=0.01)


def test_noise_is_made_of_the_bytes_that_are_given_and_of_nothing_else():
    protection = Protection(1.0)
    one, same, other = (
        protection.applied(TERMS, VALUES, injected(seed))["losses"] for seed in (1, 1, 2)
    )
    assert one.tolist() == same.tolist() != other.tolist()


def test_without_a_source_noise_comes_from_the_operating_system():
    assert signature(Protection.applied).parameters["random"].default is os.urandom
    one, other = (Protection(1.0).applied(TERMS, VALUES)["losses"] for _ in range(2))
    assert one.tolist() != other.tolist()


VOTES = {"votes": Term(2000, 0.0, 1.0, 1.0, norm=math.sqrt(3))}


@pytest.mark.parametrize(("noise", "parties"), [(0.3, 5), (2.0, 500), (4.0, 5)])
def test_whole_numbers_get_their_noise_though_a_share_of_it_is_below_one_half(noise, parties):
    """Rounded to whole numbers, 500 shares of a noise of 2 came to less than a quarter of it."""
    protection = Protection(noise, parties=parties)
    none = {"votes": np.zeros(2000)}
    total = np.zeros(2000)
    for i in range(parties):
        total += protection.applied(VOTES, none, injected(i))["votes"]
    assert np.std(total) == pytest.approx(noise * math.sqrt(3), rel=0.06)


@given(
    st.floats(0.1, 100), st.integers(1, 1000), st.sampled_from([None, 1e-6, 0.5, 1e3]),
    st.sampled_from([TERMS, VOTES]), st.sampled_from(["masked", "encrypted"]),
)  # fmt: skip
def test_a_noised_part_is_written_in_digits_and_read_again_to_the_last_bit(
    noise, parties, clip, terms, way
):
    protection = Protection(noise, clip, parties)
    widened = protection.widened(terms)
    values = VALUES if "losses" in terms else {"votes": np.ones(2000)}
    noised = protection.applied(terms, values, injected(0))
    digits = Digits(widened, 1.0, WIDTHS[way])
    told = digits.vectors(digits.integers(noised))
    for name, term in widened.items():
        assert told[name].tolist() == noised[name].tolist()
        assert term.holds(noised[name], 1.0)
        assert math.log2(term.resolution).is_integer()
        assert term.resolution <= terms[name].resolution


class Claiming(LocalEngine):
    """A coordinator that claims other things of the noise than cotune does, and of its total."""

    def __init__(self, protection=None, keyed=None):
        super().__init__(TABLES, "target", executor=threads())
        self.protection = protection or {}
        self.keyed = keyed or {}
        self.replies = []

    def call(self, messages, timeout):
        changed = {}
        for party, message in messages.items():
            request = decode_request(message)
            if request.protection is not None:
                protection = msgspec.structs.replace(request.protection, **self.protection)
                keyed = msgspec.structs.replace(request.keyed, **self.keyed)
                request = msgspec.structs.replace(request, protection=protection, keyed=keyed)
            changed[party] = encode(request)
        replies = super().call(changed, timeout)
        self.replies += [decode_reply(reply) for reply in replies.values()]
        return replies


TABLES = parts(iris(), 5)
TREE = Evaluate((Configuration("decision_tree", {"max_depth": 2}),))


@pytest.fixture(scope="module")
def problem():
    return problem_of(*TABLES.values(), weights="equal")


@pytest.mark.parametrize(
    ("claimed", "sentence"),
    [
        ({"parties": 10**18}, "shared by 1000000000000000000 parties, and the total may be of 3"),
        ({"parties": 4}, "shared by 4 parties, and the total may be of 3"),
        ({"parties": 0}, "shared by 0 parties"),
        ({"noise": 1e-300}, "the noise is 1e-300 clipping norms: a party adds 0.1 to 1e+06"),
        ({"noise": 0.0999}, "the noise is 0.0999"),
        ({"noise": -1.0}, "the noise is -1"),
        ({"noise": math.nan}, "the noise is nan"),
        ({"noise": math.inf}, "the noise is inf"),
        ({"clip": 1e-300}, "the clipping norm is 1e-300: a party takes 1e-06 to 1e+06"),
        ({"clip": math.nan}, "the clipping norm is nan"),
        ({"clip": 1e300}, "the clipping norm is 1e"),
    ],
)
def test_a_party_does_not_take_the_coordinators_word_for_its_noise(problem, claimed, sentence):
    engine = Claiming(claimed)
    options = {"privacy": "masked", "protection": Protection(1.0), "retries": 0}
    with (
        Federation(engine, problem=problem, **options) as federation,
        pytest.raises(FederationError) as one,
    ):
        federation.sum(TREE)
    assert sentence in str(one.value)
    assert not any(isinstance(reply, Masked) for reply in engine.replies)


def test_invented_parties_do_not_make_the_noise_less(problem):
    """However many are named, and however large the quorum is said to be."""
    ghosts = tuple(f"ghost-{number}" for number in range(1000))
    engine = Claiming({"parties": 1000}, {"among": (*TABLES, *ghosts), "fewest": 1000})
    options = {"privacy": "masked", "protection": Protection(1.0), "retries": 0}
    with (
        Federation(engine, problem=problem, **options) as federation,
        pytest.raises(FederationError, match="no keys with some of the others"),
    ):
        federation.sum(TREE)


@pytest.mark.parametrize("quorum", [0.2, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("noise", [0.1, 5.0])
def test_an_honest_claim_is_taken_at_every_quorum(problem, quorum, noise):
    options = {"privacy": "masked", "protection": Protection(noise), "quorum": quorum}
    with federation_of(TABLES, problem=problem, **options) as federation:
        assert federation.sum(TREE).parties == 5


def test_a_sum_asked_again_under_another_noise_does_not_get_the_part_that_had_less(problem):
    """A record would say of the second answer what was true of the first."""
    with closing(Claiming()) as engine:
        told = [
            Federation(engine, privacy="masked", problem=problem, protection=protection)
            .sum(TREE).sum("losses").item()
            for protection in (None, Protection(1e6))
        ]  # fmt: skip
    assert 0.0 < told[0] <= 5.0
    assert abs(told[1]) > 5.0  # but for once in 100,000 times or fewer


FIGURES = [(4.0, 2, 2.943), (20.0, 53, 3.042), (30.0, 53, 1.928), (1.0, 2, 15.456)]


@pytest.mark.parametrize(("noise", "count", "exact"), FIGURES)
def test_epsilon_is_that_of_the_exact_composition(noise, count, exact):
    assert epsilon([noise] * count, 1e-5) == pytest.approx(exact, abs=5e-4)


@given(
    st.lists(st.floats(0.1, 1e3), min_size=1, max_size=60),
    st.floats(-12, -0.1).map(lambda exponent: 10.0**exponent),
)
def test_epsilon_is_what_the_dp_accounting_library_finds(noises, delta):
    deviation = 1.0 / math.hypot(*(2.0 / noise for noise in noises))
    expected = get_epsilon_gaussian(deviation, delta)
    assert epsilon(noises, delta) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(st.lists(st.floats(0.5, 100), min_size=1, max_size=20))
def test_epsilon_is_below_the_bound_of_renyi(noises):
    accountant = RdpAccountant()
    for noise in noises:
        accountant.compose(GaussianDpEvent(noise / 2.0))
    assert epsilon(noises, 1e-5) <= accountant.get_epsilon(1e-5)


def test_epsilon_of_no_sum_is_zero_and_of_very_many_is_finite():
    assert epsilon([], 1e-5) == 0.0
    assert epsilon([1e6], 1e-5) == 0.0
    assert 1e7 < epsilon([0.1] * 100_000, 1e-5) < 1e8


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
        ({"noise": 0.09, "privacy": "masked", "weights": "equal"}, "a number from 0.1 to 1e"),
        (
            {"noise": 1.0, "clip": 1e-9, "privacy": "masked", "weights": "equal"},
            "norm is 1e-09: give a number from 1e-06",
        ),
        ({"clip": 1.0}, "clip is about noise"),
        (
            {"method": "privtuna", "noise": 1.0, "privacy": "masked", "weights": "equal"},
            "noise is for the methods dash",
        ),
        ({"method": "fedex", "noise": 1.0}, "fedex cannot learn under noise.*method='vote'"),
        ({"fits": 100, "noise": 1.0, "privacy": "masked", "weights": "equal"}, "tells its fits"),
        ({"noise": 1.0, "clip": -1.0, "privacy": "masked", "weights": "equal"}, "norm is -1.0"),
        ({"noise": 1.0, "delta": 1.0, "privacy": "masked", "weights": "equal"}, "delta is 1.0"),
    ],
)
def test_noise_that_would_protect_nobody_is_refused_before_any_work(options, sentence):
    with federation_of(parts(iris())) as federation, pytest.raises(UsageError, match=sentence):
        cotune.tune(federation, learners=["decision_tree"], **options)
