"""How much a test does: a short form for every day, the full one where servers are compared."""

from __future__ import annotations

import os


def rounds(short: int, full: int) -> int:
    """`full` where SLOCK_THOROUGH is set, as `make test-servers` does; else `short`."""
    return full if os.environ.get("SLOCK_THOROUGH") else short
