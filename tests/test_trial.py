from cotune.trial import Trial, best_of


def trial(loss, weight=90.0):
    return Trial("hgb", {}, loss, 3, weight, 15, 0.1)


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
