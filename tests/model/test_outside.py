"""Models from outside: each predicts or is refused with a sentence; none reaches foreign memory."""

from __future__ import annotations

import io
import json
import random
import re
import struct
import sys
import tracemalloc
import zipfile
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

import cotune
from cotune.data.encode import encode, encode_target
from cotune.errors import Malformed, UsageError
from cotune.files import DIGEST, sealed
from cotune.model.model import Model
from cotune.model.predictors import AllClasses
from cotune.model.skops import OF_MODELS, Untrusted, dumped, loaded, read_array
from cotune.party.task import Configuration
from cotune.party.train.assess import Assess
from cotune.party.train.ensemble import FitOwn, OwnModel
from cotune.protocol.wire import Refusal
from cotune.training.ensemble import _classifier
from tests.model.test_model import PEOPLE, booster, forest, model_of
from tests.outside import fates, forged, mutated, payload_of
from tests.parts import ask, iris, party_of, people, problem_of, schema_of
from tests.soak import times

ABOUT = {"method": "dash"}


def averaged() -> Model:
    """What the averaging of the parties' models makes."""
    linear = model_of(PEOPLE, LogisticRegression(), "dense")
    trees = model_of(PEOPLE, DecisionTreeClassifier(max_depth=3), "dense")
    each = [AllClasses(one.estimator, np.arange(3), 3) for one in (linear, trees)]
    return replace(linear, estimator=_classifier(each, [1.0, 2.0]))


@pytest.fixture(scope="module")
def boosted() -> bytes:
    return model_of(PEOPLE, None).packed()


@pytest.fixture(scope="module")
def models(boosted) -> list[bytes]:
    """Honest ones of every kind that is saved."""
    torch = pytest.importorskip("torch")
    del torch
    from cotune.learners import learner

    network = learner("torch_mlp")
    schema = schema_of(PEOPLE)
    params = {"hidden": 4, "layers": 2}
    net = Model(
        "torch_mlp", params, schema, "standard", "tensor", "accuracy",
        network.network(params, schema, 0), ABOUT,
    )  # fmt: skip
    numbers = (
        people(60).drop(columns="target").assign(target=lambda frame: frame["age"].fillna(0.0))
    )
    machine = Pipeline([("f", RBFSampler(n_components=8, random_state=0)), ("m", LinearSVC())])
    return [
        boosted,
        boosted,
        model_of(people(80), None).packed(),
        model_of(numbers, None).packed(),
        model_of(PEOPLE, forest()).packed(),
        model_of(PEOPLE, DecisionTreeClassifier(max_depth=4)).packed(),
        model_of(PEOPLE, LogisticRegression(), "dense").packed(),
        model_of(PEOPLE, machine, "dense").packed(),
        model_of(PEOPLE, GaussianNB(), "dense").packed(),
        averaged().packed(),
        net.packed(),
    ]


def test_honest_models_predict(models):
    assert fates(models, PEOPLE) == ["predicted"] * len(models)


def learner_of(model: dict) -> dict:
    return model["learner"]


def trees_of(model: dict) -> dict:
    return model["learner"]["gradient_booster"]["model"]


def first(model: dict) -> dict:
    """A tree that divides by a number, by another and by a category."""
    return next(t for t in trees_of(model)["trees"] if t["categories"] and len(t["parents"]) > 4)


def dart(model: dict) -> None:
    whole = model["learner"]["gradient_booster"]
    hidden = json.loads(json.dumps(whole["model"]))
    hidden["trees"][0]["left_children"][0] = 10**8
    model["learner"]["gradient_booster"] = {
        "name": "dart", "model": whole["model"], "gbtree": {"model": hidden, "name": "gbtree"},
        "weight_drop": [1.0] * len(hidden["trees"]),
    }  # fmt: skip


def circle(model: dict) -> None:
    tree = first(model)
    inner = next(i for i, child in enumerate(tree["left_children"]) if i and child > 0)
    tree["left_children"][inner] = 0


