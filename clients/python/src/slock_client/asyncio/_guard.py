"""Work under a hold: its task is cancelled when the hold is lost."""

from __future__ import annotations

import asyncio
from typing import Any

from slock_client._clock import now

WAYS = ("notify", "block")
"""How requests can wait; the first is the default."""

DECORATES_ASYNC = True
OTHER_FUNCTION = "the decorator is for async def: use slock_client for ordinary functions"


class Guard:
    """Works as `asyncio.timeout` does: a cancellation of its own is told apart from all others."""

    def __init__(self, hold: Any) -> None:
        self.hold = hold
        self.task: Any = asyncio.current_task()  # Any: Python 3.10 does not count cancellations
        assert self.task is not None, "a hold guards the work of a task"
        self._cancelling = self._count()
        self._interrupted = False
        self._timer: asyncio.TimerHandle | None = None
        hold._on_loss.append(self.interrupt)
        self._look_at_time()

    def interrupt(self) -> None:
        """Called when the hold is lost."""
        if not self._interrupted:
            self._interrupted = True
            self.task.cancel()

    async def leave(self, error: BaseException | None) -> bool:
        """The work has ended with `error`. Whether it ended by itself or by this guard alone."""
        self.hold._on_loss.remove(self.interrupt)
        if self._timer is not None:
            self._timer.cancel()
        if not self._interrupted or self.task != asyncio.current_task():
            return error is None
        if hasattr(self.task, "uncancel"):
            self.task.uncancel()
        if not isinstance(error, asyncio.CancelledError):
            # The cancellation may not have reached the work. It must not reach what comes after it.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self._count() > self._cancelling:
                    raise
            return error is None
        return self._count() <= self._cancelling

    def _count(self) -> int:
        return self.task.cancelling() if hasattr(self.task, "cancelling") else 0

    def _look_at_time(self) -> None:
        """The clock decides, whatever the watchdog does: it may be closed."""
        if self.hold.lost:
            self.interrupt()
        elif not self.hold._ended:
            left = max(0.001, self.hold.valid_until - now())
            self._timer = asyncio.get_running_loop().call_later(left, self._look_at_time)
