"""What holds of both halves have in common."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from slock_client import errors
from slock_client._acquisition import Request
from slock_client._clock import now
from slock_client._lease import Keeper, Lease
from slock_client._options import Duration, Mode, check_ttl, seconds
from slock_client._protocol import REFUSE_FOR
from slock_client._quorum import Votes
from slock_client._server import Answer, Server

_FAILED = (errors.NoAnswerError, errors.QuorumMissedError, errors.TimedOutError)  # of a release: it is not known
_SETTLING = 0.5  # seconds for which a change that timed out is settled first, at a server that replies


class HoldBase:
    """A lock that was granted. All methods may be called by several threads or tasks at once."""

    __slots__ = ("__weakref__", "_home", "_lease")

    def __init__(self, home: Any, lease: Lease, alive: Callable[[], Any] | None = None) -> None:
        self._home, self._lease = home, lease  # the `Locks`, and what is known
        # From now on it is renewed: as long as somebody has this object, or `alive` gives something.
        lease.alive = weakref.ref(self) if alive is None else alive

    @property
    def token(self) -> str:
        """The owner token. Another process may adopt or release the lock by it."""
        return self._lease.owner.token

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, without the prefix."""
        return self._lease.owner.names

    @property
    def mode(self) -> Mode:
        return self._lease.mode

    @property
    def metadata(self) -> str:
        """The text that `SLOCK.INFO` shows."""
        return self._lease.owner.metadata

    @property
    def fence(self) -> int:
        """The fencing token. Each new hold has a greater one than all before on its server: send it with all that is
        written, and refuse lesser ones where it is stored. It is 0 for a hold of a quorum."""
        return self._lease.fence

    @property
    def fences(self) -> list[int]:
        """The fencing tokens of the nodes of a quorum, in the order of the clients, and 0 for a node that gave none.
        Those of different servers cannot be compared. Without a quorum it is the one `fence`."""
        keeper = self._lease.keeper
        return keeper.fences if isinstance(keeper, Votes) else [self.fence]

    @property
    def remaining(self) -> float:
        """For how many seconds the hold is certainly there if nobody deletes its keys. A renewal makes it longer."""
        return max(0.0, self._lease.last - now())

    @property
    def lost(self) -> bool:
        return self.reason is not None

    @property
    def reason(self) -> errors.Reason | None:
        """Why the hold was lost: `gone` (the server says that the token does not hold the keys any more), `expired` (no
        renewal succeeded in time), `max hold`, or `closed` (the `Locks` was closed before). `None`: it was not."""
        self._lease.problem()
        return self._lease.reason

    def check(self) -> None:
        """Raises `LostError` if the hold was lost, and `NotHeldError` if it was released or detached. It sends
        nothing. Call it before each step that matters."""
        self._lease.raise_problem()

    def detach(self) -> None:
        """Ends the hold here without releasing it, for another process that adopts it by its token. It sends
        nothing."""
        self._lease.finish()

    async def _release(self) -> None:
        """Raises `LostError` if the hold was lost, and `NotHeldError` if it was released or detached before. Without a
        reply for `retry_for` it raises `NoAnswerError`, and goes on in the background, as it does if it is cancelled.
        In any case nothing renews the hold any more."""
        lease = self._lease
        lease.finish()
        after = lease.granted + lease.options.at_least - now() if lease.options.at_least else 0.0
        try:
            was_held = await self._keeper().end(lease.owner, lease.named(), after)
        except _FAILED as error:
            lease.tell_release_failed(error)
            raise
        if not was_held:
            raise lease.tell_loss("gone")

    async def _leave(self, has_failed: bool) -> None:
        """The end of a block: finished work is a success, and an error of the work is not replaced."""
        if self._lease.pid != os.getpid():
            return  # the hold is that of the parent, and goes on there
        try:
            await self._release()
        except (errors.NotHeldError, *_FAILED):
            pass
        except errors.LostError:
            if not has_failed:
                raise

    def _keeper(self) -> Keeper:
        keeper, servers = self._lease.keeper, self._home._engine().servers
        return keeper.over(servers) if isinstance(keeper, Votes) else servers[0]  # of this loop or process

    async def _extend(self, ttl: Duration) -> None:
        """Lets the hold last for at least the ttl from now on. It never shortens: for that, release. Later renewals use
        the longest ttl that was asked for."""
        ttl, lease = seconds(ttl, "ttl"), self._lease
        check_ttl(ttl)
        engine = self._home._engine()
        engine.check_open()

        async def send(until: float) -> None:
            await lease.extend(self._keeper(), ttl, min(until, max(now() + 0.001, lease.last)))

        await engine.servers[0].repeat(lease.owner.names, send)

    async def _upgrade(self, wait: Duration | None = None) -> None:
        """Makes a reader the writer, in one step, with a new fence. It waits until the other readers have left, for at
        most `wait`. Raises `DeadlockError` if another reader waits for its upgrade already. It works for one key on one
        server. If it ends without a reply, the hold is still valid; `mode` tells later what became of it."""
        lease, server = self._lease, self._check_change()
        owner, limit = lease.owner, None if wait is None else seconds(wait, "wait")
        options = replace(lease.options, ttl=lease.ttl, wait=limit)
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

    async def _downgrade(self) -> None:
        """Makes the writer a reader, in one step, with a new fence and no writer in between. The hold counts as a
        reader's from the first attempt on. It works for one key on one server."""
        lease, server = self._lease, self._check_change()
        call = lease.owner.change("read", lease.ttl, lease.fence)

        async def settle(limit: float | None = None) -> Answer | None:
            return await server.ask(lease.owner.names, call, limit)

        lease.mode = "read"  # the first copy may have been carried out
        await _change(lease, server, "read", settle, settle, lambda: True)

    def _check_change(self) -> Server:
        keeper = self._keeper()
        if not isinstance(keeper, Server) or len(self.keys) > 1:
            raise ValueError("the mode changes for one key on one server")
        if self._lease.is_changing:
            raise ValueError("another change of the mode is open")
        self.check()
        return keeper

    async def _wait_lost(self, timeout: Duration | None = None) -> bool:
        """Waits until the hold is lost or released, or for the time. Tells whether it was lost."""
        lease, engine = self._lease, self._home._engine()
        mailbox = engine.io.mailbox()
        end = float("inf") if timeout is None else now() + seconds(timeout, "timeout")

        def notice() -> None:
            mailbox.put(None)

        lease.watchers.append(notice)
        try:
            while lease.problem() is None and now() < end:
                await mailbox.get(min(1.0, end - now(), max(0.0, lease.last - now()) + 0.001))
        finally:
            lease.watchers.remove(notice)
        return self.lost


