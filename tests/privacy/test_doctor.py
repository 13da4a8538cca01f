"""The doctor, with shell scripts in place of interpreters."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cotune.errors import UsageError
from cotune.privacy.doctor import diagnose, interpreter, set_up

BARE = ["CPython", [3, 10], "msgspec (No module named 'msgspec')", ""]
READY = ["CPython", [3, 10], "", "1.6.1.0.22.4"]
BARE_12 = ["CPython", [3, 12], "msgspec (No module named 'msgspec')", ""]
READY_12 = ["CPython", [3, 12], "", "1.6.1.0.24.4"]

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
    """Debian 12 without an interpreter, and an empty place for the agent's own."""
    glibc(monkeypatch, "2.36")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("sys.executable", str(tmp_path / "nowhere" / "python"))
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


def glibc(monkeypatch, version: str, name: str = "glibc") -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: (name, version))


def placed(folder: Path, says: object = BARE, installed: object = READY) -> Path:
    """A pretended interpreter."""
    folder.mkdir(parents=True)
    (folder / "says").write_text(json.dumps(says))
    (folder / "installed").write_text(json.dumps(installed))
    python = folder / "python"
    python.write_text(SCRIPT)
    python.chmod(0o755)
    return python


def in_pyenv(world: Path, version: str = "3.10.13", **what: object) -> Path:
    return placed(world / "pyenv" / "versions" / version / "bin", **what)


def installed(base: Path) -> str:
    """What pip was asked to install into the environment that was made with this one."""
    (line,) = (base.parent / "log").read_text().splitlines()
    return line


def interpreter_after(made: Path) -> Path:
    """The folder of the interpreter with which the environment was made."""
    return Path((made.parent / "base").read_text().strip())


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
    assert "openfhe==1.6.1.0.22.4" in installed(base)
    assert "msgspec" in installed(base)


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


OLD = "openfhe==1.6.1.0.22.4 for CPython 3.10"
NEW = "openfhe==1.6.1.0.24.4 for CPython 3.12"


@pytest.mark.parametrize(
    ("version", "there", "taken", "why"),
    [
        ("2.36", ("3.10.13", "3.12.1"), "3.10.13", f"{OLD}; {NEW} needs glibc 2.38, and this "),
        ("2.37", ("3.10.13", "3.12.1"), "3.10.13", f"{OLD}; {NEW} needs glibc 2.38, and this "),
        ("2.38", ("3.10.13", "3.12.1"), "3.12.1", f"{NEW}; {OLD} is not needed"),
        ("2.41", ("3.12.1",), "3.12.1", f"{NEW}; {OLD} is not needed"),
        ("2.41", ("3.10.13", "3.11.7"), "3.10.13", f"{OLD}; no CPython 3.12 was found"),
        ("2.100", ("3.12.1",), "3.12.1", f"{NEW}; {OLD} is not needed"),
    ],
)
def test_the_first_package_that_system_and_interpreters_allow_is_taken_and_it_says_why(
    world, monkeypatch, version, there, taken, why
):
    glibc(monkeypatch, version)
    bases = {
        name: in_pyenv(world, name, says=["CPython", [3, int(name.split(".")[1])], "msgspec", ""])
        for name in there
    }
    sentence = diagnose().sentence
    assert f"with {bases[taken]} (" in sentence
    assert why in sentence
    assert "\n" not in sentence
    set_up()
    right = why.split()[0]
    assert right in installed(bases[taken])
    assert not any((b.parent / "log").exists() for name, b in bases.items() if name != taken)


@pytest.mark.parametrize(
    ("name", "version", "there", "says"),
    [
        (
            "glibc",
            "2.36",
            "3.12.1",
            r"needs a CPython 3\.10 and none was found .*2\.38.* has 2\.36",
        ),
        (
            "glibc",
            "2.41",
            "3.11.7",
            r"needs a CPython 3\.12 or 3\.10 and .*your system's python3\.12",
        ),
        ("glibc", "2.31", "3.10.13", r"cannot run on this system: .*glibc 2\.34, and .* has 2\.31"),
        ("", "", "3.12.1", r"cannot run on this system: .* this system has none"),
    ],
)
def test_where_no_package_can_be_used_it_says_why_for_each(
    world, monkeypatch, name, version, there, says
):
    glibc(monkeypatch, version, name)
    in_pyenv(world, there, says=["CPython", [3, int(there.split(".")[1])], "msgspec", ""])
    assert not diagnose().ready
    with pytest.raises(UsageError, match=says):
        set_up()


