"""Keyspace events, collected without guessing how long they take."""

from __future__ import annotations

from typing import NamedTuple

from harness.server import Server


class Event(NamedTuple):
    database: int
    name: str
    key: bytes


class Events:
    """Listens to a server whose `notify-keyspace-events` is on.

    An event is queued for the listener while the command that causes it runs. So when the command has been
    answered, the reply to a PING of the listener comes after its events, and nothing more can follow.
    """

    def __init__(self, server: Server) -> None:
        self._link = server.raw()
        self._link.send("PSUBSCRIBE", "__keyevent@*__:*")
        assert self._link.read()[0] == b"psubscribe"

    def so_far(self) -> list[Event]:
        """The events since the last call (or the start)."""
        self._link.send("PING")
        events = []
        while True:
            message = self._link.read()
            if message[0] == b"pong":
                return events
            _, _, channel, key = message
            where, name = channel.decode().split(":", 1)
            events.append(Event(int(where.removeprefix("__keyevent@").removesuffix("__")), name, key))

    def close(self) -> None:
        self._link.close()
