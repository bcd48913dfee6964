# SPDX-License-Identifier: MIT OR Apache-2.0

"""The classes of the asyncio half."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from slock_client._block import Block, Exit, entered
from slock_client._hold import HoldBase
from slock_client._locks import Engine, LocksBase, QuorumBase, RequestBase
from slock_client.asyncio._tasks import Tasks

P = ParamSpec("P")
R = TypeVar("R")


async def _left(_: object, block: Block, kind: object = None, error: BaseException | None = None, *__: object) -> None:
    is_loss = block.guard.leave(error)
    await block.hold._leave(error is not None and not is_loss)


class Hold(HoldBase):
    """A lock that was granted. It is renewed as long as the program refers to it, and until it is released. All methods
    may be called by several tasks at once. `async with hold:` is a block that releases it at its end."""

    release = HoldBase._release
    extend = HoldBase._extend
    upgrade = HoldBase._upgrade
    downgrade = HoldBase._downgrade
    wait_lost = HoldBase._wait_lost

    async def __aenter__(self) -> Hold:
        self._blocks: list[Block] = []
        block = entered(self)
        _begin(block, self)
        return self

    __aexit__ = Exit(_left)


class Request(RequestBase[Hold]):
    """What is wanted: keys, a mode and options. It may be used many times, and by several tasks at once.

    `async with request as hold:` acquires, works and releases. If the hold is lost, the task is cancelled in the block,
    and the block ends with `LostError`, as `asyncio.timeout` ends with `TimeoutError`. An error of the work is not
    replaced. `@request` does the same around each call of a coroutine function.
    """

    _hold = Hold
    acquire = RequestBase[Hold]._acquire
    try_acquire = RequestBase[Hold]._try_acquire

    def __aenter__(self) -> Coroutine[Any, Any, Hold]:
        return self._entered(entered(self))

    async def _entered(self, block: Block) -> Hold:
        hold = Hold(self._locks, await self._grant(), block.alive)
        _begin(block, hold)
        return hold

    __aexit__ = Exit(_left)

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{getattr(function, '__qualname__', function)} must be a coroutine function")

        @wraps(function)
        async def under_the_lock(*arguments: P.args, **named: P.kwargs) -> R:
            async with self:
                return await function(*arguments, **named)

        return under_the_lock


class _Guard:
    """Cancels the task of a block when the hold is lost."""

    def __init__(self, hold: Hold) -> None:
        self._hold, self._loop, task = hold, asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._task = task
        self._before = task.cancelling() if hasattr(task, "cancelling") else 0
        self._is_over = self._has_cancelled = False
        hold._watchers.append(self._notice)
        hold._watchdog.wake(hold._last)

    def _notice(self) -> None:
        """Any thread may notice the loss."""
        if self._hold._reason is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if not self._is_over:
            self._has_cancelled = True
            self._task.cancel("the lock was lost")

    def leave(self, error: BaseException | None) -> bool:
        """Tells whether the error is the cancellation by the guard."""
        self._is_over = True
        if self._notice in self._hold._watchers:
            self._hold._watchers.remove(self._notice)
        if not self._has_cancelled:
            return False
        others = self._task.uncancel() > self._before if hasattr(self._task, "uncancel") else False
        return isinstance(error, asyncio.CancelledError) and not others


def _begin(block: Block, hold: Hold) -> None:
    if block.alive is not None:
        hold._claim.alive = block.alive
    block.hold = hold
    block.guard = _Guard(hold)


class Locks(LocksBase[Request, Hold]):
    """What a program asks for locks: make one for the program. It may be used by several event loops, one after the
    other or at once, each with connections of its own.

    `client` is a `Redis` or `RedisCluster` of `redis.asyncio` or `valkey.asyncio`, or a client of Sentinel. See
    `slock_client.Locks` for the options.
    """

    _is_async = True
    _request = Request
    _hold = Hold

    def _engine(self) -> Engine:
        loop = asyncio.get_running_loop()
        known = self._engines.get(loop)
        if known is not None:
            return known
        for other in [one for one in list(self._engines) if one.is_closed()]:
            self._engines.pop(other, None)
        return self._made(loop, Tasks)

    async def __aenter__(self) -> Locks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    adopt = LocksBase[Request, Hold]._adopt
    release = LocksBase._release
    info = LocksBase._info
    queues = LocksBase._queues
    close = LocksBase._close


class Quorum(QuorumBase[Request, Hold], Locks):
    __doc__ = QuorumBase.__doc__
