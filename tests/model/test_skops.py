from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from cotune.errors import Malformed
from cotune.model import skops as stored
from cotune.model.sklearn_trees import NODE, build
from cotune.model.skops import OF_MODELS, Untrusted, dumped, loaded, parts

ROWS = np.random.default_rng(0).normal(size=(40, 3))
LABELS = np.arange(40) % 2


def test_an_estimator_comes_back_as_it_was():
    model = LogisticRegression().fit(ROWS, LABELS)
    again = loaded(dumped(model), 3)
    np.testing.assert_array_equal(again.predict_proba(ROWS), model.predict_proba(ROWS))


def test_trees_are_read_only_where_they_are_trusted():
    content = dumped(RandomForestClassifier(2).fit(ROWS, LABELS))
    assert len(loaded(content, 3, OF_MODELS).estimators_) == 2
    with pytest.raises(Untrusted, match=r"sklearn\.tree\._tree\.Tree"):
        loaded(content, 3)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_types_that_nobody_declared_are_refused_by_name():
    content = dumped(MLPClassifier((2,), max_iter=1).fit(ROWS, LABELS))
    with pytest.raises(Untrusted, match="AdamOptimizer"):
        loaded(content, 3, OF_MODELS)


@pytest.mark.parametrize(
    ("name", "value"),
    [("left_child", 10**6), ("right_child", 0), ("feature", 3), ("feature", -5)],
)
def test_a_tree_that_would_read_foreign_memory_is_refused(name, value):
    nodes = np.zeros(3, dtype=NODE)
    nodes["left_child"], nodes["right_child"] = [1, -1, -1], [2, -1, -1]
    nodes["n_node_samples"] = nodes["weighted_n_node_samples"] = 1
    forest = RandomForestClassifier(1).fit(ROWS, LABELS)
    forest.estimators_[0].tree_ = build(nodes, np.full((3, 2), 0.5), 3)
    assert loaded(dumped(forest), 3, OF_MODELS).predict(ROWS).shape == (40,)
    content = dumped(forest)
    tree = forest.estimators_[0].tree_
    state = tree.__getstate__()
    state["nodes"][name][0] = value  # the tree's own memory
    with pytest.raises(Malformed):
        loaded(dumped(forest), 3, OF_MODELS)
    assert loaded(content, 3, OF_MODELS)


def test_a_tree_over_more_columns_than_the_table_has_is_refused():
    content = dumped(RandomForestClassifier(20, max_features=None).fit(ROWS, LABELS))
    with pytest.raises(Malformed, match="column"):
        loaded(content, 2, OF_MODELS)


def with_schema(content: bytes, change) -> bytes:
    """The same archive, its schema changed."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "schema.json":
                schema = json.loads(data)
                change(schema)
                data = json.dumps(schema).encode()
            new.writestr(name, data)
    return out.getvalue()


def test_foreign_bytes_are_refused():
    whole = dumped(LogisticRegression().fit(ROWS, LABELS))
    for content in (
        b"",
        b"PK",
        whole[:-40],
        with_schema(whole, lambda schema: schema.pop("__loader__")),
        with_schema(whole, lambda schema: schema.update(protocol=10**6)),
        with_schema(whole, lambda schema: schema.update(__module__="os", __class__="system")),
    ):
        with pytest.raises(Malformed):
            loaded(content, 3, OF_MODELS)


def test_an_archive_that_unpacks_to_too_much_is_refused(monkeypatch):
    content = dumped(LogisticRegression().fit(ROWS, LABELS))
    monkeypatch.setattr(stored, "MOST_UNPACKED", 100)
    with pytest.raises(Malformed, match="unpack"):
        loaded(content, 3)


def test_the_parts_of_a_whole_are_found_once_also_in_circles():
    inner = np.array([1.0])
    whole = {"a": [inner, (inner,)], "b": np.array([{"deep": inner}, None], dtype=object)}
    whole["self"] = whole
    assert sum(part is inner for part in parts(whole)) == 1
