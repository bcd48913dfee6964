"""The changes of a hold's mode. While one is open the hold is renewed without naming its fence, because the server may
have given it another one."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

from slock_client._acquisition import Request
from slock_client._lease import Lease
from slock_client._options import Mode
from slock_client._protocol import REFUSE_FOR
from slock_client._server import Answer, Server
from slock_client.errors import ClosedError, NotHeldError, SlockError, TimedOutError

_SETTLING = 0.5  # seconds for which a change that timed out is settled first, at a server that replies

Ask = Callable[[], Awaitable[Answer | None]]
Settle = Callable[[float], Awaitable[Answer | None]]  # learns within a time what became of a change


async def upgrade(lease: Lease, server: Server, wait: float | None) -> None:
    owner, options = lease.owner, replace(lease.options, ttl=lease.ttl, wait=wait)
    request = Request(server, owner, owner.change("write", lease.ttl, lease.fence), options)

    async def ask() -> Answer | None:
        lease.watchers.append(request.stop)
        try:
            return await request.run()
        finally:
            lease.watchers.remove(request.stop)

    async def settle(limit: float) -> Answer | None:
        """Withdraws the upgrade, and learns the mode that the hold has after that."""
        withdrawn = await server.ask(owner.names, owner.withdraw(), limit)
        if withdrawn.number or lease.problem() is not None:
            return None
        return await server.ask(owner.names, owner.adopt("write", lease.ttl), limit)

    await _change(lease, server, "write", ask, settle, lambda: request.is_open)


async def downgrade(lease: Lease, server: Server) -> None:
    call = lease.owner.change("read", lease.ttl, lease.fence)

    async def settle(limit: float | None = None) -> Answer | None:
        return await server.ask(lease.owner.names, call, limit)

    await _change(lease, server, "read", settle, settle, lambda: True)


async def _change(
    lease: Lease, server: Server, to: Mode, ask: Ask, settle: Settle, is_left: Callable[[], bool]
) -> None:
    """Asks for a change. If that fails, a copy of it may be left, which may still be carried out."""
    if len(lease.owner.keys) > 1:
        raise ValueError("the mode changes for one key on one server")
    if lease.is_changing:
        raise ValueError("another change of the mode is open")
    lease.raise_problem()
    was_open, is_over = lease.is_open, False
    lease.is_changing = lease.is_open = True
    if to == "read":
        lease.mode = to  # the first copy may have been carried out
    try:
        _note(lease, to, await ask())
        is_over = True
    except NotHeldError:
        is_over = True
        lease.lose("gone")
    except ClosedError:
        lease.raise_problem()  # its wait was ended because of that
        raise
    except TimedOutError:
        is_over = is_left() and await _is_settled(lease, to, settle, _SETTLING)
        raise
    finally:
        if not is_over and not is_left():
            is_over, lease.is_open = True, was_open
        if is_over or lease.state != "live":
            lease.is_changing = False
        else:
            server.io.spawn(lambda: _settle_later(lease, to, settle))
    lease.raise_problem()


def _note(lease: Lease, to: Mode, grant: Answer | None) -> None:
    if grant is not None and grant.number:
        lease.grant(to, grant)


async def _is_settled(lease: Lease, to: Mode, settle: Settle, limit: float) -> bool:
    with contextlib.suppress(SlockError):  # the hold goes on, and is renewed without its fence
        if lease.problem() is None:
            _note(lease, to, await settle(limit))
        return True
    return False


async def _settle_later(lease: Lease, to: Mode, settle: Settle) -> None:
    try:
        await _is_settled(lease, to, settle, REFUSE_FOR)
    finally:
        lease.is_changing = False
