"""The changes of a hold's mode. While one is open the hold is renewed without naming its fence, because the server may
have given it another one."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from slock_client._acquisition import Request
from slock_client._lease import Lease
from slock_client._options import Options
from slock_client._protocol import REFUSE_FOR
from slock_client._server import Server
from slock_client.errors import ClosedError, NotHeldError, SlockError, TimedOutError

_SETTLING = 0.5  # seconds for which a change that timed out is settled first, at a server that replies

Settle = Callable[[float], Awaitable[None]]  # learns within a time what became of a change


async def upgrade(lease: Lease, server: Server, wait: float | None) -> None:
    _check(lease)
    owner, replicas, timeout = lease.owner, lease.options.min_replicas, lease.options.replica_timeout
    options = Options(ttl=lease.ttl, wait=wait, min_replicas=replicas, replica_timeout=timeout)
    request = Request(server, owner, owner.change("write", lease.ttl, lease.fence), options)

    async def ask() -> None:
        lease.watchers.append(request.stop)
        try:
            grant = await request.run()
        finally:
            lease.watchers.remove(request.stop)
        assert grant is not None
        lease.grant("write", *grant)

    async def settle(limit: float) -> None:
        """Withdraws the upgrade, and learns the mode that the hold has after that."""
        withdrawn = await server.ask(owner.names, limit, owner.withdraw())
        if not withdrawn.number and lease.problem() is None:
            held = await server.ask(owner.names, limit, owner.adopt("write", lease.ttl))
            if held.number:
                lease.grant("write", held.number, held.sent)

    await _change(lease, server, ask, settle, lambda: request.is_open)


async def downgrade(lease: Lease, server: Server) -> None:
    _check(lease)
    call = lease.owner.change("read", lease.ttl, lease.fence)

    async def settle(limit: float) -> None:
        answer = await server.ask(lease.owner.names, limit, call)
        lease.grant("read", answer.number, answer.sent)

    lease.mode = "read"  # the first copy may have been carried out
    await _change(lease, server, lambda: settle(server.settings.retry_for), settle, lambda: True)


def _check(lease: Lease) -> None:
    if len(lease.owner.keys) > 1:
        raise ValueError("the mode changes for one key on one server")
    if lease.is_changing:
        raise ValueError("another change of the mode is open")
    lease.raise_problem()


async def _change(
    lease: Lease, server: Server, ask: Callable[[], Awaitable[None]], settle: Settle, is_left: Callable[[], bool]
) -> None:
    """Asks for a change. If that fails, a copy of it may be left, which may still be carried out."""
    was_open, is_over = lease.is_open, False
    lease.is_changing = lease.is_open = True
    try:
        await ask()
        is_over = True
    except NotHeldError:
        is_over = True
        lease.lose("gone")
    except ClosedError:
        lease.raise_problem()  # its wait was ended because of that
        raise
    except TimedOutError:
        is_over = is_left() and await _is_settled(lease, settle, _SETTLING)
        raise
    finally:
        if not is_over and not is_left():
            is_over, lease.is_open = True, was_open
        if is_over or lease.state != "live":
            lease.is_changing = False
        else:
            server.io.spawn(lambda: _settle_later(lease, settle))
    lease.raise_problem()


async def _is_settled(lease: Lease, settle: Settle, limit: float) -> bool:
    with contextlib.suppress(SlockError):  # the hold goes on, and is renewed without its fence
        if lease.problem() is None:
            await settle(limit)
        return True
    return False


async def _settle_later(lease: Lease, settle: Settle) -> None:
    try:
        await _is_settled(lease, settle, REFUSE_FOR)
    finally:
        lease.is_changing = False
