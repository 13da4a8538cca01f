"""Finds the interpreter that can run the key agent, or sets one up.

Each of OpenFHE's packages holds an extension for one CPython, whatever its name says, and needs the
C library of the system that it was built on. Interpreters are tried by running them: a
`python3.10` on the path may be a stub that leads nowhere.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from cotune.errors import UsageError
from cotune.privacy.client import HOME, environment

Version = tuple[int, int]


class Wheel(msgspec.Struct, frozen=True):
    """A package of OpenFHE: for which CPython it is, and which system it needs."""

    requirement: str
    python: Version
    glibc: Version
    compiler: str
    systems: str

    @property
    def line(self) -> str:
        return f"{self.requirement} for CPython {_dotted(self.python)}"


#: All of the same OpenFHE. The first that can be used is.
WHEELS = (
    Wheel("openfhe==1.6.1.0.24.4", (3, 12), (2, 38), "13.2", "Debian 13 and Ubuntu 24.04"),
    Wheel("openfhe==1.6.1.0.22.4", (3, 10), (2, 34), "11", "Debian 12 and Ubuntu 22.04"),
)
MSGSPEC = "msgspec>=0.19"
#: Which the agent itself runs under.
OLDEST = (3, 10)
SETUP = "`cotune agent doctor --setup`"

_PROBE = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
lacks = ""
for name in ("msgspec", "openfhe"):
    try:
        __import__(name)
    except ImportError as error:
        lacks = lacks or f"{name} ({error})"
try:
    openfhe = version("openfhe")
except PackageNotFoundError:
    openfhe = ""
print(json.dumps([platform.python_implementation(), sys.version_info[:2], lacks, openfhe]))
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
    version: Version
    lacks: str
    openfhe: str = ""

    @property
    def ready(self) -> bool:
        return not self.lacks and self.version >= OLDEST

    @property
    def line(self) -> str:
        return f"{self.implementation} {_dotted(self.version)}"

    def fits(self, wheel: Wheel) -> bool:
        """Whether the package can be installed for it."""
        return self.implementation == "CPython" and self.version == wheel.python


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
    """Try the interpreters that could run the agent, and say how it stands, and why."""
    unfit = ""
    for python, probed in _usable():
        if probed is not None and probed.ready:
            chosen = f"{probed.line} with openfhe {probed.openfhe or 'of your own'}"
            others = [
                _too_old(wheel) or f"{wheel.line} could be used as well"
                for wheel in WHEELS
                if wheel.requirement != f"openfhe=={probed.openfhe}"
            ]
            why = "; ".join([chosen, *others])
            return Diagnosis(
                python, True, f"the key agent is ready: it runs under {python} ({why})"
            )
        if python != _running():
            unfit = unfit or f"{python} cannot run the key agent: {_lack(probed)}; "
    choice = next(_choices(), None)
    if choice is None:
        return Diagnosis(None, False, f"{unfit}{_no_base()}")
    wheel, base = choice
    why = "; ".join([wheel.line, *_against_others(wheel)])
    unfit = unfit or "the key agent has no interpreter yet: "
    return Diagnosis(None, False, f"{unfit}{SETUP} makes an environment for it with {base} ({why})")


def set_up() -> Path:
    """Make the agent's own virtual environment, unless there is one that works.

    It is built beside its place and renamed, under a lock: another process waits and finds it.
    """
    if ready := _ready():
        return ready
    own = _own().parent.parent
    with _locked(own.parent):
        if ready := _ready():
            return ready
        building = own.with_name(f"{own.name}.building")
        failures: list[str] = []
        for wheel, base in _choices():
            shutil.rmtree(building, ignore_errors=True)
            try:
                _build(wheel, base, building)
                shutil.rmtree(own, ignore_errors=True)
                building.rename(own)
                return _own()
            except UsageError as error:  # the next package may load where this one does not
                failures.append(str(error))
            finally:
                shutil.rmtree(building, ignore_errors=True)
    raise UsageError("; ".join(failures) or _no_base())


def _usable() -> Iterator[tuple[Path, _Probed | None]]:
    """The interpreters that may have what the agent needs: named, made by `set_up`, cotune's."""
    if given := _given():
        yield given, _probe(given)
    if _own().exists():
        yield _own(), _probe(_own())
    yield _running(), _probe(_running())


def _ready() -> Path | None:
    return next((python for python, one in _usable() if one is not None and one.ready), None)


