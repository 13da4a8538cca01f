import pytest

from cotune.trial import Trial, best_of, mean_of


def trial(loss, weight=90.0, **more):
    return Trial("hgb", {}, loss, 3, weight, 15, 0.1, **more)


def test_the_best_trial_has_the_least_loss_and_is_the_earliest_of_equals():
    trials = [trial(0.3), trial(0.2), trial(0.2)]
    assert best_of(trials) is trials[1]


def test_a_trial_does_not_win_because_a_party_was_late():
    trials = [trial(0.3), trial(0.1, weight=60.0), trial(0.25)]
    assert best_of(trials) is trials[2]


def test_after_a_party_has_left_for_good_the_trials_without_it_count():
    trials = [trial(0.3), *(trial(0.4 - 0.01 * k, weight=60.0) for k in range(5))]
    assert best_of(trials) is trials[5]


def test_of_equally_usual_weights_the_larger_counts():
    trials = [trial(0.1, weight=60.0), trial(0.2)]
    assert best_of(trials) is trials[1]


def test_an_observed_loss_counts_before_a_predicted_one():
    trials = [trial(0.1, predicted=True), trial(0.3), trial(0.2), trial(0.05, predicted=True)]
    assert best_of(trials) is trials[2]


def test_where_nothing_was_observed_the_least_prediction_counts():
    trials = [trial(0.2, predicted=True), trial(0.1, predicted=True)]
    assert best_of(trials) is trials[1]


def test_a_loss_on_more_of_the_rows_counts_before_one_on_fewer():
    trials = [trial(0.1, fraction=1 / 3), trial(0.3), trial(0.25), trial(0.2, fraction=0.5)]
    assert best_of(trials) is trials[2]


def test_an_observation_on_few_rows_counts_before_a_prediction_for_all():
    trials = [trial(0.1, predicted=True), trial(0.4, fraction=0.1)]
    assert best_of(trials) is trials[1]


def test_the_usual_weight_is_that_of_the_trials_on_most_rows():
    """Many trials on few rows, without a party, do not outvote those on all rows."""
    early = [trial(0.1, weight=60.0, fraction=0.1) for _ in range(5)]
    late = [trial(0.3), trial(0.2)]
    assert best_of([*early, *late]) is late[1]


def test_trials_on_other_folds_are_one_with_their_mean_and_all_their_fits():
    found = mean_of([trial(0.1, error=0.02), trial(0.3, error=0.04, reasons={"raised": 2})])
    assert found.loss == pytest.approx(0.2)
    assert found.error == pytest.approx(0.03)  # the rows are the same: no smaller for two
    assert (found.fits, found.reasons, found.weight) == (30, {"raised": 2}, 90.0)
