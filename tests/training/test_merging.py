from __future__ import annotations

from itertools import islice

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

from cotune.coordinator.journal import Journal
from cotune.data.encode import encode
from cotune.model.predictors import OfBooster
from cotune.party.task import Configuration
from cotune.party.train.grow import Tree
from cotune.party.train.merging import Boosted
from cotune.problem import Budget
from cotune.protocol.wire import Refusal
from cotune.training import Stage, trainer
from cotune.training.merging import mean_trees
from tests.parts import federation_of, parts, problem_of, unreliable, wine
from tests.training.test_histogram import FEW, LEARNERS, TABLES, mixed
from tests.training.trained import stages_and_model


def merged(tables, learner="hgb", every: int | None = 3, params=None, *, problem=None):
    """The model, its problem and the ledger; `every` None is the exact training."""
    problem = problem or problem_of(*tables.values(), learners=(learner,))
    with federation_of(tables) as base:
        federation = base.for_run("run", Journal(), Budget())
        params = FEW[learner] | (params or {})
        _, model = stages_and_model(federation, problem, learner, params, every)
        return model, problem, federation.ledger


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("kind", TABLES)
def test_alone_a_party_grows_the_trees_of_the_exact_training(learner, kind):
    tables = {"all": TABLES[kind]()}
    exact, problem, _ = merged(tables, learner, None)
    for every in (1, 3, 100):
        model, _, _ = merged(tables, learner, every, problem=problem)
        assert model.save_raw("json") == exact.save_raw("json")


@pytest.mark.parametrize("every", [1, 4])
def test_digits_are_read_nearly_as_well_as_by_the_exact_training(every):
    frame = load_digits(as_frame=True).frame.iloc[:900]
    held = np.arange(len(frame)) % 3 == 0
    tables = parts(frame[~held], 3)

    def accuracy(every):
        model, problem, _ = merged(tables, "xgboost", every)
        found = OfBooster(model, 10).predict(encode(frame[held], problem.schema, "codes"))
        return np.mean(found == frame.loc[held, "target"])

    assert accuracy(every) >= accuracy(None) - 0.06


def test_rounds_are_as_few_as_the_merges():
    exact = merged(parts(mixed()), "hgb", None)[2]
    few = merged(parts(mixed()), "hgb", 3)[2]
    assert [entry.task for entry in few].count("boost") == 3  # 8 trees: 3, 3, 2
    assert few.rounds < exact.rounds
    assert few.bytes_up < exact.bytes_up


def test_stages_count_the_rounds_of_boosting():
    problem = problem_of(*parts(mixed()).values(), learners=("hgb",))
    with federation_of(parts(mixed())) as federation:
        stages, _ = stages_and_model(federation, problem, "hgb", FEW["hgb"], 3)
    assert stages == [Stage(3, 8), Stage(6, 8), Stage(8, 8)]


def test_a_party_may_lack_classes_and_values():
    frame = wine()
    tables = {str(k): frame[frame["target"] != k] for k in range(3)}
    tables["0"] = tables["0"].assign(alcohol=np.nan)
    model, problem, _ = merged(tables, "hgb", 2, {"max_iter": 20})
    whole = pd.concat(tables.values())
    found = OfBooster(model, 3).predict(encode(whole, problem.schema, "codes"))
    assert np.mean(found == whole["target"]) > 0.95


@pytest.mark.parametrize("merges", [0, 1, 2])
def test_a_killed_training_resumes_to_the_same_model(merges, tmp_path):
    tables, path = parts(mixed()), tmp_path / "journal.sqlite"
    params = FEW["hgb"] | {"max_iter": 30}
    whole, problem, _ = merged(tables, "hgb", 12, params)
    with federation_of(tables) as base:
        federation = base.for_run("run", Journal(path), Budget())
        federation.problem = problem
        steps = trainer("hgb", 12)(federation, problem, Configuration("hgb", params))
        assert len(list(islice(steps, merges))) == merges
        federation.journal.close()
    with federation_of(tables) as base:  # the parties have forgotten all, too
        federation = base.for_run("run", Journal(path), Budget())
        stages, model = stages_and_model(federation, problem, "hgb", params, 12)
    assert model.save_raw("json") == whole.save_raw("json")
    assert len(stages) == 3 - merges


def test_rows_are_drawn_as_often_as_the_configuration_says():
    params = {"subsample": 0.5, "subsample_freq": 4, "n_estimators": 8}
    for tables in ({"all": mixed()}, parts(mixed(), 3)):
        one, problem, _ = merged(tables, "lightgbm", 4, params)
        assert one.num_boosted_rounds() == 8 * len(tables)
    exact, problem, _ = merged({"all": mixed()}, "lightgbm", None, params)
    model, _, _ = merged({"all": mixed()}, "lightgbm", 1, params, problem=problem)
    assert model.save_raw("json") == exact.save_raw("json")


def test_a_party_that_forgot_everything_takes_part_again():
    expected, problem, ledger = merged(parts(mixed()), "hgb", 2)
    last = ledger.rounds - 1

    def forget(call, party, reply):
        if call == last - 1 and party == "party-2":
            federation.engine._inner._parties["party-2"].training = {}
        return reply

    federation = unreliable(parts(mixed()), forget)
    with federation:
        _, model = stages_and_model(federation, problem, "hgb", FEW["hgb"], 2)
    assert model.save_raw("json") == expected.save_raw("json")


@pytest.mark.parametrize("answer", ["late", "nonsense"])
def test_without_a_party_the_others_trees_are_merged(answer):
    frame = pd.concat([mixed(labels="xy")] * 2, ignore_index=True)
    problem = problem_of(*parts(frame).values(), learners=("hgb",))

    def fail(call, party, reply):
        if party != "party-3" or call % 4 < 2:  # twice, as a broken reply is asked for again
            return reply
        return Refusal("timeout", "too late") if answer == "late" else reply[:-9]

    with unreliable(parts(frame), fail) as federation:
        _, model = stages_and_model(federation, problem, "hgb", FEW["hgb"], 1)
        assert federation.ledger.failures
    found = OfBooster(model, 2).predict(encode(frame, problem.schema, "codes"))
    right = np.array(problem.schema.classes)[found] == frame["target"]
    assert right.mean() > frame["target"].value_counts(normalize=True).max() + 0.05


def test_trees_count_by_the_weight_of_their_party():
    def leaf(value):
        return ((Tree((), ((0, value),)),),)

    (first,), (second,) = mean_trees({"a": Boosted(leaf(1.0), 30.0), "b": Boosted(leaf(-1.0), 10)})
    assert first.leaves == ((0, 0.75),)
    assert second.leaves == ((0, -0.25),)