def chain(model: dict) -> None:
    """A tree so deep that measuring it by recursion runs out of stack."""
    tree, splits = first(model), 400_000
    nodes = 2 * splits + 1
    tree.update(categories=[], categories_nodes=[], categories_segments=[], categories_sizes=[])
    for name in ("base_weights", "loss_changes", "split_conditions", "sum_hessian"):
        tree[name] = [0.5] * nodes
    for name in ("default_left", "split_indices", "split_type"):
        tree[name] = [0] * nodes
    left, right, parents = [-1] * nodes, [-1] * nodes, [2**31 - 1] * nodes
    at = 0
    for i in range(splits):
        left[at], right[at] = 1 + 2 * i, 2 + 2 * i
        parents[1 + 2 * i] = parents[2 + 2 * i] = at
        at = 2 + 2 * i
    tree.update(left_children=left, right_children=right, parents=parents)
    tree["tree_param"]["num_nodes"] = str(nodes)


def number(place, value):
    """A changer of one number in a list of a tree, or of all of them."""

    def change(model: dict) -> None:
        name, index = place
        values = first(model)[name]
        values[index if index is not None else slice(None)] = (
            value if index is not None else [value] * len(values)
        )

    return change


def field(holder, name, value):
    def change(model: dict) -> None:
        holder(model)[name] = value

    return change


VARIANTS = {
    "tree_info beyond the classes": lambda m: trees_of(m)["tree_info"].__setitem__(0, 3),
    "tree_info far beyond": lambda m: trees_of(m)["tree_info"].__setitem__(0, 10**8),
    "tree_info negative": lambda m: trees_of(m)["tree_info"].__setitem__(0, -(10**6)),
    "tree_info in another order": lambda m: trees_of(m)["tree_info"].reverse(),
    "tree_info too short": lambda m: trees_of(m)["tree_info"].pop(),
    "dart with a decoy": dart,
    "linear booster": lambda m: m["learner"]["gradient_booster"].update(name="gblinear"),
    "categories_sizes": number(("categories_sizes", 0), 10**6),
    "categories_sizes negative": number(("categories_sizes", 0), -1),
    "categories_segments": number(("categories_segments", 0), 10**7),
    "categories_nodes": number(("categories_nodes", 0), 10**6),
    "categories of a leaf": number(("categories_nodes", 0), 1),
    "a category beyond the column's": number(("categories", 0), 10**8),
    "a negative category": number(("categories", 0), -5),
    "no categories": lambda m: first(m).update(categories=[]),
    "size_leaf_vector": lambda m: first(m)["tree_param"].update(size_leaf_vector="1000000"),
    "num_nodes too many": lambda m: first(m)["tree_param"].update(num_nodes="1000000"),
    "num_nodes too few": lambda m: first(m)["tree_param"].update(num_nodes="1"),
    "num_deleted": lambda m: first(m)["tree_param"].update(num_deleted="3"),
    "tree num_feature": lambda m: first(m)["tree_param"].update(num_feature="1000000000"),
    "parents far away": number(("parents", 1), 10**8),
    "parents exchanged": lambda m: first(m)["parents"].reverse(),
    "iteration_indptr beyond": lambda m: trees_of(m)["iteration_indptr"].__setitem__(-1, 10**6),
    "iteration_indptr descending": lambda m: trees_of(m)["iteration_indptr"].reverse(),
    "iteration_indptr negative": lambda m: trees_of(m)["iteration_indptr"].__setitem__(0, -3),
    "num_trees": lambda m: trees_of(m)["gbtree_model_param"].update(num_trees="1000"),
    "num_parallel_tree": lambda m: trees_of(m)["gbtree_model_param"].update(num_parallel_tree="9"),
    "one tree too few": lambda m: trees_of(m)["trees"].pop(),
    "cats": lambda m: trees_of(m)["cats"].update(sorted_idx=[5, 10**8]),
    "left child beyond": number(("left_children", 0), 10**8),
    "left child negative": number(("left_children", 0), -(10**6)),
    "right child its own parent": number(("right_children", 0), 0),
    "a circle": circle,
    "a chain": chain,
    "no nodes": lambda m: [first(m)[n].clear() for n in first(m) if isinstance(first(m)[n], list)],
    "split_indices beyond": number(("split_indices", 0), 3),
    "split_indices negative": number(("split_indices", 0), -1),
    "split_indices of a leaf": number(("split_indices", -1), 10**8),
    "split_type 2": number(("split_type", 0), 2),
    "split_type of a number": number(("split_type", 0), 1),
    "default_left": number(("default_left", 0), 77),
    "leaves too large": number(("split_conditions", None), 1e300),
    "conditions too short": lambda m: first(m)["split_conditions"].pop(),
    "weights too short": lambda m: first(m)["base_weights"].pop(),
    "text for numbers": lambda m: first(m).update(left_children="abc"),
    "an object for numbers": lambda m: first(m).update(split_indices={}),
    "num_class beyond": lambda m: learner_of(m)["learner_model_param"].update(num_class="100000"),
    "num_class negative": lambda m: learner_of(m)["learner_model_param"].update(num_class="-3"),
    "num_feature": lambda m: learner_of(m)["learner_model_param"].update(num_feature="1000000000"),
    "num_target": lambda m: learner_of(m)["learner_model_param"].update(num_target="5"),
    "base_score too short": lambda m: learner_of(m)["learner_model_param"].update(base_score="[1]"),
    "base_score no number": lambda m: learner_of(m)["learner_model_param"].update(
        base_score='["x", 1, 2]'
    ),
    "another objective": lambda m: learner_of(m).update(
        objective={"name": "survival:aft", "aft_loss_param": {}}
    ),
    "softmax of more classes": lambda m: learner_of(m)["objective"].update(
        softmax_multiclass_param={"num_class": "1000"}
    ),
    "an unknown field": lambda m: learner_of(m).update(more=1),
}


