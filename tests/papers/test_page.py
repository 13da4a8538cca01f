"""docs/papers.md shows what is stored in papers/results, and says at which commit it was made."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "papers/results"
PAGE = (ROOT / "docs/papers.md").read_text()


def stored(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_stored_result_has_its_commit_on_the_page(path):
    if path.stem != "flora_baselines":  # scores of the default alone: made again in minutes
        row = rf"^\| `{path.stem}` \| `[0-9a-f]{{7}}` \| `\w+\.py"
        assert len(re.findall(row, PAGE, re.M)) == 1


def test_the_three_scales_of_flora_are_on_the_page():
    overall = stored("flora_baselines")["overall"]
    own = overall["flora, 20 cases"]["by_own"]
    row = "| the mean of the three in each case | {:.2f} | **{:.2f}** | {:.2f} | {:.2f} |"
    assert row.format(*own["quartiles"], own["mean"]) in PAGE
    version = overall["flora, 20 cases"]["by_version"]
    said = "medians are {:.2f}, {:.2f} and {:.2f}, of the means {:.2f}"
    assert said.format(*version["by_seed"], version["quartiles"][1]) in PAGE


def test_the_default_of_the_boosting_is_on_the_page_as_printed_and_as_scored():
    names = {"pc3": "PC3", "pollen": "Pollen", "oil_spill": "Oil spill"}
    for row in stored("flora_baselines")["cases"]:
        if row["learner"] == "HGB" and row["dataset"] in names and row["way"] == "flora":
            scored = f" {100 * row['default']:.2f} | {row['default_by_printed']:.2f} |"
            lines = [line for line in PAGE.splitlines() if line.endswith(scored)]
            assert len(lines) == 1
            assert lines[0].startswith(f"| {names[row['dataset']]} |")


def test_the_costs_of_flashs_tolerance_on_the_page_are_rows_trained_on():
    costs = stored("flash_figures")["table_2"]["eeg_eye_state"]
    rows = {name: round(each["data_cost"], 2) for name, each in costs.items()}
    assert rows == {"0": 1, "0.2": 1, "0.4": 1, "0.6": 1.21, "0.8": 1.21, "1": 1.21, "100": 3.19}
    assert "all three with 1.21 times the rows trained on" in PAGE
    assert "cost 3.2 times the rows" in PAGE.replace("\n  ", " ")


def test_a_regret_of_table_14_is_0_by_construction_where_it_is_the_best():
    for row in stored("flora_noniid")["rows"]:
        regrets = [row["regret"][name] for name in ("sgm", "sgm+u", "mplm", "aplm", "flora")]
        assert min(regrets) >= 0
        best = [row["scores"][name] == row["best_of_all"] for name in row["scores"]]
        assert [value == 0 for value in row["regret"].values()] == best


def test_the_means_of_table_12_leave_a_damaged_cell_out_on_both_sides():
    table = stored("flora_recorded")["table_12"]
    cells = {key: value for key, value in table.items() if key.endswith("/80/APLM")}
    whole = [value for value in cells.values() if value["paper"] is not None]
    assert (len(cells), len(whole)) == (4, 3)
    means = [np.mean([np.mean(value[who]) for value in whole]) for who in ("paper", "cotune")]
    assert rf"{means[0]:.2f} \| {means[1]:.2f} (three cases) |" in PAGE


def test_how_far_dash_and_flash_are_from_the_central_search_is_on_the_page_by_seed():
    page = " ".join(PAGE.split())
    dash = stored("dash_table1_all_rows")["figure_1"]
    eeg, electricity = (dash[name]["RI-C"]["cotune"] for name in ("eeg_eye_state", "electricity"))
    assert "{:+.2f}, {:+.2f} and {:+.2f} % on EEG".format(*eeg) in page
    assert "{:.2f} and {:+.2f} % on Electricity".format(*electricity) in page
    assert min(*eeg, *electricity) >= 0  # "nowhere behind"
    flash = stored("flash_table1_all_rows")["improvement"]
    behind = [gain for data in flash.values() for gain in data["flash"]["RI_O"]]
    assert all(f"({gain:+.2f} %)" in page for gain in behind)
    assert f"nowhere more than {-min(behind):.2f} % behind" in page


def test_dash_over_the_defaults_with_more_clients_is_one_seeds_gain():
    gains = stored("dash_table2")["table_2"]["eeg_eye_state"]["RI-D"]
    assert {clients: sum(gain > 0 for gain in row["cotune"]) for clients, row in gains.items()} == {
        "5": 1,
        "20": 1,
    }
    assert "is one seed's: in the two others DASH kept the default" in " ".join(PAGE.split())
