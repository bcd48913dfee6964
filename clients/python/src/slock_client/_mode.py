"""The changes of a hold's mode. While one is open the hold is renewed without naming its fence, because the server may
have given it another one."""

from __future__ import annotations

import contextlib

from slock_client._acquisition import Request
from slock_client._lease import Lease
from slock_client._options import Options
from slock_client._protocol import REFUSE_FOR
from slock_client._server import Server
from slock_client.errors import ClosedError, NotHeldError, SlockError, TimedOutError

_SETTLING = 0.5  # seconds for which a change that timed out is settled first, at a server that replies


class Change:
    """A change of the mode. `is_left`: a copy of it may still be carried out."""

    def __init__(self, lease: Lease, server: Server) -> None:
        if len(lease.owner.keys) > 1:
            raise ValueError("the mode changes for one key on one server")
        if lease.is_changing:
            raise ValueError("another change of the mode is open")
        lease.raise_problem()
        self._lease, self._server = lease, server
        self.is_left = False

    async def _ask(self) -> None:
        raise NotImplementedError

    async def _settle(self, limit: float) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        lease = self._lease
        lease.is_changing = lease.is_open = True
        try:
            await self._ask()
        except NotHeldError:
            self.is_left = False
            lease.lose("gone")
        except ClosedError:
            lease.raise_problem()  # its wait was ended because of that
            raise
        except TimedOutError:
            await self._finish(_SETTLING)
            raise
        finally:
            if self.is_left and lease.state == "live":
                self._server.io.spawn(self._finish_later)
            else:
                lease.is_changing = False
        lease.raise_problem()

    async def _finish(self, limit: float) -> None:
        with contextlib.suppress(SlockError):  # the hold goes on, and is renewed without its fence
            if self.is_left and self._lease.problem() is None:
                await self._settle(limit)
            self.is_left = False

    async def _finish_later(self) -> None:
        try:
            await self._finish(REFUSE_FOR)
        finally:
            self._lease.is_changing = False


class Upgrade(Change):
    def __init__(self, lease: Lease, server: Server, wait: float | None) -> None:
        super().__init__(lease, server)
        replicas, timeout = lease.options.min_replicas, lease.options.replica_timeout
        options = Options(ttl=lease.ttl, wait=wait, min_replicas=replicas, replica_timeout=timeout)
        call = lease.owner.change("write", lease.ttl, lease.fence)
        self._request = Request(server, lease.owner, call, options)

    async def _ask(self) -> None:
        lease, request, was_open = self._lease, self._request, self._lease.is_open
        lease.watchers.append(request.stop)
        self.is_left = True
        try:
            grant = await request.run()
            assert grant is not None
            lease.grant("write", *grant)
            self.is_left = False
        finally:
            lease.watchers.remove(request.stop)
            if self.is_left and not request.is_open:
                self.is_left = False
                lease.is_open = was_open

    async def _settle(self, limit: float) -> None:
        """Withdraws the upgrade, and learns the mode that the hold has after that."""
        lease, owner = self._lease, self._lease.owner
        withdrawn = await self._server.ask(owner.names, limit, owner.withdraw())
        if not withdrawn.number and lease.problem() is None:
            held = await self._server.ask(owner.names, limit, owner.adopt("write", lease.ttl))
            if held.number:
                lease.grant("write", held.number, held.sent)


class Downgrade(Change):
    async def _ask(self) -> None:
        self._call = self._lease.owner.change("read", self._lease.ttl, self._lease.fence)
        self._lease.mode = "read"  # the first copy may have been carried out
        self.is_left = True
        await self._settle(self._server.settings.retry_for)
        self.is_left = False

    async def _settle(self, limit: float) -> None:
        answer = await self._server.ask(self._lease.owner.names, limit, self._call)
        self._lease.grant("read", answer.number, answer.sent)
