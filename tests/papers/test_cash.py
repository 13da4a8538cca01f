"""What the scripts on DASH and FLASH share: the deal of the rows, pieces of work, figures."""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "papers"))

import cash
import dash_table1
import dash_table2
import flash_figures
import flash_table1

from cotune.run.outcome import Outcome


@pytest.fixture
def frame():
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 3))
    labels = np.where(x[:, 0] + 0.3 * random.normal(size=400) > 0.5, "yes", "no")
    return pd.DataFrame(x, columns=list("abc")).assign(target=labels)


@pytest.fixture
def piece():
    return cash.Piece("toy", 0, "DASH", None, 2, 2, ("decision_tree",), clients=2)


def together(parts):
    return pd.concat(list(parts), ignore_index=True)


# The deal of the rows


def test_every_row_is_train_or_test_of_exactly_one_client(frame):
    clients = cash.deal(frame, 4, "iid", seed=1, rows=None)
    dealt = together([part for c in clients.values() for part in (c.train, c.test)])
    columns = list(frame)
    pd.testing.assert_frame_equal(
        dealt.sort_values(columns, ignore_index=True), frame.sort_values(columns, ignore_index=True)
    )


def test_a_client_has_seventy_percent_for_training_with_its_classes_in_proportion(frame):
    for client in cash.deal(frame, 2, "iid", seed=0, rows=None).values():
        assert len(client.train) / (len(client.train) + len(client.test)) == pytest.approx(0.7)
        shares = [(part["target"] == "yes").mean() for part in (client.train, client.test)]
        assert shares[0] == pytest.approx(shares[1], abs=0.02)


def test_the_search_sees_a_part_of_the_train_rows_and_no_test_rows(frame):
    clients = cash.deal(frame, 2, "iid", seed=0, rows=100)
    assert sum(len(client.searched) for client in clients.values()) == pytest.approx(100, abs=2)
    for client in clients.values():
        assert set(client.searched["a"]) <= set(client.train["a"])
        assert not set(client.searched["a"]) & set(client.test["a"])


def test_without_a_cut_the_search_sees_all_train_rows(frame):
    for client in cash.deal(frame, 2, "iid", seed=0, rows=10_000).values():
        assert client.searched is client.train


def test_a_client_with_a_single_row_of_a_class_is_split_all_the_same():
    labels = ["common"] * 39 + ["rare"]
    frame = pd.DataFrame({"a": range(40), "target": labels})
    (client,) = cash.deal(frame, 1, "iid", seed=0, rows=None).values()
    assert len(client.train) == 28


def test_diabetic_data_come_without_identifiers_and_with_missing_values(tmp_path):
    table = pd.DataFrame(
        {"encounter_id": [1, 2], "patient_nbr": [3, 4], "race": ["?", "x"], "target": ["NO", ">30"]}
    )
    table.to_parquet(tmp_path / "diabetic_data.parquet")
    read = cash.table_of(tmp_path, "diabetic_data")
    assert list(read) == ["race", "target"]
    assert read["race"].isna().tolist() == [True, False]


# Pieces of work


def test_flora_has_lightgbm_only_and_the_defaults_are_one_piece_for_any_number_of_trials():
    form = cash.TABLES["reduced"]
    assert cash.Piece.of(form, "electricity", 0, "FLoRA-LGBM").learners == ("lightgbm",)
    few, many = (cash.Piece.of(form, "electricity", 0, "Default", trials=n) for n in (1, 50))
    assert few.key == many.key


def test_pieces_that_differ_have_folders_of_their_own(piece):
    others = [
        cash.Piece(**{**vars(piece), **change})
        for change in ({"seed": 1}, {"clients": 3}, {"options": {"tolerance": 0.1}}, {"rows": 9})
    ]
    assert len({each.folder for each in (piece, *others)}) == 5


def test_the_table_scripts_share_their_central_runs():
    for form in cash.TABLES.values():
        of_dash, of_flash = (
            {p.folder for p in script.all_pieces(form) if p.method in ("Default", "central")}
            for script in (dash_table1, flash_table1)
        )
        assert of_dash == of_flash


def test_every_data_set_of_the_complete_form_has_the_papers_numbers():
    for script in (dash_table1, dash_table2, flash_table1):
        assert set(script.PAPER) == set(cash.DATASETS)


@pytest.mark.parametrize("name", list(cash.VARIATIONS))
def test_every_piece_of_the_figures_is_listed(name):
    runs = flash_figures.Runs(cash.VARIATIONS[name], flash_figures.PLANS[name])
    listed = {piece.folder for piece in runs.all()}
    dataset = runs.form.datasets[0]
    shown = [
        *runs.curves(),
        *(p for t in runs.plan.tolerances for p in runs.tolerance(dataset, t)),
        *(p for s in runs.plan.skews for p in runs.skewed(dataset, s)),
        *(p for n in runs.plan.clients for p in runs.of(dataset, "FLASH RM", clients=n)),
    ]
    assert {piece.folder for piece in shown} <= listed


