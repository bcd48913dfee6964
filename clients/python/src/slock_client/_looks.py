"""How a thread waits so that an exception that another thread raises in it is seen soon."""

from __future__ import annotations

from collections.abc import Callable

from slock_client._clock import now

# A thread that waits looks up after so long, in seconds, and then after twice as long each time. In the main
# thread Ctrl-C is seen at once.
FIRST_LOOK = 0.05
MOST_LOOK = 2.0


def wait_in_looks(wait: Callable[[float], bool], end: float | None) -> bool:
    """Calls `wait(seconds)` until it gives True, or until `end`: whether it has."""
    look = FIRST_LOOK
    while True:
        left = look if end is None else min(look, end - now())
        if wait(max(0.0, left)):
            return True
        if end is not None and now() >= end:
            return False
        look = min(2 * look, MOST_LOOK)
