# SPDX-License-Identifier: MIT OR Apache-2.0

"""A lock that was granted, and what holds of both halves have in common.

Threads change it without a lock, which an exception of a signal handler might leave locked. Where one of several
threads has to win, the operation is one of C, such as `list.pop`.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, NamedTuple

from slock_client import errors
from slock_client._acquisition import Request
from slock_client._clock import now
from slock_client._options import Duration, Mode, Options, seconds
from slock_client._protocol import REFUSE_FOR, Owner, explained, more_telling, not_held
from slock_client._quorum import Votes
from slock_client._server import Answer, Server
from slock_client._transport import NoReply, ServerError

_log = logging.getLogger("slock_client")

_AGAIN = 0.1  # seconds until a renewal is sent again, where another primary may have to confirm it
_SETTLING = 0.5  # seconds for which a change that timed out is settled first, at a server that replies
_FAILED = (errors.NoAnswerError, errors.QuorumMissedError, errors.TimedOutError)  # of a release: it is not known

Keeper = Server | Votes  # where a hold is kept


class Grant(NamedTuple):
    """What becomes a hold."""

    keeper: Keeper
    owner: Owner
    mode: Mode
    options: Options
    answer: Answer


class Claim:
    """What the watchdog has of a hold. It does not keep the hold from being collected, and is enough to end it."""

    def __init__(self, hold: HoldBase, grant: Grant, alive: Callable[[], Any] | None) -> None:
        self.hold = weakref.ref(hold)
        self.alive = alive  # gives None when the block of the hold has been left
        self.keeper, self.owner, self.options = grant.keeper, grant.owner, grant.options
        self.fence = 0
        self.is_open = False  # the server may have changed the mode and the fence

    def get(self) -> HoldBase | None:
        """The hold, unless nobody can release it any more."""
        return None if self.alive is not None and self.alive() is None else self.hold()

    def named(self) -> int:
        """The fence that commands name, or 0."""
        return 0 if self.is_open else self.fence

    def drop(self) -> None:
        """Releases in the background: by the fence, because another hold of a token of the program's stays."""
        self.keeper.drop(self.owner, self.named())


