"""The module's commands as Python methods, and a lock's state as a value that can be compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import redis

Bytes = bytes | str

NO_DIGEST = "0" * 40


@dataclass(frozen=True)
class Holder:
    token: bytes
    fence: int
    pttl: int
    held_ms: int
    meta: bytes


@dataclass(frozen=True)
class Waiter:
    token: bytes
    mode: str
    waiting_ms: int
    timeout_ms: int


@dataclass(frozen=True)
class Info:
    """SLOCK.INFO as a value. `holders` and `queue` are None without FULL."""

    mode: str
    readers: int
    waiters: int
    fence: int
    pttl: int
    holders: tuple[Holder, ...] | None
    queue: tuple[Waiter, ...] | None

    @staticmethod
    def of(reply: Any) -> Info | None:
        """From a RESP2 flat array or a RESP3 map; null is None. An unknown or missing field is an error."""
        if reply is None:
            return None
        fields = as_dict(reply)
        full = "holders" in fields or "queue" in fields
        return Info(
            mode=fields.pop("mode").decode(),
            holders=tuple(_holder(item) for item in fields.pop("holders")) if full else None,
            queue=tuple(_waiter(item) for item in fields.pop("queue")) if full else None,
            **fields,
        )


def as_dict(reply: Any) -> dict[str, Any]:
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode().replace("-", "_"): value for name, value in pairs}


def _holder(reply: Any) -> Holder:
    fields = as_dict(reply)
    return Holder(**{**fields, "meta": fields["meta"] or b""})


def _waiter(reply: Any) -> Waiter:
    fields = as_dict(reply)
    return Waiter(**{**fields, "mode": fields["mode"].decode()})


class Locks:
    """The commands on one client. Optional parts are keywords, in the order of the command's syntax."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def _call(self, name: str, *args: Any, wait: int | None = None, meta: Bytes | None = None) -> Any:
        options: list[Any] = []
        if wait is not None:
            options += ["WAIT", wait]
        if meta is not None:
            options += ["META", meta]
        return self.client.execute_command(f"SLOCK.{name}", *args, *options)

    def lock(
        self, key: Bytes, token: Bytes, ttl: int, *, wait: int | None = None, meta: Bytes | None = None
    ) -> int:
        return self._call("LOCK", key, token, ttl, wait=wait, meta=meta)

    def rlock(
        self, key: Bytes, token: Bytes, ttl: int, *, wait: int | None = None, meta: Bytes | None = None
    ) -> int:
        return self._call("RLOCK", key, token, ttl, wait=wait, meta=meta)

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

    def upgrade(self, key: Bytes, token: Bytes, ttl: int, *, wait: int | None = None) -> int:
        return self._call("UPGRADE", key, token, ttl, wait=wait)

    def downgrade(self, key: Bytes, token: Bytes, ttl: int) -> int:
        return self._call("DOWNGRADE", key, token, ttl)

    def info(self, key: Bytes) -> Info | None:
        return Info.of(self._call("INFO", key))

    def full(self, key: Bytes, count: int | None = 0) -> Info | None:
        """INFO FULL; all holders unless `count` says otherwise, None for the command's own default."""
        return Info.of(self._call("INFO", key, "FULL", *(() if count is None else ("COUNT", count))))


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
    return LockState(
        mode=info.mode,
        holders=tuple(sorted((h.token, h.fence, h.meta) for h in info.holders)),
        latest_deadline_ms=client.pexpiretime(key),
        digest=digest(client, key),
    )
