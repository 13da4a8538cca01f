"""Texts as examples: the characters up to a place, and the one that comes next."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view

from cotune.errors import DataError

#: The characters that are known: line feed and printable ASCII. Their codes begin with 1; 0 stands
#: for all others, and for what is before the beginning of a text.
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
CODES = 1 + len(ALPHABET)
#: Characters of an example.
SEQUENCE = 80
#: Characters from an example to the next one of the same text.
STRIDE = 10

#: The type of a column of characters: "?" is one of them here, and no missing value.
CHARACTERS = pd.CategoricalDtype(list(ALPHABET))

_CODE_OF = np.zeros(128, dtype=np.int8)
_CODE_OF[[ord(character) for character in ALPHABET]] = np.arange(1, CODES)


def examples(frame: pd.DataFrame) -> pd.DataFrame:
    """What precedes every `STRIDE`-th character of each text, as codes, and that character.

    Each row's `text` is a text of its own, and its examples have the row's other columns; the
    order of rows and of examples is that of the texts. The column `text` then holds arrays of
    `SEQUENCE` codes (int8), filled up with 0 at the beginning of a text. The column `next` is the
    character to predict; one that is not in `ALPHABET` makes no example.
    """
    texts = _texts(frame)
    before = "\0" * SEQUENCE
    points = np.frombuffer("".join(before + text for text in texts).encode("utf-32-le"), "<u4")
    codes = _CODE_OF[np.minimum(points, 127)]
    lengths = np.array([len(text) for text in texts])
    begins = np.cumsum(SEQUENCE + lengths) - lengths
    counts = np.maximum(lengths - 1, 0) // STRIDE
    rows = np.repeat(np.arange(len(texts)), counts)
    nth = 1 + np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = begins[rows] + STRIDE * nth
    known = codes[places] > 0
    rows, places = rows[known], places[known]
    if len(rows) == 0:
        raise DataError(f"no text is longer than {STRIDE} characters: there is nothing to predict")
    made: pd.DataFrame = (
        frame.drop(columns=["text", "next"], errors="ignore").iloc[rows].reset_index(drop=True)
    )
    windows = sliding_window_view(codes, SEQUENCE)[places - SEQUENCE]
    made["text"] = np.fromiter(windows, dtype=object, count=len(windows))
    made["next"] = pd.Categorical.from_codes(codes[places] - 1, dtype=CHARACTERS)
    return made


def _texts(frame: pd.DataFrame) -> list[str]:
    if "text" not in frame.columns:
        raise DataError(f"no column 'text': Columns: {', '.join(frame.columns)}")
    texts = frame["text"].dropna()
    if not all(isinstance(text, str) for text in texts):
        raise DataError("column 'text' holds no texts: check the file")
    return [str(text) for text in frame["text"].astype(object).where(frame["text"].notna(), "")]


def read_texts(path: Path) -> pd.DataFrame:
    """A plain text as one row; one row per speech, with its `speaker`, where it has these.

    A speech is a line `NAME:` after an empty line, and what follows up to the next one. Names are
    read in capitals, as they are not always printed alike.
    """
    text = path.read_text(encoding="utf-8-sig")
    before, *parts = re.split(r"(?:\A|\n\s*\n)([^\n:]{1,60}):[ \t]*\n", text)
    if before.strip() or not parts:
        return pd.DataFrame({"text": [text]})
    speakers = [" ".join(name.upper().split()) for name in parts[::2]]
    return pd.DataFrame({"speaker": speakers, "text": [part.strip() for part in parts[1::2]]})
