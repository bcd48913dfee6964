"""Durations as the server counts them: whole milliseconds."""

from __future__ import annotations

import math
from datetime import timedelta

_MS = timedelta(milliseconds=1)

LEAST_TTL_MS = 2


def whole_ms(duration: timedelta) -> int:
    """The milliseconds in a duration, a part of one counted as a whole one."""
    return -(-duration // _MS)


def ms_left(end: float, now: float) -> int:
    """The milliseconds from `now` to `end`, at least 1: the server takes 0 for no limit."""
    return max(1, round((end - now) * 1000))


def not_negative(name: str, duration: timedelta) -> timedelta:
    """`duration`, or a `ValueError` with the name of the option when it is below zero."""
    if not isinstance(duration, timedelta):
        raise TypeError(f"{name} must be a timedelta, not {type(duration).__name__}")
    if duration < timedelta(0):
        raise ValueError(f"{name} must not be negative")
    return duration


def seconds_of(name: str, duration: timedelta | None) -> float:
    """The seconds of a limit, which must not be below zero. Without one: infinity."""
    return math.inf if duration is None else not_negative(name, duration).total_seconds()


def positive(name: str, duration: timedelta) -> timedelta:
    """`duration`, or a `ValueError` with the name of the option when it is not above zero."""
    if not_negative(name, duration) == timedelta(0):
        raise ValueError(f"{name} must be above zero")
    return duration


def ttl_ms(duration: timedelta) -> int:
    """A ttl in milliseconds. A hold is valid for its ttl less 1 ms, so a ttl below 2 ms is a `ValueError`."""
    ms = whole_ms(positive("ttl", duration))
    if ms < LEAST_TTL_MS:
        raise ValueError(f"ttl must be at least {LEAST_TTL_MS} ms")
    return ms
