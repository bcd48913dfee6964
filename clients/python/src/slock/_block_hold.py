"""A block of work under a hold."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from types import TracebackType
from typing import TypeVar

from slock._base_hold import BaseHold
from slock._fork import track
from slock._options import Wanted
from slock._time import not_negative
from slock.hooks import Hooks

_log = logging.getLogger("slock")

H = TypeVar("H", bound="BlockHold")


class BlockHold(BaseHold):
    """A hold that is released at the end of a `with` block."""

    def __init__(self, wanted: Wanted, token: str, hooks: Hooks) -> None:
        super().__init__(wanted, token, hooks)
        self._lost_event: threading.Event | None = None
        track(self)

    def after_fork(self) -> None:
        """The thread of the parent that renews may have been changing the hold."""
        self._changing = threading.RLock()

    def release(self) -> bool:
        """Releases the hold, and tells whether it was still there."""
        raise NotImplementedError

    def wait_lost(self, timeout: timedelta | None = None) -> bool:
        """Waits until the hold is lost, at most `timeout`, and tells whether it is.

        Without a timeout it waits for ever when the hold is released.
        """
        end = None if timeout is None else time.monotonic() + not_negative("timeout", timeout).total_seconds()
        with self._changing:
            if self._lost_event is None:
                self._lost_event = threading.Event()
        while not self.lost:
            now = time.monotonic()
            if end is not None and now >= end:
                return False
            ends = [] if end is None else [end]
            if not self.ended:
                ends.append(self.valid_until)  # which a renewal moves
            self._lost_event.wait(max(0.0, min(ends) - now) if ends else None)
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

    def _tell_lost(self) -> None:
        if self._lost_event is not None:
            self._lost_event.set()
        on_lost = self._wanted.options.on_lost
        if on_lost is not None:
            try:
                on_lost(self)
            except Exception:
                _log.exception("on_lost failed")
