"""What is trained in the end, and which of it is the answer."""

from __future__ import annotations

import io
import math
import re

import msgspec
import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import cotune
from cotune.coordinator.federation import Federation
from cotune.errors import Diverged, FederationError, UsageError
from cotune.protocol.tally import figures, statistic, vectors
from cotune.report.show import show_outcome
from cotune.run.finish import contenders, finish
from cotune.run.outcome import Outcome
from cotune.run.progress import announced
from cotune.run.settings import Settings
from cotune.testing import Faulty
from cotune.testing.faults import Killed
from cotune.training.folds import crossed
from cotune.trial import Finalist, HeldOut, Trial
from tests.parts import federation_of, iris, parts, people, problem_of, wine
from tests.training.test_watch import unequal

TWO = {"learners": ["decision_tree", "logistic_regression"], "trials": 3, "folds": 2}
ONE = {"learners": ["decision_tree"], "folds": 2}


def trial(learner: str, loss: float, **params: object) -> Trial:
    return Trial(learner, params, loss, 3, 90.0, 2, 0.1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Outcome:
    with federation_of(parts(wine())) as federation:
        run = tmp_path_factory.mktemp("runs") / "run"
        return cotune.tune(federation, **TWO, holdout=0.3, run=run)


def test_the_searchs_answer_and_other_learners_best_are_trained_for_certain():
    problem = problem_of(wine(), learners=("decision_tree", "logistic_regression"))
    default = problem.default("decision_tree")
    trials = [
        trial("decision_tree", 0.3, **default),
        trial("logistic_regression", 0.4, C=1.0),
        trial("decision_tree", 0.1, max_depth=3),
        trial("logistic_regression", 0.2, C=5.0),
    ]
    found = contenders(problem, trials[2], trials, 3)
    assert [(one.learner, one.searched, one.default) for one in found] == [
        ("decision_tree", 0.1, False),
        ("logistic_regression", 0.2, False),
    ]
    for count in (0, 1, 2):
        assert contenders(problem, trials[2], trials, count) == found[:1]
    assert [one.default for one in contenders(problem, trials[0], trials, 3)] == [True, False]


def test_the_default_settings_of_the_better_learner_are_trained_last(finished):
    *certain, last = finished.finalists
    better = min(certain, key=lambda one: one.held_out.loss)
    assert better.default or (last.default and last.learner == better.learner)


def test_a_default_that_no_trial_evaluated_is_trained_all_the_same():
    with federation_of(parts(wine())) as federation:
        outcome = cotune.tune(
            federation,
            "flora",
            single_shot=True,
            learners=["decision_tree"],
            trials=3,
            folds=2,
            holdout=0.3,
        )
    assert [one.searched is None for one in outcome.finalists] == [False, True]
    assert outcome.finalists[1].default
    assert outcome.finalists[1].held_out.rows == outcome.finalists[0].held_out.rows


def test_the_best_on_the_rows_set_aside_is_the_answer_as_it_was_judged(finished):
    losses = [one.held_out.loss for one in finished.finalists]
    assert len(losses) in (2, 3)
    best = finished.finalists[int(np.argmin(losses))]
    assert (finished.best_learner, finished.best_params) == (best.learner, best.params)
    assert msgspec.structs.replace(finished.held_out, crossed=None) == best.held_out
    assert finished.model.learner == best.learner
    assert finished.held_out.loss == min(losses)
    with federation_of(parts(wine())) as federation:
        judged = cotune.evaluate(finished, federation).total
    assert judged.joint == pytest.approx(1.0 - finished.held_out.loss, abs=1e-9)


def test_the_headline_is_free_of_the_luck_of_the_best():
    """Four models that guess: the best of them looks better than it is, its headline does not."""
    random, problem = np.random.default_rng(0), problem_of(iris(), metric="accuracy")
    lucky, fair = [], []
    for _ in range(300):
        models = []
        for _ in range(4):
            hits = [random.binomial(25, 0.5) for _ in range(2)]
            counts = np.array([[0, 25, 0, 0, hit, 0, 0] for hit in hits], dtype=float)
            models.append({"counts": counts.ravel()})
        losses = [figures(problem, together_of(one))[0].loss for one in models]
        lucky.append(min(losses))
        fair.append(crossed(problem, models, int(np.argmin(losses))))
    error = 0.5 / math.sqrt(50 * 300)
    assert np.mean(lucky) < 0.5 - 10 * error
    assert abs(np.mean(fair) - 0.5) < 4 * error


def test_the_headline_is_no_worse_than_the_worst_model_that_was_compared():
    """Scores of two models in one histogram would rank worse than either."""
    random, frame = np.random.default_rng(0), people(100)
    problem = problem_of(frame, metric="roc_auc")
    y = (frame["target"] == "y").to_numpy().astype(int)
    signal, first = 1.5 * y + random.normal(size=len(y)), np.arange(len(y)) % 2 == 0
    models, losses = [], []
    for noisy, place, scale in ((~first, 0.0, 1.0), (first, 1.5, 4.0)):
        score = 1 / (1 + np.exp(-place - scale * (signal + noisy * random.normal(size=len(y)))))
        predicted = np.column_stack([1 - score, score])
        summed = statistic(problem)
        halves = [summed.tally(y[half], predicted[half]) for half in (first, ~first)]
        models.append({name: np.array(v) for name, v in vectors(problem, halves).items()})
        losses.append(figures(problem, together_of(models[-1]))[0].loss)
    fair = crossed(problem, models, int(np.argmin(losses)))
    assert min(losses) <= fair <= max(losses)


def together_of(totals):
    return {name: values.reshape(2, -1).sum(axis=0) for name, values in totals.items()}


def test_the_headline_lies_in_its_interval(finished):
    low, high = finished.headline.interval
    assert low <= finished.headline.value <= high
    assert finished.headline.loss == finished.held_out.crossed


def test_each_finalist_costs_one_training_and_one_sum(finished):
    rounds = len(finished.rounds) - finished.searched
    assert sum(one.rounds for one in finished.finalists) == rounds - 1  # what joining gained
    assert all(one.rounds > 1 and one.bytes_up > 0 for one in finished.finalists)
    scores = [entry for entry in finished.rounds if entry.task == "score"]
    assert len(scores) == len(finished.finalists)


def test_without_finalists_the_searchs_answer_is_trained_alone(finished):
    with federation_of(parts(wine())) as federation:
        alone = cotune.tune(federation, **TWO, holdout=0.3, finalists=0)
        bare = cotune.tune(federation, **TWO)
    assert alone.finalists == bare.finalists == ()
    assert (alone.best.learner, alone.best.params) == (
        finished.finalists[0].learner,
        finished.finalists[0].params,
    )
    assert len(alone.rounds) - alone.searched == finished.finalists[0].rounds + 1


def hundreds(smallest: int = 100) -> dict[str, pd.DataFrame]:
    return {f"site-{i}": people(rows, seed=i) for i, rows in enumerate((120, 110, smallest))}


QUICK = {"learners": ["decision_tree"], "trials": 2, "folds": 2}


@pytest.mark.parametrize("privacy", ["plain", "masked"])
def test_a_fifth_of_the_rows_is_set_aside_where_every_party_has_a_hundred(privacy):
    for tables, share, finalists in ((hundreds(), 0.2, 2), (hundreds(99), 0.0, 0)):
        with federation_of(tables) as federation:
            outcome = cotune.tune(federation, "defaults", **ONE, privacy=privacy)
        assert outcome.problem.holdout == share
        assert len(outcome.finalists) <= finalists
        assert (outcome.headline.of == "rows set aside") == bool(share)


@pytest.mark.parametrize(
    "given",
    [
        {"train": False},
        {"finalists": 0},
        {"holdout": 0},
        {"holdout": 0, "finalists": 1},
        {"method": "central"},
        {"method": "multishot", "until": 1.0},
    ],
)
def test_no_rows_are_set_aside_where_they_would_be_of_no_use(given):
    with federation_of(hundreds()) as federation:
        assert cotune.tune(federation, **ONE, **given).problem.holdout == 0.0


def test_one_finalist_is_the_searchs_answer_on_rows_set_aside():
    tables = {
        name: table.assign(target=np.where(table["age"] > 40, "x", "y"))
        for name, table in hundreds().items()
    }
    with federation_of(tables) as federation:
        outcome = cotune.tune(federation, **QUICK, finalists=1)
    assert outcome.problem.holdout == 0.2
    assert outcome.finalists == ()
    assert outcome.headline.of == "rows set aside"


def test_a_share_that_is_given_is_set_aside_however_few_the_rows():
    with federation_of(hundreds(60)) as federation:
        assert cotune.tune(federation, **QUICK, holdout=0.3, finalists=0).problem.holdout == 0.3


def test_why_rows_are_set_aside_is_said():
    assert "20 % of every party's rows are set aside" in Settings().why_held(0, 5)
    assert "as every party has 100 or more" in Settings().why_held(0, 5)
    assert "as 2 of 5 parties have fewer than 100" in Settings().why_held(2, 5)
    masked = Settings(privacy="masked")
    assert "as 2 of 5 parties have fewer than 100" in masked.why_held(2, 5)
    for few in (1, 4):
        assert "as not every party has 100 or more (--holdout" in masked.why_held(few, 5)
    assert Settings(holdout=0.3).why_held(2, 5) == "30 % of every party's rows are set aside"
    noised = {"noise": 5.0, "weights": "equal", "privacy": "masked"}
    for given in (
        {"finalists": 0},
        {"train": False},
        {"holdout": 0.0},
        {"method": "central"},
        noised,
    ):
        assert Settings(**given).held(enough=True) == 0.0
        assert Settings(**given).why_held(0, 5) == Settings(**given).why_held(2, 5) == ""


@pytest.mark.parametrize("privacy", ["plain", "masked"])
def test_private_sums_choose_the_same_finalist(finished, privacy):
    with federation_of(parts(wine())) as federation:
        outcome = cotune.tune(federation, **TWO, holdout=0.3, privacy=privacy)
    for one, other in zip(outcome.finalists, finished.finalists, strict=True):
        assert one.held_out == other.held_out
    assert outcome.best_params == finished.best_params


def test_a_run_killed_amid_the_finalists_resumes_to_the_same_answer(finished, tmp_path):
    first = finished.searched + finished.finalists[0].rounds
    for number, round_ in enumerate((finished.searched + 1, first, first + 1, first + 3)):
        run = tmp_path / str(number)
        with federation_of(parts(wine())) as federation:
            dying = Federation(Faulty(federation.engine, dies_at=round_))
            with pytest.raises(Killed):
                cotune.tune(dying, **TWO, holdout=0.3, run=run)
            resumed = cotune.resume(run, Federation(federation.engine), progress=False)
        assert resumed.finalists == finished.finalists
        assert (resumed.best_learner, resumed.best_params) == (
            finished.best_learner,
            finished.best_params,
        )
        assert resumed.headline == finished.headline


def test_a_training_that_ends_between_two_checkpoints_is_not_mixed_up_with_the_next(tmp_path):
    """The perceptron's last rounds are in no checkpoint of its own."""
    options = {"learners": ["mlp", "decision_tree"], "trials": 1, "folds": 2, "holdout": 0.3}
    with federation_of(parts(wine())) as federation:
        whole = cotune.tune(federation, **options)
        for late in (20, 2):
            run = tmp_path / str(late)
            dying = Federation(Faulty(federation.engine, dies_at=len(whole.rounds) - late))
            with pytest.raises(Killed):
                cotune.tune(dying, **options, run=run)
            resumed = cotune.resume(run, Federation(federation.engine), progress=False)
            assert resumed.finalists == whole.finalists
            assert len(resumed.rounds) == len(whole.rounds)


def test_a_run_killed_after_a_later_finalists_checkpoint_costs_no_round_twice(tmp_path):
    """Rounds of the second training are not taken for the first one's."""
    given = TWO | {
        "learners": ["hgb", "decision_tree"],
        "fixed": {"hgb": {"max_iter": 12, "max_leaf_nodes": 4}},
        "holdout": 0.3,
        "finalists": 3,
    }
    with federation_of(parts(wine())) as federation:
        whole = cotune.tune(federation, **given)
        assert len(whole.finalists) > 1
        dying = Federation(Faulty(federation.engine, dies_at=len(whole.rounds)))
        with pytest.raises(Killed):
            cotune.tune(dying, **given, run=tmp_path / "run")
        resumed = cotune.resume(tmp_path / "run", Federation(federation.engine), progress=False)
    assert len(resumed.rounds) == len(whole.rounds)
    assert [one.rounds for one in resumed.finalists] == [one.rounds for one in whole.finalists]


COLLAPSES = {
    "learning_rate": (0.93, 0.97),
    "max_iter": [60],
    "min_samples_leaf": [3],
    "max_leaf_nodes": [15],
    "l2_regularization": [1e-6],
}
PAIR = {"learners": ["hgb", "logistic_regression"], "trials": 2, "folds": 2, "progress": False}


def collapsing(**options) -> Outcome:
    """A run whose boosted trees all collapse in the federated training."""
    with federation_of(parts(unequal(), 5)) as federation:
        return cotune.tune(federation, **PAIR, space={"hgb": COLLAPSES}, **options)


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory) -> Outcome:
    return collapsing(holdout=0.2, run=tmp_path_factory.mktemp("runs") / "run")


