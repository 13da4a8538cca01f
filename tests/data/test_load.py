from __future__ import annotations

import contextlib
import datetime
import decimal
import gzip
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.data.load import check_target, fingerprint, load, name_of
from cotune.errors import DataError, UsageError

ROWS = "age,town,class\n31,Bonn,yes\n?,Köln,no\n45,?,yes\n"

ARFF = """% a comment
@relation towns
@attribute age numeric
@attribute town {Bonn,Kiel}
@attribute class {0,1}
@data
31,Bonn,0
?,Kiel,1
45,?,1
"""


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def complaint(source: object) -> str:
    with pytest.raises(DataError) as caught:
        load(source)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_towns(frame: pd.DataFrame) -> None:
    assert list(frame.columns) == ["age", "town", "class"]
    assert frame["age"].dtype == float
    assert frame["age"].isna().tolist() == [False, True, False]
    assert frame["town"].isna().tolist() == [False, False, True]
    assert frame["class"].tolist() == ["yes", "no", "yes"]


# Files


@pytest.mark.parametrize("name", ["towns.csv", "TOWNS.CSV"])
def test_a_csv_file_is_read(tmp_path: Path, name: str) -> None:
    assert_towns(load(written(tmp_path, name, ROWS)))


def test_a_path_may_be_given_as_text(tmp_path: Path) -> None:
    assert_towns(load(str(written(tmp_path, "towns.csv", ROWS))))


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    assert_towns(load(written(tmp_path, "towns.csv", b"\xef\xbb\xbf" + ROWS.encode())))


def test_a_packed_csv_file_is_read(tmp_path: Path) -> None:
    assert_towns(load(written(tmp_path, "towns.csv.gz", gzip.compress(ROWS.encode()))))


@pytest.mark.parametrize("name", ["towns.tsv", "towns.txt"])
def test_a_tab_separated_file_is_read(tmp_path: Path, name: str) -> None:
    assert_towns(load(written(tmp_path, name, ROWS.replace(",", "\t"))))


@pytest.mark.parametrize(
    ("name", "separator"), [("a.csv", ";"), ("a.csv", "\t"), ("a.txt", ","), ("a.tsv", ";")]
)
def test_a_separator_other_than_the_usual_is_noticed(
    tmp_path: Path, name: str, separator: str
) -> None:
    assert_towns(load(written(tmp_path, name, ROWS.replace(",", separator))))


def test_a_file_with_semicolons_may_have_decimal_commas_or_points(tmp_path: Path) -> None:
    frame = load(written(tmp_path, "a.csv", "a;b\n1,5;2.5\n2,5;3\n"))
    assert frame["a"].tolist() == [1.5, 2.5]
    assert frame["b"].tolist() == [2.5, 3.0]


def test_spaces_after_commas_do_not_hide_a_missing_mark(tmp_path: Path) -> None:
    assert_towns(load(written(tmp_path, "towns.csv", ROWS.replace(",", ", "))))


def test_a_parquet_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "towns.parquet"
    load(written(tmp_path, "towns.csv", ROWS)).to_parquet(path)
    assert_towns(load(path))


def test_a_csv_file_and_its_parquet_copy_have_one_fingerprint(tmp_path: Path) -> None:
    frame = load(written(tmp_path, "towns.csv", ROWS))
    frame.to_parquet(tmp_path / "towns.parquet")
    assert fingerprint(load(tmp_path / "towns.parquet")) == fingerprint(frame)


