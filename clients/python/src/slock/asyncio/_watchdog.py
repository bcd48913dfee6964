"""The task that renews the holds of one `Locks`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from slock._schedule import Renewable, Schedule

_log = logging.getLogger("slock")

H = TypeVar("H", bound=Renewable)


class Watchdog(Generic[H]):
    """Renews holds in one task, which starts with the first hold and ends some time after the last.

    `renew(holds, end)` is awaited in that task with all holds that are due. It sends their renewals, updates
    `renew_at` and `valid_until` of each, also after an error, and returns at about `end`, a time on the
    monotonic clock, at the latest. It skips holds that have `ended`. A hold whose `valid_until` passes is
    taken out, and its `expire` is called in the task.

    A hold is any object with the attributes of `slock._schedule.Renewable`:
    `ttl_seconds`, `renew_at`, `valid_until`, `ended`, `expire()`.
    """

    def __init__(self, renew: Callable[[Sequence[H], float], Awaitable[None]]) -> None:
        self._renew = renew
        self._schedule: Schedule[H] = Schedule()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._wakes_at: float | None = None
        self._under_way: set[int] = set()
        self._answered: asyncio.Future[None] | None = None
        self._closed = False

    def add(self, hold: H) -> None:
        """From now on `hold` is renewed. For a hold that is there already: its times have changed.

        After `close` it is not renewed, and is lost when its time is over.
        """
        if self._closed:
            self._expire_later(hold)
            return
        self._schedule.put(hold)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="slock watchdog")
        elif self._wakes_at is not None and min(hold.renew_at, hold.valid_until) < self._wakes_at:
            self._changed.set()

    def remove(self, hold: H) -> None:
        """No renewal of `hold` begins after this. One that is under way may still be answered.

        Nothing happens when the hold is not there.
        """
        # The task is not woken: when no other hold comes, it ends at the time at which it would have renewed
        # this one.
        self._schedule.remove(hold)

    async def wait_answered(self, hold: H) -> None:
        """Returns when no renewal of `hold` is under way. None of them is sent again after that."""
        while self._answered is not None and id(hold) in self._under_way:
            await asyncio.wait([self._answered])

    async def close(self) -> None:
        """Renews no more, and returns when the task has ended. The holds are lost when their time is over."""
        self._closed = True
        for hold in self._schedule.holds():
            self._expire_later(hold)
        self._schedule.clear()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._schedule:
            now = time.monotonic()
            over, due = self._schedule.take(now)
            for hold in over:
                hold.expire()
            if due:
                await self._renew_due(due, now)
                for hold in due:
                    if hold in self._schedule and not hold.ended:
                        self._schedule.put(hold)
                    else:
                        self._schedule.remove(hold)
            elif not over:
                await self._sleep(now)

    async def _renew_due(self, due: Sequence[H], now: float) -> None:
        self._under_way.update(map(id, due))
        answered = self._answered = asyncio.get_running_loop().create_future()
        try:
            await self._renew(due, self._schedule.batch_end(due, now))
        except Exception:
            # The task must go on: other holds depend on it.
            _log.exception("a renewal failed")
        finally:
            self._under_way.clear()
            answered.set_result(None)

    async def _sleep(self, now: float) -> None:
        self._changed.clear()
        self._wakes_at = self._schedule.next_time()
        if self._wakes_at is None:
            return
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), self._wakes_at - now)
        self._wakes_at = None

    def _expire_later(self, hold: H) -> None:
        # The loop may be early by its resolution.
        left = max(0.0, hold.valid_until - time.monotonic()) + 0.001
        asyncio.get_running_loop().call_later(left, hold.expire)
