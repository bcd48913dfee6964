# SPDX-License-Identifier: MIT OR Apache-2.0

"""The clock of all deadlines: on Linux one that goes on while the machine sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)

now: Callable[[], float] = time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)  # seconds
