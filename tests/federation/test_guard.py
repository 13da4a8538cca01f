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
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import cotune
from cotune.federation import connection
from cotune.party.door import TOPIC, Ask, Told

from .real import Real, make_rows, until

pytest.importorskip("nvflare")

from nvflare.apis.fl_constant import ServerCommandKey, ServerCommandNames
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, MessageType
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

from cotune.federation import guard

ATTACKER = "tests.federation.test_guard"
#: Seconds from the moment when the attacker gets a job, in which it tries.
TRYING = 14.0
LOOT = "loot.json"
JOB = "01234567-89ab-cdef-0123-456789abcdef"


# ---- the attacker


def start() -> None:
    """Start a party, with this file in place of the guarded connection process."""
    from cotune.cli import main

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

    def request(target: str, channel: str, topic: str, payload: Any) -> Any:
        message = new_cell_message({}, payload)
        return cell.send_request(
            channel=channel, target=target, topic=topic, request=message, timeout=2.0
        ).payload

    def read_a_file() -> str:
        topic = SysCommandTopic.SHELL
        order = Message(topic=topic, body="head -n 2 ../north.csv")
        return str(request("north", CellChannel.CLIENT_MAIN, topic, order).body)

    def ask_the_party() -> str:
        ask = Shareable()
        ask.set_header("__topic__", TOPIC)
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
        nonce = {"nonce": "1", "cn": "west"}
        message = new_cell_message(nonce, None)
        topic, channel = "challenge", CellChannel.SERVER_MAIN
        told = cell.send_request(
            channel=channel, target="server", topic=topic, request=message, timeout=2.0
        )
        return str(told.payload["cn"])

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
        cotune.tune(
            federation, "defaults", learners=["decision_tree"], train=False, progress=False
        )
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


if __name__ == "__main__":
    attack() if sys.argv[1] == "attack" else start()
