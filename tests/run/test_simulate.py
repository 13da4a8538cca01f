from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import cotune
from cotune.coordinator.agree import agree
from cotune.errors import CotuneError, DataError, UsageError
from cotune.run.simulate import again
from tests.parts import iris, parts, people, threads


def rows_of(federation):
    return {name: len(party.frame) for name, party in federation.engine._parties.items()}


def simulate(data, **options):
    return cotune.simulate(data, executor=threads(), **options)


@pytest.fixture
def files(tmp_path):
    paths = []
    for name, frame in parts(iris()).items():
        paths.append(tmp_path / f"{name}.csv")
        frame.to_csv(paths[-1], index=False)
    return paths


def test_three_parties_share_the_rows_unless_told_otherwise():
    with simulate(iris()) as federation:
        assert federation.parties == ["party-1", "party-2", "party-3"]
        assert sum(rows_of(federation).values()) == 150


def test_files_are_one_party_each_and_give_it_their_name(files):
    with simulate(files) as federation:
        assert rows_of(federation) == {"party_1": 50, "party_2": 50, "party_3": 50}


def test_parties_can_be_named():
    with simulate({"north": iris(50), "south": people_like_iris()}) as federation:
        assert federation.parties == ["north", "south"]


def people_like_iris():
    return iris().tail(40)


def test_a_list_of_one_source_is_split_like_the_source(files):
    with simulate([files[0]], parties=2) as listed, simulate(files[0], parties=2) as alone:
        assert rows_of(listed) == rows_of(alone)
        assert listed.origin["fingerprint"] == alone.origin["fingerprint"]


def test_sources_of_the_same_name_are_numbered():
    with simulate([iris(), iris()]) as federation:
        assert federation.parties == ["frame-1", "frame-2"]


def test_a_columns_values_can_make_the_parties():
    frame = iris().assign(hospital=np.repeat(["a", "b", "c", "d", "e"], 30))
    with simulate(frame, split="by:hospital") as federation:
        assert len(federation.parties) == 5


@pytest.mark.parametrize(
    ("data", "options", "sentence"),
    [
        (iris(), {"target": "tarjet"}, "no column 'tarjet'"),
        (iris().assign(target=1), {}, "one class only"),
        (iris(), {"parties": 0}, "0"),
        ([iris(), iris()], {"split": "iid"}, "there is nothing to split 'iid'"),
        ([iris(), iris()], {"parties": 3}, "2 files are 2 parties, not 3"),
        ("missing.csv", {}, r"missing\.csv"),
        ([], {}, "at least 1 party"),
        (iris(), {"quorum": 2}, "the quorum is 2"),
        (iris().assign(a=np.inf), {}, "infinite"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_one_sentence(data, options, sentence):
    with pytest.raises(CotuneError, match=sentence) as caught:
        simulate(data, **options)
    assert "\n" not in str(caught.value)


def test_the_same_seed_gives_the_same_parties():
    with simulate(iris(), seed=1) as one, simulate(iris(), seed=1) as same:
        assert one.origin["fingerprint"] == same.origin["fingerprint"]
    with simulate(iris(), seed=2) as other:
        assert one.origin["fingerprint"] != other.origin["fingerprint"]


@pytest.mark.parametrize("form", ["one", "list", "mapping"])
def test_a_simulation_of_files_can_be_made_again(files, form, tmp_path, monkeypatch):
    data = {"one": files[0].name, "list": files, "mapping": {"a": files[0], "b": files[1]}}[form]
    with monkeypatch.context() as patch:
        patch.chdir(files[0].parent)
        with simulate(data, quorum=0.7, timeout=9.0) as first:
            origin = first.origin
    with again(origin, tmp_path / "state") as second:
        assert second.parties == first.parties
        assert second.origin == origin
        assert (second.quorum, second.timeout) == (0.7, 9.0)


def test_changed_files_are_refused(files, tmp_path):
    with simulate(files) as federation:
        origin = federation.origin
    frame = pd.read_csv(files[1])
    frame.iloc[0, 0] += 0.1
    frame.to_csv(files[1], index=False)
    with pytest.raises(DataError, match="the data has changed since the run was started"):
        again(origin, tmp_path)


def test_a_simulation_of_data_frames_cannot_be_made_again(tmp_path):
    with simulate(people()) as federation, pytest.raises(UsageError, match=r"cotune\.resume\(run"):
        again(federation.origin, tmp_path)


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "images.npz"
    images = np.random.default_rng(0).integers(0, 256, (60, 4, 4), np.uint8)
    np.savez(path, X=images, y=np.arange(60) % 3, party=np.repeat(["a", "b"], 30))
    return path


@pytest.mark.parametrize("split", ["iid", "dirichlet:5", "quantity:5"])
def test_arrays_are_split_without_copies_and_the_label_is_the_target(archive, split):
    with simulate(archive, split=split) as federation:
        tables = federation.engine._tables.values()
        assert sum(map(len, tables)) == 60
        assert len({id(image.base) for table in tables for image in table["image"]}) == 1
        assert agree(federation, folds=2, task=None).classes == ("0", "1", "2")


def test_an_archive_says_whose_its_rows_are(archive):
    with simulate(archive, split="by:party") as federation:
        assert rows_of(federation) == {"a": 30, "b": 30}
        assert agree(federation, folds=2, task=None).array.shape == (4, 4)


def test_a_simulation_of_arrays_can_be_made_again_unless_one_has_changed(archive, tmp_path):
    with simulate([archive, archive]) as federation:
        origin = federation.origin
    again(origin, tmp_path / "state").close()
    stored = dict(np.load(archive))
    stored["X"][7, 3, 3] ^= 1
    np.savez(archive, **stored)
    with pytest.raises(DataError, match="the data has changed"):
        again(origin, tmp_path / "state")


def test_a_text_is_found_again_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "play.txt").write_text(
        2 * "A:\nTo be, or not to be?\n\nB C:\nThat is it, I say.\n\n"
    )
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        with simulate("text:play.txt", split="by:speaker") as first:
            assert rows_of(first) == {"a": 2, "b-c": 2}
    with again(first.origin, tmp_path / "state") as second:
        assert second.origin == first.origin


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"target": "image"}, "target 'image' holds arrays"),
        ({"split": "noise:1"}, "is for columns of numbers, not of arrays"),
        ({"split": "by:image"}, "column 'image' holds arrays"),
        ({"split": "by:hospital"}, "no column 'hospital'"),
    ],
)
def test_what_cannot_be_done_with_arrays_is_said(archive, options, sentence):
    with pytest.raises(CotuneError, match=sentence):
        simulate(archive, **options)
