"""What `Locks` is asked for."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, ParamSpec, Protocol, TypeVar

from slock._options import Wanted, is_async
from slock.asyncio._guarded_hold import GuardedHold

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=GuardedHold)
H_co = TypeVar("H_co", bound=GuardedHold, covariant=True)


class Acquirer(Protocol[H_co]):
    """`Locks` or `Quorum`."""

    async def _acquire(self, wanted: Wanted, *, once: bool) -> H_co | None: ...


class Request(Generic[H]):
    """Keys, a mode and options. Making one sends nothing. It can be used many times, also at once.

    `async with request as hold:` acquires, runs the work, and releases. When the hold is lost meanwhile,
    the task is cancelled and the block ends with `Lost`, in the way of `asyncio.timeout`. `@request` does
    the same for a coroutine function, with a hold of its own for each call.
    """

    def __init__(self, locks: Acquirer[H], wanted: Wanted) -> None:
        self._locks = locks
        self._wanted = wanted
        self._entered: dict[asyncio.Task[object] | None, list[H]] = {}

    def __repr__(self) -> str:
        return f"<Request {self._wanted}>"

    async def acquire(self) -> H:
        """Waits until the lock is granted, at most for `wait`.

        `TimedOut` when the wait is over; `Deadlock`, `QueueFull`, `WrongMode`, `TooFewReplicas`,
        `ModuleNotLoaded` or, of a quorum, `QuorumMissed` as the servers say. A task that is cancelled
        leaves neither a hold nor a request.
        """
        hold = await self._locks._acquire(self._wanted, once=False)
        assert hold is not None
        return hold

    async def try_acquire(self) -> H | None:
        """Asks once. None when the lock is not free. Errors as those of `acquire`."""
        return await self._locks._acquire(self._wanted, once=True)

    async def __aenter__(self) -> H:
        hold = await self.acquire()
        await hold.__aenter__()
        self._entered.setdefault(asyncio.current_task(), []).append(hold)
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        if task not in self._entered and len(self._entered) == 1:
            [task] = self._entered  # left by another task than it was entered by, as test fixtures do
        holds = self._entered[task]
        hold = holds.pop()
        if not holds:
            del self._entered[task]
        await hold.__aexit__(kind, error, traceback)

    def __call__(self, work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """A coroutine function that does `work` under the lock. `work` must be one too: `async def`."""
        if not is_async(work):
            raise TypeError("the decorator is for coroutine functions: async def")

        @functools.wraps(work)
        async def under_lock(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self:
                return await work(*args, **kwargs)

        return under_lock
