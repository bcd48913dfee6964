"""Pauses between two attempts after an answer that may be different next time."""

from __future__ import annotations

import random
from collections.abc import Iterator

FIRST = 0.010
MOST = 1.0


def retry_pauses() -> Iterator[float]:
    """Seconds: 10 ms, doubled up to 1 s, each less up to a half of it by chance."""
    pause = FIRST
    while True:
        yield pause * random.uniform(0.5, 1)
        pause = min(pause * 2, MOST)
