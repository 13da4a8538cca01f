"""What the key agent's process may do: it holds secrets, and parses what others have sent."""

from __future__ import annotations

import ctypes
import resource
import signal
import sys

#: Bytes of memory for OpenFHE and its contexts, which take 0.3 thousand million at most; for each
#: key share, and for each party of a session of the coordinator's.
BASE, PER_SHARE, PER_MEMBER = 1_500_000_000, 24_000_000, 64_000_000
#: For each byte of a message; of one with numbers to encrypt, which become ciphertexts.
PER_BYTE, PER_ENCRYPTED = 8, 256
#: Seconds of computing for a message, and for each million bytes of it.
SECONDS, PER_MILLION = 60.0, 4.0

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38


def confine() -> None:
    """No core dump, which would hold the secrets; no look inside, and no rights but these."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        control = ctypes.CDLL(None).prctl
        control(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        control(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def allow_memory(most: int) -> None:
    """Let the process have so much address space; beyond, OpenFHE fails with an error.

    Bytes that are no ciphertext can make it ask for 14 thousand million.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))


def allow_time(length: int) -> None:
    """End the process if it computes for longer than a message of that length can take."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS + PER_MILLION * length / 1e6)