def _choices() -> Iterator[tuple[Wheel, Path]]:
    """Packages that this system can load, each with an interpreter; for a named one comes first."""
    loadable = [wheel for wheel in WHEELS if not _too_old(wheel)]
    given = _given()
    chosen: set[Wheel] = set()
    for wheel, candidates in (
        *((wheel, [given] if given else []) for wheel in loadable),
        *((wheel, _candidates(wheel.python)) for wheel in loadable),
    ):
        for python in candidates if wheel not in chosen else ():
            probed = _probe(python)
            if probed is not None and probed.fits(wheel):
                chosen.add(wheel)
                yield wheel, python
                break


def _candidates(version: Version) -> Iterator[Path]:
    yield _running()
    dotted = _dotted(version)
    if named := shutil.which(f"python{dotted}"):
        yield Path(named)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{dotted}*/bin/python"), reverse=True)
    if uv := shutil.which("uv"):
        found = _run([uv, "python", "find", dotted], _PROBE_SECONDS)
        if found is not None and found.returncode == 0:
            yield Path(found.stdout.strip())


def _against_others(chosen: Wheel) -> list[str]:
    """Why not the other packages."""
    at = WHEELS.index(chosen)
    before = [_too_old(one) or f"no CPython {_dotted(one.python)} was found" for one in WHEELS[:at]]
    return before + [f"{one.line} is not needed" for one in WHEELS[at + 1 :]]


def _no_base() -> str:
    """What is missing where no package can be used."""
    loadable = [_dotted(wheel.python) for wheel in WHEELS if not _too_old(wheel)]
    too_old = [sentence for wheel in WHEELS if (sentence := _too_old(wheel))]
    if not loadable:
        return f"the key agent cannot run on this system: {'; '.join(too_old)}"
    why = f" ({'; '.join(too_old)})" if too_old else ""
    first = loadable[0]
    return (
        f"the key agent needs a CPython {' or '.join(loadable)} and none was found{why}: install "
        f"one (your system's python{first}, `pyenv install {first}` or `uv python install {first}`)"
        f" or name one by COTUNE_AGENT_PYTHON, then run {SETUP}"
    )


def _too_old(wheel: Wheel) -> str:
    """Why this system cannot load the package; empty if it can, as far as its C library goes."""
    if (machine := platform.machine()) not in ("x86_64", "AMD64"):
        return f"{wheel.line} is for x86-64 processors, and this one is {machine or 'unknown'}"
    name, version = platform.libc_ver()
    if name != "glibc":
        return f"{wheel.line} needs glibc, and this system has none"
    if tuple(int(part) for part in version.split(".")[:2]) < wheel.glibc:
        return f"{wheel.line} needs glibc {_dotted(wheel.glibc)}, and this system has {version}"
    return ""


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _given() -> Path | None:
    given = os.environ.get("COTUNE_AGENT_PYTHON")
    return Path(shutil.which(given) or given).absolute() if given else None


def _running() -> Path:
    """The interpreter that cotune itself runs under."""
    return Path(sys.executable)


def _own() -> Path:
    """The interpreter of the environment that `set_up` makes."""
    home = os.environ.get("COTUNE_AGENT_HOME")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) if home else Path(cache, "cotune", "agent")
    return folder.absolute() / "venv" / "bin" / "python"


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
        return f"it is older than Python {_dotted(OLDEST)}"
    wheel = next((wheel for wheel in WHEELS if probed.fits(wheel)), None)
    if wheel is None:
        known = " and ".join(_dotted(wheel.python) for wheel in WHEELS)
        return f"it is {probed.line}, and OpenFHE's packages are for CPython {known}"
    if "libgomp" in probed.lacks:
        return f"it lacks {probed.lacks}: install your system's libgomp1"
    if "GLIBC" in probed.lacks:
        return (
            f"it lacks {probed.lacks}: {wheel.line} needs glibc {_dotted(wheel.glibc)} and "
            f"libstdc++ of GCC {wheel.compiler} or later, as {wheel.systems} have"
        )
    return f"it lacks {probed.lacks}"


def _build(wheel: Wheel, base: Path, place: Path) -> None:
    _do([str(base), "-m", "venv", str(place)], f"{base} could not make a virtual environment")
    python = place / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _do([*pip, wheel.requirement, MSGSPEC], f"pip could not install {wheel.line} and {MSGSPEC}")
    probed = _probe(python)
    if probed is None or not probed.ready:
        raise UsageError(f"{wheel.requirement} was installed but cannot be used: {_lack(probed)}")


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