def test_nominal_arff_attributes_become_categories_even_if_they_look_like_numbers(
    tmp_path: Path,
) -> None:
    frame = load(written(tmp_path, "towns.arff", ARFF))
    assert frame["age"].isna().tolist() == [False, True, False]
    assert frame["town"].tolist()[:2] == ["Bonn", "Kiel"]
    assert frame["town"].isna().tolist() == [False, False, True]
    assert frame["class"].dtype == "category"
    assert frame["class"].tolist() == ["0", "1", "1"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", "", "the file is empty"),
        ("a.csv", "\n\n", "the file is empty"),
        ("a.csv", "a,b\n", "there are no rows"),
        ("a.csv", "a,a,b\n1,2,3\n", "repeated column names (a)"),
        ("a.csv", "a,b\n1,2,3\n4,5,6\n", "Expected 2 fields in line 2, saw 3"),
        ("a.csv", "a,b\n1,2\n4,5,6\n", "Expected 2 fields in line 3, saw 3"),
        ("a.csv", "a,b\n1,inf\n", "column 'b' has infinite values"),
        ("a.csv", "a,b\nK\xf6ln,1\n".encode("latin-1"), "save the file as UTF-8"),
        ("a.csv", "a,b\n1,2\n".encode("utf-16"), "save the file as UTF-8"),
        ("a.csv", b"\x7fELF\x00\x00\x01,\x00\x02\n\x00", "binary data"),
        ("a.csv", bytes(range(256)) * 8, "a.csv"),
        ("a.csv.gz", b"not packed at all", "cannot be read"),
        ("a.csv.gz", gzip.compress(ROWS.encode(), mtime=0)[:-12], "cannot be read"),
        ("a.csv.zip", b"PK junk", "cannot be read"),
        ("a.parquet", b"", "cannot be read"),
        ("a.parquet", b"PAR1 and then nothing", "cannot be read"),
        ("a.arff", "", "no ARFF header"),
        ("a.arff", "just a line\n", "no ARFF header"),
        ("a.arff", "@relation r\n@attribute a numeric\n@data\n", "there are no rows"),
        ("a.arff", "@relation r\n@attribute a string\n@data\nx\n", "convert it to CSV"),
        ("a.arff", "@relation r\n@attribute a numeric\n@data\n{0 1}\n", "cannot be read"),
        ("a.arff", "@relation r\n@attribute a {x,y}\n@data\nz\n", "cannot be read"),
        (
            "a.arff",
            "@relation r\n@attribute w date 'yyyy'\n@data\n2020\n",
            "column 'w' holds dates",
        ),
        (
            "a.xlsx",
            b"PK",
            "unknown file type '.xlsx': known are .csv, .tsv, .txt, .csv.gz, .parquet, .arff",
        ),
        ("plain", b"", "unknown file type ''"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_name(
    tmp_path: Path, name: str, content: str | bytes, expected: str
) -> None:
    text = complaint(written(tmp_path, name, content))
    assert text.startswith(str(tmp_path / name))
    assert expected in text


@settings(max_examples=50, deadline=None)
@given(content=st.binary(max_size=200), name=st.sampled_from(["a.csv", "a.arff", "a.parquet"]))
def test_junk_is_read_or_refused_but_never_breaks(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
) -> None:
    path = written(tmp_path_factory.getbasetemp(), name, content)
    with contextlib.suppress(DataError):
        assert len(load(path)) > 0


def test_a_misspelt_file_brings_up_its_neighbour(tmp_path: Path) -> None:
    written(tmp_path, "towns.csv", ROWS)
    assert "did you mean towns.csv?" in complaint(tmp_path / "twons.csv")


def test_a_file_in_no_folder_is_refused(tmp_path: Path) -> None:
    assert "there is no such file" in complaint(tmp_path / "nowhere" / "towns.csv")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "name one file in it" in complaint(tmp_path)


# Frames


def test_a_frame_is_left_as_it_was_and_its_copy_is_tidy() -> None:
    given_frame = pd.DataFrame({1: ["?", "2"], "y": ["a", "b"]}, index=[7, 9])
    frame = load(given_frame)
    assert list(frame.columns) == ["1", "y"]
    assert frame.index.tolist() == [0, 1]
    assert frame["1"].dtype == float
    frame.loc[0, "y"] = "changed"
    assert given_frame[1].tolist() == ["?", "2"]
    assert given_frame["y"].tolist() == ["a", "b"]
    assert given_frame.index.tolist() == [7, 9]


def test_names_that_are_one_as_text_are_refused() -> None:
    assert "repeated column names (1)" in complaint(pd.DataFrame([[1, 2]], columns=[1, "1"]))


def test_a_frame_without_columns_is_refused() -> None:
    assert "there are no columns" in complaint(pd.DataFrame(index=[0, 1]))


@pytest.mark.parametrize(
    ("cells", "dtype", "becomes"),
    [
        (["1", "2"], "str", "int64"),
        (["1", "?"], "str", "float64"),
        (["1", ""], "string", "float64"),
        (["1", "NA"], "string[pyarrow]", "float64"),
        (["1", "2"], "string", "int64"),
        ([1, "?"], "object", "float64"),
        ([1.5, "?"], "object", "float64"),
        ([1, 2], "object", "int64"),
        ([1, None], "Int64", "float64"),
        ([1, 2], "Int64", "int64"),
        ([1, 2], "int64[pyarrow]", "int64"),
        ([1, None], "double[pyarrow]", "float64"),
        ([1.5, 2], "float32", "float32"),
        ([decimal.Decimal("1.5"), None], "object", "float64"),
        ([None, None], "object", "float64"),
        (["?", "?"], "str", "float64"),
        ([True, False], "bool", "bool"),
        ([True, False], "boolean", "bool"),
        ([True, None], "boolean", "object"),
        (["1", "2"], "category", "category"),
        (["a", "1"], "str", "str"),
    ],
)
def test_columns_get_plain_types(cells: list[object], dtype: str, becomes: str) -> None:
    column = load(pd.DataFrame({"x": pd.Series(cells, dtype=dtype)}))["x"]
    assert str(column.dtype) == becomes


def test_a_question_mark_is_no_category() -> None:
    column = load(pd.DataFrame({"x": pd.Series(["a", "?"], dtype="category")}))["x"]
    assert column.isna().tolist() == [False, True]
    assert column.cat.categories.tolist() == ["a"]


def test_the_word_none_stays_a_category(tmp_path: Path) -> None:
    frame = load(written(tmp_path, "a.csv", "alley,y\nNone,1\nPaved,2\n"))
    assert frame["alley"].tolist() == ["None", "Paved"]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (pd.to_datetime(["2024-01-01"]), "convert it to a number or drop it"),
        (pd.to_timedelta(["1 day"]), "convert it to a number or drop it"),
        ([datetime.date(2024, 1, 1)], "convert it to a number or drop it"),
        ([np.inf], "infinite"),
        (["-inf"], "infinite"),
        ([1 + 2j], "complex"),
        ([b"raw"], "bytes"),
        ([[1, 2]], "mixed"),
        ([{"a": 1}], "mixed"),
    ],
)
def test_a_column_that_cannot_be_learnt_from_is_refused_by_name(
    cells: object, expected: str
) -> None:
    text = complaint(pd.DataFrame({"when": pd.Series(cells)}))
    assert text.startswith("the data frame: column 'when'")
    assert expected in text


