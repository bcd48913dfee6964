"""Typed answers of `SLOCK.INFO` and `SLOCK.QUEUES`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

__all__ = ["Holder", "LockInfo", "QueueInfo", "Waiter"]


class Holder(NamedTuple):
    """Who holds a lock."""

    token: bytes
    fence: int
    time_left: timedelta
    """Until its deadline."""
    held_for: timedelta
    metadata: str | None


class Waiter(NamedTuple):
    """Who waits for a lock."""

    token: bytes
    mode: str
    waiting_for: timedelta
    """How long it has waited."""
    metadata: str | None


class LockInfo(NamedTuple):
    """A lock, as one server tells it."""

    mode: str
    """`write`, `read`, or `free`."""
    readers: int
    waiters: int
    fence: int | None
    """The highest of the holders; None when it is free."""
    holders: tuple[Holder, ...]
    queue: tuple[Waiter, ...]
    """In order of arrival."""


class QueueInfo(NamedTuple):
    """A lock for which somebody waits."""

    key: bytes
    waiters: int
    writers: int
    """How many of them want to write."""
    longest_wait: timedelta
    mode: str
    """In which it is held: `write`, `read` or `free`."""
    readers: int
    held_for: timedelta


def lock_info(answer: Any) -> LockInfo:
    """From the answer of `SLOCK.INFO key FULL`."""
    if not answer:
        return LockInfo("free", 0, 0, None, (), ())
    holders = tuple(
        Holder(one[b"token"], one[b"fence"], _ms(one[b"pttl"]), _ms(one[b"held-ms"]), _text(one[b"meta"]))
        for one in answer[b"holders"]
    )
    queue = tuple(
        Waiter(one[b"token"], one[b"mode"].decode(), _ms(one[b"waiting-ms"]), _text(one[b"meta"]))
        for one in answer[b"queue"]
    )
    mode, fence = answer[b"mode"].decode(), answer[b"fence"] or None
    return LockInfo(mode, answer[b"readers"], answer[b"waiters"], fence, holders, queue)


def queue_infos(answers: Iterable[Any]) -> list[QueueInfo]:
    """From the answers of several servers to `SLOCK.QUEUES`, the longest wait first."""
    infos = (
        QueueInfo(
            one[b"key"],
            one[b"waiters"],
            one[b"writers"],
            _ms(one[b"longest-wait-ms"]),
            one[b"mode"].decode(),
            one[b"readers"],
            _ms(one[b"held-ms"]),
        )
        for answer in answers
        for one in answer
    )
    return sorted(infos, key=lambda info: info.longest_wait, reverse=True)


def _ms(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def _text(value: bytes) -> str | None:
    return value.decode(errors="backslashreplace") if value else None
