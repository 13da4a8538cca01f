"""A site: the party's process with its rows, and beside it the connection to the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotune.data.load import check_column, fingerprint, load, usual_target
from cotune.engines.local import LocalEngine
from cotune.engines.nvflare.connection import Connection, reachable
from cotune.engines.nvflare.kits import Kit, in_use, open_kit
from cotune.engines.nvflare.signature import Verifier
from cotune.errors import DataError, FederationError
from cotune.party.doubts import announce, doubts
from cotune.party.key import SMALLEST_CELL, KeyFile
from cotune.site.audit import Audit, Entry
from cotune.site.door import DOOR, Ask
from cotune.site.examine import examine
from cotune.site.host import Host
from cotune.site.policy import Policy

#: In the kit's folder: the record of all that was asked, and what the party remembers of its runs.
RECORD = "audit.jsonl"
STATE = "state"
#: In the state: the keys by which the party chooses rows, one for each data file.
KEYS = "keys"
#: Of a cross-validation: a party with fewer rows can take part in none.
FEWEST_FOLDS = 2
ALL_ALLOWED = Policy()
#: Seconds between two looks whether the connection stands; doubled while it does not.
LOOK = 1.0
LONGEST_PAUSE = 30.0


@dataclass
class Site:
    """A party that can be asked, as long as `run` runs."""

    kit: Kit
    folder: Path
    door: str

    def run(self, say: Callable[[str], Any]) -> None:
        """Keep the connection up until Ctrl-C; NVFlare's processes are started again if they end.

        `say` is given a sentence whenever the connection is made or lost.
        """
        pause = LOOK
        while True:
            connection = Connection.started(self.folder, self.kit, {DOOR: self.door})
            began = time.monotonic()
            try:
                self._watch(connection, say)
            finally:
                connection.stop()
            pause = LOOK if time.monotonic() - began > LONGEST_PAUSE else pause
            console = self.folder / "console.log"
            say(f"the connection has ended ({console} says why); it is made again in {pause:.0f} s")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _watch(self, connection: Connection, say: Callable[[str], Any]) -> None:
        """Until NVFlare's process ends. While the server is away, that tries again by itself."""
        stands = False
        while connection.alive:
            connection.wait(LOOK)
            if connection.reaches(self.kit.port) != stands:
                stands = not stands
                say(f"{'connected to' if stands else 'no connection to'} the server")


@contextmanager
def opened(
    kit: Path,
    data: str,
    target: str | None,
    policy: Policy = ALL_ALLOWED,
    *,
    drop: Iterable[str] = (),
    processes: int | None = None,
    show: Callable[[Entry], None] = lambda _: None,
) -> Iterator[Site]:
    """The site of `kit`, with its rows from `data`: ready to be connected.

    What is wrong with the kit or the data is said here, before anything is started.
    """
    own = open_kit(kit, "site")
    with ExitStack() as stack:
        stack.enter_context(in_use(kit))
        rows = load(data)
        for column in drop:
            check_column(rows, column)
        frame = rows.drop(columns=list(drop))
        target = target or usual_target(data)
        for problem in examine(frame, target, folds=FEWEST_FOLDS).problems:
            raise DataError(f"{data}: {problem}")
        announce(doubts([frame], target, folds=FEWEST_FOLDS, smallest=SMALLEST_CELL))
        state = kit / STATE
        engine = LocalEngine(
            {own.name: frame},
            target,
            processes=processes,
            state=state,
            keys={own.name: KeyFile.opened(state / KEYS, fingerprint(rows))},
            smallest_cell=SMALLEST_CELL,
        )
        stack.enter_context(closing(engine))
        engine.prepare()
        threading.Thread(target=_compile, name="cotune-compile", daemon=True).start()
        party = engine.party(own.name)
        verifier = Verifier(kit, own)

        def lead(ask: Ask) -> str | None:
            known = verifier.signed(ask.certificate, ask.signature, ask.message)
            return own.user if known else None

        audit = Audit(kit / RECORD)
        host = stack.enter_context(
            Host(party, engine.workers, policy, audit, lead, show, own.sites)
        )
        yield Site(own, kit, host.address)


def _compile() -> None:
    """Before the first trees are grown, whose round would wait for it."""
    from cotune.growth.warm_up import warm_up

    warm_up()


def check_connection(kit: Path) -> Kit:
    """The kit of a site from which the server can be reached; `FederationError` if it cannot."""
    own = open_kit(kit, "site")
    reachable(kit, own)
    return own


def serve(kit: Path, say: Callable[[str], Any]) -> None:
    """Run the server of a federation until it is told to end."""
    own = open_kit(kit, "server")
    with in_use(kit):
        connection = Connection.started(kit, own)
        try:
            _await_server(kit, own, connection)
            say(f"serving {len(own.sites)} sites at {own.host}:{own.port}; Ctrl-C ends it")
            connection.wait()
        finally:
            connection.stop()
        raise FederationError(f"the server has ended: {kit / 'console.log'} says why")


def _await_server(kit: Path, own: Kit, connection: Connection) -> None:
    """Return when the server listens; it takes some seconds."""
    until = time.monotonic() + 60.0
    while connection.alive:
        try:
            reachable(kit, own, host="127.0.0.1")
            return
        except FederationError:
            if time.monotonic() > until:
                raise
            time.sleep(0.3)
    raise FederationError(
        f"the server has ended at its start: is port {own.port} in use? {kit / 'console.log'} "
        "says why"
    )
