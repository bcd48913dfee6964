"""Threads, events and pauses for the rules; `asyncio/_tasks.py` has the same for tasks. It knows nothing of
locks.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

from slock_client._clock import now
from slock_client._fork import track
from slock_client.hooks import log

T = TypeVar("T")

Work = Callable[[], T]

Mutex = threading.RLock

sleep = time.sleep

# A thread that waits looks up after so long, in seconds, and then after twice as long each time. In the main
# thread Ctrl-C is seen at once.
FIRST_LOOK = 0.05
MOST_LOOK = 2.0

# So many workers at most do what is limited.
MOST_LIMITED = 32


def current() -> object:
    """The thread that asks. What else is under way in it cannot end before this call does."""
    return threading.get_ident()


def scope() -> object:
    """What the connections belong to: the process."""
    return None


def is_over(scope: Any) -> bool:
    return False


def finish(scope: Any, work: Work[object]) -> None:
    work()


def wait_in_looks(wait: Callable[[float], bool], end: float = math.inf) -> bool:
    """Calls `wait(seconds)` until it gives True, or until `end`: whether it has."""
    look = FIRST_LOOK
    while True:
        if wait(max(0.0, min(look, end - now()))):
            return True
        if now() >= end:
            return False
        look = min(2 * look, MOST_LOOK)


class Event:
    """An event for threads. A signal handler may set it while its thread is inside."""

    def __init__(self) -> None:
        self._condition = threading.Condition()  # with a lock that the same thread may take again
        self._happened = False

    def set(self) -> None:
        with self._condition:
            self._happened = True
            self._condition.notify_all()

    def is_set(self) -> bool:
        return self._happened

    def wait(self, end: float) -> bool:
        """Blocks until it has happened, or until `end`: whether it has."""

        def happens(seconds: float) -> bool:
            with self._condition:
                return self._condition.wait_for(lambda: self._happened, seconds)

        return self._happened or wait_in_looks(happens, end)


class Workers:
    """Threads of the library. They do not keep the process alive."""

    def __init__(self, most: int | None = None) -> None:
        """`most`: what is more than so many at once queues."""
        self._most = most
        self.after_fork()
        track(self)

    def after_fork(self) -> None:
        self._changing = threading.RLock()
        self._work: deque[tuple[Callable[[], object], str]] = deque()
        self._threads = 0

    def do(self, work: Callable[[], object], name: str = "worker") -> None:
        """Does `work` in another thread, which has this name meanwhile."""
        with self._changing:
            if self._most is None or self._threads < self._most:
                # First: there may be no more threads. It begins when the lock is free.
                threading.Thread(target=self._run, name="slock worker", daemon=True).start()
                self._threads += 1
            self._work.append((work, name))

    def _run(self) -> None:
        while True:
            with self._changing:
                if not self._work:
                    self._threads -= 1
                    return
                work, name = self._work.popleft()
            threading.current_thread().name = f"slock {name}"
            try:
                work()
            except BaseException:
                log.exception("slock_client goes on after an error")
            del work


_workers = Workers()
_limited = Workers(MOST_LIMITED)


def start(work: Work[object], name: str, *, limited: bool = False) -> None:
    """Begins it in a thread of the library. `limited`: with others of its kind it may queue."""
    (_limited if limited else _workers).do(work, name)


def each(works: Sequence[Work[T]]) -> Iterator[tuple[int, T | BaseException]]:
    """Does all at the same time: the number of each and its result, or its error, as they end.

    Who stops iterating leaves the others to end by themselves.
    """
    futures = [begun(work) for work in works]
    left = set(futures)
    while left:
        wait_in_looks(lambda seconds: bool(wait(left, seconds, FIRST_COMPLETED).done))
        for number, future in enumerate(futures):
            if future in left and future.done():
                left.discard(future)
                yield number, future.exception() or future.result()


def ends(future: Future[T], end: float) -> bool:
    """Blocks until it is done, or until `end`: whether it is."""
    return wait_in_looks(lambda seconds: bool(wait([future], seconds).done), end)


def begun(work: Work[T]) -> Future[T]:
    """Of what a thread of the library does from now on."""
    future: Future[T] = Future()

    def do() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    _workers.do(do)
    return future
