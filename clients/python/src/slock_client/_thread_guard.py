"""Work under a hold, in a thread: it is not interrupted by the loss, but told of it when its block ends."""

from __future__ import annotations

from typing import Any

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
