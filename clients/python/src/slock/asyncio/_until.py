"""Ends what takes too long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import redis.exceptions as base

T = TypeVar("T")


async def until(end: float | None, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. At `end`, on the monotonic clock, it is cancelled: `TimeoutError` of redis-py.

    Not `asyncio.wait_for`, which in Python 3.11 and before can lose a cancellation.
    """
    if end is None:
        return await work
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait([task], timeout=max(0.0, end - time.monotonic()))
    except asyncio.CancelledError:
        _drop(task)
        raise
    if not task.done():
        _drop(task)
        raise base.TimeoutError("no answer within the time")
    return task.result()


def _drop(task: asyncio.Task[Any]) -> None:
    task.cancel()
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
