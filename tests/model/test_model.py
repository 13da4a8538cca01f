from __future__ import annotations

import hashlib
import json
import os
import time

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.neural_network import MLPClassifier

import cotune
from cotune.data.encode import encode, encode_target
from cotune.errors import DataError, Malformed, UsageError
from cotune.files import sealed
from cotune.model.model import Model
from cotune.model.skops import dumped
from cotune.party.task import Configuration
from tests.parts import diabetes, iris, letters, people, pictures, problem_of, schema_of

ABOUT = {"method": "dash", "parties": 3, "rounds": 7, "bytes": 12345}
PEOPLE = people(80, cities="abcd", labels="xyz")


def model_of(frame, estimator, features="codes", **schema) -> Model:
    """A model fitted on all rows of the frame; XGBoost's where the estimator is None."""
    agreed = msgspec.structs.replace(schema_of(frame), **schema)
    X, y = encode(frame, agreed, features), encode_target(frame, agreed)
    fitted = booster(X, y, agreed) if estimator is None else estimator.fit(X, y)
    params = {"depth": 3, "rate": 0.1, "kind": "a", "limit": None, "flag": True}
    return Model("own", params, agreed, "standard", features, "accuracy", fitted, ABOUT)


def booster(X, y, schema):
    import xgboost

    kinds = ["c" if column.kind == "categorical" else "q" for column in schema.columns]
    rows = xgboost.DMatrix(X, y, feature_types=kinds, enable_categorical=True)
    classes = len(schema.classes)
    objective = {0: "reg:squarederror", 2: "binary:logistic"}.get(classes, "multi:softprob")
    params = {"objective": objective, "max_depth": 3, "nthread": 1}
    return xgboost.train(params | ({"num_class": classes} if classes > 2 else {}), rows, 5)


