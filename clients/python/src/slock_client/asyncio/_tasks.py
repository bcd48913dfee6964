"""The asyncio half: the tasks of one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from slock_client._clock import now
from slock_client._transport import Call, Link, NoReply, Work

_log = logging.getLogger("slock_client")
T = TypeVar("T")


class TaskMailbox:
    """A queue with one reader, the task of this loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[Any] = deque()
        self._reader: asyncio.Future[None] | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._reader is not None:
            if asyncio._get_running_loop() is self._loop:
                self._wake()
            elif not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self, timeout: float) -> Any:
        if not self._items:
            self._reader = self._loop.create_future()
            timer = self._loop.call_later(max(0.0, timeout), self._wake)
            try:
                if not self._items:  # another thread may have put one in the meantime
                    await self._reader
            finally:
                self._reader = None
                timer.cancel()
        return self._items.popleft() if self._items else None


class Tasks:
    """The tasks of one loop. Commands that are sent in one turn of the loop go together."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()  # the loop keeps only weak references
        self._lanes: dict[Link, _Lanes] = {}

    def mailbox(self) -> TaskMailbox:
        return TaskMailbox(self._loop)

    def start(self, function: Callable[[], Work]) -> None:
        if asyncio._get_running_loop() is self._loop:
            task = self._loop.create_task(function())
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

    async def apart(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await function()

    async def pause(self, duration: float) -> None:
        await asyncio.sleep(max(0.0, duration))

    async def call(self, link: Link, call: Call, until: float) -> list[Any]:
        if link not in self._lanes:
            self._lanes[link] = _Lanes(self, link)
        reply: asyncio.Future[list[Any]] = self._loop.create_future()
        timer = self._loop.call_later(max(0.0, until - now()), _expire, reply)
        try:
            self._lanes[link].add(_Waiting(call, reply))
            return await reply
        finally:
            timer.cancel()


def _expire(reply: asyncio.Future[list[Any]]) -> None:
    if not reply.done():
        reply.set_exception(NoReply("the connection is silent"))


class _Waiting:
    """A call that has no reply yet."""

    __slots__ = ("call", "reply")

    def __init__(self, call: Call, reply: asyncio.Future[list[Any]]) -> None:
        self.call, self.reply = call, reply


class _Lanes:
    """The calls over one link. A few batches are under way at a time, and what comes meanwhile goes with the next.

    A caller that leaves does not cancel its batch: its command may be in the middle of others.
    """

    def __init__(self, tasks: Tasks, link: Link) -> None:
        self._tasks, self._link = tasks, link
        self._queue: deque[_Waiting] = deque()
        self._running = 0
        self._is_starting = False

    def add(self, one: _Waiting) -> None:
        if one.call.then:  # it may take long
            self._tasks.spawn(lambda: self._send([one], [one.call.words, one.call.then]))
            return
        self._queue.append(one)
        if self._running < self._link.lanes and not self._is_starting:
            self._is_starting = True
            self._tasks.spawn(self._run)

    async def _run(self) -> None:
        self._is_starting = False
        self._running += 1
        try:
            while self._queue:
                batch: list[_Waiting] = []
                while self._queue and len(batch) < self._link.batch:
                    one = self._queue.popleft()
                    if not one.reply.done():
                        batch.append(one)
                if batch:
                    await self._send(batch, [one.call.words for one in batch])
        finally:
            self._running -= 1

    async def _send(self, batch: list[_Waiting], commands: list[tuple[Any, ...]]) -> None:
        try:
            replies = await self._link.send(batch[0].call.key, commands)
        except Exception as error:
            for one in batch:
                if not one.reply.done():
                    one.reply.set_exception(_again(error))
            return
        except BaseException:  # the loop ends
            for one in batch:
                one.reply.cancel()
            raise
        if len(batch) == 1:
            if not batch[0].reply.done():
                batch[0].reply.set_result(replies)
            return
        for one, reply in zip(batch, replies, strict=True):
            if not one.reply.done():
                one.reply.set_result([reply])


def _again(error: Exception) -> Exception:
    """A copy for each caller, whose traceback is its own."""
    if not isinstance(error, NoReply):
        return error
    copy = NoReply(*error.args)
    copy.__cause__ = error.__cause__
    return copy
