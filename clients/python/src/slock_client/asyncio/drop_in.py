"""`Lock` in place of redis-py's, in terms of `Locks`. DROP_IN.md has the differences."""

from __future__ import annotations

import math
import threading
import weakref
from datetime import timedelta
from typing import Any, ClassVar, Literal

import redis.asyncio.lock
import redis.exceptions as base

from slock_client._clock import now
from slock_client._commands import WRITE, Command, text_of
from slock_client._durations import LEAST_TTL_MS, whole_ms
from slock_client._fork import track
from slock_client._options import DEFAULT_TTL, Options, Wanted
from slock_client.asyncio import _tasks as io
from slock_client.asyncio._hold import SERVER_DRIFT, Hold
from slock_client.asyncio._locks import Locks
from slock_client.asyncio._shared import Answered
from slock_client.errors import TimedOutError

__all__ = ["Lock"]


class _LocksOfClient(Locks):
    _weak = True


class _LocksOfClients:
    """One `Locks` for each client (in asyncio: and loop), as long as both live."""

    def __init__(self) -> None:
        self._all: weakref.WeakKeyDictionary[Any, dict[object, Locks]] = weakref.WeakKeyDictionary()
        self.after_fork()
        track(self)

    def after_fork(self) -> None:
        self._changing = threading.RLock()

    def of(self, client: Any) -> Locks:
        scope = io.scope()
        with self._changing:
            scopes = self._all.setdefault(client, {})
            for other in [other for other in scopes if io.is_over(other)]:
                del scopes[other]
            if scope not in scopes:
                locks = scopes[scope] = _LocksOfClient(client)
                weakref.finalize(client, io.finish, scope, locks._close_connections).atexit = False
            return scopes[scope]


_locks = _LocksOfClients()


class Owned:
    """What a lock has acquired. When nobody can release it any more, it is not renewed."""

    def __init__(self, hold: Hold) -> None:
        self.hold = hold
        self.releasing = False
        """Whether a release began that was cancelled. What it did is not known."""
        weakref.finalize(self, hold._end).atexit = False


class Owner:
    token: bytes | None = None
    owned: Owned | None = None


class ThreadOwner(threading.local, Owner):
    """The same, for each thread."""


