"""The clock on which the library counts.

It goes on while the machine sleeps, where the system has such a clock.
"""

from __future__ import annotations

import time


def now() -> float:
    """Seconds, from some moment on. Only differences mean something."""
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
