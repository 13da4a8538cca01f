"""What NVFlare's processes at a site and on the server accept, and from whom.

By itself NVFlare carries messages from any site to any other, obeys whoever reaches a process, and
offers a shell at each site. Here each process refuses, before it reads or forwards it, a message
that is not in a short list. Who sent it is known at the server, by the certificate at the other end
of the connection, and at a site by the server's word.
"""

from __future__ import annotations

import logging
import re
import sys
from importlib import import_module
from typing import Any, NamedTuple

from nvflare.apis.fl_constant import ReservedTopic, ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    CellChannelTopic,
    MessageHeaderKey,
    MessagePropKey,
    MessageType,
    ReturnCode,
)
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import RequestHeader
from nvflare.private.fed.app.utils import version_check
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.scheduler_cmds import (
    CancelResourceProcessor,
    CheckResourceProcessor,
    StartJobProcessor,
)
from nvflare.private.fed.client.training_cmds import (
    AbortAppProcessor,
    DeployProcessor,
    NotifyJobStatusProcessor,
)

from cotune.site.door import TOPIC

log = logging.getLogger("cotune.engines.nvflare.guard")

_MAINS = {
    "client": "nvflare.private.fed.app.client.client_train",
    "server": "nvflare.private.fed.app.server.server_train",
}

#: NVFlare's name of a job. It is also a folder in a kit: `local` would be taken as well.
_JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: What the relay job needs a site to do at the server's request.
_PROCESSORS = (
    AbortAppProcessor,
    CancelResourceProcessor,
    CheckResourceProcessor,
    DeployProcessor,
    NotifyJobStatusProcessor,
    StartJobProcessor,
)

_ANY = "*"
_BYE = (CellChannel.CELLNET, CellChannelTopic.Bye)
_STREAMING = {
    (STREAM_CHANNEL, STREAM_ACK_TOPIC),
    (STREAM_CHANNEL, STREAM_ERROR_TOPIC),
    (CellChannel.RETURN_ONLY, _ANY),
}
#: Channel and topic of the requests that may go from one kind of cell to another. NVFlare's bulk
#: messages are not here: what is in them would not be looked at.
_REQUESTS = {
    ("site", "server"): {(CellChannel.SERVER_MAIN, _ANY), _BYE},
    ("site", "server's job"): {
        (CellChannel.SERVER_COMMAND, ServerCommandNames.GET_TASK),
        (CellChannel.AUX_COMMUNICATION, ReservedTopic.SYNC_RUNNER),
        (CellChannel.AUX_COMMUNICATION, ReservedTopic.JOB_HEART_BEAT),
        *_STREAMING,
    },
    ("server", "site"): {(CellChannel.CLIENT_MAIN, _ANY)},
    ("server", "site's job"): {
        (CellChannel.AUX_COMMUNICATION, TOPIC),
        (CellChannel.AUX_COMMUNICATION, ReservedTopic.END_RUN),
        *_STREAMING,
    },
    ("lead", "server"): {
        (CellChannel.SERVER_MAIN, _ANY),
        (CellChannel.HCI, _ANY),
        (CellChannel.AUX_COMMUNICATION, _ANY),
        _BYE,
        *_STREAMING,
    },
}


class _Cell(NamedTuple):
    """A process by NVFlare's name for it: `server`, `north`, or, for a job, `north.JOB`."""

    root: str
    job: str

    @classmethod
    def named(cls, name: str) -> _Cell:
        root, _, job = name.partition(".")
        return cls(root, job)

    @property
    def owner(self) -> str:
        if self.root == FQCN.ROOT_SERVER:
            return "server"
        return "lead" if is_valid_admin_client_name(self.root) else "site"

    @property
    def kind(self) -> str:
        return f"{self.owner}'s job" if self.job else self.owner


def guard_job(fl_ctx: FLContext) -> None:
    """Guard the process of a job. Call it before a message can be answered."""
    _guard(fl_ctx.get_engine().get_cell().core_cell)


def _guard(cell: Any) -> None:
    cell.add_incoming_filter(_ANY, _ANY, _refuse, cell.get_fqcn())


def _refuse(message: Message, own: str) -> Message | None:
    """NVFlare drops a message for which a filter returns something, or raises."""
    if _accepted(message, own):
        return None
    names = (MessageHeaderKey.ORIGIN, MessageHeaderKey.DESTINATION)
    told = [str(part)[:100] for part in (*map(message.get_header, names), *_request(message))]
    log.warning("refused a message from %r to %r: %r, %r", *told)
    return make_reply(ReturnCode.UNAUTHENTICATED)


def _accepted(message: Message, own: str) -> bool:
    origin = _Cell.named(message.get_header(MessageHeaderKey.ORIGIN))
    destination = _Cell.named(message.get_header(MessageHeaderKey.DESTINATION))
    bringer = message.get_prop(MessagePropKey.ENDPOINT).name
    if origin.root != _Cell.named(bringer).root and bringer != FQCN.get_parent(own):
        return False  # only a parent, which has looked itself, brings what is of others
    if origin.owner == "lead" and "@" not in message.get_prop(MessagePropKey.COMMON_NAME, ""):
        return False  # a site that took a lead's name for its cell, which NVFlare allows
    if origin.root == destination.root:
        return True
    if origin.job and destination.job and origin.job != destination.job:
        return False
    allowed = _REQUESTS.get((origin.owner, destination.kind))
    if allowed is None:
        return False
    if message.get_header(MessageHeaderKey.MSG_TYPE) in (MessageType.REPLY, MessageType.RETURN):
        return True  # of use only with the random name of a request
    channel, topic = _request(message)
    return (channel, topic) in allowed or (channel, _ANY) in allowed


def _request(message: Message) -> tuple[Any, Any]:
    """Channel and topic, also of a request that comes in pieces."""
    channel = message.get_header(MessageHeaderKey.CHANNEL)
    topic = message.get_header(MessageHeaderKey.TOPIC)
    if (channel, topic) == (STREAM_CHANNEL, STREAM_DATA_TOPIC):
        return (
            message.get_header(StreamHeaderKey.CHANNEL),
            message.get_header(StreamHeaderKey.TOPIC),
        )
    return channel, topic


def _guard_every_cell() -> None:
    """From its first moment: a cell is connected some time after it is made."""
    make = CoreCell.__init__

    def make_guarded(cell: Any, *args: Any, **options: Any) -> None:
        make(cell, *args, **options)
        _guard(cell)

    CoreCell.__init__ = make_guarded


def _limit_processors() -> None:
    register = FedAdminAgent.register_processor
    deploy = DeployProcessor.process

    def register_needed(agent: Any, processor: Any) -> None:
        if type(processor) in _PROCESSORS:
            register(agent, processor)

    def deploy_job(processor: Any, request: Any, engine: Any) -> Any:
        if not _JOB.fullmatch(request.get_header(RequestHeader.JOB_ID)):
            return error_reply("invalid job")
        return deploy(processor, request, engine)

    FedAdminAgent.register_processor = register_needed
    DeployProcessor.process = deploy_job


def main() -> int | None:
    """Run NVFlare's program `client` or `server`, guarded, with the arguments that follow."""
    program = import_module(_MAINS[sys.argv.pop(1)])
    _guard_every_cell()
    _limit_processors()
    version_check()
    args = program.parse_arguments()
    code: int | None = MainProcessMonitor.run(
        main_func=program.main, run_dir=args.workspace, args=args
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
