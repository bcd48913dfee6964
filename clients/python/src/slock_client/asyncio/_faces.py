"""`Locks`, `Quorum`, their requests and holds for asyncio. The rules are elsewhere: this awaits them."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

import redis.asyncio

from slock_client._commands import READ, WRITE, Key
from slock_client._face import HoldFace, RequestFace, Requesting
from slock_client._hold import HoldRules, ServerHold
from slock_client._locks import LocksRules, strategy_of
from slock_client._options import (
    DEFAULT_RETRY_FOR,
    DEFAULT_RETRY_WAIT_FOR,
    HoldOptions,
    Wanted,
    is_async,
    keys_of,
)
from slock_client._quorum import DEFAULT_DRIFT_FACTOR, DEFAULT_POLL, QuorumRules
from slock_client._quorum import QuorumHold as QuorumHoldRules
from slock_client._recipe import Recipe, recipe, recipe_of
from slock_client._servers import ClusterServers, OneServer, SentinelServers, Servers
from slock_client._slots import Address
from slock_client._watchdog import Watchdog
from slock_client.asyncio._guard import Guard
from slock_client.asyncio._listener import Listening
from slock_client.asyncio._tasks import Tasks
from slock_client.errors import LostError
from slock_client.hooks import Hooks
from slock_client.polling import Strategy
from slock_client.status import LockInfo, QueueInfo

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from slock_client._options import ReadOptions, RequestOptions

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=HoldRules)
H = TypeVar("H", bound="AnyHold[Any]")
H_co = TypeVar("H_co", bound="AnyHold[Any]", covariant=True)

IO = Tasks()


class AnyHold(HoldFace[R]):
    """A hold of one server or of a quorum."""

    def __init__(self, rules: R) -> None:
        super().__init__(rules)
        self._guards: list[Guard] = []

    async def release(self) -> bool:
        """Releases the hold, and tells whether it was still there. A second call changes nothing and gives
        False.

        It ends within a second after `retry_for`: with `TimedOutError` when the server did not answer. The
        lock
        ends by its ttl then.
        """
        return await self._rules.release()

    async def extend(self, ttl: timedelta | None = None) -> None:
        """Makes the hold valid for `ttl` from now on, without an argument for its present ttl. It never
        shortens.

        `LostError` when it is lost, `NotHeldError` when it has been released.
        """
        await self._rules.extend(ttl)

    async def wait_lost(self) -> str:
        """Returns the reason when the hold is lost: `gone`, `expired` or `lease ended`.

        It waits for ever when the hold is released.
        """
        await self._rules.wait_lost(None)
        assert self._rules.reason_lost is not None
        return self._rules.reason_lost

    async def run(self, work: Awaitable[T]) -> T:
        """Awaits `work` and gives its result. When the hold is lost, it cancels the work and raises
        `LostError`.

        The hold is not released.
        """
        guard = Guard(self._rules)
        problem: BaseException | None = None
        try:
            result = await work
        except BaseException as error:
            problem = error
        if await guard.leave(problem) and self.lost:
            raise self._lost_by(problem)
        if problem is not None:
            raise problem
        return result

    async def __aenter__(self: H) -> H:
        self.check()
        self._guards.append(Guard(self._rules))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        guard = next(guard for guard in reversed(self._guards) if guard.task is task)
        self._guards.remove(guard)
        ended_by_loss = await guard.leave(error)
        await self._rules.finish_block()
        if self._rules.reason_lost is not None and ended_by_loss:
            raise self._lost_by(error)

    def _lost_by(self, cancellation: BaseException | None) -> LostError:
        lost = self._rules.lost_error()
        if lost.__cause__ is None:
            lost.__cause__ = cancellation
        return lost


class Hold(AnyHold[ServerHold]):
    """A lock that is held. `Locks` makes it; `release` ends it. `async with hold:` releases it at the end."""

    @property
    def fence(self) -> int:
        """Rises with each new hold of the server: send it with every write."""
        return self._rules.fence

    async def upgrade(self, wait: timedelta | None = None) -> None:
        """The reader becomes the writer, when the other readers have gone. It waits at most for `wait`.

        `TimedOutError` when the wait is over: the hold stays as it was. `DeadlockError` when another reader
        waits for the same. `RefusedError` within 120 s after an upgrade of this hold that was given up.
        """
        await self._rules.upgrade(wait)

    async def downgrade(self) -> None:
        """The writer becomes a reader. No other writer comes in between."""
        await self._rules.downgrade()


class QuorumHold(AnyHold[QuorumHoldRules]):
    """A lock that is held on the majority of the servers. `Quorum` makes it; `release` ends it."""

    @property
    def fences(self) -> dict[str, int]:
        """The fence of each node that granted it, by address. Those of different nodes cannot be compared."""
        return dict(self._rules.fences)


class Acquirer(Protocol[H_co]):
    """`Locks` or `Quorum`."""

    async def _acquire(self, wanted: Wanted, *, once: bool) -> H_co | None: ...


class Request(RequestFace, Generic[H]):
    """Keys, a mode and options. Making one sends nothing. It can be used many times, also at once.

    `async with request as hold:` acquires, runs the work, and releases. When the hold is lost meanwhile, the
    task is cancelled and the block ends with `LostError`. `@request` does the same for a coroutine function,
    with a hold of its own for each call.
    """

    def __init__(self, locks: Acquirer[H], wanted: Wanted) -> None:
        super().__init__(wanted)
        self._locks = locks
        self._entered: dict[object, list[H]] = {}

    async def acquire(self) -> H:
        """Waits until the lock is granted, at most for `wait`.

        `TimedOutError` when the wait is over, or when no server answers for `retry_for`; else as the
        servers say.
        A task that is cancelled leaves neither a hold nor a request.
        """
        hold = await self._locks._acquire(self._wanted, once=False)
        assert hold is not None
        return hold

    async def try_acquire(self) -> H | None:
        """Asks once. None when the lock is not free. Errors as those of `acquire`."""
        return await self._locks._acquire(self._wanted, once=True)

    async def __aenter__(self) -> H:
        hold = await self.acquire()
        await hold.__aenter__()
        self._entered.setdefault(asyncio.current_task(), []).append(hold)
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        hold = self._entered[task].pop()
        if not self._entered[task]:
            del self._entered[task]
        await hold.__aexit__(kind, error, traceback)

    def __call__(self, work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """A coroutine function that does `work` under the lock."""
        if not is_async(work):
            raise TypeError("the decorator is for async def: use slock_client for ordinary functions")

        @functools.wraps(work)
        async def under_lock(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self:
                return await work(*args, **kwargs)

        return under_lock


class Locks(Requesting):
    """Makes requests for locks. One for a program and its event loop, from a client of `redis.asyncio`.

    `client`: `Redis`, also one for a primary that Sentinels name, or `RedisCluster`. `Locks` opens
    connections of its own with the options of the client. An answer may take as long as the client's
    `socket_timeout`; a wait may take longer.

    `waiting`: `"notify"`: all waits share one connection. `"block"`: each wait has a connection of its own.
    A strategy of `slock_client.polling`: asks again
    and again. `retry_for`: how long a call goes on without any answer of the server. `retry_wait_for`: the
    same
    for a request that waits. `hooks`: what the program is told. All options of `read` are the defaults of
    requests.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        *,
        waiting: str | Strategy = "notify",
        retry_for: timedelta = DEFAULT_RETRY_FOR,
        retry_wait_for: timedelta = DEFAULT_RETRY_WAIT_FOR,
        hooks: Hooks | None = None,
        **options: Unpack[ReadOptions],
    ) -> None:
        super().__init__(options)
        strategy, servers = strategy_of(waiting, ["notify", "block"]), servers_of(client)
        self._listening = Listening(servers)
        self._rules = LocksRules(
            IO,
            servers,
            strategy=strategy,
            listening=self._listening if waiting == "notify" else None,
            hooks=hooks,
            retry_for=retry_for,
            retry_wait_for=retry_wait_for,
        )

    def write(self, *keys: Key, **options: Unpack[RequestOptions]) -> Request[Hold]:
        """A request to be the only one that holds all of `keys`."""
        return Request(self, self._wanted(keys, WRITE, options))

    def read(self, *keys: Key, **options: Unpack[ReadOptions]) -> Request[Hold]:
        """A request to hold `keys` together with other readers.

        Options as those of `write`, and `limit`: at most so many readers at once.
        """
        return Request(self, self._wanted(keys, READ, options))

    async def adopt(
        self, keys: Key | Sequence[Key], token: str, mode: str, **options: Unpack[HoldOptions]
    ) -> Hold:
        """The hold that another process took with `token` and handed over. It is renewed from now on.

        Options as those of `write`. `NotHeldError` when the token does not hold all keys in this mode.
        """
        wanted = self._wanted(keys_of(keys), mode, {**options, "token": token})
        return Hold(await self._rules.adopt(wanted))

    async def release(self, keys: Key | Sequence[Key], token: str) -> int:
        """Releases what `token` holds, in whichever mode: how many of the keys it held.

        When it had to be sent again, 0 can also mean that the first attempt did it.
        """
        return await self._rules.release(keys, token)

    async def info(self, key: Key) -> LockInfo:
        """Who holds the lock and who waits for it."""
        return await self._rules.info(key)

    async def queues(self) -> list[QueueInfo]:
        """The locks for which somebody waits, the longest wait first. In a cluster those of one node."""
        return await self._rules.queues()

    async def close(self) -> None:
        """Stops renewing and closes the connections. Acquisitions that wait end with `ClosedError`.

        It releases nothing: holds end at their ttl.
        """
        await self._rules.close(synchronous=False)

    async def __aenter__(self) -> Locks:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _acquire(self, wanted: Wanted, *, once: bool) -> Hold | None:
        hold = await self._rules.acquire(wanted, once=once)
        return None if hold is None else Hold(hold)


