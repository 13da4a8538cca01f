from __future__ import annotations

import pytest

import cotune
from cotune.errors import UsageError
from cotune.methods.privtuna import BY_SUMS, COMBINE
from tests.parts import federation_of, iris, parts
from tests.privacy.agents import ready

TABLES = parts(iris(), 4)


def tune(federation=None, **options):
    usual = {"learners": ["decision_tree", "logistic_regression"], "folds": 3, "trials": 6,
             "min_points": 2, "train": False, "progress": False}  # fmt: skip
    with federation_of(TABLES) as federation:
        return cotune.tune(federation, "privtuna", **(usual | options))


@pytest.fixture(scope="module")
def plain():
    return {combine: tune(combine=combine) for combine in BY_SUMS}


@pytest.mark.parametrize("combine", COMBINE)
def test_every_way_to_combine_gives_a_configuration_of_the_space(combine):
    outcome = tune(combine=combine)
    space = outcome.problem.space(outcome.best_learner)
    space.validate(outcome.best_params)
    assert outcome.best_value > 0.8
    predicted = [trial for trial in outcome.trials if trial.predicted]
    assert {trial.learner for trial in predicted} == {"decision_tree", "logistic_regression"}
    assert sum(trial.fits for trial in outcome.trials) == outcome.ledger.fits


def test_as_published_nobody_tries_the_result():
    outcome = tune(combine="mean", single_shot=True)
    assert all(trial.predicted for trial in outcome.trials)
    assert [entry.task for entry in outcome.ledger] == ["inspect", "measure", "differ", "propose"]


def test_density_is_found_in_two_rounds_after_the_searches(plain):
    tasks = [entry.task for entry in plain["pf-dbscan"].ledger]
    assert tasks[:6] == ["inspect", "measure", "differ", "explore", "count", "propose"]
    assert tasks[-1] == "evaluate"
    (count,) = [entry for entry in plain["pf-dbscan"].ledger if entry.task == "count"]
    assert count.total is not None
    assert set(count.total.vector("counts").tolist()) <= {0.0, 1.0}, "only the mask is kept"


@pytest.mark.parametrize("combine", BY_SUMS)
@pytest.mark.parametrize("privacy", ["masked", pytest.param("encrypted", marks=ready)])
def test_private_sums_give_the_plain_result(plain, combine, privacy):
    private = tune(combine=combine, privacy=privacy)
    assert [(t.params, t.loss) for t in private.trials] == [
        (t.params, t.loss) for t in plain[combine].trials
    ]


@ready
def test_under_encryption_only_the_mask_is_ever_known():
    outcome = tune(privacy="encrypted")
    (count,) = [entry for entry in outcome.ledger if entry.task == "count"]
    assert count.way == "encrypted"
    assert "only where the total over the parties reaches 2 is told" in count.disclosed
    (told,) = [one for one in outcome.disclosures if one.message == "count"]
    assert told.how == "as a comparison"


@ready
@pytest.mark.parametrize("combine", BY_SUMS)
def test_the_faithful_edition_comes_near_the_exact_one(plain, combine):
    """Approximate comparison and division: the mask is the same, quotients to about 1e-4."""
    faithful = tune(combine=combine, privacy="encrypted", edition="faithful")
    exact = [trial for trial in plain[combine].trials if trial.predicted]
    found = [trial for trial in faithful.trials if trial.predicted]
    for one, other in zip(found, exact, strict=True):
        space = faithful.problem.space(one.learner)
        assert space.distance(one.params, other.params) < 1e-2  # a step of an integer, at most
        assert one.loss == pytest.approx(other.loss, abs=1e-3)
    told = {one.message: one.how for one in faithful.disclosures}
    assert told["propose"] == "as quotients"
    assert told.get("count", "as a comparison") == "as a comparison"


@pytest.mark.parametrize("combine", sorted(set(COMBINE) - set(BY_SUMS)))
def test_what_needs_the_parties_configurations_is_refused_in_private(combine):
    with pytest.raises(UsageError, match="rule out: use mean, best-mean, pf-dbscan"):
        tune(combine=combine, privacy="masked")


def test_options_are_checked():
    with pytest.raises(UsageError, match="unknown way to combine 'modus'"):
        tune(combine="modus")
    with pytest.raises(UsageError, match="unknown edition of privtuna 'fat'"):
        tune(edition="fat")
    with pytest.raises(UsageError, match="min_points is 9"):
        tune(min_points=9)
    with pytest.raises(UsageError, match="unknown sampler"):
        tune(sampler="guess")


def test_where_no_cell_is_dense_the_mean_is_taken():
    outcome = tune(learners=["logistic_regression"], trials=2, min_points=8)
    tasks = [entry.task for entry in outcome.ledger]
    assert tasks.count("propose") == 2


def test_server_parameters_of_networks_are_tuned():
    """As in the paper: the aggregation's rate and momentum, everything else fixed."""
    pytest.importorskip("torch")
    outcome = tune(
        learners=["torch_mlp"],
        space={"torch_mlp": {"rounds": 3, "lr": 0.1, "server_lr": (0.1, 3.0, "log"),
                             "server_momentum": (0.0, 0.9), "hidden": 8, "layers": 1}},
        trials=4,
        combine="mean",
    )  # fmt: skip
    assert outcome.best_params.keys() >= {"server_lr", "server_momentum"}
