"""The relay job: what NVFlare runs of cotune, on the server and at each site. It only passes bytes.

The coordinator's program stays outside. Its commands reach the `Relay` on the server, which pushes
each message to a `Site`, and that knocks at the door of the party's own process. Every step answers
within seconds, so that a lost connection is noticed while parties may compute for hours: a reply
that is not ready is collected later, by the name of its call.
"""

from __future__ import annotations

import base64
import gc
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from cotune.engines.nvflare.guard import guard_job
from cotune.errors import FederationError
from cotune.site.door import TOPIC, Ask, Told, knock

#: Seconds for which a site waits for its party's reply before it says that the party is at work.
WAIT = 2.0
#: Seconds without an answer after which a site is asked once more, and then taken for lost.
PATIENCE = 20.0
#: Bytes that travel in a second at least: large messages are given more time.
SLOWEST = 1e6
#: Seconds without a word of the lead after which the job ends; the next word starts another.
SILENT = 1800.0
#: Bytes of a large reply.
LARGE = 1_000_000
#: Messages after which a job looks for garbage: NVFlare leaves cycles with each, and Python would
#: let many of them grow old.
TIDY = 100
#: Sites of one federation, at most.
MOST_SITES = 100

_encode = msgspec.msgpack.Encoder().encode
_asks = msgspec.msgpack.Decoder(Ask)
_told = msgspec.msgpack.Decoder(Told)


class Relay(Controller):  # type: ignore[misc]
    """On the server: passes the coordinator's messages on, and keeps replies until it has them."""

    def start_controller(self, fl_ctx: FLContext) -> None:
        self._calls: dict[str, _Call] = {}
        guard_job(fl_ctx)
        self._tidy = _Tidy()
        self._last = time.monotonic()
        self._ended = threading.Event()
        self._threads = ThreadPoolExecutor(MOST_SITES, thread_name_prefix="cotune-relay")
        self._engine.register_app_command(TOPIC, self._command)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Until the lead ends it, or has been silent for long: it may have been killed."""
        while not self._ended.wait(0.5) and not abort_signal.triggered:
            if time.monotonic() - self._last > SILENT:
                return

    def stop_controller(self, fl_ctx: FLContext) -> None:
        self._ended.set()
        for call in self._calls.values():
            call.given_up = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _command(self, topic: str, data: dict[str, Any], fl_ctx: FLContext) -> dict[str, Any]:
        self._last = time.monotonic()
        self._tidy()
        match data["op"]:
            case "hello":
                return {"sites": self._hello(data["sites"], data["wait"])}
            case "call":
                self._begin(data)
            case "cancel":
                return self._cancel(data["id"])
            case "end":
                self._ended.set()
                return {}
        call = self._calls.get(data["id"])
        return {"unknown": True} if call is None else call.told(data["have"], data["wait"])

    def _hello(self, sites: Iterable[str], wait: float) -> dict[str, str]:
        """The version of cotune at each site that answers; the sites' jobs start after this one."""
        until = time.monotonic() + wait
        versions: dict[str, str] = {}
        while True:
            missing = [site for site in sites if site not in versions]
            asked = {site: self._threads.submit(self._ask, site, Ask("hello")) for site in missing}
            for site, future in asked.items():
                told, _ = future.result()
                if told is not None:
                    versions[site] = told.version
            if len(versions) == len(list(sites)) or time.monotonic() > until:
                return versions
            time.sleep(0.1)

    def _begin(self, data: dict[str, Any]) -> None:
        """Bring every site its message; asked twice (a lost answer), it is done once."""
        name = data["id"]
        if name in self._calls:
            return
        for old in self._calls.values():
            old.given_up = True
        asks: dict[str, Ask] = {}
        for sites, *texts in data["groups"]:
            message, signature = map(base64.b64decode, texts)
            ask = Ask("call", name, data["certificate"], message, WAIT, signature)
            asks |= dict.fromkeys(sites, ask)
        call = _Call(name, asks, data["longest"], base64.b64decode(data["too_long"]))
        self._calls = {name: call}
        for site in asks:
            self._threads.submit(self._followed, call, site)

    def _followed(self, call: _Call, site: str) -> None:
        try:
            self._follow(call, site)
        except Exception:  # the coordinator would wait for it
            self.logger.exception("the site %s could not be asked", site)
            call.lost(site, "the server could not ask it, and its log says why")

    def _follow(self, call: _Call, site: str) -> None:
        """Ask until the party has replied or cannot be reached twice in a row."""
        bring = call.asks[site]
        collect = Ask("collect", call.name, wait=WAIT)
        ask, misses = bring, 0
        while not call.given_up:
            told, why = self._ask(site, ask)
            if told is not None and told.state == "done":
                call.replied(site, told)
                return
            if told is not None and told.state == "working":
                call.working(site, told)
                ask, misses = collect, 0
                continue
            misses += 1
            if misses == 2:
                call.lost(site, why or "the party was restarted while it was at work")
                return
            ask = bring  # a party that has it already does not begin anew

    def _cancel(self, name: str) -> dict[str, Any]:
        call = self._calls.get(name)
        if call is not None:
            call.given_up = True
            for site in call.missing:
                self._threads.submit(self._ask, site, Ask("cancel", name))
        return {}

    def _ask(self, site: str, ask: Ask) -> tuple[Told | None, str]:
        """What the site answers, or why it does not."""
        request = Shareable()
        request[TOPIC] = _encode(ask)
        with self._engine.new_context() as fl_ctx:
            replies = self._engine.send_aux_request(
                targets=[site],
                topic=TOPIC,
                request=request,
                timeout=2.0 if ask.op == "hello" else PATIENCE + len(ask.message) / SLOWEST,
                fl_ctx=fl_ctx,
                optional=True,
            )
        reply = (replies or {}).get(site)
        if reply is None or reply.get_return_code(ReturnCode.OK) != ReturnCode.OK:
            if reply is not None and reply.get_return_code() == ReturnCode.EXECUTION_EXCEPTION:
                return None, "the party's process has ended: start it again"
            return None, "the site cannot be reached, or its party hangs"
        try:
            return _told.decode(reply[TOPIC]), ""
        except (KeyError, msgspec.MsgspecError):
            return None, "its answer cannot be read: does another version of cotune run there?"