class Quorum(Requesting):
    """Makes requests for locks that more than half of several independent servers must grant.

    It stays usable while a minority of them is away. There is no one fence: where the lock protects something
    that can compare fences, one server with replicas is the better choice.

    `clients`: one of redis-py for each server. `node_timeout`: how long a node may take for an answer;
    without one a twentieth of the ttl, at least 50 ms; never more than a third of the ttl. `drift_factor`:
    which part of the ttl the clocks may drift. `fail_fast`: an attempt ends as soon as the majority cannot
    be reached. `poll`: how it asks again when it is refused. All options of `read` are the defaults of
    requests,
    but `min_replicas` and `replica_timeout`, which a quorum does not have.

    A node is named by its address; behind Sentinels by the name of the service. Nodes of one name also have
    their number in `clients`: `main (2)`.
    """

    def __init__(
        self,
        clients: Sequence[redis.asyncio.Redis],
        *,
        node_timeout: timedelta | None = None,
        drift_factor: float = DEFAULT_DRIFT_FACTOR,
        fail_fast: bool = False,
        poll: Strategy = DEFAULT_POLL,
        hooks: Hooks | None = None,
        **options: Unpack[ReadOptions],
    ) -> None:
        super().__init__(options, of_quorum=True)
        watchdog = Watchdog(IO)
        self._rules = QuorumRules(
            IO,
            [LocksRules(IO, servers_of(client), watchdog=watchdog) for client in clients],
            watchdog,
            node_timeout=node_timeout,
            drift_factor=drift_factor,
            fail_fast=fail_fast,
            poll=poll,
            hooks=hooks,
        )

    def write(self, *keys: Key, **options: Unpack[RequestOptions]) -> Request[QuorumHold]:
        """A request to be the only one that holds all of `keys`. Options as those of `Locks.write`."""
        return Request(self, self._wanted(keys, WRITE, options))

    def read(self, *keys: Key, **options: Unpack[ReadOptions]) -> Request[QuorumHold]:
        """A request to hold `keys` together with other readers. Options as those of `Locks.read`."""
        return Request(self, self._wanted(keys, READ, options))

    async def adopt(
        self, keys: Key | Sequence[Key], token: str, mode: str, **options: Unpack[HoldOptions]
    ) -> QuorumHold:
        """The hold that another process took with `token` and handed over. It is renewed from now on.

        `NotHeldError` when the majority says that the token holds nothing, `QuorumMissedError` when too many
        nodes did not answer.
        """
        wanted = self._wanted(keys_of(keys), mode, {**options, "token": token})
        return QuorumHold(await self._rules.adopt(wanted))

    async def release(self, keys: Key | Sequence[Key], token: str) -> int:
        """Releases what `token` holds on all nodes, in whichever mode: how many nodes released something.

        It waits for all nodes, for each at most the `node_timeout`. One that does not answer in time is not
        counted.
        """
        return await self._rules.release(keys, token, self._defaults.ttl)

    async def close(self) -> None:
        """Stops renewing and closes the connections. Acquisitions that wait end with `ClosedError`.

        It releases nothing: holds end at their ttl.
        """
        await self._rules.close(synchronous=False)

    async def __aenter__(self) -> Quorum:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _acquire(self, wanted: Wanted, *, once: bool) -> QuorumHold | None:
        hold = await self._rules.acquire(wanted, once=once)
        return None if hold is None else QuorumHold(hold)


