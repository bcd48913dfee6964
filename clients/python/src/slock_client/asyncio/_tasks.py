# SPDX-License-Identifier: MIT OR Apache-2.0

"""The asyncio half: the tasks of one event loop."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from slock_client._clock import now
from slock_client._transport import Call, Command, Link, NoReply, Work

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout  # redis-py and valkey-py bring it

_log = logging.getLogger("slock_client")
T = TypeVar("T")

_MOST = 100  # commands of a batch: few enough that a process that hardly runs has the replies in time
_NAME = "slock background"  # of the tasks of the background


class TaskMailbox:
    """A queue with one reader, a task of this loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[Any] = deque()
        self._reader = loop.create_future()

    def put(self, item: Any) -> None:
        self._items.append(item)
        if asyncio._get_running_loop() is self._loop:
            self._wake()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._reader.done():
            self._reader.set_result(None)

    async def get(self, timeout: float) -> Any:
        if not self._items:
            self._reader = self._loop.create_future()
            timer = self._loop.call_later(max(0.0, timeout), self._wake)
            try:
                if not self._items:  # another thread may have put one in the meantime
                    await self._reader
            finally:
                timer.cancel()
        return self._items.popleft() if self._items else None


class Tasks:
    """The tasks of one loop, and the calls over one link.

    A few calls are under way at a time. What comes meanwhile waits, and then goes together. A caller that leaves does
    not cancel that: its command may be in the middle of others.
    """

    late = 0.1

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()  # the loop keeps only weak references
        self._queue: deque[tuple[Call, asyncio.Future[list[Any]]]] = deque()
        self._running = 0

    def mailbox(self) -> TaskMailbox:
        return TaskMailbox(self._loop)

    def start(self, function: Callable[[], Work]) -> None:
        if asyncio._get_running_loop() is self._loop:
            task = self._loop.create_task(function(), name=_NAME)
            self._tasks.add(task)
            task.add_done_callback(self._end)
        elif not self._loop.is_closed():  # another thread has noticed that a hold is over
            self._loop.call_soon_threadsafe(self.start, function)

    spawn = start

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, NoReply):
            _log.error("slock: a task in the background failed", exc_info=error)

    def is_ending(self) -> bool:
        error, task = sys.exc_info()[1], asyncio.current_task()
        return isinstance(error, asyncio.CancelledError) and task is not None and task.get_name() == _NAME

    async def apart(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await function()

    async def pause(self, duration: float) -> None:
        await asyncio.sleep(max(0.0, duration))

    async def call(self, link: Link, call: Call, until: float) -> list[Any]:
        if len(call.commands) > 1:  # it may take long
            return await _within(min(until, now() + link.limit), link.send(call.key, call.commands))
        if self._running < _lanes(link) and not self._queue:
            return await self._send(link, call.key, call.commands, until)
        reply: asyncio.Future[list[Any]] = self._loop.create_future()
        self._queue.append((call, reply))
        try:
            return await _within(until, reply)
        except NoReply as error:  # that of all commands of its batch
            raise NoReply(*error.args) from error.__cause__

    async def _send(self, link: Link, key: str | None, commands: list[Command], until: float) -> list[Any]:
        self._running += 1
        try:
            return await _within(min(until, now() + link.limit), link.send(key, commands))
        finally:
            self._running -= 1
            if self._queue and not self.is_ending():
                self.spawn(lambda: self._send_next(link))

    async def _send_next(self, link: Link) -> None:
        if self._running >= _lanes(link):
            return  # the end of one of these has the rest sent
        batch: list[tuple[Call, asyncio.Future[list[Any]]]] = []
        while self._queue and len(batch) < (1 if link.is_cluster else _MOST):
            one = self._queue.popleft()
            if not one[1].done():
                batch.append(one)
        if not batch:
            return
        try:
            replies = await self._send(link, batch[0][0].key, [call.words for call, _ in batch], float("inf"))
        except Exception as error:
            for _, reply in batch:
                if not reply.done():
                    reply.set_exception(error)
        else:
            for (_, reply), value in zip(batch, replies, strict=True):
                if not reply.done():
                    reply.set_result([value])


def _lanes(link: Link) -> int:
    """How many batches may be under way. In a cluster each is one command."""
    return 16 if link.is_cluster else 2


async def _within(until: float, work: Awaitable[T]) -> T:
    try:
        async with timeout(until - now()):
            return await work
    except asyncio.TimeoutError:
        raise NoReply("the connection is silent") from None
