"""A party's own process: opens the door, and sees that nothing is asked twice or against policy."""

from __future__ import annotations

import logging
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

import cotune
from cotune.errors import FederationError, Malformed
from cotune.party.party import Party
from cotune.party.scratch import LONGEST_NAME, private_folder, remove
from cotune.party.workers import Workers
from cotune.protocol.wire import Refusal, Request, decode_request, encode, refusal_of
from cotune.site.audit import Audit, Entry, entry_of
from cotune.site.door import Ask, Told, heard, tell
from cotune.site.policy import Policy

log = logging.getLogger(__name__)

#: The longest path that a socket's address may have on all systems is 103 bytes.
LONGEST_FOLDER = 103 - len("/") - LONGEST_NAME - len("/door")
#: Connections that wait to be accepted, at most.
BACKLOG = 64
#: Seconds that a client may take to say what it wants.
PATIENCE = 60.0
#: Connections that are served at a time, each by a thread, and that have said nothing yet.
MOST_SERVED, MOST_SILENT = 64, 128
#: Messages that are no requests: so many are written down one by one, and further ones of
#: the same period of seconds in one line that counts them.
MOST_JUNK, JUNK_PERIOD = 20, 3600.0
#: Seconds for which work that was given up is waited for in the end.
CLOSING = 5.0
#: Seconds after which work that was given up, but goes on, is given up once more.
AGAIN = 1.0


State = Literal["hello", "done", "working", "unknown"]

_GIVEN_UP = encode(Refusal("cancelled", "the round was given up"))
_UNWRITTEN = Refusal(
    "storage", "the party cannot write its own record, so it tells nothing: is its disk full?"
)
_UNSIGNED = Refusal("refused", "the federation's lead has not signed this message")
_FAILED = encode(Refusal("internal", "the party failed; its own log says why"))
_NO_ASK = Refusal("malformed", "what came to the door is no message of cotune")


def _refused(refusal: Refusal) -> str:
    code = "" if refusal.code == "refused" else f"{refusal.code} "
    return f"refused: {code}{refusal.sentence}"


def _nothing(_: Entry) -> None:
    """Shows nothing."""


class _Call:
    """A message, and what has come of it."""

    def __init__(self, ask: Ask, asker: str, request: Request) -> None:
        self.asker = asker
        self.message = ask.message
        self.ids = {ask.id}
        self.request = request
        self.unwanted = False
        self.reply: bytes | None = None
        self.outcome = ""  # in the audit's words

    def answers(self, ask: Ask) -> bool:
        """Whether there is nothing to compute. What was refused may go well another time."""
        if self.reply is None:
            return not self.unwanted
        return self.outcome == "told" or ask.id in self.ids


