"""Finds the interpreter that can run the key agent, or sets one up.

OpenFHE's package holds an extension for CPython 3.10 alone, whatever its name says. Interpreters
are tried by running them: a `python3.10` on the path may be a stub that leads nowhere.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from cotune.errors import UsageError
from cotune.privacy.client import HOME, environment

OPENFHE = "openfhe==1.6.1.0.22.4"
MSGSPEC = "msgspec>=0.19"
VERSION = (3, 10)
SETUP = "`cotune agent doctor --setup`"

_PROBE = """
import json, platform, sys
lacks = ""
for name in ("msgspec", "openfhe"):
    try:
        __import__(name)
    except ImportError as error:
        lacks = lacks or f"{name} ({error})"
print(json.dumps([platform.python_implementation(), sys.version_info[:2], lacks]))
"""
_PROBE_SECONDS = 60
_INSTALL_SECONDS = 900


class Diagnosis(msgspec.Struct, frozen=True):
    """Whether the key agent can run: under which interpreter, or (None) what is missing."""

    python: Path | None
    ready: bool
    sentence: str


class _Probed(msgspec.Struct, frozen=True, array_like=True):
    """What an interpreter says of itself; `lacks` is empty if it can run the agent."""

    implementation: str
    version: tuple[int, int]
    lacks: str

    @property
    def ready(self) -> bool:
        return not self.lacks and self.version >= VERSION

    @property
    def fit(self) -> bool:
        """Whether OpenFHE can be installed for it."""
        return self.implementation == "CPython" and self.version == VERSION


def interpreter() -> Path:
    """The interpreter that the agent runs under; `UsageError` says what is missing.

    One that `set_up` made is not tried again: it was before it got its name.
    """
    given = _given()
    if given is None and _own().exists():
        return _own()
    diagnosis = diagnose()
    if diagnosis.python is None:
        raise UsageError(diagnosis.sentence)
    return diagnosis.python


def diagnose() -> Diagnosis:
    """Try the interpreters that could run the agent, and say how it stands."""
    unfit = ""
    for python in (_given(), _own() if _own().exists() else None):
        if python is None:
            continue
        probed = _probe(python)
        if probed is not None and probed.ready:
            return Diagnosis(python, True, f"the key agent is ready: it runs under {python}")
        unfit = unfit or f"{python} cannot run the key agent: {_lack(probed)}; "
    base = _base()
    if base is None:
        return Diagnosis(None, False, f"{unfit}{_NO_BASE}")
    unfit = unfit or "the key agent has no interpreter yet: "
    return Diagnosis(None, False, f"{unfit}{SETUP} makes an environment for it with {base}")


def set_up() -> Path:
    """Make the agent's own virtual environment, unless there is one that works.

    It is built beside its place and renamed, under a lock: another process waits and finds it.
    """
    given = _given()
    if given is not None and (probed := _probe(given)) is not None and probed.ready:
        return given
    own = _own().parent.parent
    with _locked(own.parent):
        if (probed := _probe(_own())) is not None and probed.ready:
            return _own()
        base = _base()
        if base is None:
            raise UsageError(_NO_BASE)
        building = own.with_name(f"{own.name}.building")
        shutil.rmtree(building, ignore_errors=True)
        try:
            _build(base, building)
            shutil.rmtree(own, ignore_errors=True)
            building.rename(own)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return _own()


_NO_BASE = (
    "the key agent needs a CPython 3.10 and none was found: install one (your system's python3.10, "
    "`pyenv install 3.10` or `uv python install 3.10`) or name one by COTUNE_AGENT_PYTHON, then "
    f"run {SETUP}"
)


def _given() -> Path | None:
    given = os.environ.get("COTUNE_AGENT_PYTHON")
    return Path(shutil.which(given) or given).absolute() if given else None


def _own() -> Path:
    """The interpreter of the environment that `set_up` makes."""
    home = os.environ.get("COTUNE_AGENT_HOME")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) if home else Path(cache, "cotune", "agent")
    return folder.absolute() / "venv" / "bin" / "python"


def _base() -> Path | None:
    """The first CPython 3.10 that runs."""
    for python in _candidates():
        probed = _probe(python)
        if probed is not None and probed.fit:
            return python
    return None


def _candidates() -> Iterator[Path]:
    given = _given()
    if given is not None:
        yield given
    if named := shutil.which("python3.10"):
        yield Path(named)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob("versions/3.10*/bin/python"), reverse=True)
    if uv := shutil.which("uv"):
        found = _run([uv, "python", "find", "3.10"], _PROBE_SECONDS)
        if found is not None and found.returncode == 0:
            yield Path(found.stdout.strip())


def _probe(python: Path) -> _Probed | None:
    """None if it cannot be run."""
    done = _run([str(python), "-c", _PROBE], _PROBE_SECONDS)
    if done is None or done.returncode:
        return None
    try:
        return msgspec.json.decode(done.stdout, type=_Probed)
    except msgspec.DecodeError:
        return None


def _lack(probed: _Probed | None) -> str:
    if probed is None:
        return "it does not run"
    if not probed.lacks:
        return "it is older than Python 3.10"
    if "libgomp" in probed.lacks:
        return f"it lacks {probed.lacks}: install your system's libgomp1"
    if "GLIBC" in probed.lacks:
        return (
            f"it lacks {probed.lacks}: OpenFHE needs glibc 2.34 and libstdc++ of GCC 11 or later, "
            "as Debian 12 and Ubuntu 22.04 have"
        )
    return f"it lacks {probed.lacks}"


def _build(base: Path, place: Path) -> None:
    _do([str(base), "-m", "venv", str(place)], f"{base} could not make a virtual environment")
    python = place / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _do([*pip, OPENFHE, MSGSPEC], f"pip could not install {OPENFHE} and {MSGSPEC}")
    probed = _probe(python)
    if probed is None or not probed.ready:
        raise UsageError(f"{OPENFHE} was installed but cannot be used: {_lack(probed)}")


def _do(command: Sequence[str], failure: str) -> None:
    done = _run(command, _INSTALL_SECONDS)
    if done is None:
        raise UsageError(f"{failure}: it cannot be run, or took over {_INSTALL_SECONDS} seconds")
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()
        raise UsageError(f"{failure}: {lines[-1].strip()}; mend that and run {SETUP} again")


def _run(command: Sequence[str], seconds: int) -> subprocess.CompletedProcess[str] | None:
    """None if it cannot be started or does not end."""
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environment(),
            cwd=HOME,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written ({error.strerror}): name another place by "
            "COTUNE_AGENT_HOME"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