def test_numbers_among_words_are_refused() -> None:
    assert "neither all numbers nor all text" in complaint(pd.DataFrame({"x": [1, "a"]}))


# Collections


@pytest.mark.parametrize(
    ("name", "rows", "classes"),
    [
        ("iris", 150, {"setosa", "versicolor", "virginica"}),
        ("wine", 178, {"class_0", "class_1", "class_2"}),
        ("breast_cancer", 569, {"malignant", "benign"}),
        ("digits", 1797, set(range(10))),
    ],
)
def test_a_bundled_collection_has_named_classes(name: str, rows: int, classes: set[object]) -> None:
    frame = load(f"sklearn:{name}")
    assert len(frame) == rows
    assert frame.columns[-1] == "target"
    assert set(frame["target"]) == classes


def test_diabetes_has_a_continuous_target() -> None:
    assert load("sklearn:diabetes")["target"].dtype == float


def test_an_unknown_collection_lists_the_known() -> None:
    text = complaint("sklearn:irsi")
    assert "did you mean 'iris'?" in text
    assert "iris, wine, breast_cancer, digits, diabetes" in text


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("openml:1471", {"data_id": 1471}),
        ("openml:eeg-eye-state", {"name": "eeg-eye-state"}),
        ("openml:eeg-eye-state@2", {"name": "eeg-eye-state", "version": 2}),
        ("openml:1471@2", {"name": "1471", "version": 2}),
    ],
)
def test_openml_is_asked_by_number_or_name_and_the_target_comes_last(
    monkeypatch: pytest.MonkeyPatch, source: str, asked: dict[str, object]
) -> None:
    calls = []

    def fetch_openml(**arguments: object) -> SimpleNamespace:
        calls.append(arguments)
        frame = pd.DataFrame({"Class": ["a", "b"], "V1": [1, 2]})
        return SimpleNamespace(frame=frame, target_names=["Class"])

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch_openml)
    assert list(load(source).columns) == ["V1", "Class"]
    assert calls == [{**asked, "as_frame": True}]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (URLError("no route"), "the download from OpenML failed"),
        (TimeoutError(), "check the connection"),
        (ValueError("No active dataset nosuch found."), "No active dataset nosuch found"),
    ],
)
def test_a_failed_download_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, expected: str
) -> None:
    def fetch_openml(**_: object) -> None:
        raise failure

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch_openml)
    assert expected in complaint("openml:nosuch")


