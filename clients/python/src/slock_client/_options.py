"""The options of a request and of `Locks`, their defaults and checks. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, TypedDict

from slock_client._commands import READ, WRITE, Key, names_of, new_token, text_of
from slock_client._durations import positive, seconds_of, ttl_ms

DEFAULT_TTL = timedelta(seconds=10)
DEFAULT_REPLICA_TIMEOUT = timedelta(seconds=1)


class HoldOptions(TypedDict, total=False):
    """The options of a hold. Those that are absent are as `Locks` has them.

    - `ttl`: how long the hold lives without a renewal, at least 2 ms. By default 10 s.
    - `renew`: whether the hold is renewed, after a third of its ttl each time. By default it is.
    - `longest_lease`: the hold is renewed no longer than this after the grant, and is lost then. By default
      it is renewed until it is released, or the process ends.
    - `label`: the name under which hooks and errors report the hold. By default the first key.
    - `on_lost`: a function that is called with the hold when it is lost. It must not block. It is an ordinary
      function, also in asyncio.
    """

    ttl: timedelta
    renew: bool
    longest_lease: timedelta
    label: str
    on_lost: Callable[[Any], object]


class RequestOptions(HoldOptions, total=False):
    """The options of a request. Those that are absent are as `Locks` has them. Durations are `timedelta`.

    - `ttl`: how long the hold lives without a renewal, at least 2 ms. By default 10 s.
    - `renew`: whether the hold is renewed, after a third of its ttl each time. By default it is.
    - `longest_lease`: the hold is renewed no longer than this after the grant, and is lost then. By default
      it is renewed until it is released, or the process ends.
    - `label`: the name under which hooks and errors report the hold. By default the first key.
    - `on_lost`: a function that is called with the hold when it is lost. It must not block. It is an ordinary
      function, also in asyncio.
    - `wait`: how long `acquire` waits at most; None: until the lock is granted; zero: it asks once.
    - `metadata`: text that `SLOCK.INFO key FULL` shows beside the hold and the request.
    - `token`: the owner's identity, for a hold that is to be handed over to a process that knows it
      beforehand. By default each acquisition has one of its own, of 128 random bits. Two acquisitions of one
      key by one given token are the program's own affair.
    - `min_replicas`: the hold counts only when so many replicas have it. By default 0. Not for a quorum.
    - `replica_timeout`: how long they have time for that. By default 1 s.
    """

    wait: timedelta | None
    metadata: str
    token: str
    min_replicas: int
    replica_timeout: timedelta


class ReadOptions(RequestOptions, total=False):
    """The options of a request to read: those of `RequestOptions`, and:

    - `limit`: at most so many readers at once. By default any number.
    """

    limit: int


@dataclass(frozen=True)
class Options:
    """The options of a request, all of them. `RequestOptions` says what they mean."""

    ttl: timedelta = DEFAULT_TTL
    wait: timedelta | None = None
    limit: int | None = None
    metadata: str | None = None
    renew: bool = True
    longest_lease: timedelta | None = None
    token: str | None = None
    min_replicas: int = 0
    replica_timeout: timedelta = DEFAULT_REPLICA_TIMEOUT
    label: str | None = None
    on_lost: Callable[[Any], object] | None = None

    def __post_init__(self) -> None:
        ttl_ms(self.ttl)
        seconds_of("wait", self.wait)
        if self.longest_lease is not None:
            positive("longest_lease", self.longest_lease)
        positive("replica_timeout", self.replica_timeout)
        if self.limit is not None and self.limit < 1:
            raise ValueError("limit must be above zero")
        if self.min_replicas < 0:
            raise ValueError("min_replicas must not be negative")
        if self.on_lost is not None and not callable(self.on_lost):
            raise TypeError("on_lost must be a function")
        if is_async(self.on_lost):
            raise TypeError("on_lost must be an ordinary function, not a coroutine function")

    @cached_property
    def ttl_ms(self) -> int:
        return ttl_ms(self.ttl)

    def changed(self, **options: Any) -> Options:
        """These options with others in their place. An unknown name is a `TypeError`."""
        return replace(self, **options) if options else self


@dataclass(frozen=True)
class Wanted:
    """The keys, the mode and the options of a request."""

    keys: tuple[Key, ...]
    mode: str
    options: Options

    def __post_init__(self) -> None:
        if not self.keys:
            raise ValueError("a request needs a key")
        for key in self.keys:
            if not isinstance(key, (str, bytes)):
                raise TypeError(
                    f"a key must be text or bytes, not {type(key).__name__}: "
                    "give each key as an argument of its own"
                )
        if len(set(self.keys)) != len(self.keys):
            raise ValueError("a key is named twice")
        if self.mode not in (WRITE, READ):
            raise ValueError("mode must be 'write' or 'read'")
        if self.options.limit is not None and self.mode == WRITE:
            raise ValueError("limit is for reading")

    @cached_property
    def names(self) -> str:
        """The keys, for people to read."""
        return names_of(self.keys)

    @property
    def given(self) -> bool:
        """Whether the program gave the token."""
        return self.options.token is not None

    @cached_property
    def label(self) -> str:
        return text_of(self.keys[0]) if self.options.label is None else self.options.label

    def new_token(self) -> str:
        """The token of one use of the request."""
        return self.options.token if self.options.token is not None else new_token()


def is_async(function: object) -> bool:
    """Whether it is a coroutine function, or an object that is called like one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004
    )


def keys_of(keys: Key | Sequence[Key]) -> tuple[Key, ...]:
    """One key or several, as a tuple."""
    return (keys,) if isinstance(keys, (str, bytes)) else tuple(keys)
