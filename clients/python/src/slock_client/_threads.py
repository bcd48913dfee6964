# SPDX-License-Identifier: MIT OR Apache-2.0

"""The synchronous half: what the common coroutines await blocks the thread.

A thread of the program can get an exception of a signal handler at any instruction. So all that it does here is an
operation of C, such as to put something into a `SimpleQueue`. It starts no `Thread`: an exception in `Thread.start` may
come out as another one.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import logging
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from slock_client._transport import Call, Link, NoReply, Work, run

_log = logging.getLogger("slock_client")
T = TypeVar("T")

# A thread that is cancelled from outside notices it only when it wakes.
_SLICE = 1.0
_MOST_WORKERS = 16
_IDLE_SECONDS = 10.0
_EXIT_SECONDS = 1.0
_LONG_START = 1.0  # a start that takes longer was cut short by an exception of a signal handler
# More calls at once would only wait for each other. There is one more if none has ended for so many seconds, because
# the server is slow, or a permit was lost with an exception of a signal handler.
_CALLS_AT_ONCE, _LONG_CALL = 8, 1.0

# The names are looked up when they are used: gevent may replace them after the import of this module.


class ThreadMailbox:
    """A queue with one reader."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.put = self._items.put

    async def get(self, timeout: float) -> Any:
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            try:
                return self._items.get(timeout=max(0.0, min(left, _SLICE)))
            except queue.Empty:
                if left <= _SLICE:
                    return None


class Threads:
    """Threads for what goes on in the background. All of them are daemons, and end when they have long been idle."""

    late = float("inf")  # a thread that stood still finds the reply in its socket

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], Work]] = queue.SimpleQueue()
        self._permits = deque([None] * _MOST_WORKERS)  # for those that work
        self._idle: deque[None] = deque()  # one for each worker that waits, and that no job has been given to
        self._grown = float("-inf")  # when a worker was started last that has not begun
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()  # permits
        for _ in range(_CALLS_AT_ONCE):
            self._calls.put(None)
        self._moved = time.monotonic()  # when a call ended last, or one more was let through
        _all.add(self)

    def mailbox(self) -> ThreadMailbox:
        return ThreadMailbox()

    def start(self, function: Callable[[], Work]) -> None:
        _thread.start_new_thread(_begin, (function,))

    def spawn(self, function: Callable[[], Work]) -> None:
        self._jobs.put(function)
        try:
            self._idle.pop()
        except IndexError:
            self._grow()

    def _grow(self) -> None:
        """Starts a worker, unless one is about to begin, which starts the next one if that is not enough."""
        at = time.monotonic()
        if self._permits and at - self._grown > _LONG_START:
            self._grown = at
            self.start(self._work)

    async def _work(self) -> None:
        self._grown = float("-inf")
        try:
            self._permits.pop()
        except IndexError:
            return  # so many others work
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                self._idle.append(None)
                try:
                    job = self._jobs.get(timeout=_IDLE_SECONDS)
                except queue.Empty:
                    try:
                        self._idle.pop()
                    except IndexError:
                        continue  # a job comes for this thread
                    self._permits.append(None)
                    return
            if not self._jobs.empty():
                with contextlib.suppress(RuntimeError):  # no more threads can be started
                    self._grow()
            _complete(job)

    def is_busy(self) -> bool:
        return not self._jobs.empty() or len(self._permits) + len(self._idle) < _MOST_WORKERS

    def is_ending(self) -> bool:
        return False

    async def apart(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        # At the end of the interpreter the threads of the background stand still.
        if sys.is_finalizing() or threading.current_thread().name.startswith("slock"):
            return await function()
        mailbox: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        turn = [None]  # for the first thread that comes

        async def work() -> None:
            try:
                turn.pop()
            except IndexError:
                return
            try:
                mailbox.put((await function(), None))
            except Exception as error:
                mailbox.put((None, error))

        try:
            self.spawn(work)
        except RuntimeError:  # no more threads can be started
            await work()
        result, error = mailbox.get()
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    async def pause(self, duration: float) -> None:
        time.sleep(max(0.0, duration))

    async def call(self, link: Link, call: Call, until: float) -> list[Any]:
        while True:
            try:
                self._calls.get(timeout=_LONG_CALL)
                break
            except queue.Empty:
                at = time.monotonic()
                if at - self._moved >= _LONG_CALL or at >= until:
                    self._moved = at  # one more
                    break
        try:
            return await link.send(call.key, call.commands)
        finally:
            self._moved = time.monotonic()
            if self._calls.qsize() < _CALLS_AT_ONCE:
                self._calls.put(None)


def _begin(function: Callable[[], Work]) -> None:
    try:
        threading.Thread(target=_complete, args=(function,), name="slock", daemon=True).start()
    except RuntimeError:  # no more threads can be started
        threading.current_thread().name = "slock"
        _complete(function)


def _complete(function: Callable[[], Work]) -> None:
    try:
        run(function)
    except NoReply:
        pass  # nobody waits for it
    except Exception:
        _log.exception("slock: a task in the background failed")


_all: weakref.WeakSet[Threads] = weakref.WeakSet()


@atexit.register
def _finish() -> None:
    """Lets the ends of acquisitions that are on their way reach the server."""
    end = time.monotonic() + _EXIT_SECONDS
    try:
        while any(threads.is_busy() for threads in list(_all)) and time.monotonic() < end:
            time.sleep(0.005)
    except KeyboardInterrupt:
        pass
