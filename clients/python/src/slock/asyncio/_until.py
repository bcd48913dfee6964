"""Ends what takes too long."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import redis.exceptions as base

# As redis-py does. `asyncio.wait_for` can lose a cancellation in Python 3.11 and before.
if sys.version_info >= (3, 11, 3):
    from asyncio import timeout  # type: ignore[attr-defined, unused-ignore]
else:
    from async_timeout import timeout  # type: ignore[import-not-found, no-redef, unused-ignore]

T = TypeVar("T")


async def until(end: float | None, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. At `end`, on the monotonic clock, it is cancelled: `TimeoutError` of redis-py."""
    if end is None:
        return await work
    try:
        async with timeout(max(0.0, end - time.monotonic())):
            return await work
    except asyncio.TimeoutError as error:
        if type(error) is not asyncio.TimeoutError:
            raise  # such as our own TimedOut, by which the work ended
        raise base.TimeoutError("no answer within the time") from None
