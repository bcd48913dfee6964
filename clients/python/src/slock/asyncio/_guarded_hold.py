"""Work under a hold, which ends when the hold is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable
from types import TracebackType
from typing import Any, TypeVar

from slock._base_hold import BaseHold
from slock._options import Wanted
from slock.asyncio._guard import Guard
from slock.asyncio._watchdog import Watchdog
from slock.errors import Lost
from slock.hooks import Hooks

_log = logging.getLogger("slock")

T = TypeVar("T")
H = TypeVar("H", bound="GuardedHold")


class GuardedHold(BaseHold):
    """A hold that cancels the tasks that work under it."""

    def __init__(self, wanted: Wanted, token: str, hooks: Hooks, watchdog: Watchdog[Any]) -> None:
        super().__init__(wanted, token, hooks)
        self._watchdog = watchdog
        self._change_ended: asyncio.Future[None] | None = None
        self._end_changed: asyncio.Future[None] | None = None
        self._guards: list[Guard] = []

    async def release(self) -> bool:
        """Releases the hold, and tells whether it was still there."""
        raise NotImplementedError

    async def wait_lost(self) -> str:
        """Returns the reason when the hold is lost: `gone`, `expired` or `lease ended`.

        It waits for ever when the hold is released.
        """
        while not self.lost:
            if self._end_changed is None:
                self._end_changed = asyncio.get_running_loop().create_future()
            # A renewal moves the end.
            timeout = None if self.ended else max(0.0, self.valid_until - time.monotonic())
            await asyncio.wait([self._end_changed], timeout=timeout)
        assert self._reason is not None
        return self._reason

    async def run(self, work: Awaitable[T]) -> T:
        """Awaits `work` and gives its result. When the hold is lost, it cancels the work and raises `Lost`.

        The hold is not released.
        """
        guard = self._guard()
        result: T | None = None
        problem: BaseException | None = None
        try:
            result = await work
        except BaseException as error:
            problem = error
        self._guards.remove(guard)
        ended_by_loss = await guard.leave(problem)
        if self.lost and ended_by_loss:
            raise self._lost_by(problem)
        if problem is not None:
            raise problem
        return result  # type: ignore[return-value]

    async def __aenter__(self: H) -> H:
        self.check()
        self._guard()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ended_by_loss = await self._guards.pop().leave(error)
        try:
            await self.release()
        except asyncio.CancelledError:
            raise
        except Exception as problem:
            # The work was done under the hold. The ttl ends what is left of it.
            _log.warning("the hold of %s could not be released: %s", self.label, problem)
        if self._reason is not None and ended_by_loss:
            raise self._lost_by(error)

    def _lost_by(self, cancellation: BaseException | None) -> Lost:
        lost = self._lost_error()
        if lost.__cause__ is None:
            lost.__cause__ = cancellation
        return lost

    def _guard(self) -> Guard:
        guard = Guard(self, renewed=self._wanted.options.renew)
        self._guards.append(guard)
        return guard

    @contextlib.asynccontextmanager
    async def _alone(self, end: float = math.inf) -> AsyncIterator[None]:
        """Changes of the hold come one after another: the server would see them in any order otherwise.

        `Lost` or `NotHeld` when the hold ends before its turn, `TimedOut` when there is none until `end`.
        """
        self._check_change()
        while self._change_ended is not None:
            left = max(0.0, min(end, self.valid_until) - time.monotonic())
            await asyncio.wait([self._change_ended], timeout=left)
            self.check()
            if self._change_ended is not None:
                self._check_turn(end)
        ended = self._change_ended = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            self._change_ended = None
            ended.set_result(None)

    @contextlib.asynccontextmanager
    async def _extending(self, ttl_ms: int) -> AsyncIterator[None]:
        """No renewal is under way in the block: it would set another ttl, before or after the extension."""
        renews = self._wanted.options.renew
        self._held_back = True
        try:
            if renews:
                await self._watchdog.wait_answered(self)
            self._begin_extension(ttl_ms)
            if renews:
                self._watchdog.add(self)  # it may end earlier by now
            yield
        finally:
            self._held_back = False
            if renews and not self.ended:
                self._watchdog.add(self)

    def _wake(self) -> None:
        if self._end_changed is not None:
            self._end_changed.set_result(None)
            self._end_changed = None
        for guard in self._guards:
            guard.look_again()

    def _tell_lost(self) -> None:
        if self._end_changed is not None:
            self._end_changed.set_result(None)
            self._end_changed = None
        for guard in self._guards:
            guard.interrupt()
        on_lost = self._wanted.options.on_lost
        if on_lost is not None:
            try:
                on_lost(self)
            except Exception:
                _log.exception("on_lost failed")
