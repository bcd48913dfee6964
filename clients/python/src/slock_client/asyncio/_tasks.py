"""The asyncio half of input and output: tasks that are suspended. It knows nothing of locks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from slock_client._clock import now
from slock_client._io import Work
from slock_client._recipe import Recipe
from slock_client.asyncio._connection import TaskLink
from slock_client.hooks import log

T = TypeVar("T")

_running: set[asyncio.Task[Any]] = set()  # asyncio keeps no strong reference to a task


def start(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Begins a task that is kept until it ends."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


async def wait_until(end: float | None, *futures: asyncio.Future[Any]) -> None:
    """Returns when one of the futures is done, or at `end`. A cancellation of the caller cancels none of
    them.

    Not `asyncio.wait_for`, which may swallow a cancellation before Python 3.12.
    """
    timeout = None if end is None else max(0.0, end - now())
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


class TaskEvent:
    """An event for the tasks of one loop."""

    def __init__(self) -> None:
        self._happened = False
        self._waiters: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        self._happened = True
        for waiter in self._waiters:
            _wake(waiter)

    def clear(self) -> None:
        self._happened = False

    def is_set(self) -> bool:
        return self._happened

    async def wait(self, end: float | None) -> bool:
        if self._happened:
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        timer = None if end is None else loop.call_later(max(0.0, end - now()), _wake, waiter)
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


class Tasks:
    """Input and output by tasks that are suspended."""

    def event(self) -> TaskEvent:
        return TaskEvent()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def link(self, recipe: Recipe) -> TaskLink:
        return TaskLink(recipe)

    def start(self, work: Work[None], name: str, *, limited: bool = False) -> None:
        async def do() -> None:
            try:
                await work()
            except Exception:
                log.exception("slock_client goes on after an error")

        start(do(), f"slock {name}")

    async def each(self, works: Sequence[Work[T]]) -> AsyncIterator[tuple[int, T | BaseException]]:
        async def do(number: int) -> tuple[int, T | BaseException]:
            try:
                return number, await works[number]()
            except Exception as error:
                return number, error

        waiting = {start(do(number), "slock work") for number in range(len(works))}
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
