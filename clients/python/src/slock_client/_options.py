# SPDX-License-Identifier: MIT OR Apache-2.0

"""The options of requests and of `Locks`, their defaults, and the checks before anything is sent."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, Literal, TypedDict

from slock_client.hooks import Hooks

Mode = Literal["write", "read"]
Duration = float | timedelta
# The pause in seconds before the further attempt with this number, counted from 0. `None`: there is none.
Strategy = Callable[[int], float | None]

_LEAST_RETRY = 0.5  # seconds for one attempt. Less would make each busy lock an outage, or poll without a pause.
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
    - `wait`: how long `acquire` waits at most. Without it, until the lock is granted. Less than 1 ms sends the
      request once.
    - `metadata`: a text of at most 1024 bytes that `SLOCK.INFO key FULL` shows with the hold and while it waits. The
      default names the host, the process, and the thread or task.
    - `renew`: whether the hold is renewed until it is released. Default: true.
    - `max_hold`: the maximum hold time, above 0. Renewals and extensions cannot exceed it.
    - `at_least`: the lock stays for so long after the grant, even if it is released earlier. It is for jobs that start
      on several machines whose clocks differ, and must run once. At most the server's `slock.max-ttl-ms`: checked
      before the lock is asked for.
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


class LocksOptions(RequestOptions, total=False):
    """Of `Locks`, and the defaults of its requests.

    - `prefix` is put before each key that is sent, and taken off in `info` and `queues`.
    - `retry_for`: how long a call goes on while no reply comes at all. Default: 3 s. Less than 0.5 s counts as that.
    - `retry_wait_for`: how long a request that waits survives an outage. Default: 60 s. Less than 0.5 s counts as that.
    - `hooks`: see `Hooks`.
    """

    prefix: str
    retry_for: Duration
    retry_wait_for: Duration
    hooks: Hooks


class QuorumOptions(LocksOptions, total=False):
    """Of a `Quorum`.

    - `poll` gives the pause before each further attempt. Default: random pauses of 10 to 250 ms.
    - `node_timeout`: how long it waits for one node. Default: a twentieth of the ttl, at least 50 ms and at most
      `retry_for`; always less than the ttl.
    - `drift_factor`: the part of the ttl that does not count, because clocks run at different speeds. Default: 0.01.
    - `fail_fast`: whether an attempt ends as soon as the majority is out of reach.
    """

    poll: Strategy
    node_timeout: Duration | None
    drift_factor: float
    fail_fast: bool


def exponential(first: float, most: float, attempt: int) -> float:
    """A pause that doubles up to `most`. It is shortened by a random part of up to a half, so that contenders do not
    try in step."""
    return min(first * 2.0 ** min(attempt, 30), most) * random.uniform(0.5, 1)


def seconds(value: Duration, name: str) -> float:
    """A duration in seconds. Raises `TypeError` or `ValueError`."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds or a timedelta, not {value!r}")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a finite duration of 0 or more, not {value!r}")
    return float(value)


@dataclass
class Options:
    """The options of a request and of its `Locks`. Durations are in seconds. None is changed in place."""

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
    prefix: str = ""
    retry_for: float = 3.0
    retry_wait_for: float = 60.0
    hooks: Hooks = Hooks()  # noqa: RUF009 -- it is frozen
    poll: Strategy = lambda attempt: exponential(0.02, 0.25, attempt)
    node_timeout: float | None = None
    drift_factor: float = 0.001  # without a quorum: a clock that is slewed runs up to 500 ppm fast, on both sides
    fail_fast: bool = False
    is_quorum: bool = False
    closing: threading.Event = field(default_factory=threading.Event)  # waits and renewals of the `Locks` end

    def change(self, given: Mapping[str, Any], kind: Any = RequestOptions) -> Options:
        """These options with others of a kind in their place, all checked."""
        if not given:
            return self
        for name in given.keys() - kind.__optional_keys__:
            raise TypeError(f"there is no option {name!r}")
        changed = Options(**{**vars(self), **given})
        for name, value in given.items():
            if value is None and name in _NONE:
                continue
            if name in _DURATIONS:
                least = _LEAST_RETRY if name.startswith("retry_") else 0.0
                setattr(changed, name, max(least, seconds(value, name)))
            elif not isinstance(value, _KINDS.get(name, object)):
                raise TypeError(f"{name} must be of the type {_KINDS[name].__name__}, not {value!r}")
        changed._check()
        return changed

    @property
    def is_once(self) -> bool:
        """Whether `acquire` sends the request once. The server has no shorter wait than a millisecond."""
        return self.wait is not None and self.wait < 0.001

    def counted(self, ttl: float) -> float:
        """The part of a ttl that counts for the validity. The server counts in milliseconds."""
        return ttl - ttl * self.drift_factor - (0.002 if self.is_quorum else 0.001)

    def check_ttl(self, ttl: float) -> None:
        if ttl < LEAST_TTL or self.counted(ttl) <= 0:
            raise ValueError(f"the ttl must be 2 ms or more, and above the drift, not {ttl:g} s")

    def _check(self) -> None:
        self.check_ttl(self.ttl)
        if self.max_hold == 0:
            raise ValueError("max_hold must be above 0")
        if self.metadata is not None and len(self.metadata.encode()) > 1024:
            raise ValueError(f"the metadata must have at most 1024 bytes, not {len(self.metadata.encode())}")
        if self.token is not None and not 1 <= len(self.token.encode("utf-8", "surrogateescape")) <= 255:
            raise ValueError(f"the owner token must have 1 to 255 bytes, not {self.token!r}")
        if self.min_replicas < 0:
            raise ValueError(f"min_replicas must be 0 or more, not {self.min_replicas}")
        if self.limit is not None and not 1 <= self.limit < 2**31:
            raise ValueError(f"the limit must be 1 to {2**31 - 1}, not {self.limit}")
        if not 0 <= self.drift_factor < 1:
            raise ValueError(f"the drift factor must be at least 0 and less than 1, not {self.drift_factor}")


_DURATIONS = {"ttl", "wait", "max_hold", "at_least", "replica_timeout", "retry_for", "retry_wait_for", "node_timeout"}
_KINDS: dict[str, type] = {
    **dict.fromkeys(("metadata", "token", "label", "prefix"), str),
    **dict.fromkeys(("min_replicas", "limit"), int),
    **dict.fromkeys(("renew", "fail_fast"), bool),
    "hooks": Hooks,
}
_NONE = {"wait", "max_hold", "node_timeout", "metadata", "token", "label", "limit"}  # may be `None`


def check_keys(keys: tuple[str, ...]) -> None:
    for key in keys:
        if not isinstance(key, str):
            raise TypeError(f"a key must be a str, not {key!r}")
    if not 1 <= len(keys) <= 1024 or "" in keys:
        raise ValueError(f"a request needs 1 to 1024 keys, none of them empty, not {keys!r}")


def own_name() -> str:
    """The metadata of a request that has none: where an operator finds the owner. It may change in a forked child."""
    task = current_task()
    name = threading.current_thread().name if task is None else task.get_name()
    return f"{_process(os.getpid())} task={name}"[:256]


def current_task() -> asyncio.Task[Any] | None:
    return None if asyncio._get_running_loop() is None else asyncio.current_task()


@cache
def _process(pid: int) -> str:
    return f"host={socket.gethostname()} pid={pid}"
