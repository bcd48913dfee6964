"""Requests that are answered on a channel (NOTIFY), and connections that listen to one."""

from __future__ import annotations

import re
from collections import deque
from itertools import count
from typing import Any

from harness.raw import Argument, RespError
from harness.server import Server
from harness.waiting import HOUR, REPLY_TIMEOUT, WaitingClient

Message = tuple[int | str, bytes]

_PAYLOAD = re.compile(rb"(-[A-Z]+|0|[1-9]\d*) (.+)", re.DOTALL)
_numbers = count(1)


def _is_message(value: Any) -> bool:
    return isinstance(value, list) and value[:1] == [b"smessage"]


class Listener:
    """Has subscribed to a channel, asks, and keeps what it is told apart from the replies.

    One connection does both with RESP3; with RESP2 a second one asks.
    """

    def __init__(self, server: Server, protocol: int = 3, channel: bytes = b"") -> None:
        # A channel that nobody else has used: requests of an earlier test may still be there.
        self.channel = channel or b"answers-%d" % next(_numbers)
        self.connection = server.raw(protocol)
        self.asking = self.connection if protocol == 3 else server.raw()
        self.id = self.asking.client_id()
        self.told: deque[list[bytes]] = deque()
        assert self.connection.ok("SSUBSCRIBE", self.channel) == [b"ssubscribe", self.channel, 1]

    def call(self, *command: Argument) -> Any:
        """The reply. What comes before it is kept."""
        self.asking.send(*command)
        while _is_message(value := self.asking.read()):
            self.told.append(value)
        return value

    def ask(self, *request: Argument, wait: int = 0, tag: Argument = "tag") -> Any:
        return self.call(*request, "WAIT", wait, "NOTIFY", self.channel, tag)

    def message(self) -> Message:
        """The next message, for which it waits: a number or the code of an error, and the tag."""
        kind, channel, payload = self.told.popleft() if self.told else self.connection.read(REPLY_TIMEOUT)
        assert (kind, channel) == (b"smessage", self.channel)
        found = _PAYLOAD.fullmatch(payload)
        assert found, f"not a message: {payload!r}"
        return found[1].decode() if found[1].startswith(b"-") else int(found[1]), found[2]

    def fence(self, tag: bytes = b"tag") -> int:
        """The fence of a grant, for which it waits."""
        fence, told = self.message()
        assert isinstance(fence, int) and fence > 0 and told == tag, (fence, told)
        return fence

    def messages(self) -> list[Message]:
        """All that it has been told and has not read. It comes before the replies."""
        for _ in range(2):
            self.connection.send("PING")
            while _is_message(value := self.connection.read()):
                self.told.append(value)
            assert value in (b"PONG", [b"pong", b""])
        return [self.message() for _ in range(len(self.told))]


class NotifiedClient(WaitingClient):
    """A client that waits by NOTIFY on its own connection. What its reply would be is in the message."""

    def __init__(self, server: Server, token: str, channel: bytes = b"") -> None:
        self.token, self.listener = token, Listener(server, channel=channel)
        self.connection, self.id = self.listener.connection, self.listener.id
        WaitingClient.every.append(self)

    def ask(self, *command: Argument) -> None:
        """Returns when the request waits."""
        self.tag = b"%d" % next(_numbers)
        assert self.connection.ok(*command, "NOTIFY", self.listener.channel, self.tag) is None

    @classmethod
    def for_write(cls, server: Server, key: str, token: str, wait: int = 0) -> NotifiedClient:
        """One that waits for this lock."""
        client = cls(server, token, b"%s:%d" % (key.encode(), next(_numbers)))  # in the slot of the key
        client.ask("SLOCK.LOCK", key, token, HOUR, "WAIT", wait)
        return client

    def reply(self, timeout: float = REPLY_TIMEOUT) -> Any:
        told, tag = self.listener.message()
        assert tag == self.tag, "the message is another request's"
        return RespError(told.removeprefix("-")) if isinstance(told, str) else told

    def is_answered(self, seconds: float = 0.0) -> bool:
        return bool(self.listener.told) or self.connection.has_reply(seconds)
