"""The door of a party's process: how the site's connection brings it messages.

The party with its rows is one process, the connection to the server is others, and these come and
go. They meet at a socket in a private folder. This module is all that the connection imports.
"""

from __future__ import annotations

import os
from multiprocessing.connection import Client, Connection
from typing import Literal

import msgspec

from cotune.errors import FederationError

#: The name of the relay's messages and commands, and of its job's only task.
TOPIC = "cotune"
#: The environment variable by which a site's connection finds the party's socket.
DOOR = "COTUNE_DOOR"


class Ask(msgspec.Struct, frozen=True):
    """What the connection wants.

    `hello` asks who is there. `call` brings a message, named by `id`; `collect` asks for its reply
    again: both wait for it, at most `wait` seconds. `cancel` gives that call up.
    """

    op: Literal["hello", "call", "collect", "cancel"]
    #: Chosen at random by whoever asks: who does not know it can neither collect nor cancel.
    id: str = ""
    #: Of whoever has signed the message; PEM.
    certificate: str = ""
    message: bytes = b""
    wait: float = 0.0
    signature: bytes = b""


class Told(msgspec.Struct, frozen=True):
    """`done` comes with the reply; `unknown` says that there is no such call (any more)."""

    state: Literal["hello", "done", "working", "unknown"]
    reply: bytes = b""
    #: Finished since the party was started, for displays; 0 where sums are private.
    fits: int = 0
    #: Of cotune at the site, and what the party is called there.
    version: str = ""
    party: str = ""


_encode = msgspec.msgpack.Encoder().encode
_asks = msgspec.msgpack.Decoder(Ask)
_told = msgspec.msgpack.Decoder(Told)


def knock(ask: Ask) -> Told:
    """Ask the party of this site; `FederationError` if nobody opens."""
    try:
        with Client(os.environ[DOOR], family="AF_UNIX") as connection:
            connection.send_bytes(_encode(ask))
            return _told.decode(connection.recv_bytes())
    except (OSError, EOFError, KeyError, msgspec.MsgspecError) as error:
        raise FederationError("the party's process does not answer") from error


def heard(connection: Connection) -> Ask:
    """What somebody at the door wants."""
    return _asks.decode(connection.recv_bytes())


def tell(connection: Connection, told: Told) -> None:
    connection.send_bytes(_encode(told))
