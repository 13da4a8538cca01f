"""FedEx in its wrappers; what every method keeps to is in tests/testing."""

from __future__ import annotations

import numpy as np
import pytest

import cotune
from cotune.errors import UsageError
from cotune.methods import fedex as module
from cotune.methods.exponentiated import Instance
from cotune.testing import Faulty
from cotune.testing.faults import Killed
from tests.methods.test_exponentiated import options
from tests.parts import federation_of, iris, letters, parts, pictures, wine

SMALL = {"torch_mlp": {"hidden": 16, "layers": 1}}


def tuned(tables, **given):
    usual = {
        "learners": ["torch_mlp"],
        "fixed": SMALL,
        "rounds": 12,
        "max_rounds": 6,
        "eta": 2,
        "eliminations": 2,
        "arms": 4,
        "clients_per_round": 3,
        "folds": 2,
        "progress": False,
    }
    with federation_of(tables) as federation:
        return cotune.tune(federation, "fedex", **usual | given)


@pytest.fixture(scope="module")
def outcome():
    return tuned(parts(wine(), 6), rounds=60, max_rounds=30)


def test_it_ends_with_a_trained_model_and_no_training_after(outcome):
    assert np.mean(outcome.model.predict(wine()) == wine()["target"]) > 0.9
    assert {entry.task for entry in outcome.rounds} == {"inspect", "measure", "improve", "judge"}
    asked = [entry for entry in outcome.rounds if entry.task == "improve"]
    assert len(asked) == outcome.report["trained_rounds"] <= 60
    assert all(len(entry.asked) == 3 for entry in asked)
    assert len({entry.asked for entry in asked}) > 3  # other clients in other rounds


def test_the_report_tells_the_clients_settings_theta_and_the_curve(outcome):
    report, problem = outcome.report, outcome.problem
    assert report["client"] in report["configurations"]
    assert len(report["configurations"]) == 4
    assert len(report["theta"]) == 30  # rounds of the winner
    np.testing.assert_allclose(np.sum(report["theta"], axis=1), 1.0, atol=1e-5)
    assert [point["rounds"] for point in report["online"]] == list(range(3, 61, 3))
    assert report["online"][-1]["global"] < report["online"][0]["global"]
    assert set(report["test"]) == {"global", "personalized"}
    assert problem.metric_name == "accuracy"
    assert problem.holdout == pytest.approx(0.1)
    assert outcome.best_params.items() >= report["client"].items()


def test_the_headline_is_that_of_the_saved_network_on_rows_set_aside(outcome):
    headline = outcome.headline
    assert headline.of == "rows set aside"
    assert headline.loss == outcome.report["test"]["global"]
    assert headline.rows > 0
    assert "after training at each party" in headline.words
    assert outcome.best_loss == outcome.best.loss  # the search's own, on fewer rows
    search = outcome.searched_for
    assert search.of == "validation rows"
    assert f"on {search.rows} validation rows of 3 parties in one round" in search.words
    assert 0 < search.rows < 30


def test_without_rows_set_aside_the_headline_says_on_how_few_rows_it_rests():
    found = tuned(parts(wine(), 5), holdout=0.0, train=False)
    assert found.headline == found.searched_for
    assert found.headline.of == "validation rows"
    equal = tuned(parts(wine(), 5), holdout=0.0, weights="equal", train=False)
    assert "on validation rows of 3 parties" in equal.headline.words


def test_arms_lie_in_the_neighbourhood_of_the_first(outcome):
    space = outcome.problem.space("torch_mlp")
    first, *others = outcome.report["configurations"]
    for name in ("lr", "weight_decay"):
        reach = 0.1 * np.log(space[name].high / space[name].low)
        gaps = [abs(np.log(other[name] / first[name])) for other in others]
        assert 0 < max(gaps) <= reach + 1e-9


def test_a_better_arm_gains_share(outcome):
    """One arm cannot learn, the others can: theta leaves it."""
    problem, how = outcome.problem, options(arms=3, clients_per_round=6)
    with federation_of(parts(wine(), 6)) as federation:
        federation.problem = problem
        federation.restored()
        followed = Instance.drawn(problem, 0, how)
        good = followed.configurations[0] | {"lr": 0.1, "epochs": 5, "momentum": 0.5}
        followed.configurations = (good, good | {"lr": 1e-4, "epochs": 1, "momentum": 0.0}, good)
        for _ in range(15):
            followed.round(federation, problem, how)
    assert followed.theta[0][1] < 0.05


