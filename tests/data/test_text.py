from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cotune.data.load import load
from cotune.data.text import ALPHABET, CODES, SEQUENCE, STRIDE, examples
from tests.data.test_load import complaint

PLAY = "First Lord:\nIs this the way to go?\nIt is.\n\nFIRST  LORD:\nNo, it is not.\n"


def read(codes: np.ndarray) -> str:
    return "".join(ALPHABET[code - 1] for code in codes if code)


def text_of(length: int, seed: int = 0) -> str:
    return "".join(np.random.default_rng(seed).choice(list(ALPHABET), length))


def test_an_example_is_what_precedes_a_character() -> None:
    text = text_of(200)
    made = examples(pd.DataFrame({"text": [text]}))
    places = range(STRIDE, 200, STRIDE)
    assert made["next"].tolist() == [text[place] for place in places]
    assert [read(w) for w in made["text"]] == [text[max(0, p - SEQUENCE) : p] for p in places]
    first = made["text"][0]
    assert first.shape == (SEQUENCE,)
    assert first.dtype == np.int8
    assert not first[:-STRIDE].any(), "nothing precedes the beginning"
    assert first.max() < CODES


def test_texts_do_not_run_into_each_other_and_keep_their_order_and_columns() -> None:
    texts = [text_of(50, 1), "short", None, text_of(35, 2)]
    frame = pd.DataFrame({"who": list("abcd"), "text": texts, "next": 0})
    made = examples(frame)
    assert made["who"].tolist() == ["a"] * 4 + ["d"] * 3
    assert read(made["text"].iloc[4]) == texts[3][:STRIDE]
    assert list(made.columns) == ["who", "text", "next"]


def test_characters_beyond_the_alphabet_are_not_told_apart_nor_predicted() -> None:
    made = examples(pd.DataFrame({"text": ["0123456789äb\t345678é" + "x" * 20]}))
    assert made["next"].tolist() == ["x", "x"]
    assert made["text"][0][-20:].tolist().count(0) == 3


def test_a_table_of_texts_is_read_and_other_columns_are_for_splitting_only(tmp_path: Path) -> None:
    path = tmp_path / "plays.parquet"
    pd.DataFrame({"play": ["a", "b"], "text": [text_of(40), text_of(40)]}).to_parquet(path)
    assert list(load(f"text:{path}").columns) == ["text", "next"]
    assert load(f"text:{path}", by="play")["play"].tolist() == list("aaabbb")


def test_a_question_mark_is_a_character_and_not_missing(tmp_path: Path) -> None:
    path = tmp_path / "questions.txt"
    path.write_text("0123456789?012345678NA")
    frame = load(f"text:{path}")
    assert frame["next"].tolist() == ["?", "N"]
    assert load(frame)["next"].tolist() == ["?", "N"]


def test_speeches_of_a_play_have_their_speaker(tmp_path: Path) -> None:
    path = tmp_path / "play.txt"
    path.write_text(PLAY)
    frame = load(f"text:{path}", by="speaker")
    assert set(frame["speaker"]) == {"FIRST LORD"}
    assert read(frame["text"].iloc[0]) == "Is this th"
    assert read(frame["text"].iloc[-1]) == "No, it is "


def test_a_text_without_speakers_is_one_text(tmp_path: Path) -> None:
    path = tmp_path / "plain.txt"
    path.write_text("This is no play.\n\n" + PLAY)
    assert read(load(f"text:{path}")["text"][2]) == "This is no play.\n\nFirst Lord:\n"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "a,b\n1,2\n", "no column 'text': Columns: a, b"),
        ("a.csv", "text,b\n1,2\n", "column 'text' holds no texts"),
        ("a.csv", "text,b\nshort,2\n", "no text is longer than"),
        ("a.txt", "short", "no text is longer than"),
        ("a.txt", b"\xff\xff", "not UTF-8"),
        ("a.doc", "text", "unknown file type"),
    ],
)
def test_what_holds_no_texts_is_refused(
    tmp_path: Path, name: str, content: str | bytes, sentence: str
) -> None:
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    assert sentence in complaint(f"text:{tmp_path / name}")
