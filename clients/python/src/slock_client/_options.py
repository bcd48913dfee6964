"""The options of requests, their defaults, and the checks before anything is sent."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Literal, TypedDict

Mode = Literal["write", "read"]
Duration = float | timedelta

LEAST_TTL = 0.002  # A hold counts as valid for a little more than 1 ms less than its ttl.


class HoldOptions(TypedDict, total=False):
    """Those of `RequestOptions` that a hold has after its grant."""

    ttl: Duration
    metadata: str
    renew: bool
    max_hold: Duration | None
    at_least: Duration
    min_replicas: int
    replica_timeout: Duration
    label: str


class RequestOptions(HoldOptions, total=False):
    """Durations are seconds, or a `timedelta`.

    - `ttl`: how long a hold lives without a renewal, at least 2 ms. The server counts in milliseconds. Default: 10 s.
    - `wait`: how long `acquire` waits at most. Without it, until the lock is granted. Zero sends the request once.
    - `metadata`: a text of at most 1024 bytes that `SLOCK.INFO key FULL` shows with the hold and while it waits. The
      default names the host, the process, and the thread or task.
    - `renew`: whether the hold is renewed until it is released. Default: true.
    - `max_hold`: the maximum hold time. Renewals and extensions cannot exceed it.
    - `at_least`: the lock stays for so long after the grant, even if it is released earlier. It is for jobs that start
      on several machines whose clocks differ, and must run once.
    - `token`: the owner token, of 1 to 255 bytes. Without it each acquisition draws 128 random bits. Give all locks of
      one task the same token, and the server refuses a wait that would be a deadlock. Two acquisitions of one key by
      one token are one hold for the server. If a command without a reply arrives late, it may take the lock again for
      its ttl: with a drawn token, the server refuses it.
    - `min_replicas`, `replica_timeout`: a hold counts only if so many replicas acknowledge it within the timeout, at
      the grant and at each renewal. Default: 0 and 1 s. A quorum ignores them.
    - `label`: the name of the request for hooks and the log. Default: the first key.
    """

    wait: Duration | None
    token: str | None


class ReadOptions(RequestOptions, total=False):
    """Of a request for reading, also `limit`: at most so many readers at once, a semaphore. Give all requests for a key
    the same limit."""

    limit: int


def seconds(value: Duration, name: str) -> float:
    """A duration in seconds. Raises `TypeError` or `ValueError`."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds or a timedelta, not {value!r}")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a finite duration of 0 or more, not {value!r}")
    return float(value)


@dataclass(frozen=True)
class Options:
    """The options of a request. Durations are in seconds."""

    ttl: float = 10.0
    wait: float | None = None
    metadata: str | None = None
    renew: bool = True
    max_hold: float | None = None
    at_least: float = 0.0
    token: str | None = None
    min_replicas: int = 0
    replica_timeout: float = 1.0
    label: str | None = None
    limit: int | None = None

    def change(self, options: dict[str, Any]) -> Options:
        """These options with others in their place, all checked."""
        if not options:
            return self
        for name in ("ttl", "wait", "max_hold", "at_least", "replica_timeout"):
            if options.get(name) is not None:
                options[name] = seconds(options[name], name)
        changed = Options(**{**self.__dict__, **options})
        changed._check()
        return changed

    def _check(self) -> None:
        check_ttl(self.ttl)
        if self.metadata is not None and len(self.metadata.encode()) > 1024:
            raise ValueError(f"the metadata must have at most 1024 bytes, not {len(self.metadata.encode())}")
        if self.token is not None and not 1 <= len(self.token.encode("utf-8", "surrogateescape")) <= 255:
            raise ValueError(f"the owner token must have 1 to 255 bytes, not {self.token!r}")
        if self.min_replicas < 0:
            raise ValueError(f"min_replicas must be 0 or more, not {self.min_replicas}")
        if self.limit is not None and not 1 <= self.limit < 2**31:
            raise ValueError(f"the limit must be 1 to {2**31 - 1}, not {self.limit}")


def check_ttl(ttl: float) -> None:
    if ttl < LEAST_TTL:
        raise ValueError(f"the ttl must be 2 ms or more, not {ttl:g} s")


def check_keys(keys: tuple[str, ...]) -> None:
    for key in keys:
        if not isinstance(key, str):
            raise TypeError(f"a key must be a str, not {key!r}")
    if not 1 <= len(keys) <= 1024 or "" in keys:
        raise ValueError(f"a request needs 1 to 1024 keys, none of them empty, not {keys!r}")


def own_name() -> str:
    """The metadata of a request that has none: where an operator finds the owner. It may change in a forked child."""
    task = None if asyncio._get_running_loop() is None else asyncio.current_task()
    name = threading.current_thread().name if task is None else task.get_name()
    return f"{_process(os.getpid())} task={name}"[:256]


@cache
def _process(pid: int) -> str:
    return f"host={socket.gethostname()} pid={pid}"
