"""`Lock` in place of redis-py's `redis.asyncio.lock.Lock`. DROP_IN.md has the differences."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, ClassVar, Literal

import redis.asyncio
import redis.asyncio.lock
import redis.exceptions as base

from slock._answers import error_of, is_lost_connection, is_temporary
from slock._asking import ANSWER_OVERDUE, Asking, Granted
from slock._commands import Channel, Command, Key
from slock._options import DEFAULT_TTL
from slock._pauses import retry_pauses
from slock._recipe import Recipe, recipe
from slock._validity import is_prompt, valid_until
from slock.asyncio._acquisitions import Acquisitions
from slock.asyncio._connection import Answer, Connection
from slock.asyncio._giving_up import CALLER_WAITS, GivingUp
from slock.asyncio._listener import Listening
from slock.asyncio._requests import Pending, Requests
from slock.asyncio._tasks import start
from slock.asyncio._until import until
from slock.asyncio._watchdog import Watchdog
from slock.drop_in import (
    LEAST_TIME,
    RETRY_FOR,
    Name,
    Owner,
    Renewal,
    ThreadOwner,
    by_server,
    check_extensible,
    end_of_retries,
    end_of_wait,
    extension,
    is_held,
    is_lost,
    is_redirection,
    not_owned,
    text,
    ttl_ms_of,
)
from slock.errors import TimedOut

__all__ = ["Lock"]


class Lock(redis.asyncio.lock.Lock):
    """A lock of the SLOCK module with the interface of redis-py's, for `lock_class=slock.asyncio.Lock`.

    It holds the lock for writing. Times are numbers of seconds, as in redis-py.
    """

    watchdog_ttl: ClassVar[timedelta] = DEFAULT_TTL
    """How long a lock without a `timeout` lives after its last renewal. A subclass may change it."""

    redis: Any
    local: Any

    def __init__(
        self,
        redis: Any,
        name: Name,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        """Makes a lock named `name` on the server of the client `redis`. Nothing is sent.

        `timeout` is how long the lock lives without being extended. Without one it is renewed until it is
        released, or its owner ends.

        `sleep` is not used: the server wakes the one whose turn it is.

        `blocking` and `blocking_timeout` are the defaults of `acquire`.

        `thread_local`: each thread sees only the lock that it acquired itself. Tasks of one thread see the
        same.

        `raise_on_release_error`: whether it is an error that the lock is no longer owned when an `async with`
        block ends. Otherwise it is logged.
        """
        super().__init__(
            redis, name, timeout, sleep, blocking, blocking_timeout, thread_local, raise_on_release_error
        )
        self.local = ThreadOwner() if self.thread_local else Owner()

    def register_scripts(self) -> None:
        """Does nothing: the server has the commands."""

    async def __aenter__(self) -> Lock:
        if await self.acquire():
            return self
        raise base.LockError("the lock was not acquired in time", text(self.name))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leave: Any = super().__aexit__  # redis-py does not say its types
        await leave(kind, error, traceback)

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: Any = None,
    ) -> bool:
        """Acquires the lock. `True` when it has it, `False` when another has it and the wait is over.

        With `blocking` it waits in the server's queue for its turn: for at most `blocking_timeout` seconds,
        or without limit. A `blocking_timeout` of 0 or less asks once, as `blocking=False` does.

        `token` identifies the owner: text or bytes, 1 to 255 bytes. By default it is a new one. With the
        token that has the lock already, the answer is `True`.

        A cancellation or another exception leaves neither a hold nor a request in the queue.

        Raises an error of redis-py when the server cannot be reached for 3 seconds before the wait, or
        refuses the command, and `slock.ModuleNotLoaded` when it does not know the command.
        """
        encoder = getattr(self.redis, "connection_pool", self.redis).get_encoder()
        owner = uuid.uuid4().hex.encode() if token is None else encoder.encode(token)
        if blocking is None:
            blocking = self.blocking
        if blocking_timeout is None:
            blocking_timeout = self.blocking_timeout
        end = end_of_wait(blocking, blocking_timeout, time.monotonic())
        attempt = _Acquisition(self.redis, self.name, owner, ttl_ms_of(self), not self.timeout)
        try:
            sent = await attempt.run(end)
            if sent is None:
                return False
            self._own(attempt, sent)
        except BaseException as error:
            if attempt.may_hold(error):
                if self.local.token == owner:
                    self._disown()
                await attempt.give_up()
            raise
        finally:
            await attempt.close()
        return True

    async def do_acquire(self, token: Any) -> bool:
        """Asks once, without waiting. A part of `acquire` in redis-py, for subclasses."""
        return bool((await self._call("SLOCK.LOCK", self.name, token, ttl_ms_of(self)))[0])

    async def locked(self) -> bool:
        """Whether somebody has the lock."""
        return is_held((await self._call("SLOCK.INFO", self.name))[0])

    async def owned(self) -> bool:
        """Whether this lock has it. `False` for ever once the watchdog has noticed a loss."""
        token, renewal = self.local.token, self.local.renewal
        if token is None or is_lost(renewal):
            return False
        left = (await self._call("SLOCK.PTTL", self.name, token))[0]
        return int(left) >= 0 and not is_lost(renewal)

    async def release(self) -> None:
        """Releases the lock.

        When it is cancelled, the release goes on, and `local.token` stays, so that it may be called again.

        Raises `LockError` when the lock has not been acquired, and `LockNotOwnedError` when it is no longer
        owned.
        """
        if self.local.token is None:
            raise base.LockError("cannot release a lock that has not been acquired", text(self.name))
        await self.do_release(self.local.token)

    async def do_release(self, expected_token: bytes) -> None:
        """What `release` does after its check."""
        local, renewal = self.local, self.local.renewal
        _stop_renewing(renewal)
        began, local.releasing = local.releasing, True
        valid = began or time.monotonic() < local.valid_until
        try:
            released, in_doubt = await self._call("SLOCK.UNLOCK", self.name, expected_token)
        except Exception:
            raise
        except BaseException:
            _start(GivingUp(_ClientRoute(self.redis)), self.name, expected_token)
            raise
        if local.token == expected_token:
            self._disown()
        # A release whose answer was lost is done when the hold was there before it.
        if is_lost(renewal) or not (released or ((in_doubt or began) and valid)):
            raise not_owned(self, "release")

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Awaitable[Literal[True]]:
        """Adds `additional_time` seconds to the life of the lock. With `replace_ttl` it ends in so many.

        Raises `LockError` when the lock has not been acquired or has no `timeout`, and `LockNotOwnedError`
        when it is no longer owned.
        """
        check_extensible(self, "extend")
        return self.do_extend(additional_time, replace_ttl)

    async def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        """What `extend` does after its checks."""
        ttl_ms = int(additional_time * 1000)
        if not replace_ttl:
            left = (await self._call("SLOCK.PTTL", self.name, self.local.token))[0]
            if left < 0:
                raise not_owned(self, "extend")
            ttl_ms += left
        await self._set_ttl(ttl_ms, "extend")
        return True

    def reacquire(self) -> Awaitable[Literal[True]]:
        """Lets the lock live for `timeout` seconds from now on. Raises what `extend` raises."""
        check_extensible(self, "reacquire")
        return self.do_reacquire()

    async def do_reacquire(self) -> Literal[True]:
        """What `reacquire` does after its checks."""
        await self._set_ttl(ttl_ms_of(self), "reacquire")
        return True

    async def _set_ttl(self, ttl_ms: int, verb: str) -> None:
        sent = time.monotonic()
        answer, in_doubt = await self._call(*extension(self.name, self.local.token, ttl_ms))
        # A ttl of nothing is a release, and is done when the hold was there before it.
        if not answer and not (in_doubt and ttl_ms < 1 and sent < self.local.valid_until):
            raise not_owned(self, verb)
        self.local.valid_until = valid_until(sent, ttl_ms)

    def _own(self, acquired: _Acquisition, sent: float) -> None:
        self._disown()
        self.local.valid_until = valid_until(sent, acquired.ttl_ms)
        if acquired.renewed:
            keeper = self.local.new_keeper()
            renewal = Renewal(keeper, self.redis, self.name, acquired.token, acquired.ttl_ms, sent)
            self.local.renewal = renewal
            _watchdog().add(renewal)
        self.local.token = acquired.token

    def _disown(self) -> None:
        """Forgets the hold. No renewal begins after it."""
        _stop_renewing(self.local.renewal)
        self.local.token, self.local.renewal, self.local.valid_until = None, None, -math.inf
        self.local.releasing = False

    async def _call(self, *command: Any) -> tuple[Any, bool]:
        """The answer to a command, and whether an earlier attempt may have been executed before it."""
        return await _ClientRoute(self.redis).call(*command)


# --- commands over the connections of the client


class _ClientRoute:
    """A `slock.asyncio._route.Route` that sends commands over the pool of the client, each of them once.

    redis-py's own retries would hide that a release was done. They are left to it only in a cluster, for an
    attempt after which it does not matter any more. A new one is made for each call.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._cluster = isinstance(client, redis.asyncio.RedisCluster)
        self._suspected = False
        self._draining: asyncio.Task[None] | None = None
        self._sent = False
        self.in_doubt = False
        """Whether an attempt that was not answered may have been executed."""

    async def call(self, *command: Any, end: float | None = None) -> tuple[Any, bool]:
        """The answer to a command, and whether an earlier attempt may have been executed before it.

        It is sent again after a connection error, and after an answer that may be different next time, until
        `end`, by default for `RETRY_FOR`.
        """
        if end is None:
            end = time.monotonic() + RETRY_FOR
        pauses = retry_pauses()
        while True:
            self._sent = False
            try:
                [answer] = await until(end + ANSWER_OVERDUE, self.ask(command[1], command))
                if not isinstance(answer, BaseException):
                    return answer, self.in_doubt
            except (base.RedisError, OSError) as error:
                answer = error
                self.suspect()
            self.in_doubt = self.in_doubt or (self._sent and is_lost_connection(answer))
            pause = next(pauses)
            if not is_temporary(answer) or time.monotonic() + pause > end:
                raise error_of(answer) from answer
            await asyncio.sleep(pause)

    async def ask(self, key: Key, *commands: Command) -> list[Answer]:
        if self._draining is not None:
            await asyncio.wait([self._draining])
        if self._cluster:
            return [await self._ask_cluster(key, command) for command in commands]
        return await self._ask_pool(commands)

    async def ask_each(self, commands: Sequence[tuple[Key, Command]], end: float) -> list[Answer]:
        return [answer for key, command in commands for answer in await until(end, self.ask(key, command))]

    async def server_of(self, key: Key) -> tuple[object, Recipe]:
        server = await _recipe_for(self._client, key, self._suspected)
        return (server.arguments.get("host"), server.arguments.get("port")), server

    def hash_tag(self, key: Key) -> bytes | None:
        return None

    async def redirected(self, key: Key, answer: object) -> bool:
        if not self._cluster or not isinstance(answer, Exception) or not is_redirection(answer):
            return False
        # The client follows the redirection, and remembers it.
        await self._client.execute_command("SLOCK.INFO", key)
        return True

    def importer(self, answer: object) -> tuple[object, Recipe] | None:
        return None

    def suspect(self) -> None:
        self._suspected = True

    async def close(self) -> None:
        pass

    async def _ask_cluster(self, key: Key, command: Command) -> Answer:
        try:
            await self._client.initialize()
            self._sent = True
            if not self._suspected:
                try:
                    return await self._client.get_node_from_key(key).execute_command(*command)
                except base.RedisError as error:
                    if not is_redirection(error):
                        raise
            return await self._client.execute_command(*command)  # which finds the node and remembers it
        except base.ResponseError as error:
            return error

    async def _ask_pool(self, commands: Sequence[Command]) -> list[Answer]:
        pool = self._client.connection_pool
        connection = await pool.get_connection()
        sent = False
        try:
            self._sent = True
            await connection.send_packed_command(connection.pack_commands(commands))
            sent = True
            answers = [await _read(connection) for _ in commands]
        except asyncio.CancelledError:
            # What is sent must be executed before what is sent next, on another connection.
            if sent:
                self._draining = start(_drain(pool, connection), "slock answer")
                _keep(self._draining)
                raise
            await _close(pool, connection)
            raise
        except BaseException:
            await _close(pool, connection)
            raise
        await pool.release(connection)
        return answers


