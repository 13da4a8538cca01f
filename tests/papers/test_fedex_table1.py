"""FedEx's table: the paper's columns beside settings of the same kind, on the page too."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "papers"))

import fedex_table1 as script

ROOT = Path(__file__).parents[2]

#: How the rows of a client are shared out to train and test: those of a role at random.
KINDS = {"iid": "iid", "by:role": "iid", "dirichlet:0.5": "non-iid"}


@pytest.mark.parametrize("setting", list(script.SETTINGS))
def test_a_column_of_the_paper_stands_beside_the_same_kind_of_split(setting):
    beside = script.BESIDE[setting]
    kind = KINDS[script.SETTINGS[setting]["split"]]
    if beside is None:  # the paper has no such column
        data = setting.partition(",")[0]
        assert f"{data}, {kind}" not in script.COLUMNS
    else:
        assert beside in script.COLUMNS
        assert beside.partition(", ")[2] == kind


@pytest.mark.parametrize("column", script.COLUMNS)
def test_the_lowest_error_of_a_column_is_fedexs_everywhere_but_on_iid_femnist(column):
    """As the text below the paper's table says."""
    errors = {way: row[column] for way, row in script.PAPER.items()}
    best = min(errors, key=lambda way: errors[way])
    assert (best[2] == 27) == (column != "FEMNIST, iid")


@pytest.fixture(scope="module")
def results():
    return json.loads((ROOT / "papers/results/fedex_table1.json").read_text())


def test_the_stored_table_has_the_papers_figures_of_the_column_it_names(results):
    for row in results["shown"]:
        arms = 27 if row["tuning"] == "+ FedEx" else 1
        printed = row["beside"] and script.PAPER[row["wrapper"], row["objective"], arms]
        assert row["beside"] == script.BESIDE[row["setting"]]
        assert row["paper"] == (printed and printed[row["beside"]])


def test_the_page_shows_the_stored_table(results):
    page = (ROOT / "docs/papers.md").read_text()
    cells = {}
    for row in results["shown"]:
        cells.setdefault((row["setting"], row["wrapper"], row["objective"]), []).append(row)
    assert len(cells) == 20
    for way, (alone, inside) in cells.items():
        paper = ""
        if alone["beside"]:
            paper = f"{alone['paper']:.2f}, {inside['paper']:.2f} ({alone['beside']})"
        ours = [f"{row['error']:.2f} ± {row['half_width']:.2f}" for row in (alone, inside)]
        line = "| " + " | ".join([*way, paper, *ours]) + " |"
        assert line[:-2] in page, line
