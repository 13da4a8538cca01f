"""The benchmark of answers: its statistics, and that what was kept is not done twice."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import answers
from answers import Task


def entry(truth: float, **more: object) -> dict:
    return {"truth": truth, "rounds": [3, 5], "bytes": [10, 20], "seconds": 1.0} | more


def test_p_values_are_corrected_for_their_number_in_their_order():
    assert answers.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert answers.holm([]).size == 0


def test_a_gain_is_in_the_direction_of_the_metric():
    assert answers.gain("digits", 0.99, 0.9) == pytest.approx(0.1)
    assert answers.gain("higgs mass", 0.09, 0.1) == pytest.approx(0.1)


def test_a_cell_that_is_below_with_every_seed_is_found_and_one_within_the_noise_is_not():
    cells = {
        ("iid", "digits"): [-0.02, -0.021, -0.019, -0.02, -0.0201],
        ("iid", "eeg"): [-0.02, 0.03, -0.01, 0.01, -0.005],
        ("iid", "higgs"): [0.0, 0.0, 0.0],
    }
    chances = {cell: p for cell, _, p in answers.below(cells)}
    assert chances["iid", "digits"] < 0.001
    assert chances["iid", "eeg"] > 0.5
    assert chances["iid", "higgs"] == 1.0


def test_the_tables_say_what_was_kept(capsys):
    found = {}
    for seed, truth in enumerate((0.8, 0.82, 0.81)):
        for column, more in (("defaults", 0.0), ("dash", 0.01)):
            found[Task(seed, column, "iid", "digits")] = entry(
                truth + more,
                reported=truth + more + 0.002,
                interval=[truth - 0.05, truth + 0.05],
            )
        found[Task(seed, "pooled", "", "digits")] = entry(0.84)
        found[Task(seed, "alone", "iid", "digits")] = entry(0.7)
    kept = answers.show(found)
    assert kept["gains"]["dash - defaults"]["iid"][0] == pytest.approx(1.23, abs=0.01)
    assert kept["gains"]["dash below defaults"] == [0, 1]
    assert kept["gains"]["dash above alone"] == [1, 1]
    assert kept["figures"]["dash, all"][0] == pytest.approx(0.002)
    assert kept["figures"]["dash, all"][-1] == 1.0
    assert "better than pooled" in capsys.readouterr().out


def test_a_reference_is_found_by_hand_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "TRIALS", 1)
    monkeypatch.setitem(answers.LEARNERS, "classification", ("decision_tree",))
    digits = answers.TABLES["digits"]
    monkeypatch.setitem(answers.TABLES, "digits", digits.__class__(digits.file, rows=300))
    task = Task(0, "alone", "dirichlet:0.5", "digits")
    solved = answers.solve(task, Path(), tmp_path)
    assert json.loads((tmp_path / f"{task.name}.json").read_text()) == solved
    assert sum(solved["rows"]) == 300
    assert 0.1 < solved["truth"] < 0.9
    assert len(solved["parties"]) == answers.PARTIES
    rows, rest = answers.rows_of("digits", Path(), seed=1)
    assert len(rows) + len(rest) == len(load_digits().target)
    assert np.isin(rest["target"], rows["target"]).all()
