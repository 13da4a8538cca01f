from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cotune.data.arrays import cells, chunks, is_array, stacked, tidy_arrays
from cotune.data.load import load
from cotune.errors import DataError
from tests.data.test_load import complaint


def images(rows: int = 6, dtype: object = np.uint8) -> np.ndarray:
    return np.arange(rows * 12).reshape(rows, 3, 4).astype(dtype)


def column(values: object) -> pd.Series:
    return pd.Series(cells(np.asarray(values)), name="image")


def saved(folder: Path, **arrays: object) -> Path:
    path = folder / "images.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


# Cells


def test_cells_are_views_of_one_array() -> None:
    values = images()
    assert all(np.shares_memory(cell, values) for cell in cells(values))
    np.testing.assert_array_equal(stacked(column(values)), values)


def test_many_rows_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotune.data.arrays.CHUNK", 4)
    parts = list(chunks(column(images())))
    assert [len(part) for part in parts] == [4, 2]
    np.testing.assert_array_equal(np.concatenate(parts), images())


@pytest.mark.parametrize("values", [["a"], [1.0], [None], [(1, 2)]])
def test_other_cells_are_no_arrays(values: list[object]) -> None:
    assert not is_array(pd.Series(values, dtype=object))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.uint8, np.uint8),
        (np.int64, np.uint8),
        (bool, np.uint8),
        (np.float16, np.float32),
        (np.float64, np.float32),
        (np.int8, np.int8),
    ],
)
def test_amounts_are_bytes_or_short_floats_and_codes_stay(given: object, kept: object) -> None:
    tidy = tidy_arrays(column(images(dtype=given)))
    assert {cell.dtype for cell in tidy} == {np.dtype(kept)}
    np.testing.assert_array_equal(stacked(tidy), images(dtype=given))


def test_whole_numbers_beyond_a_byte_become_floats() -> None:
    assert stacked(tidy_arrays(column(images(dtype=int) - 1))).dtype == np.float32
    assert stacked(tidy_arrays(column(images(dtype=int) * 300))).dtype == np.float32


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([np.zeros(3), None], "must hold an array in every row"),
        ([np.zeros(3), 1.0], "must hold an array in every row"),
        ([np.zeros((2, 3)), np.zeros((3, 2))], "2 x 3 numbers and of 3 x 2 numbers"),
        ([np.zeros(0), np.zeros(0)], "arrays without numbers"),
        ([np.array([1.0, np.nan])], "missing or infinite"),
        ([np.array([1.0, np.inf])], "missing or infinite"),
        ([np.array([1.0, 1e300])], "missing or infinite"),
        ([np.array(["a", "b"])], "make them numbers"),
        ([np.array([{}, {}])], "arrays of object: make them numbers"),
        ([np.array([-1], dtype=np.int8)], "beyond these: give other numbers as float32"),
        ([np.array([100], dtype=np.int8)], "which stand for characters"),
    ],
)
def test_cells_that_cannot_be_used_are_refused(values: list[object], sentence: str) -> None:
    rows = pd.Series(np.fromiter(values, dtype=object), name="image")
    assert sentence in complaint(pd.DataFrame({"image": rows, "label": range(len(rows))}))


def test_the_callers_frame_is_left_as_it_is() -> None:
    frame = pd.DataFrame({"image": column(images(dtype=float)), "label": range(6)})
    load(frame)
    assert frame["image"][0].dtype == float


# Archives


@pytest.mark.parametrize("names", [("X", "y"), ("images", "labels"), ("x_train", "y_train")])
def test_an_archive_is_read_by_its_usual_names(tmp_path: Path, names: tuple[str, str]) -> None:
    frame = load(saved(tmp_path, **dict(zip(names, (images(), np.arange(6) % 2), strict=True))))
    assert list(frame.columns) == ["image", "label"]
    np.testing.assert_array_equal(stacked(frame["image"]), images())
    assert frame["label"].tolist() == [0, 1] * 3


def test_training_rows_come_before_test_rows(tmp_path: Path) -> None:
    values, labels = images(), np.array([["a"], ["b"], ["c"], ["d"], ["e"], ["f"]])
    frame = load(
        saved(
            tmp_path, x_test=values[4:], y_test=labels[4:], x_train=values[:4], y_train=labels[:4]
        )
    )
    assert frame["label"].tolist() == list("abcdef")
    np.testing.assert_array_equal(stacked(frame["image"]), values)


def test_flat_arrays_are_no_images(tmp_path: Path) -> None:
    frame = load(saved(tmp_path, X=np.ones((4, 5), np.int8), y=np.arange(4)))
    assert list(frame.columns) == ["array", "label"]
    assert frame["array"][0].dtype == np.uint8


def test_the_party_of_a_row_is_kept_only_to_split_by_it(tmp_path: Path) -> None:
    path = saved(tmp_path, X=images(), y=np.arange(6), party=np.repeat(["a", "b"], 3))
    assert list(load(path).columns) == ["image", "label"]
    assert load(path, by="party")["party"].tolist() == list("aaabbb")
    with pytest.raises(DataError, match="no column 'prty': did you mean 'party'"):
        load(path, by="prty")


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"Z": images(), "y": np.arange(6)}, "arrays Z, y: name them X and y, or images"),
        ({"X": images(), "y": np.arange(5)}, "'X' has 6 rows and 'y' 5"),
        ({"X": np.arange(6), "y": np.arange(6)}, "'X' must have an array for each row"),
        ({"X": images(), "y": np.ones((6, 2))}, "'y' must have one label for each row"),
        ({"X": images(), "y": np.ones(6), "party": np.ones(5)}, "'party' has the shape (5,)"),
        ({"X": np.array([[{}], [{}]]), "y": np.ones(2)}, "Python objects are not read"),
        ({"X": np.array([["a"], ["b"]]), "y": np.ones(2)}, "make them numbers"),
        ({"X": images() / np.nan, "y": np.ones(6)}, "missing or infinite"),
        (
            {"x_train": images(), "y_train": np.ones(6), "x_test": images()},
            "no array 'y_test' beside 'x_test'",
        ),
    ],
)
def test_an_archive_that_cannot_be_used_says_why(
    tmp_path: Path, arrays: dict[str, object], sentence: str
) -> None:
    assert sentence in complaint(saved(tmp_path, **arrays))


def test_an_archive_that_claims_more_than_there_is_memory_for_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, X=images(), y=np.ones(6))
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    shape = str(images().shape).encode()
    claimed = b"(1000000000000,)".ljust(len(shape) + 10)
    files["X.npy"] = files["X.npy"].replace(shape + b", }          ", claimed + b", }")
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert "no NumPy archive" in complaint(path)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    path.write_bytes(b"PK no archive")
    assert "no NumPy archive" in complaint(path)
    with path.open("wb") as file:
        np.save(file, images())
    assert "no NumPy archive" in complaint(path)
