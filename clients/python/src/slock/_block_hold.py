"""A block of work under a hold."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

from slock._base_hold import BaseHold
from slock._fork import track
from slock._options import Wanted
from slock._time import not_negative
from slock._watchdog import Watchdog
from slock.hooks import Hooks

_log = logging.getLogger("slock")

H = TypeVar("H", bound="BlockHold")


class BlockHold(BaseHold):
    """A hold that is released at the end of a `with` block."""

    def __init__(self, wanted: Wanted, token: str, hooks: Hooks, watchdog: Watchdog[Any]) -> None:
        super().__init__(wanted, token, hooks)
        self._watchdog = watchdog
        self._turn = threading.Lock()
        self._end_changed: threading.Condition | None = None
        track(self)

    def after_fork(self) -> None:
        """The thread of the parent that renews may have been changing the hold."""
        self._changing, self._turn, self._end_changed = threading.RLock(), threading.Lock(), None

    def release(self) -> bool:
        """Releases the hold, and tells whether it was still there."""
        raise NotImplementedError

    def wait_lost(self, timeout: timedelta | None = None) -> bool:
        """Waits until the hold is lost, at most `timeout`, and tells whether it is.

        Without a timeout it waits for ever when the hold is released.
        """
        end = None if timeout is None else time.monotonic() + not_negative("timeout", timeout).total_seconds()
        with self._changing:
            if self._end_changed is None:
                self._end_changed = threading.Condition()
            condition = self._end_changed
        while not self.lost:
            now = time.monotonic()
            if end is not None and now >= end:
                return False
            with condition:
                if self._reason is None:
                    ends = [] if end is None else [end]
                    if not self._releasing:
                        ends.append(self.valid_until)  # which a renewal moves
                    condition.wait(_seconds_until(min(ends)) if ends else None)
        return True

    def __enter__(self: H) -> H:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.release()
        except Exception as problem:
            # The work was done under the hold. The ttl ends what is left of it.
            _log.warning("the hold of %s could not be released: %s", self.label, problem)
        if self._reason is not None and error is None:
            raise self._lost_error()

    @contextlib.contextmanager
    def _alone(self, end: float = math.inf) -> Iterator[None]:
        """Changes of the hold come one after another: the server would see them in any order otherwise.

        `Lost` or `NotHeld` when the hold ends before its turn, `TimedOut` when there is none until `end`.
        """
        self._check_change()
        while not self._turn.acquire(timeout=_seconds_until(min(end, self.valid_until))):
            self.check()
            self._check_turn(end)
        try:
            self.check()
            yield
        finally:
            self._turn.release()

    @contextlib.contextmanager
    def _extending(self, ttl_ms: int) -> Iterator[None]:
        """No renewal is under way in the block: it would set another ttl, before or after the extension."""
        renews = self._wanted.options.renew
        self._held_back = True
        try:
            if renews:
                self._watchdog.wait_answered(self)
            self._begin_extension(ttl_ms)
            if renews:
                self._watchdog.add(self)  # it may end earlier by now
            yield
        finally:
            self._held_back = False
            if renews and not self.ended:
                self._watchdog.add(self)

    def _wake(self) -> None:
        if self._end_changed is not None:
            with self._end_changed:
                self._end_changed.notify_all()

    def _tell_lost(self) -> None:
        self._wake()
        on_lost = self._wanted.options.on_lost
        if on_lost is not None:
            try:
                on_lost(self)
            except Exception:
                _log.exception("on_lost failed")


def _seconds_until(end: float) -> float:
    return min(max(0.0, end - time.monotonic()), threading.TIMEOUT_MAX)