@pytest.fixture(scope="module")
def variants(boosted) -> dict[str, str]:
    """What becomes of the model that each variant changes."""
    messages = []
    for change in VARIANTS.values():
        model = json.loads(payload_of(boosted))
        change(model)
        messages.append(forged(boosted, json.dumps(model).encode()))
    return dict(zip(VARIANTS, fates(messages, PEOPLE), strict=True))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_booster_that_was_made_to_reach_foreign_memory_is_refused(variants, name):
    assert variants[name].startswith("refused: "), variants[name]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_booster_with_numbers_that_are_none_is_refused(boosted, number):
    model = json.loads(payload_of(boosted))
    first(model)["split_conditions"][-1] = "HERE"
    text = json.dumps(model).replace('"HERE"', number)
    with pytest.raises(Malformed):
        Model.unpacked(forged(boosted, text.encode()))


@pytest.mark.parametrize("number", ["9" * 400, "1e999", "true", '"1"', "null", "[1]"])
def test_a_base_score_that_is_no_number_is_refused(boosted, number):
    model = json.loads(payload_of(boosted))
    param = learner_of(model)["learner_model_param"]
    param["base_score"] = f"[{', '.join([number] * len(json.loads(param['base_score'])))}]"
    with pytest.raises(Malformed):
        Model.unpacked(forged(boosted, json.dumps(model).encode()))


def test_of_a_field_that_is_there_twice_only_what_was_checked_reaches_the_library(boosted):
    """XGBoost's reader and ours may differ in which of the two they take."""
    text = payload_of(boosted).decode()
    bad = text.replace('"tree_info":', '"tree_info":[1000000,7],"tree_info":')
    model = Model.unpacked(forged(boosted, bad.encode()))
    np.testing.assert_array_equal(
        model.predict_proba(PEOPLE), Model.unpacked(boosted).predict_proba(PEOPLE)
    )
    assert b"1000000" not in bytes(model.estimator.save_raw("json"))


def test_an_honest_booster_is_written_again_to_the_last_byte():
    with cotune.simulate(iris(), parties=3, processes=1) as federation:
        outcome = cotune.tune(federation, "defaults", learners=["xgboost"], folds=2)
    packed = outcome.model.packed()
    again = Model.unpacked(packed)
    assert bytes(again.estimator.save_raw("json")) == payload_of(packed)
    np.testing.assert_array_equal(again.predict_proba(iris()), outcome.model.predict_proba(iris()))


def test_a_party_that_is_to_judge_a_forged_booster_says_malformed(tmp_path):
    problem = problem_of(iris(), learners=("xgboost",), holdout=0.3)
    party = party_of(iris(), tmp_path)
    X, y = encode(iris(), problem.schema, "codes"), encode_target(iris(), problem.schema)
    message = Model(
        "xgboost", {"n_estimators": 3}, problem.schema, problem.scaling, "codes",
        "accuracy", booster(X, y, problem.schema), ABOUT,
    ).packed()  # fmt: skip
    model = json.loads(payload_of(message))
    trees_of(model)["tree_info"][0] = 10**6
    bad = forged(message, json.dumps(model).encode())
    assert not isinstance(
        ask(party, Assess("xgboost", {"n_estimators": 3}, message), problem), Refusal
    )
    answer = ask(party, Assess("xgboost", {"n_estimators": 3}, bad), problem, round=2)
    assert isinstance(answer, Refusal)
    assert answer.code == "malformed"


