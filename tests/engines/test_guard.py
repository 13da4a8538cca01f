"""Sites and server refuse what is none of the sender's business. This file is the attacker, too.

As a program it is `cotune party start` of a site that takes part as all others do, but whose
connection process is NVFlare's own and asks the others for more than it may.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any
from uuid import uuid4

import msgspec
import pytest

import cotune
from cotune.engines.nvflare import connection
from cotune.site.door import TOPIC, Ask, Told

from .real import Real, make_rows, until

pytest.importorskip("nvflare")

from nvflare.apis.fl_constant import ReservedKey, ServerCommandKey, ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import IdentityChallengeKey, MessageHeaderKey, MessageType
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.private.admin_defs import Message
from nvflare.private.defs import (
    CellChannel,
    CellMessageHeaderKeys,
    RequestHeader,
    SysCommandTopic,
    TrainingTopic,
    new_cell_message,
)
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.client.communicator import Communicator
from nvflare.private.fed.client.training_cmds import DeployProcessor

from cotune.engines.nvflare import guard

ATTACKER = "tests.engines.test_guard"
#: Seconds from the moment when the attacker gets a job, in which it tries.
TRYING = 10.0
LOOT = "loot.json"
JOB = "01234567-89ab-cdef-0123-456789abcdef"
NOTHING: Mapping[str, str] = MappingProxyType({})


# ---- the attacker


def start() -> None:
    """Start a party, with this file in place of the guarded connection process."""
    from cotune.cli.commands import main

    honest = connection._arguments
    connection._arguments = lambda *given: [ATTACKER, "attack", *honest(*given)[2:]]
    main()


def attack() -> None:
    """Run NVFlare's own client, and an attack beside it."""
    from nvflare.private.fed.app.client import client_train

    sys.argv.pop(1)
    stale: list[tuple[str, str]] = []
    register, begin = Communicator.client_registration, FedAdminAgent.__init__

    def register_twice(self: Any, *args: Any) -> Any:
        stale.append(register(self, *args)[:2])
        return register(self, *args)

    def begin_attack(self: Any, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        threading.Thread(target=plunder, args=(self.cell, stale[0]), daemon=True).start()

    Communicator.client_registration = register_twice
    FedAdminAgent.__init__ = begin_attack
    args = client_train.parse_arguments()
    MainProcessMonitor.run(main_func=client_train.main, run_dir=args.workspace, args=args)


def plunder(cell: Any, stale: tuple[str, str]) -> None:
    """Once a job runs, try everything until it is answered or the time is over."""
    uuid = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
    while not (jobs := [path.name for path in Path().iterdir() if uuid.fullmatch(path.name)]):
        time.sleep(0.1)
    job, end = jobs[0], time.monotonic() + TRYING
    loot: dict[str, str] = {}

    def repeat(name: str, ask: Callable[[], str]) -> None:
        loot[name] = ""
        while not loot[name] and time.monotonic() < end:
            try:
                loot[name] = ask()
            except Exception:  # it was answered with something else, or with nothing
                time.sleep(0.2)

    def request(
        target: str, channel: str, topic: str, payload: Any, headers: Mapping[str, str] = NOTHING
    ) -> Any:
        message = new_cell_message(dict(headers), payload)
        return cell.send_request(
            channel=channel, target=target, topic=topic, request=message, timeout=2.0
        ).payload

    def read_a_file() -> str:
        topic = SysCommandTopic.SHELL
        order = Message(topic=topic, body="head -n 2 ../north.csv")
        return str(request("north", CellChannel.CLIENT_MAIN, topic, order).body)

    def ask_the_party() -> str:
        context = FLContext()
        context.set_prop(ReservedKey.IDENTITY_NAME, "server", private=False, sticky=False)
        context.set_prop(ReservedKey.RUN_NUM, job, private=False, sticky=False)
        ask = Shareable()
        ask.set_peer_context(context)
        ask.set_peer_props(context.get_all_public_props())
        ask.set_header(ReservedHeaderKey.TOPIC, TOPIC)
        ask[TOPIC] = msgspec.msgpack.encode(Ask("hello"))
        told = request(f"north.{job}", CellChannel.AUX_COMMUNICATION, TOPIC, ask)[TOPIC]
        return msgspec.msgpack.decode(told, type=Told).party

    def command_the_relay() -> str:
        order = Shareable()
        order[ServerCommandKey.TOPIC] = TOPIC
        order[ServerCommandKey.DATA] = {"op": "hello", "sites": ["north"], "wait": 0.1}
        topic = ServerCommandNames.APP_COMMAND
        told = request(f"server.{job}", CellChannel.SERVER_COMMAND, topic, order)
        return ",".join(told["data"]["sites"])

    def delete_in_the_servers_name() -> str:
        order = Message(topic=TrainingTopic.DELETE_RUN, body="")
        order.set_header(RequestHeader.JOB_ID, "transfer")
        core = cell.core_cell
        headers = {
            MessageHeaderKey.CHANNEL: CellChannel.CLIENT_MAIN,
            MessageHeaderKey.TOPIC: "admin",
            MessageHeaderKey.ORIGIN: "server",
            MessageHeaderKey.FROM_CELL: "west",
            MessageHeaderKey.TO_CELL: "server",
            MessageHeaderKey.DESTINATION: "north",
            MessageHeaderKey.MSG_TYPE: MessageType.REQ,
            MessageHeaderKey.REPLY_EXPECTED: False,
            MessageHeaderKey.ROUTE: [("west", time.time())],
            # The server has forgotten whose this is, but has signed it.
            CellMessageHeaderKeys.CLIENT_NAME: "west",
            CellMessageHeaderKeys.TOKEN: stale[0],
            CellMessageHeaderKeys.TOKEN_SIGNATURE: stale[1],
        }
        core._send_to_endpoint(core.agents["server"].endpoint, new_cell_message(headers, order))
        return "sent"

    def be_welcome() -> str:
        headers = {IdentityChallengeKey.NONCE: "1"}
        told = request("server", CellChannel.SERVER_MAIN, "challenge", None, headers)
        return str(told[IdentityChallengeKey.COMMON_NAME])

    tries = (
        read_a_file,
        ask_the_party,
        command_the_relay,
        delete_in_the_servers_name,
        be_welcome,
    )
    threads = [threading.Thread(target=repeat, args=(each.__name__, each)) for each in tries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Path(LOOT).write_text(json.dumps(loot))


# ---- in a federation


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """A federation of north, and of west, which attacks it during the first run."""
    federation = Real(
        tmp_path_factory.mktemp("attacked"), {"north": make_rows(1), "west": make_rows(2)}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        try:
            federation.start("server", "north")
            federation.start("west", cotune=(sys.executable, "-m", ATTACKER))
            federation.await_sites("north", "west")
            yield federation
        finally:
            federation.close()


def test_a_site_gets_nothing_of_another_one_while_both_take_part(attacked: Real) -> None:
    with cotune.connect(attacked.lead, quorum=1) as federation:
        cotune.tune(federation, "defaults", learners=["decision_tree"], train=False, progress=False)
        until((attacked.folder / "west" / LOOT).exists)
    loot = json.loads((attacked.folder / "west" / LOOT).read_text())
    assert loot == {
        "read_a_file": "",
        "ask_the_party": "",
        "command_the_relay": "",
        "delete_in_the_servers_name": "sent",
        "be_welcome": "server",
    }
    assert (attacked.folder / "north" / "transfer").is_dir()
    refused = (attacked.folder / "server" / "log.txt").read_text()
    for who in ("'west' to 'north': ", "'west' to 'north.", "'west' to 'server.", "'server' to "):
        assert f"refused a message from {who}" in refused
    assert "refused" not in (attacked.folder / "north" / "log.txt").read_text()


def test_a_site_that_was_started_again_takes_part(attacked: Real) -> None:
    attacked.send("north", signal.SIGTERM)
    attacked.start("north")
    attacked.await_again("north")
    attacked.run(
        "tune", "--federation", "anna", "--method", "defaults", "--learner", "decision_tree",
        "--no-train", "--quorum", "1",
    )  # fmt: skip


# ---- message by message: who brings it, from whom, to whom, what


HELLO = ("aux_communication", "cotune")
TASK = ("server_command", "get_task")
COMMAND = ("server_command", "app_command")
BEAT = ("task", "heart_beat")
ORDER = ("admin", "admin")
BULK = ("cellnet.channel", "bulk")
STOP = ("_net_manager", "stop")
ANNA, LEAD = "anna@cotune.local", f"_admin_{uuid4()}"

ACCEPTED = {
    "server": [
        ("north", "north", "server", BEAT),
        (f"north.{JOB}", f"north.{JOB}", f"server.{JOB}", TASK),
        (f"server.{JOB}", f"server.{JOB}", f"north.{JOB}", HELLO),
        (LEAD, LEAD, "server", ("hci_channel", "command")),
    ],
    f"server.{JOB}": [
        ("server", "server", f"server.{JOB}", COMMAND),
        ("server", f"north.{JOB}", f"server.{JOB}", TASK),
    ],
    "north": [
        ("server", "server", "north", ORDER),
        ("server", f"server.{JOB}", f"north.{JOB}", HELLO),
        (f"north.{JOB}", f"north.{JOB}", "north", ORDER),
    ],
    f"north.{JOB}": [
        ("server", f"server.{JOB}", f"north.{JOB}", HELLO),
        ("north", f"server.{JOB}", f"north.{JOB}", HELLO),
        ("north", "north", f"north.{JOB}", ("client_command", "abort")),
    ],
}
REFUSED = {
    "server": [
        ("west", "west", "north", ORDER),
        ("west", "west", f"north.{JOB}", HELLO),
        ("west", "west", f"server.{JOB}", COMMAND),
        ("west", "west", f"server.{JOB}", BULK),
        ("west", f"west.{JOB}", f"server.{uuid4()}", TASK),
        ("west", "west", "server", BULK),
        ("west", "west", "server", STOP),
        ("west", "west", "server", ("server_parent_listener", "update_run_status")),
        ("west", "north", "server", BEAT),
        ("west", "server", "north", ORDER),
        ("west", f"server.{JOB}", f"north.{JOB}", HELLO),
        ("west", LEAD, "server", ("hci_channel", "command")),
        (f"_admin_{uuid4()}", "server", "north", ORDER),
        (LEAD, LEAD, "north", ORDER),
        (LEAD, LEAD, f"server.{JOB}", COMMAND),
    ],
    f"server.{JOB}": [
        ("server", "west", f"server.{JOB}", COMMAND),
        ("server", f"west.{JOB}", f"server.{JOB}", BULK),
    ],
    "north": [
        ("server", "west", "north", ORDER),
        ("server", f"west.{JOB}", f"north.{JOB}", HELLO),
        ("server", f"north.{JOB}", "north", ORDER),
        ("server", "server", "north", STOP),
        ("server", "server", "north", BULK),
        (f"north.{JOB}", "server", "north", ORDER),
    ],
    f"north.{JOB}": [
        ("server", "west", f"north.{JOB}", HELLO),
        ("north", f"west.{JOB}", f"north.{JOB}", HELLO),
        ("server", "north", f"north.{JOB}", ("client_command", "abort")),
        ("server", "server", f"north.{JOB}", ("client_command", "configure_job_log")),
    ],
}


class Ear:
    """A guarded cell that is not connected, and what gets through to it."""

    def __init__(self, name: str) -> None:
        self._cell = CoreCell(name, "grpc://localhost:1", secure=False, credentials={})
        CoreCell.ALL_CELLS.pop(name)
        cell = SimpleNamespace(core_cell=self._cell)
        engine = SimpleNamespace(get_cell=lambda: cell)
        guard.guard_job(SimpleNamespace(get_engine=lambda: engine))
        self._heard: list[Any] = []
        for way in ("_process_request", "_process_reply", "_forward"):
            setattr(self._cell, way, lambda *message: self._heard.append(message))

    def hears(
        self, bringer: str, origin: str, destination: str, what: tuple[str, str],
        *, kind: str = MessageType.REQ, common_name: str = "", streamed: bool = False,
    ) -> bool:  # fmt: skip
        channel, topic = ("sm__STREAM", "sm__DATA") if streamed else what
        headers = {
            MessageHeaderKey.ORIGIN: origin,
            MessageHeaderKey.DESTINATION: destination,
            MessageHeaderKey.MSG_TYPE: kind,
            MessageHeaderKey.CHANNEL: channel,
            MessageHeaderKey.TOPIC: topic,
        }
        if streamed:
            headers |= {StreamHeaderKey.CHANNEL: what[0], StreamHeaderKey.TOPIC: what[1]}
        link = SimpleNamespace(get_conn_properties=lambda: {"peer_cn": common_name})
        self._heard.clear()
        self._cell.process_message(Endpoint(bringer), link, 1, CellMessage(headers, b""))
        return bool(self._heard)


@pytest.fixture(scope="module")
def ears() -> dict[str, Ear]:
    return {name: Ear(name) for name in ACCEPTED}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("own", ACCEPTED)
def test_what_a_run_needs_is_accepted(ears: dict[str, Ear], own: str, streamed: bool) -> None:
    for message in ACCEPTED[own]:
        name = ANNA if message[0] == LEAD else ""
        assert ears[own].hears(*message, common_name=name, streamed=streamed), message


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("own", REFUSED)
def test_everything_else_is_refused(ears: dict[str, Ear], own: str, streamed: bool) -> None:
    for message in REFUSED[own]:
        name = ANNA if message[0] == LEAD else ""
        assert not ears[own].hears(*message, common_name=name, streamed=streamed), message


def test_a_site_cannot_pass_for_a_lead(ears: dict[str, Ear]) -> None:
    message = (LEAD, LEAD, "server", ("hci_channel", "command"))
    assert not ears["server"].hears(*message, common_name="west")


def test_a_reply_goes_where_a_request_may_go(ears: dict[str, Ear]) -> None:
    assert ears["server"].hears("north", "north", "server", ORDER, kind=MessageType.REPLY)
    assert not ears["server"].hears("west", "west", "north", ORDER, kind=MessageType.REPLY)
    assert not ears["server"].hears("north", "north", "server", STOP, kind="neither")


@pytest.mark.parametrize("name", ["WEST", "west2", f"westward.{JOB}", ".west", "server."])
def test_a_name_that_only_looks_alike_is_refused(ears: dict[str, Ear], name: str) -> None:
    assert not ears["server"].hears("west", name, "server", BEAT)


def test_a_site_does_only_what_a_relay_job_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls, name in ((FedAdminAgent, "register_processor"), (DeployProcessor, "process")):
        monkeypatch.setattr(cls, name, getattr(cls, name))  # to be restored
    guard._limit_processors()
    agent = FedAdminAgent.__new__(FedAdminAgent)
    agent.processors = {}
    for processor in ClientRequestProcessors.request_processors:
        agent.register_processor(processor)
    assert set(agent.processors) == {
        TrainingTopic.ABORT,
        TrainingTopic.CANCEL_RESOURCE,
        TrainingTopic.CHECK_RESOURCE,
        TrainingTopic.DEPLOY,
        TrainingTopic.NOTIFY_JOB_STATUS,
        TrainingTopic.START_JOB,
    }
    order = Message(topic=TrainingTopic.DEPLOY, body=b"")
    order.set_header(RequestHeader.JOB_ID, "local")  # the folder of the site's own rules
    assert agent.processors[TrainingTopic.DEPLOY].process(order, None).body == "invalid job"


if __name__ == "__main__":
    attack() if sys.argv[1] == "attack" else start()
