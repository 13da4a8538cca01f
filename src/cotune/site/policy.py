"""What a party lets itself be asked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, get_args

import msgspec

from cotune.errors import UsageError, choices
from cotune.learners import learner_names
from cotune.party.closed_list import TASKS
from cotune.privacy.protection import MOST_NOISE
from cotune.privacy.sums import Privacy
from cotune.protocol.wire import Refusal, Request, Way

#: How private a way of asking is, and what a party may demand.
RANK: dict[Way | Privacy, int] = {"gather": 0, "sum": 0, "plain": 0, "masked": 1, "encrypted": 2}


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules of one party, which it keeps whatever the others agree on. All is allowed by default.

    Parameters
    ----------
    learners
        The only ones that may be tuned and trained; empty is all that are installed. Training may
        ask for sums that name no learner, so this keeps out mistakes rather than malice.
    at_least
        How private sums must be. With `masked` or `encrypted` the party discloses nothing of its
        own in the clear but its columns (the task `inspect`: names, kinds, common categories,
        rough ranges) and what keys are agreed by.
    refused
        Names of tasks that it does not perform.
    fewest
        A total of fewer parties is not to be opened.
    least_noise
        Standard deviation of the noise of a total, in clipping norms: with less of it the party
        takes part in no sum but that of the schema, which has none, and only in private ones.
    """

    learners: tuple[str, ...] = ()
    at_least: Privacy = "plain"
    refused: tuple[str, ...] = ()
    fewest: int = 0
    least_noise: float = 0.0

    def __post_init__(self) -> None:
        for given, what, known in (
            (self.learners, "learner", learner_names()),
            (self.refused, "task", task_names()),
            ((self.at_least,), "privacy", get_args(Privacy)),
        ):
            for name in given:
                if name not in known:
                    raise UsageError(choices(name, what, known))
        if self.fewest < 0:
            raise UsageError(f"fewest is {self.fewest}: give a number of parties, 0 or more")
        if not 0 <= self.least_noise <= MOST_NOISE:
            raise UsageError(
                f"least_noise is {self.least_noise}: give a number of clipping norms from 0 to "
                f"{MOST_NOISE:g}"
            )

    def check(self, request: Request, roster: Collection[str] = ()) -> Refusal | None:
        """Why the party does not do that, or None. What it says is not about its data.

        `roster` names the parties of the federation, where the party knows them.
        """
        sentence = (
            self._against_task(request)
            or self._against_way(request)
            or self._against_few(request)
            or self._against_noise(request)
            or self._against_learners(request)
            or _against_strangers(request, roster)
        )
        return Refusal("refused", sentence) if sentence else None

    def _against_task(self, request: Request) -> str:
        name = request.task.name
        if name not in self.refused:
            return ""
        return f"this party does not perform the task {name!r} (policy: refused)"

    def _against_way(self, request: Request) -> str:
        if harmless(request) or RANK[request.verb] >= RANK[self.at_least]:
            return ""
        fix = "encrypted" if self.at_least == "encrypted" else "masked or encrypted"
        if request.verb == "masked":
            return f"masks are too little for this party (policy: at_least): use --privacy {fix}"
        instead = request.task.instead if request.verb == "gather" else f"use --privacy {fix}"
        return (
            f"this party tells nothing of its own in the clear, and {request.task.name!r} would "
            f"(policy: at_least): {instead}"
        )

    def _against_few(self, request: Request) -> str:
        """Masks can be taken off as long as `keyed.fewest` are left, so that counts as well."""
        keyed = request.keyed
        if keyed is None or not self.fewest:
            return ""
        if len(set(keyed.among)) < self.fewest:
            return (
                f"this party adds up with {self.fewest} parties or more, not with "
                f"{len(set(keyed.among))} (policy: fewest)"
            )
        if request.verb == "masked" and keyed.fewest < self.fewest:
            return (
                f"this party adds up with {self.fewest} parties or more, and with the run's quorum "
                f"{keyed.fewest} could be left (policy: fewest): raise --quorum"
            )
        return ""

    def _against_noise(self, request: Request) -> str:
        """How many parties share in the noise is checked by the party: `Protection.check`."""
        if not self.least_noise or harmless(request):
            return ""
        private = request.verb in ("masked", "encrypted")
        noise = request.protection.noise if private and request.protection else 0.0
        if noise >= self.least_noise or (private and not request.task.needs_problem):
            return ""
        given = f"it is {noise:g}" if noise else "there is none"
        return (
            f"this party takes part in totals with noise of {self.least_noise:g} clipping norms or "
            f"more, and {given} (policy: least_noise): use --noise {self.least_noise:g} with "
            "--privacy masked or encrypted"
        )

    def _against_learners(self, request: Request) -> str:
        if not self.learners:
            return ""
        for name in _named(request):
            if name not in self.learners:
                return (
                    f"this party does not take the learner {name!r} (policy: learners): use "
                    + ", ".join(self.learners)
                )
        return ""


def harmless(request: Request) -> bool:
    """Whether what is told in the clear is nothing that private sums would hide."""
    return request.verb == "gather" and not request.task.instead


def _against_strangers(request: Request, roster: Collection[str]) -> str:
    """Names that nobody bears make a total look like one of more parties, and share its noise."""
    strangers = set(request.keyed.among).difference(roster) if request.keyed and roster else ()
    if not strangers:
        return ""
    return (
        f"this party adds up with parties of its federation, and {len(strangers)} of those named "
        "do not belong to it: use the kits of one federation"
    )


def task_names() -> tuple[str, ...]:
    """All that a party can be asked."""
    return tuple(task.__name__.lower() for task in TASKS)


def _named(request: Request) -> Iterator[str]:
    """The learners that a message names, wherever in it: fields `learner` and `learners`."""
    parts: list[Any] = [request]
    while parts:
        part = parts.pop()
        if isinstance(part, msgspec.Struct):
            fields = {name: getattr(part, name) for name in part.__struct_fields__}
            if "learner" in fields:
                yield fields["learner"]
            yield from fields.get("learners", ())
            parts += fields.values()
        elif isinstance(part, Mapping):
            parts += part.values()
        elif isinstance(part, tuple | list):
            parts += part
