"""Who learnt what in a run, for each kind of message: for whoever answers for a party's data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from textwrap import fill
from typing import TYPE_CHECKING, Literal

import msgspec

from cotune.coordinator.ledger import Round
from cotune.party.closed_list import TASKS
from cotune.party.keys import WHOLE, Aim

if TYPE_CHECKING:
    from cotune.run.outcome import Outcome

How = Literal[
    "in the clear",
    "as a total",
    "as a comparison",
    "as quotients",
    "encrypted",
    "as random numbers",
    "not described",
]

_TELLS = {task.__name__.lower(): task.discloses for task in TASKS}
#: Messages without which there are no private sums: what they carry tells nothing of the data.
_OF_KEYS: dict[str, How] = {
    "introduce": "as random numbers",
    "acquaint": "as random numbers",
    "reveal": "as random numbers",
    "deal": "as random numbers",
    "switch": "as random numbers",
    "relinearise": "as random numbers",
    "adopt": "as random numbers",
    "refresh": "encrypted",
    "decrypt": "encrypted",
}


class Disclosure(msgspec.Struct, frozen=True):
    """What one kind of message told, to whom, and how much of it parties in league could find out.

    `how` is `in the clear` where the coordinator saw every party's own reply.
    """

    message: str
    rounds: int
    what: str
    how: How
    learns: str
    colluding: str


def disclosures(rounds: Iterable[Round]) -> list[Disclosure]:
    """One entry for every kind of message, in the order in which they were first sent."""
    found: Counter[tuple[str, str, Aim, float]] = Counter()
    for entry in rounds:
        for name in entry.messages or (entry.task,):
            own = name == entry.task
            way = ("gather" if entry.verb == "gather" else entry.way) if own else "keys"
            found[name, way, entry.aim if own else WHOLE, entry.noise if own else 0.0] += 1
    return [_told(*kind, count) for kind, count in found.items()]


def _told(name: str, way: str, aim: Aim, noise: float, rounds: int) -> Disclosure:
    what = _TELLS.get(name)
    if what is None or (way == "keys" and name not in _OF_KEYS):
        return Disclosure(
            name,
            rounds,
            "this version of cotune does not describe this message: look at the package or the "
            "newer version that sent it",
            "not described",
            "not described: assume that the coordinator learns every party's part",
            "not described",
        )
    if way == "keys":
        return Disclosure(
            name, rounds, what, _OF_KEYS[name], "nobody learns anything of the data", "nothing"
        )
    if way in ("gather", "sum"):
        return Disclosure(
            name,
            rounds,
            what,
            "in the clear",
            "the coordinator learns it of every party by its name",
            "parties learn nothing, unless the coordinator is in league with them",
        )
    if aim.least and way == "encrypted":
        return Disclosure(
            name,
            rounds,
            what,
            "as a comparison",
            f"the coordinator and the parties learn where the total reaches {aim.least}, "
            "and no total",
            "all parties but one in league learn where the last one's count makes the difference",
        )
    if aim.high and way == "encrypted":
        return Disclosure(
            name,
            rounds,
            what,
            "as quotients",
            "the coordinator learns means over the parties' configurations, and neither sums nor "
            "how many there were",
            "all parties but one in league can bound the last one's part by theirs and the means",
        )
    noised = f" with noise of {noise:g} clipping norms" if noise else ""
    rest = (
        "all parties but one in league with the coordinator can take their own parts off the total "
        "and so learn the last one's part; totals over different parties, because one dropped out "
        "or came back, can be subtracted from each other"
    )
    if noise:
        rest += ", with its own share of the noise"
    if way == "masked":
        rest += (
            "; and a coordinator that lies about who is gone, or keeps a part that came too late, "
            "can take the masks off that party's part"
        )
    return Disclosure(
        name,
        rounds,
        what,
        "as a total",
        f"the coordinator learns the total over the parties{noised}, and no party's part"
        + (
            ""
            if noise
            else "; with it the total of their rows (or their number), fits and CPU seconds"
        ),
        rest,
    )


def as_text(outcome: Outcome) -> str:
    """The whole report in plain words, at most 80 columns wide."""
    parties = len(outcome.parties)
    sums = {
        "plain": "Sums were added up in the clear: the coordinator saw every party's part.",
        "masked": "Sums were added up under masks: the coordinator saw totals only. A total may be "
        "about one row.",
        "encrypted": "Sums were added up under threshold encryption: the coordinator saw totals "
        "only, and could open no ciphertext without all parties that have a share of the key. A "
        "total may be about one row.",
    }[outcome.privacy]
    lines = [
        f"What a run of {outcome.method} over {parties} parties told, and to whom.",
        sums,
        "Every party was told the problem: names and kinds of the columns, the categories and "
        "classes that any party has, the learners and their spaces; then the configurations it was "
        "asked about and, where a model was trained, the model.",
    ]
    if outcome.epsilon is not None:
        lines.append(
            f"Noised sums together: epsilon {outcome.epsilon:.3g} at delta {outcome.delta:g}, for "
            "neighbouring federations that differ in one party's answers. It leaves out the first "
            "rounds: what is reported of columns in the clear, and the schema's sums, which have "
            "no noise."
        )
    text = [fill(line, 80) for line in lines]
    return "\n\n".join([*text, *map(_as_text, outcome.disclosures)])


def _as_text(one: Disclosure) -> str:
    said = (f"told: {one.what}", f"who: {one.learns}", f"in league: {one.colluding}")
    indented = [fill(line, 80, initial_indent="  ", subsequent_indent="    ") for line in said]
    often = "once" if one.rounds == 1 else f"{one.rounds} times"
    return "\n".join([f"{one.message} ({one.how}; {often})", *indented])