class Host:
    """Lets a party be asked through its door, one call at a time: a newer one ends an older one.

    Parameters
    ----------
    party, workers
        Who answers, and where its fits run: they are given up with the call.
    policy
        What is refused before the party sees it.
    audit
        Where all is written down, before it is told. What cannot be written down is not told.
    asker
        Who has signed a call; None if that is nobody who may ask.
    show
        Is given each entry of the audit, for a display.
    roster
        The parties of the federation, where they are known: there are no others.
    """

    def __init__(
        self,
        party: Party,
        workers: Workers,
        policy: Policy,
        audit: Audit,
        asker: Callable[[Ask], str | None],
        show: Callable[[Entry], None] = _nothing,
        roster: Collection[str] = (),
    ) -> None:
        self._party = party
        self._workers = workers
        self._policy = policy
        self._audit = audit
        self._asker = asker
        self._show = show
        self._roster = roster
        self._to_show: SimpleQueue[Entry | None] = SimpleQueue()
        self._newest: _Call | None = None
        self._under_way: _Call | None = None
        self._performing = False  # whether there is a thread that performs
        self._changed = threading.Condition()
        self._listener: socket.socket | None = None
        self._folder: Path | None = None
        self._accepting: threading.Thread | None = None
        self._closed = False
        self._served = threading.BoundedSemaphore(MOST_SERVED)
        self._junk = _Junk()

    @property
    def address(self) -> str:
        """Of the socket, for the environment variable `cotune.site.door.DOOR`."""
        assert self._folder is not None, "the door is not open: start()"
        return str(self._folder / "door")

    def start(self) -> None:
        """Open the door."""
        self._folder = _door_folder()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(BACKLOG)
        self._accepting = threading.Thread(target=self._accept, name="cotune-door", daemon=True)
        self._accepting.start()
        threading.Thread(target=self._display, name="cotune-display", daemon=True).start()

    def close(self) -> None:
        """Close the door, and give up what is under way. Once more is harmless.

        Afterwards the party's folders can be removed, unless it works on for `CLOSING` seconds.
        """
        if self._closed:
            return
        self._closed = True
        if self._listener is not None and self._accepting is not None:
            try:
                Client(self.address, family="AF_UNIX").close()  # wakes the thread that accepts
            except OSError:
                pass  # somebody has removed the socket; the thread ends with the process
            else:
                self._accepting.join()
            self._listener.close()
        if self._folder is not None:
            remove(self._folder)
        with self._changed:
            self._give_up()
            self._changed.wait_for(lambda: not self._performing, CLOSING)
            for text, size_in, size_out in self._junk.rest():
                self._noted(entry_of(None, "?", text, bytes_in=size_in, bytes_out=size_out))
        self._to_show.put(None)

    def __enter__(self) -> Host:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answer(self, ask: Ask) -> Told:
        """What somebody at the door is told."""
        if ask.op == "hello":
            return self._told("hello")
        if ask.op == "call":
            return self._call(ask)
        with self._changed:
            call = self._newest
            if call is None or ask.id not in call.ids:
                return self._told("unknown")
            if ask.op == "cancel":
                return self._told("working" if self._give_up() else "unknown")
        return self._await(call, ask.wait)

    def _call(self, ask: Ask) -> Told:
        """Refuse at once, whatever is under way; or see that it is performed, and wait for it."""
        asker = self._asker(ask)
        if asker is None:
            return self._refuse(ask, "?", None, _UNSIGNED)
        try:
            request = decode_request(ask.message)
        except Malformed as error:  # the party would say the same
            return self._refuse(ask, asker, None, Refusal("malformed", str(error)))
        refusal = self._policy.check(request, self._roster)
        if refusal is not None:
            return self._refuse(ask, asker, request, refusal)
        with self._changed:
            if self._closed:
                return self._told("unknown")
            call = self._newest
            if call is not None and call.message == ask.message and call.answers(ask):
                call.ids.add(ask.id)
                again = call.reply
            else:
                call, again = self._begin(ask, asker, request), None
        if again is None:
            return self._await(call, ask.wait)
        outcome = "repeated" if call.outcome == "told" else call.outcome
        entry = entry_of(request, asker, outcome, bytes_in=len(ask.message), bytes_out=len(again))
        return self._told("done", again if self._noted(entry) else encode(_UNWRITTEN))

    def _refuse(self, ask: Ask, asker: str, request: Request | None, refusal: Refusal) -> Told:
        reply, outcome = encode(refusal), _refused(refusal)
        if request is None:
            self._note_junk(asker, outcome, len(ask.message), len(reply))
        else:
            size = len(ask.message)
            self._noted(entry_of(request, asker, outcome, bytes_in=size, bytes_out=len(reply)))
        return self._told("done", reply)

    def _note_junk(self, asker: str, outcome: str, bytes_in: int, bytes_out: int) -> None:
        """Write down what is no request: much of it must not fill the disk."""
        with self._changed:
            for text, size_in, size_out in self._junk.lines(outcome, bytes_in, bytes_out):
                self._noted(entry_of(None, asker, text, bytes_in=size_in, bytes_out=size_out))

    def _begin(self, ask: Ask, asker: str, request: Request) -> _Call:
        """Perform it as soon as what is under way has been given up. Under the lock."""
        self._give_up()
        self._newest = _Call(ask, asker, request)
        if not self._performing:
            self._performing = True
            threading.Thread(target=self._perform, name="cotune-performer", daemon=True).start()
        return self._newest

    def _give_up(self) -> bool:
        """Nobody wants the newest call any more; whether it was not done yet. Under the lock."""
        call = self._newest
        if call is None or call.reply is not None:
            return False
        call.unwanted = True
        self._press()
        if call is not self._under_way:
            self._end(call, _GIVEN_UP, 0.0, 0)
        return True

    def _press(self) -> None:
        """Give up what is under way, if it is unwanted. Under the lock.

        So no call that is begun afterwards can be hit. One that is just being begun may be missed,
        which is why those who wait for the next one press again.
        """
        if self._under_way is not None and self._under_way.unwanted:
            self._workers.cancel()

    def _perform(self) -> None:
        """The thread that works: one call after the other, until there is none."""
        while (call := self._next()) is not None:
            began, fits = time.perf_counter(), self._workers.done
            try:
                reply = self._party.perform(call.message)
            except BaseException:  # out of memory, say: whoever waits must hear of it
                log.exception("party %s could not perform a task", self._party.name)
                reply = _FAILED
            seconds, fits = time.perf_counter() - began, self._workers.done - fits
            with self._changed:
                self._under_way = None
                self._end(call, _GIVEN_UP if call.unwanted else reply, seconds, fits)

    def _next(self) -> _Call | None:
        with self._changed:
            call = self._newest
            if call is None or call.reply is not None:
                self._performing = False
                self._changed.notify_all()
                return None
            self._under_way = call
            return call

    def _end(self, call: _Call, reply: bytes, seconds: float, fits: int) -> None:
        """Write down what has come of it, and only then let it be told. Under the lock."""
        refusal = refusal_of(reply)
        call.outcome = "told" if refusal is None else _refused(refusal)
        if call.unwanted:
            call.outcome = "given up"
        entry = entry_of(
            call.request,
            call.asker,
            call.outcome,
            bytes_in=len(call.message),
            bytes_out=len(reply),
            seconds=seconds,
            fits=fits,
        )
        if not self._noted(entry):
            call.outcome, reply = _refused(_UNWRITTEN), encode(_UNWRITTEN)
        call.reply = reply
        self._changed.notify_all()

    def _noted(self, entry: Entry) -> bool:
        try:
            self._audit.write(entry)
        except (OSError, ValueError):  # no space left, or closed already
            log.exception("party %s cannot write its record", self._party.name)
            return False
        self._to_show.put(entry)
        return True

    def _display(self) -> None:
        """On a thread of its own: a terminal that does not go on holds up nobody."""
        while (entry := self._to_show.get()) is not None:
            try:
                self._show(entry)
            except Exception:
                log.exception("party %s cannot show what it was asked", self._party.name)

    def _await(self, call: _Call, seconds: float) -> Told:
        until = time.monotonic() + seconds
        with self._changed:
            while call.reply is None:
                left = until - time.monotonic()
                if not left > 0:
                    return self._told("working")
                self._changed.wait(min(left, AGAIN))
                self._press()
            return self._told("done", call.reply)

    def _told(self, state: State, reply: bytes = b"") -> Told:
        call = self._newest
        plain = call is not None and call.request.verb in ("gather", "sum")
        fits = self._workers.done if plain and self._policy.at_least == "plain" else 0
        return Told(state, reply, fits, cotune.__version__, self._party.name)

    def _accept(self) -> None:
        """Hand a connection to a thread of its own once the client says something."""
        assert self._listener is not None
        silent: dict[Connection, float] = {}  # since when
        while not self._closed:
            ready = wait([self._listener, *silent], AGAIN)
            if self._listener in ready and not self._closed:
                try:
                    silent[_accepted(self._listener)] = time.monotonic()
                except OSError:
                    time.sleep(0.1)  # too many open files, say
            for connection in [one for one in silent if one in ready]:
                del silent[connection]
                if self._served.acquire(blocking=False):
                    threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
                else:
                    connection.close()  # it can try again
            late = time.monotonic() - PATIENCE
            for connection in list(silent)[: max(0, len(silent) - MOST_SILENT)]:
                silent[connection] = late
            for connection in [one for one, since in silent.items() if since <= late]:
                del silent[connection]
                connection.close()
        for connection in silent:
            connection.close()

    def _serve(self, connection: Connection) -> None:
        """One ask of one client. Whatever it sends or omits, only its own thread is concerned."""
        try:
            self._heard_out(connection)
        finally:
            self._served.release()

    def _heard_out(self, connection: Connection) -> None:
        with connection:
            try:
                ask = heard(connection)
            except (OSError, EOFError):
                return
            except Exception:
                self._note_junk("", _refused(_NO_ASK), 0, 0)
                return
            with suppress(OSError):  # it went away; the reply can be collected
                tell(connection, self.answer(ask))


