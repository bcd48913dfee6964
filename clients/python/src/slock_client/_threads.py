"""Threads, events and pauses for the rules; `asyncio/_tasks.py` has the same for tasks. It knows nothing of
locks.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from slock_client._fork import track
from slock_client._looks import wait_in_looks
from slock_client.hooks import log

T = TypeVar("T")

Work = Callable[[], T]

Mutex = threading.RLock

sleep = time.sleep

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


class Event:
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

    def wait(self, end: float | None) -> bool:
        """Blocks until it has happened, or until `end`: whether it has."""

        def wait(seconds: float) -> bool:
            with self._condition:
                return self._condition.wait_for(lambda: self._happened, seconds)

        return self._happened or wait_in_looks(wait, end)


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
            self._work.append((work, name))
            if self._most is None or self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._run, name="slock worker", daemon=True).start()

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


def each(works: Sequence[Work[T]]) -> Iterator[tuple[int, T | Exception]]:
    """Does all at the same time: the number of each and its result, or its error, as they end.

    Who stops iterating leaves the others to end by themselves.
    """
    ended: queue.SimpleQueue[tuple[int, T | Exception]] = queue.SimpleQueue()

    def do(number: int) -> None:
        try:
            ended.put((number, works[number]()))
        except Exception as error:
            ended.put((number, error))

    for number in range(len(works)):
        _workers.do(functools.partial(do, number))
    for _ in works:
        taken: list[tuple[int, T | Exception]] = []

        def take(seconds: float, taken: list[tuple[int, T | Exception]] = taken) -> bool:
            with contextlib.suppress(queue.Empty):
                taken.append(ended.get(timeout=seconds))
            return bool(taken)

        wait_in_looks(take, None)
        yield taken[0]


def call_until(work: Work[T], undo: Callable[[T], object], end: float) -> T:
    """The result of `work`, which another thread does.

    `TimeoutError` at `end`: then `undo` gets the result.
    """
    done, abandoned = Event(), False
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

    _workers.do(do)
    try:
        if not done.wait(end):
            raise TimeoutError
    except BaseException:
        abandoned = True
        if done.is_set() and results:
            undo(results.pop())
        raise
    if errors:
        raise errors[0]
    return results[0]
