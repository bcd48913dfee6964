"""Work under a hold, which ends when the hold is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable
from types import TracebackType
from typing import TypeVar

from slock._base_hold import BaseHold
from slock._options import Wanted
from slock.asyncio._guard import Guard
from slock.errors import Lost
from slock.hooks import Hooks

_log = logging.getLogger("slock")

T = TypeVar("T")
H = TypeVar("H", bound="GuardedHold")


class GuardedHold(BaseHold):
    """A hold that cancels the tasks that work under it."""

    def __init__(self, wanted: Wanted, token: str, hooks: Hooks) -> None:
        super().__init__(wanted, token, hooks)
        self._lost_event: asyncio.Event | None = None
        self._guards: list[Guard] = []

    async def release(self) -> bool:
        """Releases the hold, and tells whether it was still there."""
        raise NotImplementedError

    async def wait_lost(self) -> str:
        """Returns the reason when the hold is lost: `gone`, `expired` or `lease ended`.

        It waits for ever when the hold is released.
        """
        if self._lost_event is None:
            self._lost_event = asyncio.Event()
        while not self.lost:
            # A renewal moves the end.
            timeout = None if self.ended else max(0.0, self.valid_until - time.monotonic())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._lost_event.wait(), timeout)
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

    def _tell_lost(self) -> None:
        if self._lost_event is not None:
            self._lost_event.set()
        for guard in self._guards:
            guard.interrupt()
        on_lost = self._wanted.options.on_lost
        if on_lost is not None:
            try:
                on_lost(self)
            except Exception:
                _log.exception("on_lost failed")