@pytest.mark.parametrize("source", ["openml:", "openml:eeg@", "openml:eeg@new", "openml:@1"])
def test_a_malformed_openml_name_is_refused(source: str) -> None:
    with pytest.raises(UsageError, match="openml:NAME@VERSION"):
        load(source)


# Targets, names and fingerprints


def test_a_good_target_passes() -> None:
    check_target(pd.DataFrame({"x": [1, 2], "y": ["a", "b"]}), "y")


def test_a_misspelt_target_brings_up_the_columns() -> None:
    frame = pd.DataFrame({name: [1, 2] for name in ["klass", *"abcdefghij"]})
    with pytest.raises(
        DataError, match=r"did you mean 'klass'\? Columns: klass, a, .*g and 3 more"
    ):
        check_target(frame, "class")


def test_a_target_with_gaps_is_refused_with_their_number() -> None:
    with pytest.raises(DataError, match="missing in 2 of 3 rows"):
        check_target(pd.DataFrame({"y": ["a", None, None]}), "y")


def test_a_target_with_one_class_is_refused() -> None:
    with pytest.raises(DataError, match="one class only; there is nothing to learn"):
        check_target(pd.DataFrame({"y": ["a", "a"]}), "y")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("sklearn:digits", "digits"),
        ("openml:EEG-Eye-State@1", "eeg_eye_state"),
        ("openml:1471", "openml_1471"),
        ("data/EEG Eye State.csv.gz", "eeg_eye_state"),
        (Path("wine.parquet"), "wine"),
        ("text:plays/Hamlet.txt", "hamlet"),
        ("資料.csv", "data"),
        (pd.DataFrame(), "frame"),
    ],
)
def test_a_source_has_a_short_name(source: str | Path | pd.DataFrame, name: str) -> None:
    assert name_of(source) == name


MIXED = {
    "number": [1.5, None, 3.0],
    "text": ["a", None, "b"],
    "flag": [True, None, False],
}


def mixed() -> pd.DataFrame:
    return pd.DataFrame(MIXED).assign(kind=pd.Series(["u", None, "v"], dtype="category"))


def test_a_fingerprint_is_the_same_in_another_process() -> None:
    script = (
        "import pandas as pd; from cotune.data.load import fingerprint; "
        f"frame = pd.DataFrame({MIXED!r}); "
        "frame['kind'] = pd.Series(['u', None, 'v'], dtype='category'); "
        "print(fingerprint(frame))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == fingerprint(mixed())


def test_a_fingerprint_does_not_depend_on_the_index() -> None:
    assert fingerprint(mixed().set_axis([5, 6, 7])) == fingerprint(mixed())


@pytest.mark.parametrize(
    "changed",
    [
        mixed().rename(columns={"text": "words"}),
        mixed()[["text", "number", "flag", "kind"]],
        mixed().iloc[::-1],
        mixed().assign(number=[1.5, None, 3.5]),
        mixed().assign(text=["a", "", "b"]),
        mixed().assign(kind=mixed()["kind"].astype(object)),
    ],
)
def test_a_fingerprint_tells_frames_apart(changed: pd.DataFrame) -> None:
    assert fingerprint(changed) != fingerprint(mixed())
