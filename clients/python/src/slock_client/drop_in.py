"""`Lock` in place of redis-py's `redis.lock.Lock`. DROP_IN.md has the differences."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Literal

import redis.lock

from slock_client._drop_in import DropIn, Owner, ThreadOwner
from slock_client._fork import track
from slock_client._io import finish
from slock_client._locks import LocksRules
from slock_client._sync import IO, servers_of

__all__ = ["Lock"]


class _LocksOfClients:
    """One `Locks` for each client, as long as the client lives."""

    def __init__(self) -> None:
        self._all: weakref.WeakKeyDictionary[Any, LocksRules] = weakref.WeakKeyDictionary()
        self.after_fork()
        track(self)

    def after_fork(self) -> None:
        self._changing = threading.RLock()

    def of(self, client: Any) -> LocksRules:
        with self._changing:
            rules = self._all.get(client)
            if rules is None:
                rules = self._all[client] = LocksRules(IO, servers_of(client, weak=True))
                weakref.finalize(client, _close, rules).atexit = False
            return rules


def _close(rules: LocksRules) -> None:
    for link in rules.shared.servers.links():
        finish(link.close())


_locks = _LocksOfClients()


class Lock(DropIn, redis.lock.Lock):
    """A lock of the SLOCK module with the interface of redis-py's, for
    `lock_class=slock_client.drop_in.Lock`.

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
        acquired itself. `raise_on_release_error`: whether it is an error that the lock is no longer owned
        when a
        `with` block ends. Otherwise it is logged.
        """
        super().__init__(
            redis, name, timeout, sleep, blocking, blocking_timeout, thread_local, raise_on_release_error
        )
        self.local = ThreadOwner() if self.thread_local else Owner()

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: Any = None,
    ) -> bool:
        """Acquires the lock. `True` when it has it, `False` when another has it and the wait is over.

        With `blocking` it waits in the server's queue for its turn: for at most `blocking_timeout` seconds,
        or without limit. A `blocking_timeout` of 0 or less asks once, as `blocking=False` does.

        `token` identifies the owner: text or bytes, 1 to 255 bytes. By default it is a new one. With the
        token that has the lock already, the answer is `True`.

        An exception, such as `KeyboardInterrupt`, leaves neither a hold nor a request in the queue.

        Raises an error of redis-py when the server cannot be reached for 3 seconds before the wait, or
        refuses the command, and `slock_client.ModuleNotLoadedError` when it does not know the command.
        """
        return finish(self._acquire(blocking, blocking_timeout, token))

    def do_acquire(self, token: Any) -> bool:
        """Asks once, without waiting. A part of `acquire` in redis-py, for subclasses."""
        return finish(self._acquire(False, None, token))

    def locked(self) -> bool:
        """Whether somebody has the lock."""
        return finish(self._locked())

    def owned(self) -> bool:
        """Whether this thread has it by this lock. `False` for ever once the watchdog has noticed a loss."""
        return finish(self._owned())

    def release(self) -> None:
        """Releases the lock.

        Raises `LockError` when it has not been acquired, and `LockNotOwnedError` when it is no longer owned.
        """
        self._check_acquired()
        try:
            self.do_release(self.local.token)
        finally:
            self.local.disown()

    def do_release(self, expected_token: Any) -> None:
        """What `release` does after its check."""
        finish(self._release(expected_token))

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Adds `additional_time` seconds to the life of the lock. With `replace_ttl` it ends in so many.

        Raises `LockError` when the lock has not been acquired or has no `timeout`, and `LockNotOwnedError`
        when it is no longer owned.
        """
        self._check_extensible("extend")
        return self.do_extend(additional_time, replace_ttl)

    def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        """What `extend` does after its checks."""
        finish(self._extend(additional_time, replace_ttl))
        return True

    def reacquire(self) -> Literal[True]:
        """Lets the lock live for `timeout` seconds from now on. Raises what `extend` raises."""
        self._check_extensible("reacquire")
        return self.do_reacquire()

    def do_reacquire(self) -> Literal[True]:
        """What `reacquire` does after its checks."""
        finish(self._set_ttl(self._ttl_ms(), "reacquire"))
        return True

    def _rules(self) -> LocksRules:
        return _locks.of(self.redis)

    def _encoded(self, value: Any) -> bytes:
        return bytes(self.redis.get_encoder().encode(value))
