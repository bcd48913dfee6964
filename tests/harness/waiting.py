"""Clients that wait, put into a queue one by one, so that a test knows the order in which they stand.

A request waits when the server says that its connection is blocked: that does not ask the queue under test.
"""

from __future__ import annotations

import select
from typing import Any

from harness.locks import Info, Locks
from harness.raw import Argument, RawConnection, RespError
from harness.server import Server
from harness.wait import wait_until

# A hold that cannot end by itself while a test runs.
HOUR = 3_600_000

# How long a reply may take. Nothing but a lost wake-up takes so long.
REPLY_TIMEOUT = 20.0

Command = tuple[Argument, ...]


class WaitingClient:
    """A connection that has sent one request and has not read its reply. `harness.cleanup` closes it."""

    every: list[WaitingClient] = []  # noqa: RUF012 -- the registry that the fixture walks

    def __init__(self, server: Server, token: str, *, database: int = 0, protocol: int = 2) -> None:
        self.token = token
        self.connection = RawConnection(server.port)
        WaitingClient.every.append(self)
        if protocol != 2:
            self.connection.hello(protocol)
        if database:
            self.connection.ok("SELECT", database)
        self.id = self.connection.client_id()

    def __repr__(self) -> str:
        return f"<{self.token}, client {self.id}>"

    def ask(self, *command: Argument) -> None:
        self.connection.send(*command)

    def reply(self, timeout: float = REPLY_TIMEOUT) -> Any:
        try:
            return self.connection.read(timeout)
        except TimeoutError:
            raise AssertionError(f"{self} was never answered") from None

    def fence(self) -> int:
        """The fence of its grant, for which it waits."""
        reply = self.reply()
        assert isinstance(reply, int) and reply > 0, f"{self} should be granted and was told {reply!r}"
        return reply

    def error(self) -> str:
        reply = self.reply()
        assert isinstance(reply, RespError), f"{self} should be told an error and was told {reply!r}"
        return reply.text

    def outcome(self) -> Any:
        """The reply, or None when the server closed the connection without one."""
        try:
            return self.reply()
        except ConnectionError:
            return None

    def is_answered(self, seconds: float = 0.0) -> bool:
        """Whether there is something to read, if only that the server has closed the connection."""
        readable = select.poll()
        readable.register(self.connection.socket, select.POLLIN)
        return bool(readable.poll(int(seconds * 1000)))

    def is_waiting(self) -> bool:
        return not self.is_answered()


class Line:
    """The queue of one lock, in the order in which the test has filled it."""

    every: list[Line] = []  # noqa: RUF012 -- the registry that the fixture walks

    def __init__(self, server: Server, key: str = "k", *, database: int = 0) -> None:
        self.server = server
        self.key = key
        self.database = database
        self.client = server.client(db=database)
        self.locks = Locks(self.client)
        Line.every.append(self)

    def write(self, token: str, ttl: int = HOUR, *, wait: int = 0) -> WaitingClient:
        return self.join("SLOCK.LOCK", token, ttl, wait=wait)

    def read(self, token: str, ttl: int = HOUR, *, wait: int = 0) -> WaitingClient:
        return self.join("SLOCK.RLOCK", token, ttl, wait=wait)

    def upgrade(self, token: str, ttl: int = HOUR, *, wait: int = 0) -> WaitingClient:
        return self.join("SLOCK.UPGRADE", token, ttl, wait=wait)

    def join(self, command: str, token: str, ttl: int = HOUR, *, wait: int = 0) -> WaitingClient:
        return self.ask(token, command, self.key, token, ttl, "WAIT", wait)

    def ask(self, token: str, *command: Argument, **connection: int) -> WaitingClient:
        """Sends a request and returns when it waits (or has been answered already)."""
        waiter = WaitingClient(self.server, token, **{"database": self.database, **connection})
        waiter.ask(*command)
        self.wait_until_waiting(waiter)
        return waiter

    def several(self) -> list[WaitingClient]:
        return [self.write("w1"), self.read("r1"), self.read("r2"), self.write("w2", wait=HOUR)]

    def wait_until_waiting(self, waiter: WaitingClient) -> None:
        wait_until(
            lambda: waiter.is_answered() or is_blocked(self.client, waiter.id),
            REPLY_TIMEOUT,
            f"{waiter} to wait",
        )

    def info(self, key: str | None = None) -> Info | None:
        return self.locks.full(key or self.key)

    def count(self, name: str) -> int:
        """A counter of INFO slock, for all locks."""
        return self.client.info("slock")[f"slock_{name}"]

    def wait_for_waiters(self, waiters: int) -> None:
        wait_until(lambda: self.count("waiters") == waiters, what=f"{waiters} requests to be left")

    def queued(self, key: str | None = None) -> list[str]:
        """The tokens that wait, in order."""
        info = self.info(key)
        return [waiter.token.decode() for waiter in info.queue or ()] if info else []

    def holders(self, key: str | None = None) -> list[str]:
        """The tokens that hold, sorted."""
        info = self.info(key)
        return sorted(holder.token.decode() for holder in info.holders or ()) if info else []

    def release(self, token: str) -> int:
        """Gives back whatever the token holds."""
        return self.locks.unlock(self.key, token) or self.locks.runlock(self.key, token)


def is_blocked(client: Any, client_id: int) -> bool:
    listed = client.client_list(client_id=[client_id])
    return bool(listed) and "b" in listed[0]["flags"]


def at_once(server: Server, *commands: Command) -> list[Any]:
    """Sends all commands in one write, so that the server runs them without doing anything in between."""
    with RawConnection(server.port) as connection:
        return connection.pipeline(list(commands))


def blocked_clients(client: Any) -> int:
    return client.info("clients")["blocked_clients"]


def wait_unblocked(client: Any) -> None:
    """Waits until the server blocks nobody any more."""
    wait_until(lambda: blocked_clients(client) == 0, REPLY_TIMEOUT, "no client to be blocked")


# What a client library retries or reports, when the connection is not closed without a word.
RETRIABLE = {"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "UNBLOCKED", "READONLY"}


def is_retriable(outcome: Any) -> bool:
    return isinstance(outcome, RespError) and outcome.prefix in RETRIABLE


def all_turned_away(server: Server, waiting: list[WaitingClient]) -> None:
    """Each gets an error that is retried, or its connection is closed; and nobody waits any more."""
    outcomes = [waiter.outcome() for waiter in waiting]
    assert all(outcome is None or is_retriable(outcome) for outcome in outcomes), outcomes
    client = server.client()
    wait_unblocked(client)
    assert client.info("slock")["slock_waiters"] == 0


def serve_in_order(line: Line, waiting: list[WaitingClient]) -> list[int]:
    """Serves those who come one by one: each is granted, and nobody else, and it gives the lock back."""
    fences = []
    for at, waiter in enumerate(waiting):
        fences.append(waiter.fence())
        assert all(later.is_waiting() for later in waiting[at + 1 :][:3]), "somebody overtook"
        assert line.release(waiter.token) == 1
    assert fences == sorted(set(fences))
    return fences
