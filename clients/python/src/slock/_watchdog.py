"""The thread that renews the holds of one `Locks`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from slock._fork import track
from slock._schedule import Renewable, Schedule

_log = logging.getLogger("slock")

H = TypeVar("H", bound=Renewable)


class Watchdog(Generic[H]):
    """Renews holds in one thread, which starts with the first hold and ends some time after the last.

    `renew(holds, end)` is called in that thread with all holds that are due. It sends their renewals, updates
    `renew_at` and `valid_until` of each, also after an error, and returns at about `end`, a time on the
    monotonic clock, at the latest. It skips holds that have `ended`. A hold whose `valid_until` passes is
    taken out, and its `expire` is called in the thread.

    A hold is any object with the attributes of `slock._schedule.Renewable`:
    `ttl_seconds`, `renew_at`, `valid_until`, `ended`, `expire()`.
    """

    def __init__(self, renew: Callable[[Sequence[H], float], None]) -> None:
        self._renew = renew
        self._schedule: Schedule[H] = Schedule()
        self._changed = threading.Condition()
        self._under_way: set[int] = set()
        self._thread: threading.Thread | None = None
        self._wakes_at: float | None = None
        self._closed = False
        track(self)

    def add(self, hold: H) -> None:
        """From now on `hold` is renewed. For a hold that is there already: its times have changed.

        Nothing happens after `close`.
        """
        with self._changed:
            if self._closed:
                return
            self._schedule.put(hold)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="slock watchdog", daemon=True)
                thread.start()  # it may fail: then the next hold tries again
                self._thread = thread
            elif self._wakes_at is None or min(hold.renew_at, hold.valid_until) < self._wakes_at:
                self._changed.notify_all()

    def remove(self, hold: H) -> None:
        """No renewal of `hold` is sent after this returns. It waits for one that is under way.

        Nothing happens when the hold is not there.
        """
        with self._changed:
            # The thread is not woken: when no other hold comes, it ends at the time at which it would have
            # renewed this one.
            self._schedule.remove(hold)
            self.wait_answered(hold)

    def wait_answered(self, hold: H) -> None:
        """Returns when no renewal of `hold` is under way."""
        with self._changed:
            if threading.current_thread() is not self._thread:
                self._changed.wait_for(lambda: id(hold) not in self._under_way)

    def close(self) -> None:
        """Forgets all holds for good, and returns when the thread has ended."""
        with self._changed:
            self._closed = True
            self._schedule.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def after_fork(self) -> None:
        """The holds are the parent's, and it renews them."""
        self._schedule, self._changed, self._under_way = Schedule(), threading.Condition(), set()
        self._thread, self._wakes_at = None, None

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                over, due = self._schedule.take(now)
                if not over and not due:
                    self._wakes_at = self._schedule.next_time()
                    if self._wakes_at is None:
                        self._thread = None
                        return
                    self._changed.wait(min(self._wakes_at - now, threading.TIMEOUT_MAX))
                    continue
                end = self._schedule.batch_end(due, now) if due else now
                self._under_way.update(map(id, due))
            for hold in over:
                self._do(hold.expire)
            if due:
                self._do(self._renew, due, end)
            with self._changed:
                for hold in due:
                    if hold in self._schedule and not hold.ended:
                        self._schedule.put(hold)
                    else:
                        self._schedule.remove(hold)
                self._under_way.clear()
                self._changed.notify_all()

    def _do(self, work: Callable[..., None], *arguments: object) -> None:
        """Other holds depend on the thread: it goes on also when the program's `on_lost` calls `sys.exit`."""
        try:
            work(*arguments)
        except BaseException:
            _log.exception("the watchdog goes on after an error")