@pytest.mark.parametrize("machine", ["aarch64", "arm64", ""])
def test_on_another_processor_nothing_is_installed_that_could_not_be_loaded(
    world, monkeypatch, machine
):
    """The packages call themselves fit for any."""
    monkeypatch.setattr("platform.machine", lambda: machine)
    base = in_pyenv(world)
    says = f"is for x86-64 processors, and this one is {machine or 'unknown'}"
    assert says in diagnose().sentence
    with pytest.raises(UsageError, match=f"cannot run on this system: .*{says}"):
        set_up()
    assert not (base.parent / "log").exists()


def test_a_package_that_does_not_load_here_after_all_gives_way_to_the_other(world, monkeypatch):
    glibc(monkeypatch, "2.39")
    lacks = "openfhe (libstdc++.so.6: version `GLIBCXX_3.4.32' not found)"
    in_pyenv(world, "3.12.1", says=BARE_12, installed=["CPython", [3, 12], lacks, ""])
    older = in_pyenv(world, "3.10.13")
    assert interpreter_after(set_up()) == older.parent
    assert diagnose().ready


def test_if_no_package_loads_it_says_why_of_each(world, monkeypatch):
    glibc(monkeypatch, "2.39")
    lacks = "openfhe (libstdc++.so.6: version `GLIBCXX_3.4.32' not found)"
    in_pyenv(world, "3.12.1", says=BARE_12, installed=["CPython", [3, 12], lacks, ""])
    in_pyenv(world, "3.10.13", installed=["CPython", [3, 10], "openfhe (libgomp.so.1)", ""])
    with pytest.raises(UsageError, match=r"libstdc\+\+ of GCC 13\.2 or later.*; .*libgomp1"):
        set_up()
    assert [left.name for left in (world / "agent").iterdir()] == ["lock"]


def test_the_interpreter_that_cotune_runs_under_comes_first(world, monkeypatch):
    glibc(monkeypatch, "2.39")
    other = in_pyenv(world, "3.12.1", says=BARE_12)
    running = placed(world / "cotune", says=BARE_12, installed=READY_12)
    monkeypatch.setattr("sys.executable", str(running))
    assert f"with {running} (" in diagnose().sentence
    set_up()
    assert "openfhe==1.6.1.0.24.4" in installed(running)
    assert not (other.parent / "log").exists()


def test_openfhe_beside_cotune_needs_no_environment(world, monkeypatch):
    running = placed(world / "cotune", says=READY_12)
    monkeypatch.setattr("sys.executable", str(running))
    glibc(monkeypatch, "2.39")
    assert interpreter() == set_up() == running
    assert not (world / "agent").exists()


def test_an_interpreter_that_is_named_is_taken_though_another_package_comes_first(
    world, monkeypatch
):
    glibc(monkeypatch, "2.39")
    in_pyenv(world, "3.12.1", says=BARE_12)
    named = placed(world / "conda")
    monkeypatch.setenv("COTUNE_AGENT_PYTHON", str(named))
    assert f"with {named} ({OLD}; " in diagnose().sentence
    set_up()
    assert "openfhe==1.6.1.0.22.4" in installed(named)


@pytest.mark.parametrize(
    ("version", "ready", "other"),
    [
        ("2.36", READY, f"{NEW} needs glibc 2.38, and this system has 2.36"),
        ("2.41", READY, f"{NEW} could be used as well"),
        ("2.41", READY_12, f"{OLD} could be used as well"),
    ],
)
def test_a_ready_agent_says_what_it_runs_under_and_what_became_of_the_other_package(
    world, monkeypatch, version, ready, other
):
    glibc(monkeypatch, version)
    python = placed(world / "conda", says=ready)
    monkeypatch.setenv("COTUNE_AGENT_PYTHON", str(python))
    dotted = ".".join(map(str, ready[1]))
    assert diagnose().sentence == (
        f"the key agent is ready: it runs under {python} (CPython {dotted} with openfhe "
        f"{ready[3]}; {other})"
    )


def test_a_named_interpreter_for_which_there_is_no_package_is_told_so(world, monkeypatch):
    says = ["CPython", [3, 11], "openfhe (No module named 'openfhe')", ""]
    monkeypatch.setenv("COTUNE_AGENT_PYTHON", str(placed(world / "conda", says=says)))
    sentence = diagnose().sentence
    assert "it is CPython 3.11, and OpenFHE's packages are for CPython 3.12 and 3.10" in sentence


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
        ("openfhe (/lib/libstdc++.so.6: version `GLIBCXX_3.4.29' not found)", r"of GCC 11 or"),
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
