"""The clock on which the library counts.

It goes on while the machine sleeps, where the system has such a clock.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

now: Callable[[], float] = time.monotonic
"""Seconds, from some moment on. Only differences mean something."""

if hasattr(time, "CLOCK_BOOTTIME"):
    now = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
