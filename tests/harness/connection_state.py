"""What a connection is on the server: its database, name, protocol and flags.

Only its own commands (SELECT, HELLO, CLIENT SETNAME, MULTI, SUBSCRIBE, ...) may change that. All connections
of the harness note what they send, and after each test CLIENT LIST must agree with the notes.
"""

from __future__ import annotations

import re
import socket
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import redis

from harness.wait import wait_until

if TYPE_CHECKING:
    from harness.server import Server

# The commands that change a connection, and what each does to the flags that the server may show.
_FLAGS = {"MULTI": "x", "WATCH": "d", "SUBSCRIBE": "P", "PSUBSCRIBE": "P", "SSUBSCRIBE": "P", "READONLY": "r"}
_FLAGS |= {"MONITOR": "O", "SYNC": "SO", "PSYNC": "SO", "CLIENT": "tRBeTI"}
_OTHERS = ("SELECT", "HELLO", "RESET", "EXEC", "DISCARD")
_NOTED = re.compile(
    rb"\*\d+\r\n\$\d+\r\n(%s)\r\n((?:\$\d+\r\n[^\r\n]*\r\n)*)" % "|".join([*_FLAGS, *_OTHERS]).encode(), re.I
)

# Normal, waiting, just unblocked, about to be closed: nothing that a command leaves behind.
_PASSING = set("NbucA")


class ConnectionState:
    """What one connection should be, by what was sent on it."""

    every: set[ConnectionState] = set()  # noqa: RUF012 -- the registry that the check walks

    def __init__(self, connected: socket.socket, server_port: int) -> None:
        self._socket = weakref.ref(connected)
        self.port = connected.getsockname()[1]
        self.server_port = server_port
        self._reset()
        ConnectionState.every.add(self)

    def _reset(self) -> None:
        self.database, self.name, self.protocol = 0, "", 2
        self.flags = set(_PASSING)

    def note(self, data: bytes) -> None:
        """Learns from what is sent. A command without the form of an array is not seen."""
        for found in _NOTED.finditer(data):
            words = found[2].decode("utf-8", "replace").split("\r\n")[1::2]
            self._note(found[1].decode().upper(), words)

    def _note(self, command: str, words: list[str]) -> None:
        upper = [word.upper() for word in words]
        self.flags |= set(_FLAGS.get(command, ""))
        if command == "SELECT" and words[:1] and words[0].isdigit() and int(words[0]) < 16:
            self.database = int(words[0])
        elif command == "HELLO":
            self.protocol = int(words[0]) if words[:1] in (["2"], ["3"]) else self.protocol
            self.name = words[upper.index("SETNAME") + 1] if "SETNAME" in upper else self.name
        elif command == "CLIENT" and upper[:1] == ["SETNAME"]:
            self.name = words[1]
        elif command in ("EXEC", "DISCARD"):
            self.flags -= set("xd")
        elif command == "RESET":
            self._reset()

    @property
    def is_open(self) -> bool:
        connected = self._socket()
        return connected is not None and connected.fileno() != -1

    def difference(self, shown: dict[str, str] | None) -> str:
        """What is wrong with what the server shows, if anything: it may not know the connection any more."""
        if shown is None:
            return ""
        if "b" in shown["flags"] and shown["qbuf"] != "0":
            return ""  # what was sent behind the wait has not been run yet
        right = {"db": str(self.database), "name": self.name, "resp": str(self.protocol)}
        wrong = [
            f"{field}={shown[field]}, not {value}" for field, value in right.items() if shown[field] != value
        ]
        if set(shown["flags"]) - self.flags:
            wrong.append(f"flags={shown['flags']}")
        return f"client {shown['id']} after {shown['cmd']}: {', '.join(wrong)}" if wrong else ""


class NotedConnection(redis.Connection):
    """A connection of redis-py that notes what it sends."""

    def _connect(self) -> socket.socket:
        connected = super()._connect()
        self._state = ConnectionState(connected, self.port)
        return connected

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        super().send_packed_command(command, check_health)
        parts = [command] if isinstance(command, (str, bytes)) else command
        self._state.note(b"".join(part.encode() if isinstance(part, str) else bytes(part) for part in parts))


def check_connections(servers: Iterable[Server], timeout: float = 2.0) -> None:
    """Fails when a connection is not what its own commands have made of it.

    What was sent at the very end of a test may not have been read by the server yet.
    """
    ConnectionState.every = {state for state in ConnectionState.every if state.is_open}
    for server in servers:
        states = [state for state in ConnectionState.every if state.server_port == server.port]
        if states and server.is_running and not server.is_paused:
            _check(server, states, timeout)


def _check(server: Server, states: list[ConnectionState], timeout: float) -> None:
    wrong: list[str] = []

    def agrees() -> bool:
        shown = server.connections()
        wrong[:] = [text for state in states if (text := state.difference(shown.get(state.port)))]
        return not wrong

    try:
        wait_until(agrees, timeout)
    except AssertionError:
        raise AssertionError("\n".join([f"not what it was, at {server}:", *wrong])) from None
