"""The queues of several keys, filled one request after the other."""

from __future__ import annotations

from harness.many import many
from harness.raw import Argument
from harness.server import Server
from harness.waiting import HOUR, Line, WaitingClient


class Queues:
    """Who waits for which keys; each request waits before the next is sent."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.line = Line(server)
        self.client, self.locks = self.line.client, self.line.locks
        self.raw = server.raw()

    def ask(self, token: str, *command: Argument) -> WaitingClient:
        waiter = WaitingClient(self.server, token)
        waiter.ask(*command)
        self.line.wait_until_waiting(waiter)
        return waiter

    def mlock(self, token: str, keys: str | list[str], *, wait: int = 0, ttl: int = HOUR) -> WaitingClient:
        return self.ask(token, *many("MLOCK", keys, token, ttl, "WAIT", wait))

    def mrlock(self, token: str, keys: str | list[str], *, wait: int = 0) -> WaitingClient:
        return self.ask(token, *many("MRLOCK", keys, token, HOUR, "WAIT", wait))

    def lock(self, token: str, key: str, *, wait: int = 0) -> WaitingClient:
        return self.ask(token, "SLOCK.LOCK", key, token, HOUR, "WAIT", wait)

    def hold(self, token: str, keys: str) -> None:
        for key in keys.split():
            assert self.locks.lock(key, token, HOUR)

    def free(self, token: str, keys: str | list[str]) -> int:
        return self.raw.ok(*many("MUNLOCK", keys, token))

    def queued(self, key: str) -> list[str]:
        info = self.locks.full(key)
        return [waiter.token.decode() for waiter in info.queue or ()] if info else []

    def holders(self, key: str) -> list[str]:
        info = self.locks.full(key)
        return [holder.token.decode() for holder in info.holders or ()] if info else []