class HoldBase:
    """A lock that was granted. All methods may be called by several threads or tasks at once.

    `token` is the owner token: another process may adopt or release the lock by it. `keys` are those of the request,
    `mode` is the present one, and `metadata` is the text that `SLOCK.INFO` shows.
    """

    def __init__(self, home: Any, grant: Grant, alive: Callable[[], Any] | None = None) -> None:
        self._home, self._options = home, grant.options  # the `Locks`
        self.token, self.keys, self.metadata = grant.owner.token, grant.owner.names, grant.owner.metadata
        self._context = contextvars.copy_context()
        self._pid = os.getpid()
        self._ttl = grant.options.ttl
        self._granted = now()
        self._until = float("-inf")  # valid until then
        self._is_changing = False  # a change of mode is under way
        self._is_renewing = False
        self._is_warned = False  # that nothing limits the hold
        self._failed: Exception | None = None  # what the last renewal said, unless one has succeeded since
        self._watchers: list[Callable[[], object]] = []  # called when the hold is over
        self._over: dict[str, list[errors.Reason | None]] = {}  # why it was lost; who is the first to set it ends it
        self._claim = Claim(self, grant, alive)
        self._note(grant.mode, grant.answer)
        # From now on it is renewed, as long as somebody has this object and the block, if there is one, goes on.
        self._watchdog = home._engine().watchdog
        self._watchdog.add(self._claim, self)

    @property
    def fence(self) -> int:
        """The fencing token. Each new hold has a greater one than all before on its server: send it with all that is
        written, and refuse lesser ones where it is stored. It is 0 for a hold of a quorum."""
        return self._claim.fence

    @property
    def fences(self) -> list[int]:
        """The fencing tokens of the nodes of a quorum, in the order of the clients, and 0 for a node that gave none.
        Those of different servers cannot be compared. Without a quorum it is the one `fence`."""
        keeper = self._claim.keeper
        return keeper.fences if isinstance(keeper, Votes) else [self.fence]

    @property
    def remaining(self) -> float:
        """For how many seconds the hold is certainly there if nobody deletes its keys. A renewal makes it
        longer. It is 0 when the hold was released, detached or lost."""
        return 0.0 if self._over else max(0.0, self._last - now())

    @property
    def lost(self) -> bool:
        return self.reason is not None

    @property
    def reason(self) -> errors.Reason | None:
        """Why the hold was lost: `gone` (the server says that the token does not hold the keys any more), `expired` (no
        renewal succeeded in time), `max hold`, or `closed` (the `Locks` was closed before). `None`: it was not."""
        self._is_live()
        return self._reason

    @property
    def _reason(self) -> errors.Reason | None:
        return self._over["end"][0] if self._over else None

    def check(self) -> None:
        """Raises `LostError` if the hold was lost, and `NotHeldError` if it was released or detached. It sends
        nothing. Call it before each step that matters."""
        if not self._is_live():
            raise self._error()

    def detach(self) -> None:
        """Ends the hold here without releasing it, for another process that adopts it by its token. It sends
        nothing."""
        if not self._end(self._overdue()) or self._reason is not None:
            raise self._error()

    # --- what the server has said

    def _note(self, mode: Mode, answer: Answer) -> None:
        self.mode: Mode = mode
        self._claim.fence, self._claim.is_open = answer.number, False
        self._lengthen(answer.sent, self._ttl)

    def _lengthen(self, sent: float, ttl: float) -> None:
        """The server lets the hold live for a ttl, or longer, from a moment on."""
        self._ttl, self._until = max(self._ttl, ttl), max(self._until, sent + self._options.counted(ttl))
        self._renew_at, self._failed = sent + self._ttl / 3, None

    @property
    def _last(self) -> float:
        """When the hold is over, whatever the server says."""
        most = self._options.max_hold
        return self._until if most is None else min(self._until, self._granted + most)

    # --- its end

    def _end(self, reason: errors.Reason | None) -> bool:
        """Ends the hold, as lost if there is a reason. From then on nothing renews it. Tells whether it was live."""
        mine = [reason]  # another thread sees with the end why it came
        if self._over.setdefault("end", mine) is not mine:
            return False
        self._watchdog.holds.pop(self._claim, None)
        if reason is not None:
            self._claim.drop()
            self._tell_loss(reason)
        self._tell("held", now() - self._granted)
        for watcher in list(self._watchers):
            watcher()
        return True

    def _overdue(self) -> errors.Reason | None:
        last = self._last
        if now() < last:
            return None
        if last < self._until:
            return "max hold"
        return "closed" if self._options.closing.is_set() else "expired"

    def _is_live(self) -> bool:
        reason = None if self._over else self._overdue()
        if reason is not None:
            self._end(reason)
        return not self._over

    def _error(self) -> errors.SlockError:
        """That of a hold that is over."""
        if self._reason is None:
            return not_held(self.keys, self.mode)
        loss = errors.LostError(f"the lock was lost, {self._reason}", self.keys)
        loss.reason = self._reason
        if self._reason == "expired":
            loss.__cause__ = explained(self._failed) if self._failed else None
        return loss

    async def _release(self) -> None:
        """Raises `LostError` if the hold was lost, and `NotHeldError` if it was released or detached before. Without a
        reply for `retry_for` it raises `NoAnswerError`, and goes on in the background, as it does if it is cancelled.
        In any case nothing renews the hold any more."""
        self.detach()
        try:
            was_held = await self._end_there()
        except Exception as error:
            _log.warning("slock: a release failed; the lock ends by its ttl (%s): %s", self, error)
            self._tell("release_failed", error)
            raise
        if not was_held:
            raise self._tell_loss("gone")

    async def _end_there(self) -> bool:
        after = self._granted + self._options.at_least - now() if self._options.at_least else 0.0
        return await self._keeper().end(self._claim.owner, self._claim.named(), after)

    async def _leave(self, has_failed: bool) -> None:
        """The end of a block: finished work is a success, and an error of the work is not replaced."""
        if self._pid != os.getpid():
            return  # the hold is that of the parent, and goes on there
        try:
            await self._release()
        except (errors.NotHeldError, *_FAILED):
            pass
        except Exception:
            if not has_failed:
                raise

    def _keeper(self) -> Keeper:
        keeper, servers = self._claim.keeper, self._home._engine().servers
        return keeper.over(servers) if isinstance(keeper, Votes) else servers[0]  # of this loop or process

    # --- extension

    async def _extend(self, ttl: Duration) -> None:
        """Lets the hold last for at least the ttl from now on. It never shortens: for that, release. Later renewals use
        the longest ttl that was asked for."""
        ttl = seconds(ttl, "ttl")
        self._options.check_ttl(ttl)
        engine = self._home._engine()
        engine.check_open()

        async def send(until: float) -> None:
            await self._prolong(self._keeper(), ttl, min(until, max(now() + 0.001, self._last)))

        await engine.servers[0].repeat(self.keys, send)

    async def _prolong(self, keeper: Keeper, ttl: float, until: float) -> None:
        """Sends one extension to at least the ttl. What is wrong with the hold is raised before another error."""
        self.check()
        ttl, fence = max(self._ttl, ttl), self._claim.named()
        try:
            answer = await keeper.extend(self._claim.owner, ttl, fence, self._options, until)
        except (NoReply, ServerError, errors.SlockError) as error:
            self._renew_at = now() + min(self._ttl / 10, _AGAIN if isinstance(error, NoReply) else self._ttl)
            self._failed = more_telling(self._failed, error)
            self.check()
            raise
        if answer.number:
            self._lengthen(answer.sent, ttl)
        elif fence == self._claim.named():  # else it was about another fence
            self._end("gone")
        self.check()

    async def _renew(self) -> None:
        try:
            # A reply may be waited for in vain, so it is not waited for long.
            at = now()
            await self._prolong(self._claim.keeper, self._ttl, at + min(self._ttl / 4, self._last - at))
        except (NoReply, ServerError, errors.SlockError) as error:
            if self._is_live():
                _log.debug("slock: a renewal failed (%s): %s", self, error)
                self._tell("renewal_failed", explained(error))
        finally:
            self._is_renewing = False
            self._watchdog.wake(self._renew_at)

    # --- what the program is told

    def _tell(self, hook: str, told: Any) -> None:
        """Calls a hook in the context of the acquisition."""
        label, context = self._options.label or self.keys[0], self._context.copy()  # it is for one thread at a time
        context.run(self._options.hooks._call, hook, label, told)

    def _tell_loss(self, reason: errors.Reason) -> errors.SlockError:
        self._over["end"] = [reason]
        loss = self._error()
        _log.warning("slock: a lock was lost: %s (%s, reason %s)", loss, self, reason)
        self._tell("lost", loss)
        return loss

    def _warn_of_age(self) -> None:
        if not self._is_warned and self._options.max_hold is None:
            self._is_warned = True
            _log.warning("slock: a lock has been held for an hour and has no maximum hold time (%s)", self)

    def __str__(self) -> str:
        return f"lock {', '.join(self.keys)}, label {self._options.label or self.keys[0]}"

    async def _wait_lost(self, timeout: Duration | None = None) -> bool:
        """Waits until the hold is lost or released, or for the time. Tells whether it was lost."""
        mailbox = self._home._engine().io.mailbox()
        end = float("inf") if timeout is None else now() + seconds(timeout, "timeout")

        def notice() -> None:
            mailbox.put(None)

        self._watchers.append(notice)
        try:
            while self._is_live() and now() < end:
                await mailbox.get(min(1.0, end - now(), max(0.0, self._last - now()) + 0.001))
        finally:
            self._watchers.remove(notice)
        return self.lost

    # --- the change of its mode

    async def _upgrade(self, wait: Duration | None = None) -> None:
        """Makes a reader the writer, in one step, with a new fence. It waits until the other readers have left, for at
        most `wait`. Raises `DeadlockError` if another reader waits for its upgrade already. It works for one key on one
        server. If it ends without a reply, the hold is still valid; `mode` tells later what became of it."""
        server, owner, ttl = self._check_change(), self._claim.owner, self._ttl
        options = replace(self._options, ttl=ttl, wait=None if wait is None else seconds(wait, "wait"))
        request = Request(server, owner, owner.change("write", ttl, self.fence), options)

        async def ask() -> Answer | None:
            self._watchers.append(request.stop)
            try:
                return await request.run()
            finally:
                self._watchers.remove(request.stop)

        async def settle(limit: float) -> Answer | None:
            """Withdraws the upgrade, and learns the mode that the hold has after that."""
            withdrawn = await server.ask(self.keys, owner.withdraw(), limit)
            if withdrawn.number or not self._is_live():
                return None
            return await server.ask(self.keys, owner.adopt("write", ttl), limit)

        await self._change("write", server, ask, settle, lambda: request.is_open)

    async def _downgrade(self) -> None:
        """Makes the writer a reader, in one step, with a new fence and no writer in between. The hold counts as a
        reader's from the first attempt on. It works for one key on one server."""
        server, call = self._check_change(), self._claim.owner.change("read", self._ttl, self.fence)

        async def settle(limit: float | None = None) -> Answer | None:
            return await server.ask(self.keys, call, limit)

        self.mode = "read"  # the first copy may have been carried out
        await self._change("read", server, settle, settle, lambda: True)

    def _check_change(self) -> Server:
        keeper = self._keeper()
        if not isinstance(keeper, Server) or len(self.keys) > 1:
            raise ValueError("the mode changes for one key on one server")
        if self._is_changing:
            raise ValueError("another change of the mode is open")
        self.check()
        return keeper

    async def _change(self, to: Mode, server: Server, ask: Ask, settle: Settle, is_left: Callable[[], bool]) -> None:
        """Asks for a change. If that fails and a copy of it is left, that may still be carried out. Until what became
        of it is known, the hold is renewed without its fence: it may have another one."""

        async def is_settled(limit: float) -> bool:
            with contextlib.suppress(errors.SlockError):
                note(await settle(limit) if self._is_live() else None)
                return True
            return False

        async def settle_later() -> None:
            try:
                await is_settled(REFUSE_FOR)
            finally:
                self._is_changing = False

        def note(answer: Answer | None) -> None:
            if answer is not None and answer.number:
                self._note(to, answer)

        was_open, is_over = self._claim.is_open, False
        self._is_changing = self._claim.is_open = True
        try:
            note(await ask())
            is_over = True
        except errors.SlockError as error:
            if isinstance(error, errors.NotHeldError):
                self._end("gone")
            elif isinstance(error, errors.TimedOutError):
                is_over = is_left() and await is_settled(_SETTLING)
            self.check()
            raise
        finally:
            if not is_over and not is_left():
                is_over, self._claim.is_open = True, was_open
            if is_over or self._over:
                self._is_changing = False
            else:
                server.io.spawn(settle_later)
        self.check()


Ask = Callable[[], Awaitable[Answer | None]]
Settle = Callable[[float], Awaitable[Answer | None]]  # learns within a time what became of a change
