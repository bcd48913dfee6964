"""What is known to fail: libraries that have not moved to the contract of today, and what of it they lack.

Each entry is strict: what passes here has to be taken off the list.
"""

from __future__ import annotations

import pytest

FORMER = {"python-asyncio", "python-sync", "rust", "node-redis", "ioredis", "lettuce", "jedis"}
KNOWN: dict[str, dict[str, str]] = {}


def marks(language: str, test: str) -> list[pytest.MarkDecorator]:
    """The mark of a test that is known to fail with this language."""
    reason = KNOWN.get(test, {}).get(language)
    return [pytest.mark.xfail(strict=True, reason=f"{reason}. It passes now: take it off the list")] if reason else []