async def _read(connection: Any) -> Answer:
    try:
        return await connection.read_response(disable_decoding=True, disconnect_on_error=False)
    except base.ResponseError as error:
        return error


async def _drain(pool: Any, connection: Any) -> None:
    """Waits for an answer that nobody wants. How many there are does not matter: the connection is closed."""
    try:
        await _read(connection)
    except (base.RedisError, OSError):
        pass
    finally:
        await _close(pool, connection)


async def _close(pool: Any, connection: Any) -> None:
    await connection.disconnect(nowait=True)
    await pool.release(connection)


async def _recipe_for(client: Any, name: Name, refresh: bool = False) -> Recipe:
    """Connections like those of the client, to the server that has the lock.

    `refresh`: a connection was lost. In a cluster another node may serve by now.
    """
    if isinstance(client, redis.asyncio.RedisCluster):
        await client.initialize()
        if refresh:
            await client.nodes_manager.initialize()
        try:
            node: Any = client.get_node_from_key(name)
        except base.SlotNotCoveredError as error:
            raise base.ClusterDownError(str(error)) from error
        return recipe(node.connection_class, node.connection_kwargs)
    pool = client.connection_pool
    return recipe(pool.connection_class, pool.connection_kwargs)


# --- acquiring

_unfinished: set[asyncio.Task[None]] = set()