def test_a_training_that_collapses_is_given_up_and_another_configuration_takes_its_place(collapsed):
    given_up = [one for one in collapsed.finalists if one.failed]
    assert {one.learner for one in given_up} == {"hgb"}
    assert all("its training diverged" in one.failed for one in given_up)
    assert all(one.held_out is None and one.rounds > 0 for one in given_up)
    assert collapsed.best_learner == collapsed.model.learner == "logistic_regression"
    assert "no better" not in collapsed.headline.words


def test_what_was_given_up_is_shown_with_its_reason(collapsed):
    console = Console(width=500, file=io.StringIO())
    show_outcome(collapsed, console)
    shown = console.file.getvalue()
    assert "in the search, given up, its training diverged: the loss over the parties'" in shown
    assert "no model is clearly better" not in shown


def test_a_run_killed_after_a_training_was_given_up_resumes_to_the_same_answer(collapsed, tmp_path):
    number = collapsed.searched + collapsed.finalists[0].rounds
    for round_ in (number - 1, number + 2):
        run = tmp_path / str(round_)
        with federation_of(parts(unequal(), 5)) as federation:
            dying = Federation(Faulty(federation.engine, dies_at=round_))
            with pytest.raises(Killed):
                cotune.tune(dying, **PAIR, space={"hgb": COLLAPSES}, holdout=0.2, run=run)
            resumed = cotune.resume(run, Federation(federation.engine), progress=False)
        assert resumed.finalists == collapsed.finalists
        assert resumed.headline == collapsed.headline