def forest() -> RandomForestClassifier:
    return RandomForestClassifier(5, max_depth=4, random_state=0)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Models of all kinds, each beside itself after it was saved and loaded."""
    made = {
        "forest": model_of(PEOPLE, forest()),
        "linear": model_of(PEOPLE, LogisticRegression(), "dense"),
        "decisions": model_of(PEOPLE, RidgeClassifier(), "dense"),
        "boosted": model_of(PEOPLE, None),
    }
    folder = tmp_path_factory.mktemp("models")
    for name, model in made.items():
        model.save(folder / name)
    return {name: (model, Model.load(folder / name)) for name, model in made.items()}


cells = {
    "age": st.one_of(st.none(), st.floats(-1e6, 1e6)),
    "rare": st.one_of(st.none(), st.integers(-5, 5)),
    "city": st.sampled_from(["a", "b", "c", "d", "e", "Z", None]),
    "extra": st.text(max_size=3),
}
frames = st.lists(st.fixed_dictionaries(cells), max_size=8).map(
    lambda rows: pd.DataFrame(rows, columns=list(cells))
)


@settings(deadline=None, max_examples=25)
@given(frame=frames, order=st.permutations(list(cells)))
def test_a_loaded_model_predicts_the_same_whatever_the_rows(pairs, frame, order):
    for model, again in pairs.values():
        expected = model.predict_proba(frame)
        np.testing.assert_array_equal(model.predict(frame), again.predict(frame[order]))
        np.testing.assert_array_equal(expected, again.predict_proba(frame[order]))
        assert expected.columns.tolist() == ["x", "y", "z"]
        np.testing.assert_allclose(expected.sum(axis=1), 1.0, rtol=1e-5)


@settings(deadline=None, max_examples=20)
@given(frame=frames)
def test_an_unknown_category_is_a_missing_one(pairs, frame):
    known = frame.assign(city=frame["city"].where(~frame["city"].isin(["e", "Z"]), None))
    for model, _ in pairs.values():
        pd.testing.assert_frame_equal(model.predict_proba(frame), model.predict_proba(known))


def test_what_is_loaded_is_what_was_saved(pairs):
    for model, again in pairs.values():
        for name in ("learner", "params", "schema", "scaling", "features", "metric"):
            assert getattr(again, name) == getattr(model, name)
        assert again.about.items() >= ABOUT.items()
        assert "cotune" in again.about["versions"]


def test_a_model_travels_as_one_message(pairs):
    for model, _ in pairs.values():
        again = Model.unpacked(model.packed())
        np.testing.assert_array_equal(again.predict(PEOPLE), model.predict(PEOPLE))
    for message in (b"", b"\xc1", model.packed()[:-9]):
        with pytest.raises(Malformed):
            Model.unpacked(message)


def test_plain_xgboost_reads_a_saved_booster(tmp_path):
    import xgboost

    model = model_of(PEOPLE, None)
    model.save(tmp_path / "deep" / "model")
    assert sorted(os.listdir(tmp_path / "deep" / "model")) == ["booster.json", "model.json"]
    plain = xgboost.Booster(model_file=tmp_path / "deep" / "model" / "booster.json")
    X = model.encoded(PEOPLE)
    rows = xgboost.DMatrix(X, feature_types=plain.feature_types, enable_categorical=True)
    np.testing.assert_allclose(plain.predict(rows), model.predict_proba(PEOPLE), rtol=1e-6)


@pytest.mark.parametrize("estimator", [None, Ridge()], ids=["booster", "ridge"])
def test_a_regression_predicts_numbers_and_has_no_probabilities(estimator, tmp_path):
    model = model_of(diabetes(), estimator)
    model.save(tmp_path)
    predicted = Model.load(tmp_path).predict(diabetes())
    assert np.corrcoef(predicted, diabetes()["target"])[0, 1] > 0.5
    assert model.predict(diabetes()[:0]).shape == (0,)
    with pytest.raises(UsageError, match="use predict"):
        model.predict_proba(diabetes())


def test_two_classes_of_a_booster_are_two_columns():
    frame = people(60)
    shares = model_of(frame, None).predict_proba(frame)
    assert list(shares) == ["x", "y"]
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert set(model_of(frame, None).predict(frame)) <= {"x", "y"}


@pytest.mark.parametrize(
    ("classes", "numbers", "kind", "first"),
    [
        (("1", "2", "10"), True, "i", 1),
        (("0.5", "1", "2"), True, "f", 0.5),
        (("1", "2", "10"), False, "O", "1"),
    ],
)
def test_classes_come_back_as_the_tables_had_them(classes, numbers, kind, first):
    frame = iris().replace({"target": {0: classes[0], 1: classes[1], 2: classes[2]}})
    model = model_of(frame, forest(), classes=classes, number_classes=numbers)
    predicted = model.predict(frame)
    assert predicted.dtype.kind == kind
    assert first in predicted.tolist()
    assert model.predict_proba(frame).columns.tolist() == model.labels.tolist()


def test_a_frame_keeps_its_index_and_may_be_empty():
    model = model_of(PEOPLE, forest())
    frame = PEOPLE[5:9].set_index(pd.Index(list("abcd")))
    assert model.predict_proba(frame).index.tolist() == list("abcd")
    empty = model.predict_proba(PEOPLE[:0])
    assert (empty.shape, list(empty)) == ((0, 3), ["x", "y", "z"])
    assert model.predict(PEOPLE[:0]).shape == (0,)


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (PEOPLE.drop(columns=["age", "city"]), "lacks columns of the model: 'age', 'city'"),
        (PEOPLE.assign(age="old"), "'age' must hold numbers, not 'old'"),
        (PEOPLE.assign(age=pd.Timestamp(0)), "'age' must hold numbers"),
        (PEOPLE.assign(rare=np.inf), "'rare' has an infinite value"),
        (pd.concat([PEOPLE, PEOPLE["age"]], axis=1), "several columns of the same name: 'age'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_the_column(frame, sentence):
    with pytest.raises(DataError, match=sentence):
        model_of(PEOPLE, forest()).predict(frame)


def test_rows_that_are_no_table_are_refused():
    with pytest.raises(UsageError, match="DataFrame"):
        model_of(PEOPLE, forest()).predict([[1, 2, 3]])


def test_numbers_may_be_written_as_text_with_marks_for_gaps():
    model = model_of(PEOPLE, forest())
    text = PEOPLE["age"].map(str).replace("nan", "?")
    np.testing.assert_array_equal(model.predict(PEOPLE.assign(age=text)), model.predict(PEOPLE))


def test_a_model_of_another_kind_in_the_folder_is_replaced(tmp_path):
    model_of(PEOPLE, None).save(tmp_path)
    linear = model_of(PEOPLE, LogisticRegression(), "dense")
    linear.save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["estimator.skops", "model.json"]
    np.testing.assert_array_equal(Model.load(tmp_path).predict(PEOPLE), linear.predict(PEOPLE))


@pytest.mark.parametrize(
    "learner",
    ["logistic_regression", "decision_tree", "random_forest", "svm", "mlp", "xgboost", "torch_mlp"],
)
def test_equal_runs_leave_equal_files(tmp_path, monkeypatch, learner):
    """At another time of day too, and when they are read and saved again."""
    if learner == "torch_mlp":
        pytest.importorskip("torch")
    for name, clock in (("one", 1e9), ("two", 1.5e9)):
        with cotune.simulate(iris(), parties=2, processes=1) as federation:
            cotune.tune(federation, "defaults", learners=[learner], folds=2, run=tmp_path / name)
        with monkeypatch.context() as later:
            later.setattr(time, "time", lambda clock=clock: clock)
            Model.load(tmp_path / name).save(tmp_path / f"{name} again")
    folders = [tmp_path / name for name in ("one/model", "two/model", "one again", "two again")]
    first, *others = [{f.name: f.read_bytes() for f in folder.iterdir()} for folder in folders]
    assert len(first) == 2
    assert others == [first] * 3


def test_a_model_is_found_in_the_folder_of_its_run(tmp_path):
    model_of(PEOPLE, forest()).save(tmp_path / "model")
    assert Model.load(tmp_path).learner == "own"


def test_a_save_that_is_cut_short_is_told(tmp_path, monkeypatch):
    model = model_of(PEOPLE, forest())
    model.save(tmp_path)
    replaced = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: replaced(a, b) if "skops" in str(b) else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model_of(PEOPLE, LogisticRegression(), "dense").save(tmp_path)
    with pytest.raises(UsageError, match="changed, or not wholly copied"):
        Model.load(tmp_path)


@pytest.mark.parametrize("name", ["estimator.skops", "booster.json"])
def test_a_payload_that_was_changed_is_refused(tmp_path, name):
    model_of(PEOPLE, forest() if name == "estimator.skops" else None).save(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=f"{name} is not what model.json says"):
        Model.load(tmp_path)


def forged(folder, content: bytes | None = None, **changed) -> None:
    """The saved model with another payload, digests and all."""
    manifest = json.loads((folder / "model.json").read_text())
    del manifest["digest"]
    if content is not None:
        (folder / manifest["payload"]).write_bytes(content)
        manifest["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "model.json").write_bytes(sealed(manifest | changed))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_payload_of_types_that_are_not_trusted_is_refused_by_name(tmp_path):
    model_of(PEOPLE, forest()).save(tmp_path)
    network = MLPClassifier((2,), max_iter=1).fit(np.eye(3), [0, 1, 2])
    forged(tmp_path, dumped(network))
    with pytest.raises(UsageError, match=r"refused, it holds types .*AdamOptimizer"):
        Model.load(tmp_path)


def test_a_payload_that_is_no_estimator_is_refused(tmp_path):
    for name, estimator in (("skops", forest()), ("booster", None)):
        model_of(PEOPLE, estimator).save(tmp_path / name)
        forged(tmp_path / name, b"{}")
        with pytest.raises(UsageError, match="cannot be read"):
            Model.load(tmp_path / name)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"format": 1}, "format 1, and this version of cotune reads 3"),
        ({"payload": "../secret"}, "is not that of a model"),
        ({"schema": 3}, "is not that of a model"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(tmp_path, changed, sentence):
    model_of(PEOPLE, forest()).save(tmp_path)
    forged(tmp_path, **changed)
    with pytest.raises(UsageError, match=sentence):
        Model.load(tmp_path)


def test_a_folder_without_a_model_is_told(tmp_path):
    with pytest.raises(UsageError, match=r"there is no model in .*model\.json is missing"):
        Model.load(tmp_path)
    model_of(PEOPLE, forest()).save(tmp_path)
    (tmp_path / "estimator.skops").unlink()
    with pytest.raises(UsageError, match=r"estimator\.skops is missing"):
        Model.load(tmp_path)


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        model_of(PEOPLE, forest()).save(tmp_path / "file")


def test_other_versions_of_the_libraries_are_told(tmp_path):
    model_of(PEOPLE, forest()).save(tmp_path)
    forged(tmp_path, about={"versions": {"scikit-learn": "1.2.3"}})
    with pytest.warns(UserWarning, match=r"scikit-learn 1\.2\.3, here"):
        Model.load(tmp_path)


def test_a_description_says_what_is_in_the_file():
    text = model_of(PEOPLE, forest()).describe()
    for part in (
        "own (RandomForestClassifier)", "depth 3", "target: classification", "x, y, z",
        "age, rare", "city", "parties 3", "scikit-learn", "estimator.skops",
    ):  # fmt: skip
        assert part in text
    assert repr(model_of(PEOPLE, forest())) == "<Model of 'target': own>"


def test_a_model_takes_from_the_problem_what_it_needs():
    problem = problem_of(iris(), learners=("logistic_regression",), scaling="none")
    configuration = Configuration("logistic_regression", {"C": 1.0})
    model = Model.of(problem, configuration, LogisticRegression(), ABOUT)
    assert (model.features, model.scaling, model.metric) == ("dense", "none", "balanced_accuracy")
    assert (model.params, model.schema) == ({"C": 1.0}, problem.schema)


@pytest.mark.parametrize(
    ("name", "value"), [("split_indices", 1000), ("left_children", 10**6), ("right_children", 0)]
)
def test_a_booster_that_points_nowhere_is_refused(name, value):
    model = model_of(PEOPLE, None)
    packed = msgspec.msgpack.decode(model.packed())
    written = json.loads(packed["payload"])
    written["learner"]["gradient_booster"]["model"]["trees"][0][name][0] = value
    packed["payload"] = json.dumps(written).encode()
    packed["manifest"]["sha256"] = hashlib.sha256(packed["payload"]).hexdigest()
    with pytest.raises(Malformed):
        Model.unpacked(msgspec.msgpack.encode(packed))


def test_a_table_with_a_repeated_index_keeps_its_rows():
    model = model_of(PEOPLE, forest())
    frame = PEOPLE.head(3).set_axis([0, 0, 1])
    assert model.table(frame).index.tolist() == [0, 0, 1]


def test_a_booster_takes_numbers_beyond_single_precision():
    model = model_of(PEOPLE, None)
    far = PEOPLE.head(2).assign(age=[1e300, -1e300])
    assert len(model.predict(far)) == 2


class Flat(LogisticRegression):
    """Takes tensors, row by row."""

    def fit(self, X, y):
        return super().fit(X.reshape(len(X), -1), y)

    def decision_function(self, X):
        return super().decision_function(X.reshape(len(X), -1))

    def predict_proba(self, X):
        return super().predict_proba(X.reshape(len(X), -1))


@pytest.mark.parametrize(
    ("make", "line"), [(pictures, "image of 4 x 4 numbers"), (letters, "text of 10 characters")]
)
def test_a_model_of_arrays_predicts_and_says_what_it_takes(make, line):
    model = model_of(make(), Flat(max_iter=200), "tensor")
    assert (model.predict(make()) == make()["target"]).mean() > 0.6
    assert model.table(make().iloc[3:5]).index.tolist() == [3, 4]
    assert len(model.predict(make().iloc[:0])) == 0
    assert line in model.describe()


def test_arrays_of_another_shape_are_refused():
    model = model_of(pictures(), Flat(max_iter=200), "tensor")
    with pytest.raises(DataError, match="must hold arrays of 4 x 4 numbers, not of 5 x 5 numbers"):
        model.predict(pictures(side=5))
