"""`Lock` in place of redis-py's `redis.asyncio.lock.Lock`. DROP_IN.md has the differences."""

from __future__ import annotations

import asyncio
import weakref
from types import TracebackType
from typing import Any, Literal

import redis.asyncio.lock
import redis.exceptions as base

from slock_client._drop_in import DropIn, Owner, ThreadOwner
from slock_client._locks import LocksRules
from slock_client.asyncio._faces import IO, servers_of
from slock_client.asyncio._listener import Listening
from slock_client.asyncio._tasks import start

__all__ = ["Lock"]

_locks: weakref.WeakKeyDictionary[Any, dict[asyncio.AbstractEventLoop, LocksRules]] = (
    weakref.WeakKeyDictionary()
)


def _locks_of(client: Any) -> LocksRules:
    """One `Locks` for each client and loop, as long as both live."""
    loop = asyncio.get_running_loop()
    loops = _locks.setdefault(client, {})
    for other in [other for other in loops if other.is_closed()]:
        del loops[other]
    if loop not in loops:
        servers = servers_of(client, weak=True)
        loops[loop] = LocksRules(IO, servers, listening=Listening(servers))
        weakref.finalize(client, _close, loop, loops[loop]).atexit = False
    return loops[loop]


def _close(loop: asyncio.AbstractEventLoop, rules: LocksRules) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: start(rules.close(synchronous=False), "slock close"))


class Lock(DropIn, redis.asyncio.lock.Lock):
    """A lock of the SLOCK module with the interface of redis-py's, for
    `lock_class=slock_client.asyncio.drop_in.Lock`.

    It holds the lock for writing. Times are numbers of seconds, as in redis-py.
    """

    redis: Any
    local: Any

    def __init__(
        self,
        redis: Any,
        name: Any,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        """Makes a lock named `name` on the server of the client `redis`. Nothing is sent.

        `timeout` is how long the lock lives without being extended. Without one it is renewed until it is
        released, or its owner ends. `sleep` is not used: the server wakes the one whose turn it is.
        `blocking` and
        `blocking_timeout` are the defaults of `acquire`. `thread_local`: each thread sees only the lock
        that it
        acquired itself; tasks of one thread see the same. `raise_on_release_error`: whether it is an error
        that
        the lock is no longer owned when an `async with` block ends. Otherwise it is logged.
        """
        super().__init__(
            redis, name, timeout, sleep, blocking, blocking_timeout, thread_local, raise_on_release_error
        )
        self.local = ThreadOwner() if self.thread_local else Owner()

    async def __aenter__(self) -> Lock:
        if await self.acquire():
            return self
        raise base.LockError("the lock was not acquired in time", self._text)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leave: Any = super().__aexit__  # redis-py does not say its types
        await leave(kind, error, traceback)

    async def acquire(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, token: Any = None
    ) -> bool:
        """Acquires the lock. `True` when it has it, `False` when another has it and the wait is over.

        With `blocking` it waits in the server's queue for its turn: for at most `blocking_timeout` seconds,
        or without limit. A `blocking_timeout` of 0 or less asks once, as `blocking=False` does.

        `token` identifies the owner: text or bytes, 1 to 255 bytes. By default it is a new one. With the
        token that has the lock already, the answer is `True`.

        A cancellation or another exception leaves neither a hold nor a request in the queue.

        Raises an error of redis-py when the server cannot be reached for 3 seconds before the wait, or
        refuses the command, and `slock_client.ModuleNotLoadedError` when it does not know the command.
        """
        return await self._acquire(blocking, blocking_timeout, token)

    async def do_acquire(self, token: Any) -> bool:
        """Asks once, without waiting. A part of `acquire` in redis-py, for subclasses."""
        return await self._acquire(False, None, token)

    async def locked(self) -> bool:
        """Whether somebody has the lock."""
        return await self._locked()

    async def owned(self) -> bool:
        """Whether this thread has it by this lock. `False` for ever once the watchdog has noticed a loss."""
        return await self._owned()

    async def release(self) -> None:
        """Releases the lock. When it is cancelled, it may be called again.

        Raises `LockError` when it has not been acquired, and `LockNotOwnedError` when it is no longer owned.
        """
        self._check_acquired()
        try:
            await self.do_release(self.local.token)
        except Exception:
            self.local.disown()
            raise

    async def do_release(self, expected_token: Any) -> None:
        """What `release` does after its check."""
        await self._release(expected_token)

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Adds `additional_time` seconds to the life of the lock. With `replace_ttl` it ends in so many.

        Raises `LockError` when the lock has not been acquired or has no `timeout`, and `LockNotOwnedError`
        when it is no longer owned.
        """
        self._check_extensible("extend")
        return await self.do_extend(additional_time, replace_ttl)

    async def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        """What `extend` does after its checks."""
        await self._extend(additional_time, replace_ttl)
        return True

    async def reacquire(self) -> Literal[True]:
        """Lets the lock live for `timeout` seconds from now on. Raises what `extend` raises."""
        self._check_extensible("reacquire")
        return await self.do_reacquire()

    async def do_reacquire(self) -> Literal[True]:
        """What `reacquire` does after its checks."""
        await self._set_ttl(self._ttl_ms(), "reacquire")
        return True

    def _rules(self) -> LocksRules:
        return _locks_of(self.redis)

    def _encoded(self, value: Any) -> bytes:
        return bytes(getattr(self.redis, "connection_pool", self.redis).get_encoder().encode(value))