def _keep(task: asyncio.Task[None]) -> None:
    """Keeps a task from being collected while it runs."""
    _unfinished.add(task)
    task.add_done_callback(_unfinished.discard)


def _start(
    giving_up: GivingUp,
    name: Name,
    token: Any,
    pending: Pending | None = None,
) -> asyncio.Task[None]:
    task = giving_up.start([name], token, pending)
    _keep(task)
    return task


class _Acquisition:
    """One call of `acquire`."""

    def __init__(self, client: Any, name: Name, token: bytes, ttl_ms: int, renewed: bool) -> None:
        self.token, self.ttl_ms, self.renewed = token, ttl_ms, renewed
        self._name = name
        self._route = _ClientRoute(client)
        self._requests = Requests(self._route, Listening(self._route), "block", Acquisitions())
        self._asking: Asking[Pending] = Asking([name], self._command, None, once=False)

    async def run(self, end: float) -> float | None:
        """When the request was sent from which the hold counts; None when there is no hold."""
        asking = self._asking
        sent = time.monotonic()
        asking.errors_end = end_of_retries(end, sent)
        fence, in_doubt = await self._route.call(*self._command(None, None), end=asking.errors_end)
        asking.uncertain = bool(fence) or in_doubt  # until there is a hold that somebody releases
        if fence:
            return sent
        asking.end, asking.errors_end = None if end == math.inf else end, math.inf
        try:
            while not asking.is_over:
                granted = await self._requests.ask(asking)
                assert granted is not None, "a request that waits is not refused"
                asking.uncertain = True
                counts_from = await self._counts_from(granted)
                if counts_from is not None:
                    return counts_from
        except TimedOut:
            pass
        if asking.uncertain:
            await self.give_up()
        return None

    def may_hold(self, error: BaseException) -> bool:
        """Whether something may be left on the server when the acquisition ends with `error`."""
        return self._asking.uncertain or self._route.in_doubt or not isinstance(error, Exception)

    async def give_up(self) -> None:
        """As in `slock.drop_in`. It goes on in a task."""
        task = _start(GivingUp(self._route), self._name, self.token, self._asking.pending)
        await asyncio.wait([task], timeout=self._asking.time_to_give_up(CALLER_WAITS))

    async def close(self) -> None:
        """Ends the connection on which it waited."""
        await self._requests.close()

    def _command(self, wait_ms: int | None, _: Channel | None) -> Command:
        command: Command = ("SLOCK.LOCK", self._name, self.token, self.ttl_ms)
        return command if wait_ms is None else (*command, "WAIT", wait_ms)

    async def _counts_from(self, granted: Granted) -> float | None:
        if not self.renewed or is_prompt(granted.sent, granted.received, self.ttl_ms):
            return granted.sent
        # It is not known when the grant was made.
        sent = time.monotonic()
        end = end_of_retries(self._asking.end or math.inf, sent)
        extended, _ = await self._route.call(*extension(self._name, self.token, self.ttl_ms), end=end)
        return sent if extended else None


