"""The queues of several keys, filled one request after the other."""

from __future__ import annotations

from harness.many import many
from harness.server import Server
from harness.waiting import HOUR, Line, WaitingClient


class Queues(Line):
    """Who waits for which keys; each request waits before the next is sent."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.raw = server.raw()

    def mlock(self, token: str, keys: str | list[str], *, wait: int = 0) -> WaitingClient:
        return self.ask(token, *many("MLOCK", keys, token, HOUR, "WAIT", wait))

    def mrlock(self, token: str, keys: str | list[str], *, wait: int = 0) -> WaitingClient:
        return self.ask(token, *many("MRLOCK", keys, token, HOUR, "WAIT", wait))

    def lock(self, token: str, key: str, *, wait: int = 0) -> WaitingClient:
        return self.ask(token, "SLOCK.LOCK", key, token, HOUR, "WAIT", wait)

    def hold(self, token: str, keys: str) -> None:
        for key in keys.split():
            assert self.locks.lock(key, token, HOUR)

    def free(self, token: str, keys: str | list[str]) -> int:
        return self.raw.ok(*many("MUNLOCK", keys, token))
