"""Blocks under a hold, in a thread: they end with the loss, but are not interrupted by it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

from slock_client._clock import now
from slock_client._durations import not_negative
from slock_client._options import is_async

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound="HoldBlock")

WAYS = ("block",)
"""How requests can wait; the first is the default."""


class HoldBlock:
    """What a hold does for the work under it."""

    def wait_lost(self, timeout: timedelta | None = None) -> bool:
        """Waits until the hold is lost, at most `timeout`, and tells whether it is.

        Without a timeout it waits for ever when the hold is released.
        """
        hold: Any = self
        end = None if timeout is None else now() + not_negative("timeout", timeout).total_seconds()
        return bool(hold._wait_lost(end))

    def __enter__(self: H) -> H:
        hold: Any = self
        hold.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        hold: Any = self
        hold._finish_block()
        if hold.reason is not None and error is None:
            raise hold._lost_error()


class _Entered(threading.local):
    def __init__(self) -> None:
        self.holds: list[Any] = []


class RequestBlock(Generic[H]):
    """A block that acquires a hold of its own."""

    def __init__(self) -> None:
        self._entered = _Entered()

    def acquire(self) -> H:
        raise NotImplementedError

    def __enter__(self) -> H:
        hold = self.acquire()
        try:
            self._entered.holds.append(hold)
            return hold
        except BaseException:  # Ctrl-C
            unused: Any = hold
            unused.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.holds.pop().__exit__(kind, error, traceback)

    def __call__(self, work: Callable[P, T]) -> Callable[P, T]:
        """A function that does `work` under the lock."""
        if is_async(work):
            raise TypeError("the decorator is for ordinary functions: use slock_client.asyncio for async def")

        @functools.wraps(work)
        def under_lock(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return work(*args, **kwargs)

        return under_lock
