"""Work under a hold, in a thread: it is not interrupted by the loss, but told of it when its block ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from slock_client._clock import now
from slock_client._durations import not_negative

WAYS = ("block",)
"""How requests can wait; the first is the default."""

DECORATES_ASYNC = False
OTHER_FUNCTION = "the decorator is for ordinary functions: use slock_client.asyncio for async def"


class Guard:
    """One block under a hold."""

    def __init__(self, hold: Any) -> None:
        self.hold = hold

    def leave(self, error: BaseException | None) -> bool:
        """The work has ended with `error`. Whether it ended by itself."""
        return error is None


class Guarded:
    """What a hold does for the work under it."""

    def wait_lost(self, timeout: timedelta | None = None) -> bool:
        """Waits until the hold is lost, at most `timeout`, and tells whether it is.

        Without a timeout it waits for ever when the hold is released.
        """
        hold: Any = self
        end = None if timeout is None else now() + not_negative("timeout", timeout).total_seconds()
        return bool(hold._wait_lost(end))