class _Cluster:
    """What is needed of a client of a cluster."""

    def __init__(self, client: Callable[[], redis.asyncio.RedisCluster | None]) -> None:
        self._get_client = client
        self._recipe: Recipe | None = None

    @property
    def _client(self) -> redis.asyncio.RedisCluster:
        client = self._get_client()
        if client is None:
            raise redis.ConnectionError("the client of the cluster is gone")
        return client

    def recipe(self) -> Recipe:
        if self._recipe is None:
            node = self._client.get_nodes()[0]
            self._recipe = recipe(node.connection_class, node.connection_kwargs)
        return self._recipe

    async def nodes(self) -> list[Address]:
        if self._recipe is None:
            await self._client.initialize()
        return [(str(node.host), int(node.port)) for node in self._client.get_nodes()]

    def remap(self, host: str, port: int) -> Address:
        host, port = self._client.nodes_manager.remap_host_port(host, port)
        return str(host), int(port)


def servers_of(client: Any, *, weak: bool = False) -> Servers:
    """The servers behind a client of redis-py. `weak`: the client may be collected nevertheless."""
    if isinstance(client, redis.asyncio.RedisCluster):
        return ClusterServers(IO, _Cluster(weakref.ref(client) if weak else lambda: client))
    if not isinstance(client, redis.asyncio.Redis):
        raise TypeError(f"Locks needs a client of redis.asyncio, not {type(client).__name__}")
    found = recipe_of(client.connection_pool, redis.asyncio.Connection, redis.asyncio.SSLConnection)
    return SentinelServers(IO, found) if found.sentinels else OneServer(IO, found)
