"""The doctor, with shell scripts in place of interpreters."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cotune.errors import UsageError
from cotune.privacy.doctor import diagnose, interpreter, set_up

BARE = ["CPython", [3, 10], "msgspec (No module named 'msgspec')"]
READY = ["CPython", [3, 10], ""]

# Says of itself what the file `says` beside it holds. Its environments start BARE; `pip install`
# makes them what the file `installed` holds, or fails with the text in `broken`.
SCRIPT = """#!/bin/sh
here=$(dirname "$0")
if [ "$1" = -c ]; then cat "$here/says"; exit; fi
if [ "$2" = venv ]; then
    mkdir -p "$3/bin"; cp "$here/python" "$here/says" "$3/bin/"; echo "$here" > "$3/bin/base"; exit
fi
base=$(cat "$here/base")
echo "$@" >> "$base/log"
if [ -e "$base/broken" ]; then cat "$base/broken" >&2; exit 1; fi
cp "$base/installed" "$here/says"
"""


@pytest.fixture
def world(tmp_path, monkeypatch):
    """No interpreter anywhere, and an empty place for the agent's own."""
    for name in ("COTUNE_AGENT_PYTHON", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("COTUNE_AGENT_HOME", str(tmp_path / "agent"))
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "dirname", "cat", "cp", "mkdir"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{tools}")
    return tmp_path


def placed(folder: Path, says: object = BARE, installed: object = READY) -> Path:
    """A pretended interpreter."""
    folder.mkdir(parents=True)
    (folder / "says").write_text(json.dumps(says))
    (folder / "installed").write_text(json.dumps(installed))
    python = folder / "python"
    python.write_text(SCRIPT)
    python.chmod(0o755)
    return python


def in_pyenv(world: Path, **what: object) -> Path:
    return placed(world / "pyenv" / "versions" / "3.10.13" / "bin", **what)


def test_without_a_fitting_interpreter_it_says_which_and_how_to_get_one(world):
    diagnosis = diagnose()
    assert diagnosis.python is None
    assert not diagnosis.ready
    for asked in (interpreter, set_up):
        with pytest.raises(UsageError, match=r"needs a CPython 3.10 .* COTUNE_AGENT_PYTHON") as one:
            asked()
        assert str(one.value) == diagnosis.sentence
        assert "`cotune agent doctor --setup`" in diagnosis.sentence


def test_with_a_fitting_interpreter_it_names_the_next_step(world):
    base = in_pyenv(world)
    with pytest.raises(UsageError, match=f"makes an environment for it with {base}"):
        interpreter()


def test_an_interpreter_that_is_ready_is_used_as_it_is(world, monkeypatch):
    ready = placed(world / "conda", says=READY)
    monkeypatch.setenv("COTUNE_AGENT_PYTHON", str(ready))
    assert diagnose().ready
    assert interpreter() == set_up() == ready
    assert not (world / "agent").exists()


def test_set_up_makes_an_environment_that_is_found_from_then_on(world):
    base = in_pyenv(world)
    made = set_up()
    assert made == world / "agent" / "venv" / "bin" / "python"
    assert interpreter() == diagnose().python == made
    (installed,) = (base.parent / "log").read_text().splitlines()
    assert "openfhe==1.6.1.0.22.4" in installed
    assert "msgspec" in installed


def test_a_name_on_the_path_that_does_not_run_is_passed_over(world):
    stub = placed(world / "bin").rename(world / "bin" / "python3.10")
    stub.write_text("#!/bin/sh\nexit 127\n")
    base = in_pyenv(world)
    set_up()
    assert (base.parent / "log").exists()


@pytest.mark.parametrize("says", [["CPython", [3, 11], ""], ["PyPy", [3, 10], ""], "nonsense"])
def test_other_interpreters_are_no_base(world, says):
    in_pyenv(world, says=says)
    with pytest.raises(UsageError, match="none was found"):
        set_up()


def test_a_failed_installation_says_why_and_leaves_nothing(world):
    base = in_pyenv(world)
    (base.parent / "broken").write_text("WARNING: slow\nERROR: No matching distribution found\n")
    with pytest.raises(UsageError, match=r"pip could not install .* No matching distribution"):
        set_up()
    assert [left.name for left in (world / "agent").iterdir()] == ["lock"]
    (base.parent / "broken").unlink()
    assert set_up().exists()


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        (
            "openfhe (libgomp.so.1: cannot open shared object)",
            "install your system's libgomp1",
        ),
        ("openfhe (/lib/libc.so.6: version `GLIBC_2.34' not found)", "needs glibc 2.34"),
        ("openfhe (No module named 'openfhe.openfhe')", "it lacks openfhe"),
    ],
)
def test_a_library_that_does_not_load_is_explained(world, lacks, says):
    in_pyenv(world, installed=["CPython", [3, 10], lacks])
    with pytest.raises(UsageError, match=says):
        set_up()
    assert not (world / "agent" / "venv").exists()


def test_two_at_once_build_one_environment(world):
    base = in_pyenv(world)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: set_up(), range(2))
    assert one == other
    assert len((base.parent / "log").read_text().splitlines()) == 1


def test_an_environment_that_broke_is_built_anew(world):
    in_pyenv(world)
    says = set_up().parent / "says"
    says.write_text(json.dumps(BARE))
    (world / "agent" / "venv.building").mkdir()
    assert not diagnose().ready
    assert "it lacks msgspec" in diagnose().sentence
    set_up()
    assert diagnose().ready


def test_a_wrong_name_in_the_environment_is_told(world, monkeypatch):
    monkeypatch.setenv("COTUNE_AGENT_PYTHON", "/nowhere/python")
    with pytest.raises(UsageError, match="/nowhere/python cannot run the key agent"):
        interpreter()


def test_a_place_that_cannot_be_written_is_named(world, monkeypatch):
    in_pyenv(world)
    (world / "file").touch()
    monkeypatch.setenv("COTUNE_AGENT_HOME", str(world / "file" / "agent"))
    with pytest.raises(UsageError, match="name another place by COTUNE_AGENT_HOME"):
        set_up()


def test_the_place_follows_the_cache_folder(world, monkeypatch):
    in_pyenv(world)
    monkeypatch.delenv("COTUNE_AGENT_HOME")
    assert set_up() == world / ".cache" / "cotune" / "agent" / "venv" / "bin" / "python"
    monkeypatch.setenv("XDG_CACHE_HOME", str(world / "cache"))
    assert set_up() == world / "cache" / "cotune" / "agent" / "venv" / "bin" / "python"
