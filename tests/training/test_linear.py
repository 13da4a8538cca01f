from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression

from cotune.errors import FederationError, UsageError
from cotune.protocol.wire import Refusal, encode
from tests.parts import binary, iris, parts, people, problem_of, unreliable, wine
from tests.training.trained import known_rounds, resumed, rows_of, run, trained

NAME = "logistic_regression"
CANCER = load_breast_cancer(as_frame=True).frame


def pooled(frame, problem, params):
    """scikit-learn's coefficients on all rows in one place, to the last digits."""
    exact = {"tol": 1e-12, "max_iter": 100_000, "solver": "newton-cholesky"}
    fitted = LogisticRegression(**params | exact).fit(*rows_of(frame, problem))
    if len(fitted.classes_) > 2:
        fitted.intercept_ -= fitted.intercept_.mean()
    return fitted


def assert_same(model, expected, within=1e-4):
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=0, atol=within)
    np.testing.assert_allclose(model.intercept_, expected.intercept_, rtol=0, atol=within)


@pytest.mark.parametrize("params", [{}, {"C": 1e-4}, {"C": 1e4}, {"class_weight": "balanced"}])
@pytest.mark.parametrize("frame", [binary(), iris(), wine(), CANCER, people(200)])
def test_coefficients_are_those_of_all_rows_in_one_place(frame, params):
    model, problem, ledger = trained(parts(frame), NAME, params)
    assert_same(model, pooled(frame, problem, params))
    assert ledger.rounds == model.n_iter_[0] <= 20


def test_more_coefficients_than_newton_takes_are_the_same_too():
    frame = load_digits(as_frame=True).frame.iloc[:300]  # 10 classes of 65
    params = {"C": 0.05, "tol": 1e-8, "max_iter": 200}
    model, problem, ledger = trained(parts(frame), NAME, params)
    assert_same(model, pooled(frame, problem, params))
    assert 20 < ledger.rounds < 100
    assert ledger.bytes_up < 3 * ledger.rounds * 6000  # no curvature travels


def test_a_party_may_lack_classes_and_categories():
    tables = {
        "a": people(80, seed=1, cities="ab", labels="xy"),
        "b": people(50, seed=2, cities="c", labels="z"),
        "c": people(60, seed=3, cities="bd", labels="xz"),
    }
    params = {"class_weight": "balanced"}
    model, problem, _ = trained(tables, NAME, params)
    everything = pd.concat(tables.values())
    assert model.classes_.tolist() == [0, 1, 2]
    assert_same(model, pooled(everything, problem, params))


@pytest.mark.parametrize("count", [1, 2, 6])
def test_however_the_rows_are_split(count):
    frame = wine()
    problem = problem_of(frame, learners=(NAME,))
    model, *_ = trained(parts(frame, count), NAME, {}, problem)
    assert_same(model, pooled(frame, problem, {}), within=1e-7)


def test_the_model_is_scikit_learns_own():
    frame = people(120)
    model, problem, _ = trained(parts(frame), NAME, {"C": 0.5})
    assert type(model) is LogisticRegression
    assert model.C == 0.5
    saved = skops.io.dumps(model)
    assert skops.io.get_untrusted_types(data=saved) == []
    X, _ = rows_of(frame, problem)
    np.testing.assert_array_equal(skops.io.loads(saved).predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize("stages", [3, 25])
def test_a_killed_training_resumes_to_the_same_coefficients(stages, tmp_path):
    frame = load_digits(as_frame=True).frame.iloc[:150]
    params = {"tol": 1e-6}
    whole, problem, ledger = trained(parts(frame), NAME, params)
    again, _, longer = resumed(parts(frame), NAME, params, problem, tmp_path / "journal", stages)
    assert ledger.rounds > 30
    np.testing.assert_array_equal(whole.coef_, again.coef_)
    np.testing.assert_array_equal(whole.intercept_, again.intercept_)
    assert known_rounds(ledger) == known_rounds(longer)


def test_a_party_that_misses_rounds_does_not_mislead_the_descent():
    frame = CANCER
    tables = parts(frame)

    def lost_for_a_while(call, party, reply):
        missing = party == "party-2" and 3 <= call <= 4
        return encode(Refusal("unknown", "away")) if missing else reply

    problem = problem_of(*tables.values(), learners=(NAME,))
    with unreliable(tables, lost_for_a_while, problem=problem) as federation:
        model = run(federation, problem, NAME, {})
        assert len(federation.ledger.failures) == 2
    assert_same(model, pooled(frame, problem, {}))


def test_a_party_that_stays_away_is_left_out():
    tables = parts(wine())
    problem = problem_of(*tables.values(), learners=(NAME,))

    def lost(call, party, reply):
        return encode(Refusal("unknown", "away")) if party == "party-2" and call > 2 else reply

    with unreliable(tables, lost, problem=problem) as federation:
        model = run(federation, problem, NAME, {})
    others = pd.concat([tables["party-1"], tables["party-3"]])
    assert_same(model, pooled(others, problem, {}))


def test_sums_that_go_beyond_their_bounds_are_an_error_that_says_so():
    frame = binary()
    frame["far"] = np.linspace(0.0, 1e6, len(frame))
    with pytest.raises(FederationError, match=r"go beyond 2\*\*31 .* scaling turned off"):
        trained(parts(frame), NAME, {}, scaling="none")


def test_what_cannot_be_trained_is_refused():
    tables = parts(binary())
    with pytest.raises(UsageError, match=r"solver='saga' cannot be trained .* at 'lbfgs'"):
        trained(tables, NAME, {"solver": "saga"})


def test_max_iter_counts_rounds():
    model, _, ledger = trained(parts(CANCER), NAME, {"max_iter": 2})
    assert ledger.rounds == model.n_iter_[0] == 2
