"""The options of a request."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, TypedDict

from slock._commands import READ, WRITE, Key
from slock._time import not_negative, positive, whole_ms

DEFAULT_TTL = timedelta(seconds=10)
DEFAULT_REPLICA_TIMEOUT = timedelta(seconds=1)
DEFAULT_RETRY_FOR = timedelta(seconds=3)


class HoldOptions(TypedDict, total=False):
    """The options of a hold. Those that are absent are as `Locks` has them."""

    ttl: timedelta
    """How long the hold lives without a renewal."""
    renew: bool
    """Whether the hold is renewed."""
    longest_lease: timedelta
    """The hold is renewed no longer than this after the grant, and is lost then."""
    label: str
    """The name under which hooks and errors report the hold. Without one it is the first key."""
    on_lost: Callable[[Any], object]
    """Called with the hold when it is lost. It must not block."""


class RequestOptions(HoldOptions, total=False):
    """The options of a request."""

    wait: timedelta | None
    """How long `acquire` waits at most; None: until the lock is granted; zero: it asks once."""
    metadata: str
    """Text that `SLOCK.INFO key FULL` shows beside the hold and the request."""
    token: str
    """The owner's identity. Without one each use of the request takes 128 random bits."""
    min_replicas: int
    """The hold counts only when so many replicas have it."""
    replica_timeout: timedelta
    """How long they have time for that."""


class ReadOptions(RequestOptions, total=False):
    """The options of a request to read."""

    limit: int
    """At most so many readers at once."""


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
        positive("ttl", self.ttl)
        if self.wait is not None:
            not_negative("wait", self.wait)
        if self.longest_lease is not None:
            positive("longest_lease", self.longest_lease)
        positive("replica_timeout", self.replica_timeout)
        if self.limit is not None and self.limit < 1:
            raise ValueError("limit must be above zero")
        if self.min_replicas < 0:
            raise ValueError("min_replicas must not be negative")

    @cached_property
    def ttl_ms(self) -> int:
        return whole_ms(self.ttl)

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
        if not all(isinstance(key, (str, bytes)) for key in self.keys):
            raise TypeError("a key must be text or bytes")
        if len(set(self.keys)) != len(self.keys):
            raise ValueError("a key is named twice")
        if self.mode not in (WRITE, READ):
            raise ValueError("mode must be 'write' or 'read'")
        if self.options.limit is not None and self.mode == WRITE:
            raise ValueError("limit is for reading")

    @cached_property
    def label(self) -> str:
        if self.options.label is not None:
            return self.options.label
        return label_of(self.keys)

    def new_token(self) -> str:
        """The token of one use of the request."""
        return self.options.token if self.options.token is not None else secrets.token_hex(16)


def label_of(keys: tuple[Key, ...]) -> str:
    """The first key as text."""
    return keys[0] if isinstance(keys[0], str) else keys[0].decode(errors="backslashreplace")


def names_of(keys: Key | Sequence[Key]) -> tuple[Key, ...]:
    """One key or several, as a tuple."""
    return (keys,) if isinstance(keys, (str, bytes)) else tuple(keys)
