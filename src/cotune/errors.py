"""The errors that cotune raises on purpose: each is one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class CotuneError(Exception):
    """Something a user can mend. Its text is one line; `exit_code` is the command line's."""

    exit_code = 4


class UsageError(CotuneError):
    """An argument is wrong: unknown learner, value out of range, run directory in the way."""

    exit_code = 2


class DataError(CotuneError):
    """The rows cannot be used: unreadable file, missing target, one class, infinite values."""

    exit_code = 3


class Diverged(DataError):
    """A training went wrong: its loss over the parties rose without end, or was no number."""


class DataWarning(UserWarning):
    """The rows can be used, but somebody should look at them first: a column may be an identifier.

    It is shown where the rows lie: at a party to its operator, in a simulation to its user.
    """


class FederationError(CotuneError):
    """Too few parties answered, or the run's records cannot be read or written."""

    exit_code = 4


class Unusable(FederationError):
    """Too few parties answered, and all others because of what the task made of their rows.

    The `reason` is a party's own sentence.
    """

    def __init__(self, sentence: str, reason: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Malformed(CotuneError):
    """Bytes that are no message of ours, or a reply that does not fit its task."""


def choices(given: object, what: str, known: Iterable[object]) -> str:
    """Say that `given` is no known `what`, with the closest known name first.

    >>> choices("hbg", "learner", ["hgb", "svm"])
    "unknown learner 'hbg': did you mean 'hgb'? Known: hgb, svm"
    """
    names = [str(name) for name in known]
    close = get_close_matches(str(given), names, n=1)
    hint = f" did you mean {close[0]!r}?" if close else ""
    return f"unknown {what} {given!r}:{hint} Known: {', '.join(names)}"