def test_a_finished_piece_is_not_run_again(tmp_path, monkeypatch, piece):
    store = cash.Store(tmp_path / "store.jsonl")
    asked = []

    def run(piece, data, processes):
        asked.append(piece)
        return {"accuracy": 0.5, "learner": "decision_tree", "cpu_seconds": 1.0}

    monkeypatch.setattr(cash, "run_piece", run)
    arguments = argparse.Namespace(minutes=1, data=tmp_path, workers=1)
    assert store.finish([piece, piece], arguments) == 0
    assert cash.Store(tmp_path / "store.jsonl").finish([piece], arguments) == 0
    assert asked == [piece]


def test_a_piece_that_outlasts_the_minutes_is_left(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(cash, "run_piece", lambda *_: time.sleep(60))
    store = cash.Store(tmp_path / "store.jsonl")
    arguments = argparse.Namespace(minutes=0.1 / 60, data=tmp_path, workers=1)
    assert store.finish([piece], arguments) == 1


def test_a_piece_is_searched_trained_scored_and_read_from_its_folder_again(
    tmp_path, monkeypatch, frame, piece
):
    frame.to_parquet(tmp_path / "toy.parquet")
    monkeypatch.setattr(cash, "WORK", tmp_path)
    value = cash.run_piece(piece, tmp_path, 1)
    outcome = Outcome.load(tmp_path / "runs" / piece.folder)
    assert len(outcome.trials) == 2
    assert value["learner"] == "decision_tree"
    assert 0.7 < value["accuracy"] <= 1.0
    assert value["accuracy_all"] == value["accuracy"]  # nothing was cut
    again = cash.run_piece(piece, tmp_path, 1)
    assert again["accuracy"] == value["accuracy"]
    assert again["here_seconds"] is None


# Figures


def test_relative_improvement_is_in_percent_of_the_baseline():
    assert cash.relative_improvement(93.82, 93.10) == pytest.approx(0.7734, abs=1e-4)


@pytest.mark.parametrize(("improvement", "said"), [(-0.5, "ok"), (2.0, "ok"), (-0.51, "differs")])
def test_only_a_loss_beyond_the_tolerance_differs(improvement, said):
    assert cash.verdict(improvement) == said


def test_one_value_has_no_spread_and_none_has_no_mean():
    assert cash.mean_and_spread([2.0])[0] == 2.0
    assert math.isnan(cash.mean_and_spread([2.0])[1])
    assert math.isnan(cash.mean_and_spread([])[0])
    assert cash.mean_and_spread([1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)))


def test_improvements_are_paired_by_deal_and_wait_for_both(tmp_path, piece):
    store = cash.Store(tmp_path / "store.jsonl")
    own = [cash.Piece(**{**vars(piece), "seed": seed}) for seed in range(2)]
    base = [cash.Piece(**{**vars(each), "method": "central"}) for each in own]
    for each, accuracy in ((own[0], 0.99), (base[0], 0.9), (own[1], 0.5)):
        store.results.put(each.key, {"accuracy": accuracy})
    assert cash.paired(store, own, base) == [pytest.approx(10.0)]


def test_cells_of_what_is_not_there_are_empty():
    assert cash.number(None) == cash.number(float("nan")) == ""
    assert cash.number(0.5, signed=True) == "+0.50"


def test_the_data_cost_counts_every_learner_of_every_round():
    rounds = [{"fraction": 0.25, "learners": ["a", "b"]}, {"fraction": 1.0, "learners": ["b"]}]
    assert flash_figures.data_share(rounds) == 1.5


def test_projections_follow_the_line_through_the_last_two_fractions():
    told = flash_figures.projections([(0.25, 0.5), (0.5, 0.375), (1.0, 0.25)])
    assert told == {0.25: 0.5, 0.5: 0.875, 1.0: 0.75}


def test_tables_can_be_shown_before_anything_is_run(tmp_path):
    store, form = cash.Store(tmp_path / "none.jsonl"), cash.TABLES["reduced"]
    runs = flash_figures.Runs(cash.VARIATIONS["reduced"], flash_figures.PLANS["reduced"])
    tables = [
        cash.cuts_table(form),
        dash_table1.accuracy_table(store, form)[0],
        dash_table1.improvement_table(store, form)[0],
        dash_table2.improvement_table(store, form)[0],
        dash_table2.accuracy_table(store, form)[0],
        flash_table1.accuracy_table(store, form)[0],
        flash_table1.improvement_table(store, form)[0],
        *flash_figures.figures_1_2(store, form)[0],
        flash_figures.table_2(store, runs)[0],
        flash_figures.table_3(store, runs)[0],
        flash_figures.figure_3(store, runs)[0],
        flash_figures.figure_4(store, runs)[0],
        flash_figures.figure_5(store, runs)[0],
        flash_figures.figure_6(store, runs)[0],
    ]
    for table in tables:
        assert table.title in table.text()
        assert table.title in table.markdown()