class Lock(redis.asyncio.lock.Lock):
    """A lock of the SLOCK module with the interface of redis-py's, for
    `lock_class=slock_client.asyncio.drop_in.Lock`.

    It holds the lock for writing. Times are numbers of seconds, as in redis-py.

    Its arguments are those of redis-py, and it sends nothing when it is made. `timeout` is how long the lock
    lives without being extended. Without one it is renewed until it is released, or its owner ends. `sleep`
    is not used: the server wakes the one whose turn it is. `blocking` and `blocking_timeout` are the defaults
    of `acquire`. `thread_local`: each thread sees only the lock that it acquired itself; tasks of one thread
    see the same. `raise_on_release_error`: whether it is an error that the lock is no longer owned when a
    block ends. Otherwise it is logged.
    """

    watchdog_ttl: ClassVar[timedelta] = DEFAULT_TTL
    """How long a lock without a `timeout` lives after its last renewal. A subclass may change it."""

    redis: Any
    local: Any

    def register_scripts(self) -> None:
        """The last step of redis-py's `__init__`. The server has the commands, so there are no scripts."""
        self.local = ThreadOwner() if self.thread_local else Owner()

    @property
    def fence(self) -> int | None:
        """Rises with each new hold of the server: send it with every write. None when it is not acquired."""
        return None if self.local.owned is None else int(self.local.owned.hold.fence)

    async def acquire(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, token: Any = None
    ) -> bool:
        """Acquires the lock. `True` when it has it, `False` when another has it and the wait is over.

        With `blocking` it waits in the server's queue for its turn: for at most `blocking_timeout` seconds,
        or without limit. A `blocking_timeout` of 0 or less asks once, as `blocking=False` does.

        `token` identifies the owner: text or bytes, 1 to 255 bytes. By default it is a new one. With the
        token that has the lock already, the answer is `True`.

        A cancellation, or an exception such as `KeyboardInterrupt`, leaves neither a hold nor a request.

        Raises an error of redis-py when the server cannot be reached for 3 seconds before the wait, or
        refuses the command, and `slock_client.ModuleNotLoadedError` when it does not know the command.
        """
        return await self._acquire(blocking, blocking_timeout, token)

    async def do_acquire(self, token: Any) -> bool:
        """Asks once, without waiting. A part of `acquire` in redis-py, for subclasses."""
        return await self._acquire(False, None, token)

    async def _acquire(self, blocking: bool | None, blocking_timeout: float | None, token: Any) -> bool:
        blocking = self.blocking if blocking is None else blocking
        blocking_timeout = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        once = not blocking or (blocking_timeout is not None and blocking_timeout <= 0)
        given = None if token is None else self._encoded(token)
        options = Options(
            ttl=timedelta(milliseconds=max(self._ttl_ms(), LEAST_TTL_MS)),
            wait=None if once or blocking_timeout is None else timedelta(seconds=blocking_timeout),
            renew=not self.timeout,
            token=given,  # type: ignore[arg-type] # bytes: it is sent as it is
        )
        try:
            hold = await _locks.of(self.redis)._acquire(Wanted((self._key,), WRITE, options), once=once)
        except TimedOutError as error:
            if error.answered or error.__cause__ is None:
                return False
            raise error.__cause__ from error
        if hold is None:
            return False
        self.local.token = hold.token.encode() if given is None else given
        self.local.owned = Owned(hold)
        return True

    async def locked(self) -> bool:
        """Whether somebody has the lock."""
        return (await _locks.of(self.redis).info(self._key)).mode != "free"

    async def owned(self) -> bool:
        """Whether this thread has it by this lock. `False` for ever once the watchdog has noticed a loss."""
        token = self.local.token
        if token is None or self._is_lost():
            return False
        left = (await self._ask(("SLOCK.PTTL", self._key, token))).answers[0]
        return int(left) >= 0 and not self._is_lost()

    async def release(self) -> None:
        """Releases the lock. When it is cancelled, it may be called again.

        Raises `LockError` when it has not been acquired, and `LockNotOwnedError` when it is no longer owned.
        """
        if self.local.token is None:
            raise base.LockError("cannot release a lock that has not been acquired", self._text)
        try:
            await self.do_release(self.local.token)
        except Exception:
            self._disown()
            raise

    async def do_release(self, expected_token: Any) -> None:
        """What `release` does after its check."""
        owned: Owned | None = self.local.owned
        was_releasing = owned is not None and owned.releasing
        if owned is None or was_releasing or owned.hold._is_of_another_process:
            answered = await self._ask(("SLOCK.UNLOCK", self._key, expected_token))
            released = bool(answered.answers[0]) or answered.after_unanswered or was_releasing
        else:
            owned.releasing = True
            try:
                released = await owned.hold.release()
            except TimedOutError as error:
                raise error.__cause__ or error from None
        self._disown()
        if not released:
            raise self._not_owned("release")

    async def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        """What `extend` of redis-py does after its checks."""
        ttl_ms = int(additional_time * 1000)
        if not replace_ttl:
            left = (await self._ask(("SLOCK.PTTL", self._key, self.local.token))).answers[0]
            if left < 0:
                raise self._not_owned("extend")
            ttl_ms += left
        return await self._set_ttl(ttl_ms, "extend")

    async def do_reacquire(self) -> Literal[True]:
        """What `reacquire` of redis-py does after its checks."""
        return await self._set_ttl(self._ttl_ms(), "reacquire")

    async def _set_ttl(self, ttl_ms: int, verb: str) -> Literal[True]:
        """As redis-py does it, also to less. A ttl that comes to nothing ends the hold."""
        token, owned, sent = self.local.token, self.local.owned, now()
        lease = None if owned is None else owned.hold._held.lease
        valid_until = math.inf if lease is None else lease.valid_until
        command: Command = ("SLOCK.UNLOCK", self._key, token)
        if ttl_ms >= 1:
            command = ("SLOCK.EXTEND", self._key, token, ttl_ms)
        if lease is not None:
            command += ("FENCE", lease.fence)
            lease.shortened(sent, ttl_ms)
        answered = await self._ask(command)
        done_before = answered.after_unanswered and ttl_ms < 1 and sent < valid_until
        if not answered.answers[0] and not done_before:
            raise self._not_owned(verb)
        if lease is not None:
            lease.valid_until = SERVER_DRIFT.valid_until(answered.sent, ttl_ms)
        return True

    def _is_lost(self) -> bool:
        owned: Owned | None = self.local.owned
        return bool(owned and not self.timeout and not owned.hold._is_of_another_process and owned.hold.lost)

    def _disown(self) -> None:
        self.local.token = self.local.owned = None

    async def _ask(self, command: Command) -> Answered:
        """The answer. A connection error is one of redis-py."""
        try:
            return await _locks.of(self.redis)._ask(self._text, self._key, command)
        except TimedOutError as error:
            raise error.__cause__ or error from None

    def _not_owned(self, verb: str) -> base.LockNotOwnedError:
        return base.LockNotOwnedError(f"cannot {verb} a lock that is no longer owned", self._text)

    def _ttl_ms(self) -> int:
        """The time to live of a hold, cut to whole milliseconds as redis-py does."""
        ttl_ms = int(self.timeout * 1000) if self.timeout else whole_ms(self.watchdog_ttl)
        if ttl_ms < 1:
            raise base.ResponseError(f"{self._text}: the timeout of a lock must be a millisecond at least")
        return ttl_ms

    def _encoded(self, value: Any) -> bytes:
        return bytes(getattr(self.redis, "connection_pool", self.redis).get_encoder().encode(value))

    @property
    def _key(self) -> bytes:
        return self._encoded(self.name)

    @property
    def _text(self) -> str:
        return self.name if isinstance(self.name, str) else text_of(bytes(self.name))
