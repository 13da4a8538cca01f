"""What every learner keeps to, so that any method can tune it at any party."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from cotune.data.encode import encode, encode_target
from cotune.data.schema import Column, Schema, TaskKind
from cotune.errors import UsageError
from cotune.learners.contract import Learner
from cotune.space import Space
from cotune.testing.tables import make_tables


def it_names_itself_and_its_rows(learner: Learner) -> None:
    assert learner.name.isidentifier(), "the name is used in --learner and in file names"
    assert learner.features in ("codes", "dense", "tensor")
    assert set(learner.tasks) <= {"classification", "regression"}
    assert learner.tasks


def its_spaces_survive_json(learner: Learner) -> None:
    for task in learner.tasks:
        for which in ("paper", "default"):
            space = learner.space(task, which)
            assert Space.from_json(space.to_json()) == space


def it_fits_its_defaults_and_samples_of_its_spaces(learner: Learner) -> None:
    for schema, X, y in _rows(learner):
        for params in _configurations(learner, schema.task):
            predicted = _fitted(learner, params, schema, X, y).predict(X)
            assert predicted.shape == (len(X),)
            assert np.all(np.isfinite(predicted))


def classes_come_with_scores(learner: Learner) -> None:
    for schema, X, y in _rows(learner):
        if schema.task == "classification":
            model = _fitted(learner, learner.defaults(schema.task), schema, X, y)
            assert len(_scores(model, schema.task, X)) == len(X)


def the_most_probable_class_is_predicted(learner: Learner) -> None:
    """Where the learner promises it."""
    for schema, X, y in _rows(learner):
        if learner.most_probable and schema.task == "classification":
            for params in _configurations(learner, schema.task):
                model = _fitted(learner, params, schema, X, y)
                if hasattr(model, "predict_proba"):
                    likely = model.predict_proba(X).argmax(axis=1)
                    assert np.array_equal(model.predict(X), likely), "most_probable must be False"


def same_seed_same_predictions(learner: Learner) -> None:
    for schema, X, y in _rows(learner):
        params = learner.defaults(schema.task)
        first = _fitted(learner, params, schema, X, y).predict(X)
        assert np.array_equal(first, _fitted(learner, params, schema, X, y).predict(X))


def missing_values_are_no_obstacle(learner: Learner) -> None:
    if learner.features == "codes":
        for schema, X, y in _rows(learner):
            model = _fitted(learner, learner.defaults(schema.task), schema, X, y)
            assert np.all(np.isfinite(model.predict(np.full_like(X, np.nan))))


def unknown_parameters_are_refused(learner: Learner) -> None:
    for schema, _, _ in _rows(learner):
        said = ""
        try:
            learner.estimator({"no_such_thing": 1}, task=schema.task, seed=0, schema=schema)
        except UsageError as error:
            said = str(error)
        assert "no_such_thing" in said, "an unknown parameter must be a UsageError that names it"


def a_fit_shows_what_fewer_iterations_would_give(learner: Learner) -> None:
    """Held to on samples of the wide space too, where rows and columns are drawn at random."""
    if learner.iterations is None:
        return
    for schema, X, y in _rows(learner):
        told = 0
        for params in _configurations(learner, schema.task):
            many, few = ({**params, learner.iterations: count} for count in (9, 4))
            model = _fitted(learner, many, schema, X, y)
            before = _scores(model, schema.task, X)
            view = learner.truncated(model, 4)
            if view is not None:
                told += 1
                expected = _scores(_fitted(learner, few, schema, X, y), schema.task, X)
                shown = _scores(view, schema.task, X)
                assert np.allclose(shown, expected, rtol=0.0, atol=1e-6)
            after = _scores(model, schema.task, X)
            assert np.array_equal(after, before), "the fitted model must stay as it is"
        assert told, "a learner with iterations must show what fewer of them would give"


def it_travels_to_workers(learner: Learner) -> None:
    from loky import get_reusable_executor

    assert get_reusable_executor(max_workers=1).submit(_name, learner).result() == learner.name


LEARNER_CHECKS: tuple[Callable[[Learner], None], ...] = (
    it_names_itself_and_its_rows,
    its_spaces_survive_json,
    it_fits_its_defaults_and_samples_of_its_spaces,
    classes_come_with_scores,
    the_most_probable_class_is_predicted,
    same_seed_same_predictions,
    missing_values_are_no_obstacle,
    unknown_parameters_are_refused,
    a_fit_shows_what_fewer_iterations_would_give,
    it_travels_to_workers,
)


def check_learner(learner: Learner) -> None:
    """Run all checks for the learner."""
    for check in LEARNER_CHECKS:
        check(learner)


def _name(learner: Learner) -> str:
    return learner.name


def _scores(model: Any, task: TaskKind, X: np.ndarray) -> np.ndarray:
    """The predicted values, or the scores behind the predicted classes."""
    read = model.predict
    if task == "classification":
        read = getattr(model, "predict_proba", None) or model.decision_function
    scores: np.ndarray = read(X)
    return scores


def _configurations(learner: Learner, task: TaskKind) -> Iterator[dict[str, Any]]:
    yield learner.defaults(task)
    rng = np.random.default_rng(0)
    for which in ("paper", "default"):
        yield learner.space(task, which).sample(rng)


def _rows(learner: Learner) -> Iterator[tuple[Schema, np.ndarray, np.ndarray]]:
    """Rows of one party, in the form that the learner wants, for each of its tasks."""
    for task in learner.tasks:
        if learner.shape is not None:
            yield _arrays(learner, task)
            continue
        table = make_tables(parties=1, rows=80, task=task)["party-1"]
        schema = Schema(
            target="target",
            task=task,
            columns=(
                Column("height", "numeric", mean=170.0, scale=10.0),
                Column("weight", "numeric", scale=1e-3),
                Column("colour", "categorical", ("blue", "green", "red")),
            ),
            classes=("a", "b", "c") if task == "classification" else (),
        )
        X, y = encode(table, schema, learner.features), encode_target(table, schema)
        yield schema, X, y if task == "classification" else (y - 50) / 20


def _arrays(learner: Learner, task: TaskKind) -> tuple[Schema, np.ndarray, np.ndarray]:
    """Images, or characters, of the shape that the learner names."""
    assert learner.shape is not None
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 40)
    codes = 97 if len(learner.shape) == 1 else 0
    column = Column("cells", "array", shape=learner.shape, codes=codes)
    shape = (len(y), *learner.shape)
    shift = y.reshape(-1, *[1] * len(learner.shape))
    X = (rng.integers(0, 30, shape) + 30 * shift).astype(np.int8)
    schema = Schema("target", task, (column,), ("a", "b", "c"))
    return schema, X if codes else (X / 30).astype(np.float32), y


def _fitted(
    learner: Learner, params: dict[str, Any], schema: Schema, X: np.ndarray, y: np.ndarray
) -> Any:
    model = learner.estimator(params, task=schema.task, seed=0, schema=schema)
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        model.fit(X, y)
    return model