def test_without_rows_set_aside_the_next_learners_best_is_trained():
    fixed = {"logistic_regression": {"C": 1e-4}}  # which predicts one class
    outcome = collapsing(fixed=fixed, holdout=0)
    first, second = outcome.finalists
    assert "its training diverged" in first.failed
    assert second.learner == outcome.best_learner == outcome.model.learner == "logistic_regression"
    assert outcome.headline.of == "cross-validation"
    console = Console(width=500, file=io.StringIO())
    show_outcome(outcome, console)
    assert "given up, its training diverged" in console.file.getvalue()


@pytest.mark.parametrize("holdout", [0.0, 0.2])
def test_as_published_nothing_takes_the_place_of_the_searchs_answer(holdout):
    fixed = {"logistic_regression": {"C": 1e-4}}
    with pytest.raises(FederationError, match="could not be made: its training diverged"):
        collapsing(fixed=fixed, finalists=0, holdout=holdout)


def meaningless() -> pd.DataFrame:
    frame = wine()
    return frame.assign(target=np.random.default_rng(3).permutation(frame["target"]))


def test_where_no_column_says_anything_the_best_model_is_kept_and_said_to_be_of_no_use():
    frame = meaningless()
    with federation_of(parts(frame)) as federation:
        outcome = cotune.tune(federation, **TWO, holdout=0.3, progress=False)
    assert len(outcome.finalists) >= 3
    hows = {True: "not clearly better", False: "no better"}
    for found, said in (
        *((one.held_out, one.failed) for one in outcome.finalists),
        (outcome.held_out, outcome.headline.words),
    ):
        assert f"{hows[found.loss < found.blind]} than the class shares" in said
    assert outcome.held_out.loss == min(one.held_out.loss for one in outcome.finalists)
    assert outcome.headline.words.endswith(" than the class shares: not a model to use")
    assert outcome.model.predict(frame).shape == (len(frame),)
    console = Console(width=500, file=io.StringIO())
    show_outcome(outcome, console)
    assert "- no model is clearly better than the class shares" in console.file.getvalue()


