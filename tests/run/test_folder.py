from __future__ import annotations

import stat
import subprocess
import sys

import pytest

import cotune
from cotune.errors import FederationError, UsageError
from cotune.run.folder import Run, new_folder, read_record, run_folders
from cotune.run.settings import Settings
from tests.parts import federation_of, iris, parts


def start(folder, **settings):
    return Run.create(Settings(**settings), {"target": "target"}, folder)


def test_a_run_is_found_again_as_it_was_started(tmp_path):
    run = start(tmp_path / "deep" / "run", seed=7)
    run.close()
    again = Run.open(tmp_path / "deep" / "run")
    assert again.record == run.record
    assert again.record.settings.seed == 7
    assert again.record.origin == {"target": "target"}
    again.close()


def test_a_run_without_a_folder_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = start(None)
    run.finish(b"{}")
    run.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_holds_one_run(tmp_path):
    start(tmp_path).close()
    with pytest.raises(UsageError, match=r"holds a run already: `cotune resume .*another --run"):
        start(tmp_path)


def test_two_processes_on_one_run_are_refused(tmp_path):
    folder = tmp_path / "run"
    run = start(folder)
    code = "from pathlib import Path; from cotune.run.folder import Run; Run.open(Path({!r}))"
    command = [sys.executable, "-c", code.format(str(folder))]
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "is being worked on by another process" in second.stderr
    run.close()
    assert subprocess.run(command, check=False).returncode == 0


def test_a_folder_without_a_run_is_said_to_have_none(tmp_path):
    with pytest.raises(UsageError, match=r"there is no run in .*`cotune runs` lists"):
        Run.open(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("content", [b"", b"{", b'{"id": 1}', b"\xff\xfe"])
def test_a_record_that_is_damaged_is_named(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"run\.json cannot be read"):
        read_record(tmp_path)


def test_a_record_in_which_a_setting_was_changed_is_named(tmp_path):
    start(tmp_path, seed=7).close()
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace('"seed": 7', '"seed": 8'))
    with pytest.raises(UsageError, match=r"it was changed or damaged: restore the folder"):
        read_record(tmp_path)


def test_a_runs_files_are_for_their_owner_alone(tmp_path):
    with federation_of(parts(iris(60)), state=tmp_path / "made/run/parties") as federation:
        cotune.tune(
            federation, learners=["decision_tree"], trials=1, folds=2, run=tmp_path / "made/run"
        )
    made = [tmp_path / "made", *(tmp_path / "made").rglob("*")]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()}
    assert modes == {0o700}
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made if path.is_file()}
    assert {"run.json", "journal.sqlite", "outcome.json", "lock", "model.json"} <= set(files)
    assert any(name.endswith(".jsonl") for name in files)
    assert set(files.values()) == {0o600}


def test_a_folder_that_cannot_be_made_is_named_with_the_fix(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot be written .*: give another with --run"):
        start(tmp_path / "file" / "run")


def test_a_folder_that_cannot_be_written_any_more_is_named_too(tmp_path):
    run = start(tmp_path)
    (tmp_path / "outcome.json.part").mkdir()
    with pytest.raises(FederationError, match=r"cannot be written .*then `cotune resume"):
        run.finish(b"{}")
    run.close()
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        Run.open(tmp_path)


def test_new_folders_have_readable_names_that_are_not_taken(tmp_path):
    names = []
    for _ in range(3):
        folder = new_folder("iris-dash", tmp_path)
        folder.mkdir()
        names.append(folder.name)
    assert len(set(names)) == 3
    assert all("iris-dash" in name for name in names)


def test_runs_are_listed_with_those_of_comparisons(tmp_path):
    for name in ("b", "a", "compared/dash"):
        start(tmp_path / name).close()
    assert [str(f.relative_to(tmp_path)) for f in run_folders(tmp_path)] == [
        "a",
        "b",
        "compared/dash",
    ]
    assert list(run_folders(tmp_path / "none")) == []
