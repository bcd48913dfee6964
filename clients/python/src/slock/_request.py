"""What `Locks` is asked for."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from slock._block_hold import BlockHold
from slock._options import Wanted, is_async

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=BlockHold)
H_co = TypeVar("H_co", bound=BlockHold, covariant=True)


class _Entered(threading.local):
    def __init__(self) -> None:
        self.holds: list[Any] = []


class Acquirer(Protocol[H_co]):
    """`Locks` or `Quorum`."""

    def _acquire(self, wanted: Wanted, *, once: bool) -> H_co | None: ...


class Request(Generic[H]):
    """Keys, a mode and options. Making one sends nothing. It can be used many times, also at once.

    `with request as hold:` acquires, runs the work, and releases. When the hold is lost meanwhile, the
    block ends with `Lost`, unless with an error of its own: call `hold.check()` before each step, or give
    `on_lost`. `@request` does the same for a function, with a hold of its own for each call.
    """

    def __init__(self, locks: Acquirer[H], wanted: Wanted) -> None:
        self._locks = locks
        self._wanted = wanted
        self._entered = _Entered()

    def __repr__(self) -> str:
        return f"<Request {self._wanted}>"

    def acquire(self) -> H:
        """Waits until the lock is granted, at most for `wait`.

        `TimedOut` when the wait is over; `Deadlock`, `QueueFull`, `WrongMode`, `TooFewReplicas`,
        `ModuleNotLoaded` or, of a quorum, `QuorumMissed` as the servers say. An exception such as
        `KeyboardInterrupt` leaves neither a hold nor a request.
        """
        hold = self._locks._acquire(self._wanted, once=False)
        assert hold is not None
        return hold

    def try_acquire(self) -> H | None:
        """Asks once. None when the lock is not free. Errors as those of `acquire`."""
        return self._locks._acquire(self._wanted, once=True)

    def __enter__(self) -> H:
        hold = self.acquire()
        try:
            self._entered.holds.append(hold)
            return hold
        except BaseException:  # Ctrl-C
            hold.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.holds.pop().__exit__(kind, error, traceback)

    def __call__(self, work: Callable[P, T]) -> Callable[P, T]:
        """A function that does `work` under the lock."""
        if is_async(work):
            raise TypeError("the decorator is for ordinary functions: use slock.asyncio for async def")

        @functools.wraps(work)
        def under_lock(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return work(*args, **kwargs)

        return under_lock