ROWS = np.random.default_rng(0).normal(size=(40, 3))
LABELS = np.arange(40) % 2


def sparse() -> LogisticRegression:
    return LogisticRegression().fit(ROWS, LABELS).sparsify()


def random_state() -> DummyClassifier:
    made = np.random.RandomState(0)
    return DummyClassifier(strategy="stratified", random_state=made).fit(ROWS, LABELS)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: SVC().fit(ROWS, LABELS), "SVC"),
        (lambda: KNeighborsClassifier(algorithm="brute").fit(ROWS, LABELS), "KNeighborsClassifier"),
        (lambda: KMeans(2, n_init=1).fit(ROWS), "KMeans"),
        (
            lambda: GradientBoostingRegressor(n_estimators=2).fit(ROWS, ROWS[:, 0]),
            "GradientBoosting",
        ),
        (sparse, "sparse"),
        (random_state, "RandomState"),
    ],
)
def test_estimators_whose_numbers_compiled_code_believes_are_read_from_nobody(make, named):
    with pytest.raises(Untrusted, match=named):
        loaded(dumped(make()), 3, OF_MODELS)


def test_the_models_of_a_site_are_read_with_the_same_care():
    frame = iris()
    problem = problem_of(frame, learners=("logistic_regression",))
    machine = SVC().fit(encode(frame, problem.schema, "dense"), frame["target"])
    machine._dual_coef_ = machine._dual_coef_[:, :1]
    reply = OwnModel(dumped(machine), (0, 1, 2), 1.0)
    with pytest.raises(Untrusted, match="SVC"):
        FitOwn(Configuration("logistic_regression", {})).check(reply, problem)


def changed_forest(change) -> bytes:
    made = RandomForestClassifier(2, max_depth=3, random_state=0).fit(ROWS, LABELS)
    change(made)
    return dumped(made)


def test_a_forests_trees_are_over_its_own_columns():
    """scikit-learn hands the rows to its trees without counting their columns again."""

    def wide(made) -> None:
        more = np.hstack([ROWS, ROWS, ROWS])
        made.estimators_[1] = DecisionTreeClassifier().fit(more, LABELS)

    def uncounted(made) -> None:
        del made.n_features_in_

    def hidden(made) -> None:
        made.estimators_[1].estimators_ = []
        made.estimators_[1].n_features_in_ = 1

    for change in (wide, uncounted, hidden):
        with pytest.raises(Malformed, match="columns"):
            loaded(changed_forest(change), 9, OF_MODELS)


def tree_with(change) -> bytes:
    """A saved tree whose description is changed."""
    content = dumped(DecisionTreeClassifier(max_depth=2).fit(ROWS, LABELS))
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "schema.json":
                schema = json.loads(data)
                change(schema["content"]["content"]["tree_"]["__reduce__"]["args"]["content"])
                data = json.dumps(schema).encode()
            new.writestr(name, data)
    return out.getvalue()


def test_a_tree_is_made_for_as_many_outputs_as_it_has():
    """scikit-learn would copy as many numbers of classes as the file claims, from anywhere."""

    def outputs(args) -> None:
        args[2]["content"] = "1000000"

    def columns(args) -> None:
        args[0]["content"] = "1"

    assert loaded(tree_with(lambda args: None), 3, OF_MODELS).predict(ROWS).shape == (40,)
    for change in (outputs, columns):
        with pytest.raises(Malformed):
            loaded(tree_with(change), 3, OF_MODELS)


def test_no_object_stands_for_another_by_its_number():
    """skops takes the object that it saw first under a number, whatever else the file says."""

    def numbered(args) -> None:
        args[0] |= {"__id__": 1, "content": "1000000"}
        args[2] |= {"__id__": 1}

    tree = loaded(tree_with(lambda args: args[2].update(__id__=1)), 3, OF_MODELS)
    assert tree.predict(ROWS).shape == (40,)
    with pytest.raises(Malformed):
        loaded(tree_with(numbered), 3, OF_MODELS)


