"""cotune's side of the key agent: starts the process and talks to it."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import overload

import msgspec

from cotune.errors import CotuneError, Malformed, UsageError
from cotune.privacy.agent.messages import (
    Add,
    Adopt,
    Ask,
    Close,
    Decrypt,
    Divide,
    Done,
    Encrypt,
    Forget,
    Fuse,
    Generate,
    JoinKeys,
    JoinRelinearisations,
    JoinSwitches,
    Made,
    Open,
    Reaching,
    Refresh,
    Refreshed,
    Relinearise,
    Reply,
    Several,
    Switch,
    Values,
    Wanting,
    Wrong,
    decode_reply,
    encode,
)

#: The folder in which the agent's interpreter finds the package `agent`, and nothing of cotune.
HOME = Path(__file__).parent

_LENGTH = struct.Struct(">I")
_PATIENCE = 5.0


class AgentError(CotuneError):
    """The key agent's process is gone, and with it the key shares that it held."""


class Agent:
    """A running key agent. Threads may share it; it ends with `close`, or with this process."""

    def __init__(self, python: Path | None = None) -> None:
        """Start it under `python`, or under the interpreter that the doctor knows."""
        if python is None:
            from cotune.privacy.doctor import interpreter

            python = interpreter()
        self._lock = threading.Lock()
        self._process = _started(python)
        self._finalizer = weakref.finalize(self, _end, self._process)

    @property
    def alive(self) -> bool:
        """Whether it can be asked, as far as is known."""
        return self._finalizer.alive and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    @overload
    def ask(self, message: Generate | Switch | Relinearise | JoinKeys | JoinSwitches) -> Made: ...
    @overload
    def ask(self, message: Encrypt | Refresh | Decrypt | Add) -> Several: ...
    @overload
    def ask(self, message: Reaching | Divide | Refreshed) -> Several | Wanting: ...
    @overload
    def ask(self, message: Fuse) -> Values: ...
    @overload
    def ask(self, message: Adopt | Forget | Open | JoinRelinearisations | Close) -> Done: ...
    @overload
    def ask(self, message: Ask) -> Reply: ...

    def ask(self, message: Ask) -> Reply:
        """The answer. `Malformed` if the agent refuses the message, `AgentError` if it died."""
        frame = encode(message)
        if len(frame) >= 1 << 32:
            raise UsageError("a message to the key agent is over 4 GiB: send fewer values at once")
        with self._lock:
            reply = self._exchange(frame)
        if isinstance(reply, Wrong):
            raise Malformed(f"the key agent refused {type(message).__name__}: {reply.sentence}")
        return reply

    def close(self) -> None:
        """End the process; its key shares are gone."""
        with self._lock:
            self._finalizer()

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _exchange(self, frame: bytes) -> Reply:
        if not self._finalizer.alive:
            raise AgentError("the key agent was closed, or died: start a new one, with new keys")
        try:
            reply: Reply = decode_reply(self._sent(frame))
            return reply
        except (OSError, EOFError, msgspec.DecodeError) as error:
            self._finalizer()
            raise AgentError(
                f"the key agent died ({_death(self._process.returncode)}), and its key shares with "
                "it: start a new one, with new keys; `cotune agent doctor` checks its interpreter"
            ) from error
        except BaseException:  # interrupted between question and answer: the next would be wrong
            self._finalizer()
            raise

    def _sent(self, frame: bytes) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(_LENGTH.pack(len(frame)))
        self._process.stdin.write(frame)
        self._process.stdin.flush()
        head = self._process.stdout.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            raise EOFError
        (length,) = _LENGTH.unpack(head)
        answer = self._process.stdout.read(length)
        if len(answer) < length:
            raise EOFError
        return answer


def environment() -> dict[str, str]:
    """Of the agent's process: one thread, nothing of this Python's paths, no user's packages."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HOME), "PYTHONNOUSERSITE": "1"}


def _started(python: Path) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [str(python.absolute()), "-m", "agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            cwd=HOME,  # -m looks there first: not in a folder where anybody could put an `agent`
            start_new_session=True,  # Ctrl-C is for cotune, which then closes the agent
        )
    except OSError as error:
        raise UsageError(
            f"the key agent's interpreter {python} cannot be run: `cotune agent doctor --setup` "
            "makes one"
        ) from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close its input, which ends it, and see that it ends."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _death(code: int | None) -> str:
    if code == -signal.SIGPROF:
        return "it computed for too long"
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
