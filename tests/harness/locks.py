"""The module's commands as Python methods, and a lock's state as a value that can be compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import redis

Bytes = bytes | str


@dataclass(frozen=True)
class Holder:
    token: bytes
    fence: int
    pttl: int
    held_ms: int
    meta: bytes
    client: int | None = None


@dataclass(frozen=True)
class Waiter:
    token: bytes
    mode: str
    waiting_ms: int
    timeout_ms: int
    meta: bytes
    client: int
    limit: int | None = None
    channel: bytes | None = None


@dataclass(frozen=True)
class Info:
    """SLOCK.INFO as a value. `holders` and `queue` are None without FULL.

    `client` of a holder and `limit` and `channel` of a request are None where they are not told.
    """

    mode: str
    readers: int
    waiters: int
    fence: int
    pttl: int
    holders: tuple[Holder, ...] | None = None
    queue: tuple[Waiter, ...] | None = None

    @staticmethod
    def of(reply: Any) -> Info | None:
        """From a RESP2 flat array or a RESP3 map; null is None. An unknown or missing field is an error."""
        if reply is None:
            return None
        fields = as_dict(reply)
        if "holders" in fields:
            holders = (as_dict(item) for item in fields["holders"])
            waiters = (as_dict(item) for item in fields["queue"])
            fields["holders"] = tuple(Holder(**{**one, "meta": one["meta"] or b""}) for one in holders)
            fields["queue"] = tuple(Waiter(**{**one, "mode": one["mode"].decode()}) for one in waiters)
        return Info(**{**fields, "mode": fields["mode"].decode()})


def as_dict(reply: Any) -> dict[str, Any]:
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode().replace("-", "_"): value for name, value in pairs}


class Locks:
    """The commands on one client. `wait=5` and `meta="m"` are the options of those names."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def _call(self, name: str, *args: Any, **options: int | Bytes | None) -> Any:
        given = [(word.upper(), value) for word, value in options.items() if value is not None]
        return self.client.execute_command(f"SLOCK.{name}", *args, *(word for pair in given for word in pair))

    def lock(self, key: Bytes, token: Bytes, ttl: int, **options: int | Bytes | None) -> int:
        return self._call("LOCK", key, token, ttl, **options)

    def rlock(self, key: Bytes, token: Bytes, ttl: int, **options: int | Bytes | None) -> int:
        return self._call("RLOCK", key, token, ttl, **options)

    def unlock(self, key: Bytes, token: Bytes) -> int:
        return self._call("UNLOCK", key, token)

    def runlock(self, key: Bytes, token: Bytes) -> int:
        return self._call("RUNLOCK", key, token)

    def extend(self, key: Bytes, token: Bytes, ttl: int) -> int:
        return self._call("EXTEND", key, token, ttl)

    def pttl(self, key: Bytes, token: Bytes) -> int:
        return self._call("PTTL", key, token)

    def check(self, key: Bytes, fence: int) -> int:
        return self._call("CHECK", key, fence)

    def upgrade(self, key: Bytes, token: Bytes, ttl: int, **options: int | Bytes | None) -> int:
        return self._call("UPGRADE", key, token, ttl, **options)

    def downgrade(self, key: Bytes, token: Bytes, ttl: int) -> int:
        return self._call("DOWNGRADE", key, token, ttl)

    def info(self, key: Bytes) -> Info | None:
        return Info.of(self._call("INFO", key))

    def full(self, key: Bytes, count: int | None = 0) -> Info | None:
        """INFO FULL; all holders unless `count` says otherwise, None for the command's own default."""
        return Info.of(self._call("INFO", key, "FULL", count=count))


@dataclass(frozen=True)
class LockState:
    """What of a lock does not depend on when one looks, so that two servers or two moments can be compared.

    INFO gives deadlines relative to now; the digest and the key's own expiry make them exact.
    """

    mode: str
    holders: tuple[tuple[bytes, int, bytes], ...]
    latest_deadline_ms: int
    digest: str

    def without_expiry(self) -> LockState:
        """For MIGRATE, which sends the key's own expiry as time left: it arrives some milliseconds off."""
        return replace(self, latest_deadline_ms=0)


def digest(client: redis.Redis, key: Bytes) -> str:
    """DEBUG DIGEST-VALUE: forty zeros when there is no such key."""
    (value,) = client.execute_command("DEBUG", "DIGEST-VALUE", key)
    return value.decode() if isinstance(value, bytes) else value


def lock_state(client: redis.Redis, key: Bytes) -> LockState | None:
    """The lock's absolute state, or None when nobody holds it."""
    info = Locks(client).full(key)
    if info is None or not info.holders:
        return None
    holders = tuple(sorted((one.token, one.fence, one.meta) for one in info.holders))
    return LockState(info.mode, holders, client.pexpiretime(key), digest(client, key))
