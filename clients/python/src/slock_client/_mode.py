"""The changes of a hold's mode. While one is open the hold is renewed without naming its fence, because the server may
have given it another one."""

from __future__ import annotations

from slock_client._acquisition import Limits, Request
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
        self._settled, self._is_settling = server.io.mailbox(), False
        self.is_left = False

    async def _ask(self) -> None:
        raise NotImplementedError

    async def _settle(self) -> None:
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
            if self.is_left:
                self._is_settling = True
                self._server.io.spawn(self._finish)
                await self._settled.get(_SETTLING)
            raise
        finally:
            if not self.is_left or lease.state != "live":
                lease.is_changing = False
            elif not self._is_settling:  # nobody waits for it
                self._server.io.spawn(self._finish)
        lease.raise_problem()

    async def _finish(self) -> None:
        try:
            if self._lease.problem() is None:
                await self._settle()
        except SlockError:
            pass  # the hold goes on, and is renewed without its fence
        finally:
            self._lease.is_changing = False
            self._settled.put(True)


class Upgrade(Change):
    def __init__(self, lease: Lease, server: Server, limits: Limits, wait: float | None) -> None:
        super().__init__(lease, server)
        replicas, timeout = lease.options.min_replicas, lease.options.replica_timeout
        options = Options(ttl=lease.ttl, wait=wait, min_replicas=replicas, replica_timeout=timeout)
        call = lease.owner.change("write", lease.ttl, lease.fence)
        self._request = Request(server, lease.owner, call, options, limits, False)

    async def _ask(self) -> None:
        lease, request, was_open = self._lease, self._request, self._lease.is_open
        lease.watchers.append(request.leave)
        is_granted = False
        try:
            grant = await request.run()
            if grant is None:
                raise await request.failure(True)
            lease.grant("write", *grant)
            is_granted = True
        finally:
            lease.watchers.remove(request.leave)
            request.forget()
            self.is_left = not is_granted and request.is_open
            if not is_granted and not self.is_left:
                lease.is_open = was_open

    async def _settle(self) -> None:
        """Withdraws the upgrade, and learns the mode that the hold has after that."""
        lease, owner = self._lease, self._lease.owner
        withdrawn = await self._server.ask(owner.names, REFUSE_FOR, owner.withdraw())
        if not withdrawn.number and lease.problem() is None:
            held = await self._server.ask(owner.names, REFUSE_FOR, owner.adopt("write", lease.ttl))
            if held.number:
                lease.grant("write", held.number, held.sent)


class Downgrade(Change):
    async def _ask(self) -> None:
        self._call = self._lease.owner.change("read", self._lease.ttl, self._lease.fence)
        self._lease.mode = "read"  # the first copy may have been carried out
        await self._send(self._server.retry_for)

    async def _settle(self) -> None:
        await self._send(REFUSE_FOR)

    async def _send(self, limit: float) -> None:
        self.is_left = True
        answer = await self._server.ask(self._lease.owner.names, limit, self._call)
        self.is_left = False
        self._lease.grant("read", answer.number, answer.sent)
