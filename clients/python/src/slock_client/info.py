# SPDX-License-Identifier: MIT OR Apache-2.0

"""What the server tells of locks: who holds one, who waits for it, and which are waited for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

__all__ = ["Holder", "LockInfo", "Queue", "Waiter"]

T = TypeVar("T")


@dataclass(frozen=True)
class Holder:
    """One who holds a lock. `remaining` and `held` are seconds until its deadline, and since its hold began."""

    token: str = ""
    fence: int = 0
    remaining: float = 0.0
    held: float = 0.0
    metadata: str = ""


@dataclass(frozen=True)
class Waiter:
    """One who waits for a lock, and for how many seconds by now."""

    token: str = ""
    mode: Literal["write", "read", "upgrade"] = "write"
    waiting: float = 0.0
    metadata: str = ""


@dataclass(frozen=True)
class LockInfo:
    """One lock. `fence` is the highest of the holders, `remaining` the seconds until the last one's deadline. Holders
    are in the order in which their holds began, and those who wait in the order in which they will be granted."""

    key: str = ""
    mode: Literal["write", "read", "free"] = "free"
    readers: int = 0
    waiters: int = 0
    fence: int = 0
    remaining: float = 0.0
    holders: tuple[Holder, ...] = ()
    queue: tuple[Waiter, ...] = ()


@dataclass(frozen=True)
class Queue:
    """A lock that is waited for. `writers` of the `waiters` want to write, and `held` is the age of the oldest hold.
    Durations are in seconds."""

    key: str = ""
    waiters: int = 0
    writers: int = 0
    longest_wait: float = 0.0
    mode: Literal["write", "read", "free"] = "free"
    readers: int = 0
    held: float = 0.0


# The server's names of fields, where they are others. Times are in milliseconds.
_NAMES = {
    "remaining": "pttl",
    "held": "held-ms",
    "metadata": "meta",
    "waiting": "waiting-ms",
    "longest_wait": "longest-wait-ms",
}


_LISTS: dict[str, type] = {"holders": Holder, "queue": Waiter}


def _read(kind: type[T], reply: Any) -> T:
    """From a flat array of names and values."""
    said = dict(zip(map(_text, reply[::2]), reply[1::2], strict=True))
    known: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        name = _NAMES.get(field.name, field.name)
        if name in _LISTS:
            known[name] = tuple(_read(_LISTS[name], one) for one in said[name])
        elif name in said:
            value = _text(said[name])
            known[field.name] = value / 1000 if field.type == "float" else value
    return kind(**known)


def _text(value: Any) -> Any:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def info_of(key: str, reply: Any) -> LockInfo:
    return LockInfo(key) if reply is None else replace(_read(LockInfo, reply), key=key)


def queues_of(page: Iterable[Any], prefix: str) -> list[Queue]:
    """Those whose names have the prefix, without it."""
    queues = [_read(Queue, row) for row in page]
    return [replace(one, key=one.key[len(prefix) :]) for one in queues if one.key.startswith(prefix)]