@pytest.mark.parametrize("wrapper", ["rs", "hyperband", "asha"])
def test_every_wrapper_comes_to_an_end(wrapper):
    found = tuned(parts(iris()), wrapper=wrapper, rounds=20, max_rounds=8, train=False)
    assert found.best.fraction == 1.0
    assert found.report["trained_rounds"] <= 20


def test_a_grid_of_the_aggregations_settings_is_walked_to_its_end():
    """PrivTuna's GHO: every point is a federated training."""
    free = {"server_lr": (0.1, 1.0, "log"), "server_momentum": (0.0, 0.9)}
    found = tuned(
        parts(iris()), wrapper="grid", rounds=9, max_rounds=2, arms=1, objective="global",
        space={"torch_mlp": {"lr": 0.1, "hidden": 4, "layers": 1} | free}, fixed={}, train=False,
    )  # fmt: skip
    points = {(round(t.params["server_lr"], 9), t.params["server_momentum"]) for t in found.trials}
    assert points == {(0.1, 0.0), (0.1, 0.9), (1.0, 0.0), (1.0, 0.9)}
    assert found.report["trained_rounds"] == 8
    servers = {"torch_mlp": {"lr": 0.1, "server": ["sgd", "adam"]}}
    with pytest.raises(UsageError, match="too few for a grid"):
        tuned(parts(iris()), wrapper="grid", rounds=4, max_rounds=4, space=servers, fixed={})


def test_one_arm_is_the_wrapper_alone():
    found = tuned(parts(iris()), arms=1, train=False)
    assert {tuple(theta) for theta in found.report["theta"]} == {(1.0,)}


@pytest.mark.parametrize(
    "given",
    [
        {"product": True},
        {"objective": "global", "judge_by": "sampling"},
        {"step_size": "adaptive", "floor": 0.05, "entropy_stop": 1.0},
        {"fixed": {"torch_mlp": SMALL["torch_mlp"] | {"scaffold": True, "personal_mu": 0.1}}},
    ],
)
def test_options_are_taken(given):
    assert tuned(parts(iris()), train=False, **given).best_loss <= 1.0


@pytest.mark.parametrize("scaffold", [False, True])
@pytest.mark.parametrize("dies_at", [4, 9, 17, 23])
def test_killed_at_any_round_it_resumes_to_the_same_weights(
    dies_at, scaffold, tmp_path, monkeypatch
):
    """Between two checkpoints too; with what clients keep between rounds."""
    monkeypatch.setattr(module, "EVERY", 5)
    tables = parts(iris(), 5)
    given = {
        "learners": ["torch_mlp"],
        "fixed": {"torch_mlp": SMALL["torch_mlp"] | {"scaffold": scaffold}},
        "rounds": 24,
        "max_rounds": 12,
        "eta": 2,
        "eliminations": 2,
        "arms": 3,
        "folds": 2,
        "clients_per_round": 2,
        "curve": 4,
        "progress": False,
    }
    with federation_of(tables, state=tmp_path / "whole") as federation:
        whole = cotune.tune(federation, "fedex", **given)
    run = tmp_path / "run"
    with federation_of(tables, state=tmp_path / "parties") as federation:
        dying = Faulty(federation.engine, dies_at=dies_at)
        with pytest.raises(Killed):
            cotune.tune(cotune.Federation(dying), "fedex", run=run, **given)
    with federation_of(tables, state=tmp_path / "parties") as federation:
        resumed = cotune.resume(run, federation=federation, progress=False)
    np.testing.assert_array_equal(resumed.model.estimator.weights, whole.model.estimator.weights)
    assert resumed.report == whole.report
    assert [r.task for r in resumed.rounds] == [r.task for r in whole.rounds]


def test_waiting_arms_are_in_the_journal_and_not_in_memory(tmp_path):
    import sqlite3

    tuned(parts(iris()), run=tmp_path / "run", train=False)
    names = sqlite3.connect(tmp_path / "run/journal.sqlite").execute("SELECT name FROM parts")
    assert {name for (name,) in names} == {f"arm-{n}" for n in range(4)}


