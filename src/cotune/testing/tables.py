"""Small made-up tables with all that real parties bring: categories, gaps, missing classes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cotune.data.schema import TaskKind


def make_tables(
    parties: int = 3, rows: int = 40, task: TaskKind = "classification", seed: int = 0
) -> dict[str, pd.DataFrame]:
    """Parties `party-1`, `party-2`, ... whose tables have a learnable column `target`.

    The second party has its columns in another order; the last lacks a category and, if there
    are three parties or more, the class `c`.
    """
    rng = np.random.default_rng(seed)
    tables = {f"party-{i}": _table(rows + 5 * i, task, rng) for i in range(1, parties + 1)}
    if parties >= 2:
        tables["party-2"] = tables["party-2"][list(tables["party-2"].columns[::-1])]
    if parties >= 3:
        last = tables[f"party-{parties}"]
        kept = last[last["colour"] != "green"]
        if task == "classification":
            kept = kept[kept["target"] != "c"]
        tables[f"party-{parties}"] = kept.reset_index(drop=True)
    return tables


def _table(rows: int, task: TaskKind, rng: np.random.Generator) -> pd.DataFrame:
    height, weight = rng.normal(170, 10, rows), rng.normal(0, 1e-3, rows)
    colour = rng.choice(["red", "green", "blue"], rows)
    signal = (height - 170) / 10 + 500 * weight + (colour == "red") + rng.normal(0, 0.3, rows)
    height[rng.random(rows) < 0.1] = np.nan
    target = pd.cut(signal, [-np.inf, 0.0, 0.8, np.inf], labels=["a", "b", "c"]).astype(str)
    return pd.DataFrame(
        {
            "height": height,
            "weight": weight,
            "colour": colour,
            "target": target if task == "classification" else 50 + 20 * signal,
        }
    )
