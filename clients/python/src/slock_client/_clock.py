"""The clock on which the library counts. It goes on while the machine sleeps, where the system has such a clock."""

from __future__ import annotations

import functools
import time

__all__ = ["now"]

if hasattr(time, "CLOCK_BOOTTIME"):
    now = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
else:
    now = time.monotonic