def test_there_are_at_most_twice_the_trainings_that_were_announced():
    problem = problem_of(wine(), learners=("decision_tree", "logistic_regression"))
    trials = [
        *(trial("decision_tree", 0.1 * depth, max_depth=depth) for depth in range(1, 6)),
        *(trial("logistic_regression", 0.2 + C, C=C) for C in (2.0, 3.0)),
    ]
    asked = []

    def training(one, _):
        asked.append((one.learner, *one.params.values()))
        raise Diverged("it diverged")

    with federation_of(parts(wine())) as federation, pytest.raises(Diverged):
        finish(federation, problem, trials, trials[0], 3, training)
    tree, linear = (tuple(problem.default(name).values()) for name in problem.learners)
    assert asked == [
        ("decision_tree", 1),
        ("decision_tree", *tree),
        ("logistic_regression", 2.0),
        ("logistic_regression", *linear),
    ]


def test_what_is_trained_in_the_end_is_announced_with_the_number_of_trainings():
    def one(learner, default):
        return Finalist(learner, {}, 0.1, default)

    tree, linear = one("decision_tree", True), one("mlp", False)
    assert announced([tree, linear], 3, 2, True, False) == (
        "finalists: decision_tree (default settings); mlp; the default settings of the best one's "
        "learner: compared by 2-fold cross-validation, the best trained again on all rows, in up "
        "to 7 trainings, or 11 if others have to take the place of those that go wrong"
    )
    assert announced([tree, one("mlp", True)], 3, 0, False, False) == (
        "finalists: decision_tree (default settings); mlp (default settings): trained and compared "
        "on the rows set aside, in up to 2 trainings"
    )
    assert announced([linear], 1, 0, True, True) == (
        "mlp is trained and evaluated on the rows set aside, in 1 training, or 2 if another has "
        "to take its place; then a round and a fit at each party to compare the model "
        "with the parties' own"
    )