class _Junk:
    """Which lines of the record messages are worth that nobody can read."""

    def __init__(self) -> None:
        self._since, self._count = 0.0, 0
        self._bytes_in = self._bytes_out = 0

    def lines(self, outcome: str, bytes_in: int, bytes_out: int) -> Iterator[tuple[str, int, int]]:
        """The outcome and bytes of each line that is to be written now."""
        now = time.monotonic()
        if not self._count or now - self._since > JUNK_PERIOD:
            yield from self.rest()
            self._since = now
        self._count += 1
        if self._count <= MOST_JUNK:
            yield outcome, bytes_in, bytes_out
            return
        self._bytes_in += bytes_in
        self._bytes_out += bytes_out
        if self._count == MOST_JUNK + 1:
            yield f"{outcome} (further ones of this hour are counted)", 0, 0

    def rest(self) -> Iterator[tuple[str, int, int]]:
        """The line that counts those of the period that were not written one by one."""
        more = self._count - MOST_JUNK
        if more > 0:
            text = f"refused: malformed {more:,} more messages of that hour"
            yield text, self._bytes_in, self._bytes_out
        self._count = self._bytes_in = self._bytes_out = 0


def _accepted(listener: socket.socket) -> Connection:
    """A connection that does not wait for ever for the rest of a message."""
    client, _ = listener.accept()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(PATIENCE), 0))
    return Connection(client.detach())


def _door_folder() -> Path:
    """With a path short enough for a socket."""
    usual = tempfile.gettempdir()
    parent = usual if len(usual.encode()) <= LONGEST_FOLDER else "/tmp"
    try:
        return private_folder(Path(parent))
    except OSError as error:
        raise FederationError(
            f"no folder for the party's socket can be made in {parent} ({error.strerror}): give "
            "another with TMPDIR"
        ) from error