def archive_of(description: dict, **parts: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("schema.json", json.dumps({"protocol": 2} | description))
        for name, data in parts.items():
            archive.writestr(name, data)
    return out.getvalue()


def test_no_module_is_imported_because_a_file_names_it(tmp_path, monkeypatch):
    (tmp_path / "named_by_a_file.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    kind = {
        "__loader__": "TypeNode", "__module__": "named_by_a_file", "__class__": "float",
        "content": {},
    }  # fmt: skip
    with pytest.raises(Malformed, match="a type stands in it"):
        loaded(archive_of(kind), 3, OF_MODELS)
    assert "named_by_a_file" not in sys.modules


def array_node(name: str) -> dict:
    return {
        "__loader__": "NdArrayNode", "__module__": "numpy", "__class__": "ndarray",
        "type": "numpy", "file": name,
    }  # fmt: skip


def test_a_small_file_does_not_unpack_to_a_large_one():
    stream = io.BytesIO()
    np.save(stream, np.zeros(2**28, np.uint8))
    content = archive_of(array_node("zeros"), zeros=stream.getvalue())
    size = struct.pack("<I", len(stream.getvalue()))
    assert content.count(size) == 2, "the size that is declared, twice"
    for bomb in (content, content.replace(size, struct.pack("<I", 200))):
        tracemalloc.start()
        with pytest.raises(Malformed):
            loaded(bomb, 3)
        assert tracemalloc.get_traced_memory()[1] < 2**24
        tracemalloc.stop()


def test_nobody_else_says_how_many_threads_a_model_starts():
    made = forest().fit(ROWS, LABELS)
    made.n_jobs = 10**9
    again = loaded(dumped(made), 3, OF_MODELS)
    assert again.n_jobs == 1
    assert again.predict(ROWS).shape == (40,)


@pytest.mark.parametrize(
    "shape", ["(1000000000000,)", "(2147483648, 4)", "(-3,)", "(-1, -3)", "()"]
)
def test_a_declared_size_is_refused_before_there_is_room_for_it(shape):
    stream = io.BytesIO()
    np.save(stream, np.arange(3.0))
    content = stream.getvalue()
    claimed = re.sub(rb"\(3,\), }( *)", lambda m: f"{shape}, }}".encode().ljust(len(m[0])), content)
    claimed = claimed[: len(content)] if len(claimed) > len(content) else claimed
    tracemalloc.start()
    with pytest.raises(Malformed):
        read_array(claimed)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize(
    "params",
    [{"hidden": 10**9}, {"layers": 10**9}, {"hidden": -4}, {"layers": "x"}, {"hidden": 5}],
)
def test_a_network_of_other_sizes_than_its_weights_is_refused_before_it_is_made(models, params):
    with pytest.raises(Malformed):
        Model.unpacked(forged(models[-1], params={"hidden": 4, "layers": 2} | params))


def columns(**changed) -> list[dict]:
    """The schema's columns, the last with other fields."""
    *others, last = (msgspec.to_builtins(column) for column in schema_of(PEOPLE).columns)
    return [*others, last | changed]


@pytest.mark.parametrize(
    "changed",
    [
        {"columns": columns(name="age")},
        {"columns": columns(categories=["a", "a", "b"])},
        {"columns": columns(kind="array", shape=[4, 4])},
        {"columns": columns(scale="x")},
        {"columns": []},
        {"classes": ["x", "y", "y"]},
        {"classes": []},
        {"classes": ["x", "y"]},
        {"classes": [str(i) for i in range(100_000)]},
        {"task": "regression"},
        {"number_classes": True},
    ],
)
def test_a_schema_by_which_no_row_can_be_encoded_is_refused(tmp_path, changed):
    model_of(PEOPLE, None).save(tmp_path)
    manifest = json.loads((tmp_path / "model.json").read_text())
    manifest["schema"] |= changed
    del manifest[DIGEST]
    (tmp_path / "model.json").write_bytes(sealed(manifest))
    with pytest.raises(UsageError) as refused:
        Model.load(tmp_path)
    assert "it was changed" not in str(refused.value), "the digest fits"


@pytest.mark.soak
@pytest.mark.timeout(5400)
def test_no_change_of_a_model_ends_the_process_or_escapes_as_a_foreign_exception(models):
    draw = random.Random(0)
    messages = [mutated(draw.choice(models), draw) for _ in range(times(150, 5000))]
    found = fates(messages, PEOPLE)
    wrong = [fate for fate in found if fate != "predicted" and not fate.startswith("refused: ")]
    assert not wrong
    assert any(fate == "predicted" for fate in found)