@pytest.mark.parametrize(("finalists", "least"), [(1, 2), (2, 2), (3, 4)])
def test_no_more_is_trained_than_was_announced(finalists, least, capsys):
    given = TWO | {"holdout": 0.3, "finalists": finalists, "progress": True}
    with federation_of(parts(meaningless())) as federation:
        outcome = cotune.tune(federation, **given)
    said = " ".join(capsys.readouterr().err.split())
    (most,) = re.findall(r"trainings?, or (\d+) if", said)
    assert least <= len(outcome.finalists) <= int(most)


def test_one_party_is_compared_with_nobody():
    with federation_of({"only": wine()}) as federation:
        outcome = cotune.tune(federation, **TWO, holdout=0.3, progress=False)
    assert outcome.differing is outcome.joined is None
    assert {"differ", "assess"}.isdisjoint(entry.task for entry in outcome.rounds)
    assert outcome.headline.of == "rows set aside"


def test_where_default_settings_are_given_up_the_next_best_of_the_search_is_trained():
    problem = problem_of(wine(), learners=("decision_tree",))
    default = problem.default("decision_tree")
    trials = [trial("decision_tree", 0.1, **default), trial("decision_tree", 0.2, max_depth=2)]
    asked = []

    def training(one, _):
        asked.append(one.params)
        raise Diverged("it diverged")

    with federation_of(parts(wine())) as federation, pytest.raises(Diverged):
        finish(federation, problem, trials, trials[0], 3, training)
    assert asked == [default, {"max_depth": 2}]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"finalists": 2, "holdout": 0.2, "train": False}, "let the model be trained"),
        ({"finalists": -1}, "0 for the search's answer"),
        ({"finalists": True}, "give how many configurations"),
        ({"finalists": 2, "method": "fedex"}, "fedex trains while it searches"),
        (
            {"finalists": 2, "holdout": 0.2, "noise": 5.0, "weights": "equal", "privacy": "masked"},
            "under noise",
        ),
    ],
)
def test_finalists_that_cannot_be_compared_are_refused_before_any_work(given, says):
    with federation_of(parts(iris())) as federation, pytest.raises(UsageError, match=says):
        cotune.tune(federation, **given)


