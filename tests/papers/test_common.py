"""What the paper scripts share: stored results, resumable work, tables, data."""

from __future__ import annotations

import json
import sys
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "papers"))

import common


def finished(value):
    future = Future()
    future.set_result(value)
    return future


@pytest.fixture
def workers():
    with common.Workers(1, minutes=1) as made:
        yield made


def test_results_are_there_again_when_the_file_is_opened_again(tmp_path):
    path = tmp_path / "some" / "results.jsonl"
    common.Results(path).put({"a": 1, "b": [2]}, {"score": 0.5})
    again = common.Results(path)
    assert {"b": [2], "a": 1} in again
    assert again.get({"b": [2], "a": 1}) == {"score": 0.5}
    assert again.get({"a": 2}) is None


def test_a_line_that_was_cut_off_is_dropped_and_written_anew(tmp_path):
    path = tmp_path / "results.jsonl"
    common.Results(path).put({"a": 1}, 1.0)
    with path.open("a") as file:
        file.write('{"key": {"a": 2}, "val')
    again = common.Results(path)
    assert len(again) == 1
    again.put({"a": 2}, 2.0)
    assert common.Results(path).get({"a": 2}) == 2.0


def test_work_that_is_stored_is_not_done_again(tmp_path, workers):
    store = common.Results(tmp_path / "results.jsonl")
    store.put({"n": 1}, 10)
    asked = []

    def submit(key):
        asked.append(key["n"])
        return [finished(key["n"]), finished(9 * key["n"])]

    left = workers.finish("add", [{"n": 1}, {"n": 2}, {"n": 2}, {"n": 3}], store, submit, sum)
    assert left == 0
    assert asked == [2, 3]
    assert [store.get({"n": n}) for n in (1, 2, 3)] == [10, 20, 30]


def test_nothing_is_begun_when_time_is_up_and_the_rest_is_counted(tmp_path):
    store = common.Results(tmp_path / "results.jsonl")
    with common.Workers(1, minutes=-1) as late:
        assert late.finish("add", [{"n": 1}, {"n": 2}], store, lambda key: [], sum) == 2
    assert len(store) == 0


def test_a_missing_file_is_named_with_the_option_that_helps(tmp_path):
    with pytest.raises(SystemExit, match=r"sonar\.parquet not found .* --data FOLDER"):
        common.load(tmp_path, "sonar")


def test_parties_share_out_all_rows_with_the_classes_in_proportion():
    frame = pd.DataFrame({"x": range(30), "target": ["a"] * 18 + ["b"] * 12})
    shares = common.parties(frame, 3)
    assert sorted(pd.concat(shares)["x"]) == list(range(30))
    assert [share["target"].value_counts().to_dict() for share in shares] == [{"a": 6, "b": 4}] * 3


def test_scaling_leaves_the_target_and_survives_a_constant_column():
    frame = pd.DataFrame({"x": [2.0, 4.0, 3.0], "same": [7, 7, 7], "target": [0, 1, 0]})
    scaled = common.scaled(frame)
    assert scaled["x"].tolist() == [0.0, 1.0, 0.5]
    assert scaled["same"].tolist() == [0.0, 0.0, 0.0]
    assert scaled["target"].tolist() == [0, 1, 0]


@pytest.mark.parametrize("learner", ["HGB", "SVM", "MLP"])
def test_a_fold_is_scored_by_balanced_accuracy(tmp_path, learner):
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    frame = pd.DataFrame({"x": x, "noise": rng.normal(size=200), "target": (x > 0).astype(int)})
    frame.to_parquet(tmp_path / "toy.parquet")
    params = {"HGB": {"max_iter": 20}, "SVM": {"C": 100.0}, "MLP": {"learning_rate_init": 0.05}}
    assert common.score_fold(tmp_path, "toy", learner, params[learner], 0) > 0.8


def test_a_table_lines_up_with_numbers_to_the_right():
    table = common.Table("Two", ["learner", "regret"], [["HGB", "0.5"], ["SVM", "10.25"]])
    assert table.text().splitlines()[2:] == [
        "learner  regret",
        "-------  ------",
        "HGB         0.5",
        "SVM       10.25",
    ]
    assert table.markdown().splitlines()[2:4] == ["| learner | regret |", "| --- | ---: |"]


def test_saved_results_have_versions_and_no_infinities(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    path = common.save("some", {"values": (np.float64(1 / 3), float("inf"), np.int64(2))})
    saved = json.loads(path.read_text())
    assert saved["values"] == [0.333333, None, 2]
    assert {"python", "cotune", "scikit-learn", "optuna"} <= saved["versions"].keys()
