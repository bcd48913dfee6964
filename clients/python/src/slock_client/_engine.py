"""What one process, or one event loop, has of a `Locks`: connections, waits, holds and what looks after them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from slock_client._acquisition import Grant, Request
from slock_client._clock import now
from slock_client._lease import Keeper, Lease
from slock_client._listener import CLOSED
from slock_client._options import Mode, Options
from slock_client._protocol import Owner, not_held
from slock_client._quorum import Votes, acquire
from slock_client._server import Answer, Server
from slock_client._settings import Settings
from slock_client._transport import Call, Runtime, Transport
from slock_client._watchdog import Watchdog
from slock_client.errors import ClosedError, WrongModeError, outcome_of


class Engine:
    def __init__(self, settings: Settings, transports: Sequence[Transport], io: Callable[[], Runtime]) -> None:
        self._settings = settings
        self.pid = os.getpid()
        self.running: set[object] = set()  # acquisitions
        self.servers = [Server(one, io(), settings, lambda: self.watchdog.confirm()) for one in transports]
        self.io = self.servers[0].io
        self.watchdog = Watchdog(self.io, self.servers, settings)
        for server in self.servers:
            server.listener.waits = lambda: self.watchdog.wake(float("inf"))

    def check_open(self) -> None:
        if self._settings.is_closing:
            raise ClosedError("the Locks has been closed")

    def _owner(self, names: tuple[str, ...], options: Options) -> Owner:
        self.check_open()
        return Owner(names, self._settings.prefix, options)

    async def acquire(self, names: tuple[str, ...], mode: Mode, options: Options, is_try: bool) -> Lease | None:
        """A lease that has not been handed out, or `None` if a try was refused."""
        self.check_open()
        began, key, outcome = now(), object(), ""
        self.running.add(key)
        try:
            lease = await self._acquire(names, mode, options, is_try)
            outcome = "refused" if lease is None else "granted"
            return lease
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            self.running.discard(key)
            waited = self._settings.hooks.waited
            if waited is not None:
                waited(options.label or names[0], now() - began, outcome)

    async def _acquire(self, names: tuple[str, ...], mode: Mode, options: Options, is_try: bool) -> Lease | None:
        if self._settings.quorum is not None:
            votes = await acquire(self.servers, lambda: self._owner(names, options), mode, options, is_try)
            return None if votes is None else self._hold(votes, votes.owner, mode, options, Grant(0, votes.sent))
        server, owner = self.servers[0], self._owner(names, options)
        call = owner.lock(mode, options.ttl, options.limit)
        grant = await Request(server, owner, call, options, is_try).acquire()
        return None if grant is None else self._hold(server, owner, mode, options, grant)

    def _hold(self, keeper: Keeper, owner: Owner, mode: Mode, options: Options, grant: Grant) -> Lease:
        lease = Lease(self._settings, keeper, owner, mode, options, grant)
        self.watchdog.add(lease)
        return lease

    async def adopt(self, names: tuple[str, ...], mode: Mode, options: Options) -> Lease:
        owner = self._owner(names, options)
        if self._settings.quorum is not None:
            votes = Votes(self.servers, owner, mode, options)
            if not await votes.adopt():
                raise not_held(names, mode)
            return self._hold(votes, owner, mode, options, Grant(0, votes.sent))
        server = self.servers[0]
        try:
            answer = await server.ask(names, self._settings.retry_for, owner.adopt(mode, options.ttl))
        except WrongModeError:
            answer = Answer(0, 0.0)
        if not answer.number:
            raise not_held(names, mode)
        return self._hold(server, owner, mode, options, Grant(answer.number, answer.sent))

    async def release(self, names: tuple[str, ...], options: Options) -> int:
        owner = self._owner(names, options)
        if self._settings.quorum is not None:
            return (await Votes(self.servers, owner, "write", options).release()).granted
        return (await self.servers[0].ask(names, self._settings.retry_for, owner.end(0))).number

    async def query(self, call: Call) -> Any:
        """The reply to a question. Without a key it is a list of those of all primaries."""
        self.check_open()
        server = self.servers[0]

        async def send(until: float) -> Any:
            reply = (await server.replies(call, until))[0]
            return reply if call.key or server.transport.is_cluster else [reply]

        return await server.repeat((), self._settings.retry_for, send)

    def wake_all(self) -> None:
        """Has all that wait notice that the `Locks` is closed."""
        for server in self.servers:
            server.listener.put_all(CLOSED)

    async def close(self) -> None:
        """Waits for acquisitions and ends that are under way, for a time, and ends the connections."""
        end = now() + self._settings.retry_for
        while now() < end and (self.running or not all(server.is_idle() for server in self.servers)):
            await self.io.pause(0.002)
        for server in self.servers:
            server.is_closed = True
            server.listener.close()
            await server.link.close()
