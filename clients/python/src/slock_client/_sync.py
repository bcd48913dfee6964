"""The classes of the synchronous half."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from slock_client._block import Block, Exit, entered
from slock_client._hold import HoldBase
from slock_client._locks import Engine, LocksBase, QuorumBase, RequestBase
from slock_client._options import HoldOptions, Mode
from slock_client._threads import Threads
from slock_client._transport import completed, run
from slock_client.errors import NotHeldError

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
R = TypeVar("R")


def _left(_: object, block: Block, kind: object = None, *__: object) -> None:
    run(block.hold._leave, kind is not None)


class Hold(HoldBase):
    """A lock that was granted. It is renewed as long as the program refers to it, and until it is released. All methods
    may be called by several threads at once. `with hold:` is a block that releases it at its end."""

    __slots__ = ("_blocks",)

    release = completed(HoldBase._release)
    extend = completed(HoldBase._extend)
    upgrade = completed(HoldBase._upgrade)
    downgrade = completed(HoldBase._downgrade)
    wait_lost = completed(HoldBase._wait_lost)

    def __enter__(self) -> Hold:
        self._blocks: list[Block] = []
        block = entered(self)
        block.hold = self
        if block.alive is not None:
            self._lease.alive = block.alive
        return self

    __exit__ = Exit(_left)


class Request(RequestBase):
    """What is wanted: keys, a mode and options. It may be used many times, and by several threads at once.

    `with request as hold:` acquires, works and releases. If the hold was lost meanwhile, the block ends with
    `LostError`, unless the work has raised an error. `@request` does the same around each call of a function.
    """

    def acquire(self) -> Hold:
        """Waits until the lock is granted, at most for `wait`. Raises `TimedOutError` if others had it until then, and
        `NoAnswerError` if no reply came: for `retry_for` if there never was one, else for `retry_wait_for`. If it
        fails, it leaves neither a hold nor a place in the queue."""
        return Hold(self._locks, run(self._acquire))

    def try_acquire(self) -> Hold | None:
        """Sends the request once. `None` if others hold the lock or wait for it."""
        lease = run(self._acquire, True)
        return None if lease is None else Hold(self._locks, lease)

    def __enter__(self) -> Hold:
        block = entered(self)
        block.hold = Hold(self._locks, run(self._acquire), block.alive)
        return block.hold  # type: ignore[no-any-return]

    __exit__ = Exit(_left)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError(f"{function.__qualname__} works after its call has returned: use a block in it")

        @wraps(function)
        def under_the_lock(*arguments: P.args, **named: P.kwargs) -> R:
            with self:
                return function(*arguments, **named)

        return under_the_lock


class Locks(LocksBase[Request]):
    """What a program asks for locks: make one for the program. Threads may share it, and forked children may use it.

    `client` is a `Redis` or `RedisCluster` of redis-py or valkey-py, or a client of Sentinel (`master_for`). It stays
    the program's. The options are those of `LocksOptions`, and the defaults of requests: see `RequestOptions`. It sends
    nothing.
    """

    _request = Request

    def _engine(self) -> Engine:
        pid = os.getpid()
        return self._engines.get(pid) or self._made(pid, Threads)

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def adopt(
        self, keys: str | Iterable[str], token: str, mode: Mode = "write", **options: Unpack[HoldOptions]
    ) -> Hold:
        """Makes a hold of an owner token that another process took and detached, and renews it from now on. Raises
        `NotHeldError` if the token does not hold all keys in the mode."""
        return Hold(self, run(self._adopt, keys, token, mode, options))

    release = completed(LocksBase._release)
    info = completed(LocksBase._info)
    queues = completed(LocksBase._queues)

    def close(self, release: bool = False) -> None:
        """Ends the waits and the renewals. They, and all later calls except `Hold.release`, raise `ClosedError`.

        Holds are lost at the end of their ttl, and may still be released. With `release` all of this process are
        released now. What is on its way is waited for, for at most the time of `retry_for`.
        """
        engine = self._engine()
        if release:
            for lease in list(engine.watchdog.holds):
                with contextlib.suppress(NotHeldError):
                    Hold(self, lease).release()
        self._begin_close()
        run(engine.close)


class Quorum(QuorumBase[Request], Locks):
    __doc__ = QuorumBase.__doc__
