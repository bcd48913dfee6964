"""Waiting for a condition: the only place of the suite that sleeps.

A fixed sleep is too long on a fast machine and too short on a busy one. A test names what it waits for
instead, and the name is in the failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import redis

T = TypeVar("T")

POLL_SECONDS = 0.004


def wait_until(condition: Callable[[], T], timeout: float = 30.0, what: str = "") -> T:
    """Calls `condition` until its value is true and returns that value; fails after `timeout` seconds."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(
                f"waited {timeout} s in vain for: {what or condition.__name__}; last: {value!r}"
            )
        time.sleep(POLL_SECONDS)


def stays(condition: Callable[[], object], seconds: float, what: str = "") -> None:
    """Fails as soon as `condition` is false, and is content when it has held for `seconds`.

    For what must *not* happen, where there is nothing to wait for.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        assert value, f"did not stay so for {seconds} s: {what or condition.__name__}; now: {value!r}"
        time.sleep(POLL_SECONDS)


def now_ms(client: redis.Redis) -> int:
    """The server's clock in Unix milliseconds: the one that decides about deadlines."""
    seconds, microseconds = client.time()
    return seconds * 1000 + microseconds // 1000


def wait_past(client: redis.Redis, deadline_ms: int, timeout: float = 30.0) -> None:
    """Waits until the server's clock is past `deadline_ms`."""
    wait_until(lambda: now_ms(client) > deadline_ms, timeout, f"the server's clock to pass {deadline_ms}")
