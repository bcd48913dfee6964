"""Blocks under a hold: the task that works there is cancelled when the hold is lost."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

from slock_client._clock import now
from slock_client._options import is_async
from slock_client.errors import LostError

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound="HoldBlock")

WAYS = ("notify", "block")
"""How requests can wait; the first is the default."""


class Guard:
    """Works as `asyncio.timeout` does: a cancellation of its own is told apart from all others."""

    def __init__(self, hold: Any) -> None:
        self._hold = hold
        self.task: Any = asyncio.current_task()  # Any: Python 3.10 does not count cancellations
        assert self.task is not None, "a hold guards the work of a task"
        self._cancelling = self._count()
        self._interrupted = False
        self._left = False
        self._timer: asyncio.TimerHandle | None = None
        hold._listeners.append(self.interrupt)
        self._look_at_time()

    def interrupt(self) -> None:
        """Called when the hold is lost."""
        if not self._left and not self._interrupted:
            self._interrupted = True
            self.task.cancel()

    async def leave(self, error: BaseException | None) -> bool:
        """The work has ended with `error`. Whether it ended by itself or by this guard alone."""
        self._left = True
        self._hold._listeners.remove(self.interrupt)
        if self._timer is not None:
            self._timer.cancel()
        if not self._interrupted:
            return error is None
        if hasattr(self.task, "uncancel"):
            self.task.uncancel()
        if not isinstance(error, asyncio.CancelledError):
            # The cancellation may not have reached the work. It must not reach what comes after it.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self._count() > self._cancelling:
                    raise
            return error is None
        return self._count() <= self._cancelling

    def _count(self) -> int:
        return self.task.cancelling() if hasattr(self.task, "cancelling") else 0

    def _look_at_time(self) -> None:
        """The clock decides, whatever the watchdog does: it may be closed."""
        if self._hold.lost:
            self.interrupt()
        elif not self._hold._ended:
            left = max(0.001, self._hold.valid_until - now())
            self._timer = asyncio.get_running_loop().call_later(left, self._look_at_time)


class HoldBlock:
    """What a hold does for the work under it."""

    def __init__(self) -> None:
        self._guards: list[Guard] = []

    async def wait_lost(self) -> str:
        """Returns the reason when the hold is lost: `gone`, `expired` or `lease ended`.

        It waits for ever when the hold is released.
        """
        hold: Any = self
        await hold._wait_lost(None)
        return str(hold.reason)

    async def run(self, work: Awaitable[T]) -> T:
        """Awaits `work` and gives its result. When the hold is lost, it cancels the work and raises
        `LostError`. The hold is not released.
        """
        guard = Guard(self)
        problem: BaseException | None = None
        try:
            result = await work
        except BaseException as error:
            problem = error
        if await guard.leave(problem):
            self._raise_if_lost(problem)
        if problem is not None:
            raise problem
        return result

    async def __aenter__(self: H) -> H:
        hold: Any = self
        hold.check()
        self._guards.append(Guard(self))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        hold: Any = self
        task = asyncio.current_task()
        guard = next(guard for guard in reversed(self._guards) if guard.task is task)
        self._guards.remove(guard)
        ended_by_loss = await guard.leave(error)
        await hold._finish_block()
        if ended_by_loss:
            self._raise_if_lost(error)

    def _raise_if_lost(self, cancellation: BaseException | None) -> None:
        hold: Any = self
        if hold.reason is not None:
            lost: LostError = hold._lost_error()
            if lost.__cause__ is None:
                lost.__cause__ = cancellation
            raise lost


class RequestBlock(Generic[H]):
    """A block that acquires a hold of its own."""

    def __init__(self) -> None:
        self._entered: dict[object, list[H]] = {}

    async def acquire(self) -> H:
        raise NotImplementedError

    async def __aenter__(self) -> H:
        hold = await self.acquire()
        await hold.__aenter__()
        self._entered.setdefault(asyncio.current_task(), []).append(hold)
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        hold = self._entered[task].pop()
        if not self._entered[task]:
            del self._entered[task]
        await hold.__aexit__(kind, error, traceback)

    def __call__(self, work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """A coroutine function that does `work` under the lock."""
        if not is_async(work):
            raise TypeError("the decorator is for async def: use slock_client for ordinary functions")

        @functools.wraps(work)
        async def under_lock(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self:
                return await work(*args, **kwargs)

        return under_lock