def test_images_are_tuned_with_a_cnn():
    fixed = {"cnn": {"channels": 2, "hidden": 4}}
    found = tuned(parts(pictures(60, side=8)), learners=["cnn"], fixed=fixed)
    assert found.model.predict(pictures(10, side=8)).shape == (10,)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"learners": ["hgb"], "fixed": {}}, "'hgb' is not trained in rounds"),
        ({"wrapper": "tpe"}, "unknown wrapper 'tpe'"),
        ({"rounds": 6}, "6 rounds are too few"),
        ({"rounds": 20, "max_rounds": 30}, "more than the 20 rounds"),
        ({"objective": "local"}, "unknown objective"),
        ({"epsilon": 2.0}, "from 0 to 1"),
        ({"arms": 0}, "arms is 0: give a whole number"),
        ({"validation": 0.0}, "between 0 and 1"),
        ({"fixed": {"torch_mlp": {"server": "adagrad"}}}, "torch_mlp is wrong"),
        ({"learners": ["cnn"], "fixed": {}}, "cnn takes images"),
    ],
)
def test_what_cannot_be_meant_is_refused(given, sentence):
    with pytest.raises(UsageError, match=sentence):
        tuned(parts(iris()), **given)


def test_an_arm_that_nobody_could_judge_does_not_win():
    """Parties of one class each have no ROC curve."""
    frame = iris()
    tables = {f"party-{c}": frame[frame["target"] == c].reset_index(drop=True) for c in range(3)}
    found = tuned(tables, metric="roc_auc", train=False)
    assert {trial.loss for trial in found.trials} == {1.0}
    assert found.report["test"] is None


def test_a_budget_that_ends_in_the_first_job_gives_what_there_is():
    found = tuned(parts(iris()), wrapper="rs", rounds=300, max_rounds=300, fits=40)
    assert len(found.trials) == 1
    assert found.ledger.fits <= 40
    assert found.model.predict(iris()).shape == (150,)


def test_with_one_client_a_round_a_dead_party_is_passed_over():
    with federation_of(parts(iris(), 6)) as federation:
        faulty = cotune.Federation(Faulty(federation.engine, {"party-3": "lost"}))
        found = cotune.tune(
            faulty, "fedex", learners=["torch_mlp"], fixed=SMALL, wrapper="rs", rounds=20,
            max_rounds=20, arms=2, clients_per_round=1, curve=0, progress=False, train=False,
        )  # fmt: skip
    assert found.report["trained_rounds"] == 20


def test_parties_of_few_rows_take_part():
    tables = parts(iris()) | {"two": iris().iloc[:2], "one": iris().iloc[5:6]}
    found = tuned(tables, clients_per_round=5, train=False)
    assert not found.ledger.failures


@pytest.mark.parametrize(
    ("frame", "learner"),
    [(iris(), "torch_mlp"), (letters(60), "char_lstm"), (pictures(60, 8), "cnn")],
)
def test_the_rows_say_which_network_is_tuned_if_none_is_named(frame, learner):
    given = {"learners": [], "fixed": {}, "arms": 2, "wrapper": "rs", "rounds": 1, "max_rounds": 1}
    assert tuned(parts(frame), train=False, **given).best_learner == learner


@pytest.mark.parametrize(
    ("learner", "frame"), [("char_lstm", iris()), ("torch_mlp", letters()), ("cnn", letters())]
)
def test_networks_refuse_rows_of_another_kind(learner, frame):
    with pytest.raises(UsageError, match="takes"):
        tuned(parts(frame), learners=[learner], fixed={})


@pytest.mark.parametrize(
    "space",
    [{"lr": (0.0, 1.0)}, {"lr": 0.1, "epochs": (0, 3)}, {"lr": 0.1, "server": ["sgd", "adagrad"]}],
)
def test_a_space_with_impossible_values_is_refused_before_any_work(space):
    with pytest.raises(UsageError, match="a parameter of torch_mlp is wrong"):
        tuned(parts(iris()), space={"torch_mlp": space}, fixed={})


def test_a_space_may_leave_settings_at_their_defaults():
    found = tuned(parts(iris()), space={"torch_mlp": {"momentum": (0.0, 0.9)}}, fixed={})
    assert set(found.best_params) == {"momentum"}
    assert found.model.predict(iris()).shape == (150,)
