from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from cotune.data.schema import Schema
from cotune.party.task import Term
from cotune.privacy.fixed import WIDTHS, Digits
from cotune.problem import METRICS, Problem
from cotune.protocol.tally import Figure, Tally, added, figures, statistic, terms, vectors

CLASSIFIED = [name for name, metric in METRICS.items() if metric.task == "classification"]
MEASURED = [name for name, metric in METRICS.items() if metric.task == "regression"]


def stated(metric: str, y: np.ndarray, classes: int = 3) -> Problem:
    """A problem whose schema was agreed over these rows."""
    if metric in MEASURED:
        schema = Schema(
            "t", "regression", (), target_mean=y.mean(), target_scale=y.std() or 1.0, rows=len(y)
        )
    else:
        counted = tuple(np.bincount(y, minlength=classes).tolist())
        schema = Schema("t", "classification", (), ("a", "b", "c")[:classes], class_rows=counted)
    return Problem(schema, (), {}, metric, compare_by="federation")


def made(metric: str, rows: int, seed: int, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Targets and what the metric looks at, somewhat right."""
    rng = np.random.default_rng(seed)
    if metric in MEASURED:
        y = rng.normal(50.0, 9.0, rows)
        return y, y + rng.normal(0.0, rng.uniform(0.5, 12.0), rows)
    y = rng.choice(classes, rows, p=[0.6, 0.4] if classes == 2 else [0.6, 0.3, 0.1])
    scores = np.exp(rng.normal(0.0, 1.0, (rows, classes)) + 1.5 * np.eye(classes)[y])
    scores /= scores.sum(axis=1, keepdims=True)
    return (y, scores) if metric in ("roc_auc", "log_loss") else (y, scores.argmax(axis=1))


def pooled(metric: str, y: np.ndarray, predicted: np.ndarray) -> float:
    """scikit-learn's loss over all rows."""
    match metric:
        case "balanced_accuracy":
            return 1.0 - metrics.balanced_accuracy_score(y, predicted)
        case "accuracy":
            return 1.0 - metrics.accuracy_score(y, predicted)
        case "f1":
            return 1.0 - metrics.f1_score(y, predicted, average="macro", zero_division=0.0)
        case "log_loss":
            return metrics.log_loss(y, predicted, labels=range(predicted.shape[1]))
        case "roc_auc":
            if predicted.shape[1] == 2:
                return 1.0 - metrics.roc_auc_score(y, predicted[:, 1])
            return 1.0 - metrics.roc_auc_score(y, predicted, multi_class="ovr")
        case "rmse":
            return metrics.root_mean_squared_error(y, predicted)
        case "mae":
            return metrics.mean_absolute_error(y, predicted)
    return 1.0 - metrics.r2_score(y, predicted)


def summed(problem: Problem, tallies: list[Tally]) -> Figure:
    """The figure of parties, added up as they are sent."""
    told = [vectors(problem, [tally]) for tally in tallies]
    totals = {}
    for name, term in terms(problem, 1).items():
        rounded = [term.rounded(np.array(one[name], dtype=float), name) for one in told]
        totals[name] = np.sum(rounded, axis=0)
    (figure,) = figures(problem, totals)
    return figure


def dealt(rows: int, parties: int, seed: int) -> list[np.ndarray]:
    """Positions of each party's rows: any partition, parties without a row left out."""
    owner = np.random.default_rng(seed).integers(0, parties, rows)
    return [np.flatnonzero(owner == i) for i in range(parties) if (owner == i).any()]


@pytest.mark.parametrize("metric", [name for name in METRICS if name != "roc_auc"])
@settings(max_examples=30)
@given(
    rows=st.integers(30, 200), parties=st.integers(1, 12), seed=st.integers(0, 2**16),
    classes=st.sampled_from([2, 3]),
)  # fmt: skip
def test_any_parties_tallies_give_the_pooled_figure(metric, rows, parties, seed, classes):
    y, predicted = made(metric, rows, seed, classes)
    problem = stated(metric, y, classes)
    judge = statistic(problem)
    tallies = [judge.tally(y[own], predicted[own]) for own in dealt(rows, parties, seed)]
    figure = summed(problem, tallies)
    assert figure.loss == pytest.approx(pooled(metric, y, predicted), abs=1e-9, rel=1e-9)
    assert (figure.rows, figure.left_out) == (rows, 0)
    whole = summed(problem, [judge.tally(y, predicted)])
    assert figure.error == pytest.approx(whole.error, abs=1e-7, rel=1e-6)


def shrunk(scores: np.ndarray, y: np.ndarray, by: float) -> np.ndarray:
    """Ranked alike, but nearer to (below 1) or farther from the shares of the classes."""
    powers = scores**by * np.bincount(y, minlength=scores.shape[1])
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("by", [0.01, 0.1, 1.0, 4.0])
def test_the_area_under_a_roc_curve_is_within_two_thousandths(classes, by):
    """Of models that hardly learnt anything, and of some that are all but sure."""
    for seed in range(20):
        y, scores = made("roc_auc", 500 + 50 * seed, seed, classes)
        scores = shrunk(scores, y, by)
        problem = stated("roc_auc", y, classes)
        judge = statistic(problem)
        figure = summed(problem, [judge.tally(y[o], scores[o]) for o in dealt(len(y), 5, seed)])
        assert figure.loss == pytest.approx(pooled("roc_auc", y, scores), abs=0.002)
        assert 0.0 < figure.error < 0.05


def test_scores_that_are_equal_are_ties():
    y = np.array([0, 0, 0, 1, 1, 1] * 20)
    scores = np.array([0.1, 0.1, 0.9, 0.1, 0.9, 0.9] * 20)
    problem = stated("roc_auc", y, 2)
    both = np.column_stack([1.0 - scores, scores])
    figure = summed(problem, [statistic(problem).tally(y, both)])
    assert figure.loss == pytest.approx(pooled("roc_auc", y, both), abs=1e-12)


@pytest.mark.parametrize("smallest", [2, 5, 20])
def test_withheld_cells_widen_the_error_to_hold_the_area(smallest):
    for seed in range(10):
        y, scores = made("roc_auc", 600, seed, 2)
        problem = stated("roc_auc", y, 2)
        judge = statistic(problem)
        whole = [judge.tally(y[own], scores[own]) for own in dealt(600, 5, seed)]
        sent = [judge.disclosed(tally, smallest) for tally in whole]
        for tally, before in zip(sent, whole, strict=True):
            assert all(count >= smallest for count in tally.counts.values())
            assert sum(tally.counts.values()) == sum(before.counts.values())
        coarse, exact = summed(problem, sent), pooled("roc_auc", y, scores)
        fine = summed(problem, whole)
        assert abs(coarse.loss - exact) <= coarse.error
        assert coarse.error > fine.error


@pytest.mark.parametrize("metric", METRICS)
def test_rows_without_predictions_are_never_better(metric):
    y, predicted = made(metric, 90, 0)
    problem, mine = stated(metric, y), np.arange(90) < 30
    judge = statistic(problem)
    others = judge.tally(y[~mine], predicted[~mine])
    fine = summed(problem, [judge.tally(y[mine], predicted[mine]), others])
    failed = summed(problem, [judge.worst(y[mine]), others])
    assert failed.loss > fine.loss
    assert failed.rows == fine.rows == 90
    assert summed(problem, [judge.worst(y)]).loss > 0.99


@pytest.mark.parametrize("metric", CLASSIFIED)
def test_rows_of_a_class_that_is_not_kept_are_left_out_and_counted(metric):
    y, predicted = made(metric, 200, 3)
    problem, kept = stated(metric, y), np.array([True, True, False])
    judge, rows = statistic(problem), y != 2
    figure = summed(problem, [judge.tally(y, predicted, kept)])
    without = summed(problem, [judge.tally(y[rows], predicted[rows])])
    assert (figure.loss, figure.error) == (without.loss, without.error)
    assert (figure.rows, figure.left_out) == (int(rows.sum()), int((~rows).sum()))


@pytest.mark.parametrize("metric", METRICS)
def test_no_row_at_all_is_the_worst_or_undefined(metric):
    y, predicted = made(metric, 50, 0)
    problem = stated(metric, y)
    figure = summed(problem, [statistic(problem).tally(y[:0], predicted[:0])])
    assert figure.rows == 0
    assert figure.loss >= 0.5


@pytest.mark.parametrize("width", WIDTHS.values())
@pytest.mark.parametrize("metric", METRICS)
def test_totals_are_exact_even_of_predictions_beyond_all_measure(metric, width):
    """Private sums add up digits; the plain ones must come to the same floating-point numbers."""
    y, predicted = made(metric, 5000, 1)
    problem = stated(metric, y)
    judge = statistic(problem)
    tallies = [judge.tally(y[own], predicted[own]) for own in dealt(4000, 4, 1)]
    tallies.append(judge.worst(y[4000:]))
    needed = terms(problem, 1)
    digits, plain, total = Digits(needed, 1.0, width), {}, 0
    for tally in tallies:
        told = vectors(problem, [tally])
        rounded = {
            name: term.rounded(np.array(told[name], dtype=float), name)
            for name, term in needed.items()
        }
        plain = {name: plain.get(name, 0.0) + values for name, values in rounded.items()}
        total = total + digits.integers(rounded)
    opened = digits.vectors(total)
    assert all((opened[name] == plain[name]).all() for name in needed)
    assert figures(problem, opened) == figures(problem, plain)


@pytest.mark.parametrize("metric", ["rmse", "mae"])
@pytest.mark.parametrize("scale", [1e-160, 1e150])
def test_figures_are_in_the_unit_of_the_target(metric, scale):
    y, predicted = made(metric, 100, 0)
    usual = summed(problem := stated(metric, y), [statistic(problem).tally(y, predicted)])
    y, predicted = y * scale, predicted * scale
    figure = summed(problem := stated(metric, y), [statistic(problem).tally(y, predicted)])
    assert figure.loss / scale == pytest.approx(usual.loss, rel=1e-6)
    assert figure.error / scale == pytest.approx(usual.error, rel=1e-6)


@pytest.mark.parametrize("right", [True, False])
def test_r2_of_a_constant_is_scikit_learns(right):
    y = np.full(20, 3.0)
    predicted = y + (0.0 if right else 0.5)
    problem = stated("r2", y)
    figure = summed(problem, [statistic(problem).tally(y, predicted)])
    assert figure.loss == pooled("r2", y, predicted)


@pytest.mark.parametrize("metric", METRICS)
def test_the_standard_error_covers_what_more_rows_would_show(metric):
    """Nine tenths of the intervals of 1.645 errors hold the figure of very many rows."""
    many, rows, tries = 60_000, 300, 600
    y, predicted = made_alike(metric, many)
    problem = stated(metric, y)
    judge, truth = statistic(problem), pooled(metric, y, predicted)
    rng, inside = np.random.default_rng(0), 0
    for _ in range(tries):
        own = rng.integers(0, many, rows)
        figure = summed(problem, [judge.tally(y[own], predicted[own])])
        inside += abs(figure.loss - truth) <= 1.645 * figure.error
    assert 0.86 < inside / tries < 0.98


def made_alike(metric: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    if metric not in MEASURED:
        return made(metric, rows, 11)
    rng = np.random.default_rng(11)
    y = rng.normal(50.0, 9.0, rows)
    return y, y + rng.normal(0.0, 5.0, rows)


def test_tallies_of_folds_are_that_of_all_rows():
    y, predicted = made("f1", 120, 4)
    judge = statistic(stated("f1", y))
    folds = [judge.tally(y[i::4], predicted[i::4]) for i in range(4)]
    assert added(folds) == judge.tally(y, predicted)


def test_counts_fit_into_one_digit_of_a_ciphertext():
    y, _ = made("roc_auc", 90, 0)
    problem = stated("roc_auc", y)
    needed = {"counts": terms(problem, 1)["counts"]}
    assert isinstance(needed["counts"], Term)
    assert Digits(needed, 1.0, WIDTHS["encrypted"]).slots == needed["counts"].length