def test_the_interval_of_the_best_of_several_covers_its_true_figure(finished):
    """Three models of one true figure: the luckiest is taken, and its interval still holds."""
    random = np.random.default_rng(0)
    rows, true, inside, runs = 400, 0.3, 0, 2000
    error = math.sqrt(true * (1 - true) / rows)
    for _ in range(runs):
        losses = random.normal(true, error, 3)
        found = HeldOut(float(losses.min()), rows, 3, error=error)
        of_three = [
            msgspec.structs.replace(
                finished.finalists[0], held_out=HeldOut(x, rows, 3, error=error)
            )
            for x in losses
        ]
        outcome = msgspec.structs.replace(finished, held_out=found, finalists=tuple(of_three))
        low, high = outcome.headline.interval
        inside += low <= 1 - true <= high
    assert 0.9 <= inside / runs <= 0.99


def came_to(outcome: Outcome) -> tuple:
    """All but the time that it took."""
    trials = [(one.learner, one.params, one.loss, one.reasons) for one in outcome.trials]
    return outcome.headline, trials, len(outcome.rounds), outcome.ended


#: By the second rate a perceptron's weights are out of bounds in the first round.
FAR_OUT = {"mlp": {"learning_rate_init": [1e-3, 1e30], "max_iter": (3, 5)}}


@pytest.mark.parametrize("judge", ["local", "federated"])
def test_a_run_in_which_a_training_came_to_no_round_resumes_to_the_same_outcome(tmp_path, judge):
    given = {"learners": ["mlp"], "trials": 4, "folds": 2, "space": FAR_OUT, "sampler": "random"}
    if judge == "local":
        given["space"] = {"mlp": {"learning_rate_init": [1e30], "max_iter": (3, 5)}}
        given["learners"] = ["mlp", "decision_tree"]
    given |= {"holdout": 0.3, "judge": judge, "progress": False}
    run = tmp_path / "whole"
    with federation_of(parts(wine())) as federation:
        whole = cotune.tune(federation, **given, run=run)
        failed = [one for one in whole.finalists if one.failed and not one.rounds]
        assert failed or any(trial.reasons for trial in whole.trials), "this proves nothing"
        (run / "outcome.json").unlink()
        again = cotune.resume(run, Federation(federation.engine), progress=False)
        assert again.finalists == whole.finalists
        assert came_to(again) == came_to(whole)
        for number in range(3, len(whole.rounds), max(1, len(whole.rounds) // 6)):
            folder = tmp_path / str(number)
            dying = Federation(Faulty(federation.engine, dies_at=number))
            with pytest.raises(Killed):
                cotune.tune(dying, **given, run=folder)
            resumed = cotune.resume(folder, Federation(federation.engine), progress=False)
            assert resumed.finalists == whole.finalists
            assert came_to(resumed) == came_to(whole)
