# SPDX-License-Identifier: MIT OR Apache-2.0

"""The classes of the synchronous half."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from slock_client._block import Block, Exit, entered
from slock_client._hold import HoldBase
from slock_client._locks import Engine, LocksBase, QuorumBase, RequestBase
from slock_client._threads import Threads
from slock_client._transport import completed, run

P = ParamSpec("P")
R = TypeVar("R")


def _left(_: object, block: Block, kind: object = None, *__: object) -> None:
    run(block.hold._leave, kind is not None)


class Hold(HoldBase):
    """A lock that was granted. It is renewed as long as the program refers to it, and until it is released. All methods
    may be called by several threads at once. `with hold:` is a block that releases it at its end."""

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
            self._claim.alive = block.alive
        return self

    __exit__ = Exit(_left)


class Request(RequestBase[Hold]):
    """What is wanted: keys, a mode and options. It may be used many times, and by several threads at once.

    `with request as hold:` acquires, works and releases. If the hold was lost meanwhile, the block ends with
    `LostError`, unless the work has raised an error. `@request` does the same around each call of a function.
    """

    _hold = Hold
    acquire = completed(RequestBase[Hold]._acquire)
    try_acquire = completed(RequestBase[Hold]._try_acquire)

    def __enter__(self) -> Hold:
        block = entered(self)
        block.hold = Hold(self._locks, run(self._grant), block.alive)
        return block.hold  # type: ignore[no-any-return]

    __exit__ = Exit(_left)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        works_later = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
        if any(one(function) for one in works_later):
            raise TypeError(f"{function.__qualname__} works after its call has returned: use a block in it")

        @wraps(function)
        def under_the_lock(*arguments: P.args, **named: P.kwargs) -> R:
            with self:
                return function(*arguments, **named)

        return under_the_lock


class Locks(LocksBase[Request, Hold]):
    """What a program asks for locks: make one for the program. Threads may share it, and forked children may use it.

    `client` is a `Redis` or `RedisCluster` of redis-py or valkey-py, or a client of Sentinel (`master_for`). It stays
    the program's. The options are those of `LocksOptions`, and the defaults of requests: see `RequestOptions`. It sends
    nothing.
    """

    _request = Request
    _hold = Hold

    def _engine(self) -> Engine:
        pid = os.getpid()
        return self._engines.get(pid) or self._made(pid, Threads)

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    adopt = completed(LocksBase[Request, Hold]._adopt)
    release = completed(LocksBase._release)
    info = completed(LocksBase._info)
    queues = completed(LocksBase._queues)
    close = completed(LocksBase._close)


class Quorum(QuorumBase[Request, Hold], Locks):
    __doc__ = QuorumBase.__doc__
