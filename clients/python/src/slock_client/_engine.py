"""What one process, or one event loop, has of a `Locks`: connections, waits, holds and what looks after them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from slock_client._acquisition import Grant, Limits, acquire, counted
from slock_client._clock import now
from slock_client._lease import Keeper, Lease, Phase
from slock_client._listener import CLOSED
from slock_client._options import Mode, Options
from slock_client._protocol import Owner, metadata_of, not_held
from slock_client._quorum import QuorumRequest, QuorumSettings, Votes
from slock_client._server import Answer, Server
from slock_client._transport import Call, Runtime, Transport
from slock_client._watchdog import Watchdog
from slock_client.errors import ClosedError, WrongModeError, outcome_of
from slock_client.hooks import Report


class Settings:
    """Of a `Locks`. Durations are in seconds."""

    def __init__(self, prefix: str, limits: Limits, report: Report, quorum: QuorumSettings | None) -> None:
        self.prefix, self.limits, self.report, self.quorum = prefix, limits, report, quorum
        self.phase = Phase()


class Engine:
    def __init__(self, settings: Settings, transports: Sequence[Transport], io: Callable[[], Runtime]) -> None:
        self._settings = settings
        self.pid = os.getpid()
        self.running: set[object] = set()  # acquisitions
        limits = settings.limits
        self.servers = [
            Server(one, io(), settings.report, limits.retry_for, lambda: self.watchdog.confirm()) for one in transports
        ]
        self.io = self.servers[0].io
        self.watchdog = Watchdog(self.io, self.servers, settings.report, settings.phase)
        for server in self.servers:
            server.listener.waits = lambda: self.watchdog.wake(float("inf"))

    def check_open(self) -> None:
        if self._settings.phase.is_closing:
            raise ClosedError("the Locks has been closed")

    def owner(self, names: tuple[str, ...], token: str | None) -> Owner:
        return Owner(names, self._settings.prefix, token)

    async def acquire(self, names: tuple[str, ...], mode: Mode, options: Options, is_try: bool) -> Lease | None:
        """A lease that has not been handed out, or `None` if a try was refused."""
        self.check_open()
        began, key = now(), object()
        self.running.add(key)
        try:
            lease = await self._acquire(names, mode, options, is_try)
        except BaseException as error:
            self._report_wait(names, options, began, outcome_of(error))
            raise
        finally:
            self.running.discard(key)
        self._report_wait(names, options, began, "refused" if lease is None else "granted")
        return lease

    def _report_wait(self, names: tuple[str, ...], options: Options, began: float, outcome: str) -> None:
        waited = self._settings.report.hooks.waited
        if waited is not None:
            waited(options.label or names[0], now() - began, outcome)

    async def _acquire(self, names: tuple[str, ...], mode: Mode, options: Options, is_try: bool) -> Lease | None:
        limits, quorum = self._settings.limits, self._settings.quorum
        if quorum is not None:
            request = QuorumRequest(
                *(self.servers, quorum, lambda: self.owner(names, options.token), mode, options, limits, is_try)
            )
            grant = await request.run()
            votes = request.votes
            return None if grant is None else self._hold(votes, votes._owner, mode, options, votes.metadata, grant)
        server, owner, metadata = self.servers[0], self.owner(names, options.token), metadata_of(options)
        call = owner.lock(mode, options, metadata)
        grant = await acquire(server, owner, call, options, limits, is_try)
        return None if grant is None else self._hold(server, owner, mode, options, metadata, grant)

    def _hold(self, keeper: Keeper, owner: Owner, mode: Mode, options: Options, metadata: str, grant: Grant) -> Lease:
        quorum = self._settings.quorum
        lease = Lease(
            *(keeper, owner, options, mode, quorum.counted if quorum else counted),
            *(self._settings.report, self._settings.phase),
        )
        lease.metadata, lease.granted = metadata, grant.sent
        lease.grant(mode, grant.fence, grant.sent)
        self.watchdog.add(lease)
        return lease

    async def adopt(self, names: tuple[str, ...], token: str, mode: Mode, options: Options) -> Lease:
        self.check_open()
        owner, quorum = self.owner(names, token), self._settings.quorum
        metadata = metadata_of(options)
        if quorum is not None:
            votes = Votes(self.servers, quorum, owner, mode, options)
            await votes.adopt()
            return self._hold(votes, owner, mode, options, metadata, Grant(0, votes.sent))
        server = self.servers[0]
        try:
            answer = await server.ask(names, self._settings.limits.retry_for, owner.adopt(mode, options.ttl))
        except WrongModeError:
            answer = Answer(0, 0.0)
        if not answer.number:
            raise not_held(names, mode)
        return self._hold(server, owner, mode, options, metadata, Grant(answer.number, answer.sent))

    async def release(self, names: tuple[str, ...], token: str) -> int:
        self.check_open()
        owner, quorum = self.owner(names, token), self._settings.quorum
        if quorum is not None:
            return await Votes(self.servers, quorum, owner, "write", Options()).release()
        return (await self.servers[0].ask(names, self._settings.limits.retry_for, owner.end(0))).number

    async def query(self, call: Call) -> Any:
        """The reply to a question. Without a key it is a list of those of all primaries."""
        self.check_open()
        server = self.servers[0]

        async def send(until: float) -> Any:
            reply = (await server.replies(call, until))[0]
            return reply if call.key or server.transport.is_cluster else [reply]

        return await server.repeat((), self._settings.limits.retry_for, send)

    def wake_all(self) -> None:
        """Has all that wait notice that the `Locks` is closed."""
        for server in self.servers:
            server.listener.put_all(CLOSED)

    async def close(self) -> None:
        """Waits for acquisitions and ends that are under way, for a time, and ends the connections."""
        end = now() + self._settings.limits.retry_for
        while now() < end and (self.running or not all(server.ends.is_idle() for server in self.servers)):
            await self.io.pause(0.002)
        for server in self.servers:
            server.is_closed = server.ends.is_closed = True
            server.listener.close()
            await server.link.close()