# --- renewing

_watchdogs: dict[asyncio.AbstractEventLoop, Watchdog[Renewal]] = {}


def _watchdog() -> Watchdog[Renewal]:
    """The watchdog of all locks of this event loop."""
    loop = asyncio.get_running_loop()
    watchdog = _watchdogs.get(loop)
    if watchdog is None:
        for other in [one for one in _watchdogs if one.is_closed()]:
            del _watchdogs[other]
        watchdog = _watchdogs[loop] = Watchdog(_renew)
    return watchdog


def _stop_renewing(renewal: Renewal | None) -> None:
    if renewal is not None:
        renewal.end()
        _watchdog().remove(renewal)


async def _renew(holds: Sequence[Renewal], end: float) -> None:
    """Renews on connections that are opened for it, so that a pool in use by others cannot delay it."""
    found = [(hold, await _server_of(hold)) for hold in holds if not hold.ended]
    await asyncio.gather(*(_renew_at(server, group, end) for server, group in by_server(found)))


async def _renew_at(server: Recipe | None, holds: list[Renewal], end: float) -> None:
    sent = time.monotonic()
    answers: list[Any]
    if server is None:
        answers = [base.ConnectionError("no server is known for the lock")] * len(holds)
    else:
        limit = max(end - sent, LEAST_TIME)
        connection = Connection(server._replace(timeout=limit, connect_timeout=limit))
        try:
            answers = [await answer for answer in connection.hand_over(*(hold.command for hold in holds))]
        finally:
            await connection.close()
    for hold, answer in zip(holds, answers, strict=True):
        if isinstance(answer, Exception) and is_redirection(answer):
            answer = await _renew_elsewhere(hold)
        hold.answered(sent, answer)


async def _server_of(hold: Renewal) -> Recipe | None:
    try:
        return await _recipe_for(hold.client, hold.name, hold.failed)
    except (base.RedisError, OSError):
        return None


async def _renew_elsewhere(hold: Renewal) -> Any:
    """Over the client of the cluster, which finds the node and remembers it."""
    try:
        return await hold.client.execute_command(*hold.command)
    except (base.RedisError, OSError) as error:
        return error
