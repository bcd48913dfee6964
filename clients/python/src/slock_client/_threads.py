"""The synchronous half of input and output: threads that block. It knows nothing of locks."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Generic, TypeVar

from slock_client._fork import track
from slock_client._io import Work, finish
from slock_client._looks import wait_in_looks
from slock_client._recipe import Recipe
from slock_client._thread_link import ThreadLink
from slock_client.hooks import log

T = TypeVar("T")

# A worker without work ends after so long, in seconds.
WORKER_LINGERS = 2.0

# So many workers at most do what is limited.
MOST_LIMITED = 32


class ThreadEvent:
    """An event for threads. A signal handler may set it while its thread is inside."""

    def __init__(self) -> None:
        self._condition = threading.Condition()  # with a lock that the same thread may take again
        self._happened = False

    def set(self) -> None:
        with self._condition:
            self._happened = True
            self._condition.notify_all()

    def clear(self) -> None:
        self._happened = False

    def is_set(self) -> bool:
        return self._happened

    def wait_blocking(self, end: float | None) -> bool:
        """Blocks until it has happened, or until `end`: whether it has."""

        def wait(seconds: float) -> bool:
            with self._condition:
                return self._condition.wait_for(lambda: self._happened, seconds)

        return self._happened or wait_in_looks(wait, end)

    async def wait(self, end: float | None) -> bool:
        return self.wait_blocking(end)


class Workers:
    """Threads that are kept for a while for the next work. They do not keep the process alive."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.after_fork()
        track(self)

    def after_fork(self) -> None:
        self._changing = threading.RLock()
        self._work: queue.SimpleQueue[tuple[Callable[[], None], str]] = queue.SimpleQueue()
        self._queued = self._idle = self._threads = 0

    def do(self, work: Callable[[], None], name: str = "worker") -> None:
        """Does `work` in another thread, which has this name meanwhile.

        When there are too many, it queues.
        """
        with self._changing:
            self._queued += 1
            self._work.put((work, name))
            if self._queued > self._idle and (self._most is None or self._threads < self._most):
                self._threads += 1
                threading.Thread(target=self._run, name="slock worker", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._changing:
                self._idle += 1
            try:
                work, name = self._work.get(timeout=WORKER_LINGERS)
            except queue.Empty:
                with self._changing:
                    self._idle -= 1
                    if self._queued:
                        continue
                    self._threads -= 1
                    return
            with self._changing:
                self._idle -= 1
                self._queued -= 1
            threading.current_thread().name = f"slock {name}"
            try:
                work()
            except BaseException:
                log.exception("slock_client goes on after an error")
            threading.current_thread().name = "slock worker"
            del work


class Threads:
    """Input and output by threads that block."""

    def __init__(self) -> None:
        self._workers = Workers()
        self._limited = Workers(MOST_LIMITED)

    def event(self) -> ThreadEvent:
        return ThreadEvent()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def link(self, recipe: Recipe) -> ThreadLink:
        return ThreadLink(recipe, self.call_until)

    def start(self, work: Work[None], name: str, *, limited: bool = False) -> None:
        (self._limited if limited else self._workers).do(lambda: finish(work()), name)

    def each(self, works: Sequence[Work[T]]) -> AsyncIterator[tuple[int, T | BaseException]]:
        ended: queue.SimpleQueue[tuple[int, T | BaseException]] = queue.SimpleQueue()

        def do(number: int) -> None:
            try:
                ended.put((number, finish(works[number]())))
            except BaseException as error:
                ended.put((number, error))

        for number in range(len(works)):
            self._workers.do(functools.partial(do, number))
        return _Ended(ended, len(works))

    def call_until(self, work: Callable[[], T], undo: Callable[[T], object], end: float) -> T:
        """The result of `work`, which another thread does.

        `TimeoutError` at `end`: then `undo` gets the result.
        """
        done, abandoned = ThreadEvent(), False
        results: list[T] = []
        errors: list[BaseException] = []

        def do() -> None:
            try:
                results.append(work())
            except BaseException as error:
                errors.append(error)
            done.set()
            if abandoned and results:
                undo(results.pop())

        self._workers.do(do)
        try:
            if not done.wait_blocking(end):
                raise TimeoutError
        except BaseException:
            abandoned = True
            if done.is_set() and results:
                undo(results.pop())
            raise
        if errors:
            raise errors[0]
        return results[0]


class _Ended(Generic[T]):
    """What has ended, as it ends.

    Not a generator: a loop of asyncio in this thread would take it for its own.
    """

    def __init__(self, ended: queue.SimpleQueue[tuple[int, T | BaseException]], count: int) -> None:
        self._ended, self._left = ended, count

    def __aiter__(self) -> _Ended[T]:
        return self

    async def __anext__(self) -> tuple[int, T | BaseException]:
        if not self._left:
            raise StopAsyncIteration
        self._left -= 1
        taken: list[tuple[int, T | BaseException]] = []

        def take(seconds: float) -> bool:
            with contextlib.suppress(queue.Empty):
                taken.append(self._ended.get(timeout=seconds))
            return bool(taken)

        wait_in_looks(take, None)
        return taken[0]