Ask = Callable[[], Awaitable[Answer | None]]
IsLeft = Callable[[], bool]  # whether a copy of a change may be left
Settle = Callable[[float], Awaitable[Answer | None]]  # learns within a time what became of a change


async def _change(
    lease: Lease, server: Server, to: Mode, ask: Ask, settle: Settle, is_left: Callable[[], bool]
) -> None:
    """Asks for a change. If that fails, a copy of it may be left, which may still be carried out. Until what became of
    it is known, the hold is renewed without its fence: it may have another one."""

    def note(grant: Answer | None) -> None:
        if grant is not None and grant.number:
            lease.grant(to, grant)

    async def is_settled(limit: float) -> bool:
        with contextlib.suppress(errors.SlockError):
            if lease.problem() is None:
                note(await settle(limit))
            return True
        return False

    async def settle_later() -> None:
        try:
            await is_settled(REFUSE_FOR)
        finally:
            lease.is_changing = False

    was_open, is_over = lease.is_open, False
    lease.is_changing = lease.is_open = True
    try:
        note(await ask())
        is_over = True
    except errors.NotHeldError:
        is_over = True
        lease.end("gone")
    except errors.ClosedError:
        lease.raise_problem()  # its wait was ended because of that
        raise
    except errors.TimedOutError:
        is_over = is_left() and await is_settled(_SETTLING)
        raise
    finally:
        if not is_over and not is_left():
            is_over, lease.is_open = True, was_open
        if is_over or not lease.is_live:
            lease.is_changing = False
        else:
            server.io.spawn(settle_later)
    lease.raise_problem()
