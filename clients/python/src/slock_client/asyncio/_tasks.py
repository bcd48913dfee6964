"""Tasks, events and pauses for the rules; `_threads.py` has the same for threads.

It knows nothing of locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from slock_client._clock import now
from slock_client.hooks import log

T = TypeVar("T")

Work = Callable[[], Coroutine[Any, Any, T]]

# All tasks of a loop share its thread.
Mutex = contextlib.nullcontext

sleep = asyncio.sleep

_running: set[asyncio.Task[Any]] = set()  # asyncio keeps no strong reference to a task


def current() -> object:
    """The task that asks. What else is under way in it cannot end before this call does."""
    return asyncio.current_task()


def scope() -> object:
    """What the connections belong to: the loop."""
    return asyncio.get_running_loop()


def is_over(scope: Any) -> bool:
    return bool(scope.is_closed())


def finish(scope: Any, work: Work[object]) -> None:
    """Begins `work` there, from anywhere."""
    if not scope.is_closed():
        scope.call_soon_threadsafe(start, work, "close")


def start(work: Work[object], name: str, *, limited: bool = False) -> asyncio.Task[None]:
    """Begins a task that is kept until it ends. Its errors are logged."""

    async def do() -> None:
        try:
            await work()
        except Exception:
            log.exception("slock_client goes on after an error")

    task = asyncio.get_running_loop().create_task(do(), name=f"slock {name}")
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


async def each(works: Sequence[Work[T]]) -> AsyncIterator[tuple[int, T | Exception]]:
    """Does all at the same time: the number of each and its result, or its error, as they end.

    Who stops iterating leaves the others to end by themselves.
    """
    ended: asyncio.Queue[tuple[int, T | Exception]] = asyncio.Queue()

    async def do(number: int) -> None:
        try:
            ended.put_nowait((number, await works[number]()))
        except Exception as error:
            ended.put_nowait((number, error))

    for number in range(len(works)):
        start(functools.partial(do, number), "work")
    for _ in works:
        yield await ended.get()


class Event:
    """An event for the tasks of one loop."""

    __slots__ = ("_happened", "_waiters")

    def __init__(self) -> None:
        self._happened = False
        self._waiters: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        self._happened = True
        for waiter in self._waiters:
            _wake(waiter)

    def is_set(self) -> bool:
        return self._happened

    async def wait(self, end: float) -> bool:
        """Returns when it has happened, or at `end`: whether it has."""
        if self._happened:
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        timer = None if end == math.inf else loop.call_later(max(0.0, end - now()), _wake, waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()
        return self._happened


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