class _Tidy:
    """Called with every message."""

    def __init__(self) -> None:
        self._messages = 0

    def __call__(self) -> None:
        self._messages += 1
        if self._messages % TIDY == 0:
            gc.collect()


class _Call:
    """One round's messages, and what has come of them.

    A reply of more than `longest` bytes stays here: the coordinator gets `too_long` instead.
    """

    def __init__(self, name: str, asks: Mapping[str, Ask], longest: int, too_long: bytes) -> None:
        self.name = name
        self._longest, self._too_long = longest, too_long
        self.asks = asks
        self.given_up = False
        self._replies: dict[str, bytes] = {}
        self._lost: dict[str, str] = {}
        self._fits: dict[str, int] = {}
        self._changed = threading.Condition()

    @property
    def missing(self) -> list[str]:
        return [s for s in self.asks if s not in self._replies and s not in self._lost]

    def replied(self, site: str, told: Told) -> None:
        with self._changed:
            self._fits[site] = told.fits
            is_read = len(told.reply) <= self._longest
            self._replies[site] = told.reply if is_read else self._too_long
            self._changed.notify_all()

    def working(self, site: str, told: Told) -> None:
        with self._changed:
            self._fits[site] = told.fits

    def lost(self, site: str, why: str) -> None:
        with self._changed:
            self._lost[site] = why
            self._changed.notify_all()

    def told(self, have: Iterable[str], wait: float) -> dict[str, Any]:
        """What the coordinator does not have yet; at once if that is all, or much of it."""
        with self._changed:
            for site in have:  # it has arrived: no need to keep it
                self._replies[site] = b""
            self._changed.wait_for(lambda: self._complete() or self._is_much(), wait)
            new = [site for site in self._replies if site not in have]
            return {
                "replies": {site: base64.b64encode(self._replies[site]).decode() for site in new},
                "lost": dict(self._lost),
                "fits": dict(self._fits),
            }

    def _complete(self) -> bool:
        return not self.missing

    def _is_much(self) -> bool:
        """So much that it had better be on its way while other sites still send theirs."""
        return sum(map(len, self._replies.values())) > LARGE


class Site(Executor):  # type: ignore[misc]
    """At a site: brings messages to the door of the party's process."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            guard_job(fl_ctx)
            self._tidy = _Tidy()
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self._pass)

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """No tasks are sent: messages are pushed."""
        return make_reply(ReturnCode.TASK_UNKNOWN)

    def _pass(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """No exception leaves the site, whose text could tell something."""
        self._tidy()
        try:
            told = knock(_asks.decode(request[TOPIC]))
        except FederationError:
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        except (KeyError, msgspec.MsgspecError):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        reply = make_reply(ReturnCode.OK)
        reply[TOPIC] = _encode(told)
        return reply
