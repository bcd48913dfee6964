"""Cancels the task that works under a hold when the hold is lost."""

from __future__ import annotations

import asyncio
from typing import Any

from slock_client._clock import now
from slock_client._hold import HoldRules


class Guard:
    """Works as `asyncio.timeout` does: a cancellation of its own is told apart from all others."""

    def __init__(self, hold: HoldRules) -> None:
        self._hold = hold
        self.task: Any = asyncio.current_task()  # Any: Python 3.10 does not count cancellations
        assert self.task is not None, "a hold guards the work of a task"
        self._cancelling = self._count()
        self._interrupted = False
        self._left = False
        self._timer: asyncio.TimerHandle | None = None
        hold.listen(self.interrupt)
        self._look_at_time()

    def interrupt(self) -> None:
        """Called when the hold is lost."""
        if not self._left and not self._interrupted:
            self._interrupted = True
            self.task.cancel()

    async def leave(self, error: BaseException | None) -> bool:
        """The work has ended with `error`. Whether it ended by itself or by this guard alone."""
        self._left = True
        self._hold.stop_listening(self.interrupt)
        if self._timer is not None:
            self._timer.cancel()
        if not self._interrupted:
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
        if self._hold.lost:
            self.interrupt()
        elif not self._hold.ended:
            left = max(0.001, self._hold.valid_until - now())
            self._timer = asyncio.get_running_loop().call_later(left, self._look_at_time)
