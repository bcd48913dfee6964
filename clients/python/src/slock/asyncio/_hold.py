"""A hold, and what can be done with it."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from slock import _commands
from slock._answers import error_of, is_lost_connection, is_temporary
from slock._asking import ANSWER_OVERDUE, Asking, Build
from slock._commands import READ, WRITE, Command
from slock._options import Wanted
from slock._pauses import retry_pauses
from slock._time import not_negative, ttl_ms
from slock.asyncio._giving_up import CALLER_WAITS
from slock.asyncio._guarded_hold import GuardedHold
from slock.asyncio._requests import Pending
from slock.asyncio._until import until

if TYPE_CHECKING:
    from slock.asyncio._locks import Locks


class Hold(GuardedHold):
    """A lock that is held. `Locks` makes it; `release` ends it.

    `async with hold:` runs work under it: the work is cancelled when the hold is lost, the block then ends
    with `Lost`, and the hold is released at its end.
    """

    fence: int
    """Greater than the fence of every hold before it: what the lock protects refuses lesser ones."""

    def __init__(
        self, locks: Locks, wanted: Wanted, token: str, fence: int, sent: float, *, unanswered: bool
    ) -> None:
        """`unanswered`: a command with the ttl got no answer before."""
        super().__init__(wanted, token, locks._hooks, locks._watchdog)
        self.fence = fence
        self._locks = locks
        if unanswered:
            self._unanswered_ms = self._ttl_ms
        self._count_from(sent, self._ttl_ms)
        if wanted.options.renew:
            locks._watchdog.add(self)

    async def release(self) -> bool:
        """Releases the hold, and tells whether it was still there.

        False for a hold that is lost: it is released all the same, in case the server still has it, but not
        where `token` was given, because that may have a later hold. A second call changes nothing and gives
        False, and so does a call in a process that was forked after the grant. It is sent again after a
        connection error, for `retry_for` and at most until `valid_until`; then the error of redis-py is
        raised, and the ttl ends the hold.
        """
        if self._releasing or self._is_of_another_process:
            return False
        self._locks._acquisitions.check_open()
        held = self._begin_release()
        if self._wanted.options.renew:
            self._locks._watchdog.remove(self)
        if not held:
            if self._has_given_token:
                return False
            # The server may be away. Nothing depends on the answer.
            task = self._locks._giving_up.start(self.keys, self.token)
            await asyncio.wait([task], timeout=CALLER_WAITS)
            return False
        try:
            with self._locks._giving_up.releasing(self.token):
                return await self._send_release()
        except asyncio.CancelledError:
            self._locks._giving_up.start(self.keys, self.token)
            raise

    async def extend(self, ttl: timedelta | None = None) -> None:
        """Sets the ttl, from now on, also for renewals. Without an argument the present ttl begins anew.

        `Lost` when the hold is lost, `NotHeld` when it has been released. It is sent again after a
        connection error, until `valid_until`. It waits for an upgrade of the hold to end. After a command
        without an answer the hold counts no answer for longer than the ttl of that command.
        """
        self._locks._acquisitions.check_open()
        async with self._alone():
            await self._extend(self._ttl_ms if ttl is None else ttl_ms(ttl))

    async def upgrade(self, wait: timedelta | None = None) -> None:
        """The reader becomes the writer, with a new fence. Waits for other readers to go, at most `wait`.

        `TimedOut` when they have not: the hold still reads. `Deadlock` when another reader waits for the
        same. `Lost` when the hold is lost, `NotHeld` when it has been released. `WrongMode` when a downgrade
        of this hold got no answer. Only for a hold of one key.
        """
        await self._change(WRITE, wait)

    async def downgrade(self) -> None:
        """The writer becomes a reader, with a new fence, and no other writer comes in between.

        Without an answer the hold counts as a reader's: the server may carry it out at any later time.
        `Lost` when the hold is lost, `NotHeld` when it has been released. Only for a hold of one key.
        """
        await self._change(READ, None)

    async def _extend(self, ttl_ms: int) -> None:
        async with self._extending(ttl_ms):
            for pause in retry_pauses():
                self.check()
                sent = time.monotonic()
                try:
                    answer = await self._ask(
                        _commands.extend(self.keys, self.token, ttl_ms), self.valid_until
                    )
                except BaseException as error:  # it was cancelled
                    self._note_error(error, sent, ttl_ms)
                    raise
                if not isinstance(answer, BaseException):
                    self._renewed(sent, ttl_ms, answer)
                    self.check()
                    return
                self._note_error(answer, sent, ttl_ms)
                if not is_temporary(answer):
                    self._extension_refused()
                    raise error_of(answer)
                await asyncio.sleep(min(pause, max(0.0, self.valid_until - time.monotonic())))

    async def _ask(self, command: Command, end: float) -> object:
        """The answer or the error; a lost connection is an error like any other here."""
        try:
            [answer] = await until(end + ANSWER_OVERDUE, self._locks._route.ask(self.keys[0], command))
        except Exception as error:
            self._locks._route.suspect()
            return error
        return answer

    async def _send_release(self) -> bool:
        end = min(time.monotonic() + self._locks._retry_for, self.valid_until)
        executed_unanswered = False
        for pause in retry_pauses():
            answer = await self._ask(_commands.release(self.keys, self.token), end)
            if not isinstance(answer, BaseException):
                if answer == len(self.keys) or executed_unanswered:
                    return True
                self._note_gone()
                return False
            executed_unanswered = executed_unanswered or is_lost_connection(answer)
            if not is_temporary(answer) or time.monotonic() + pause >= end:
                raise error_of(answer)
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def _change(self, mode: str, wait: timedelta | None) -> None:
        self._check_change()
        if len(self.keys) > 1:
            raise ValueError("only a hold of one key can be upgraded or downgraded")
        end = math.inf
        if wait is not None:
            end = time.monotonic() + not_negative("wait", wait).total_seconds()
        once = mode == READ or wait == timedelta(0)
        async with self._alone(end):
            if mode == WRITE:
                self._check_upgrade()
            wait_end = None if once or wait is None else end
            asking: Asking[Pending] = Asking(self.keys, self._build_change(mode), wait_end, once)
            if once:
                asking.errors_end = self.valid_until
            await self._locks._change_mode(self, mode, asking, self._ttl_ms)

    def _build_change(self, mode: str) -> Build:
        key, ttl_ms = self.keys[0], self._ttl_ms

        def build(wait_ms: int | None, channel: _commands.Channel | None) -> Command:
            self.check()  # before each attempt
            if mode == READ:
                return _commands.downgrade(key, self.token, ttl_ms)
            return _commands.upgrade(key, self.token, ttl_ms, wait_ms=wait_ms, channel=channel)

        return build
