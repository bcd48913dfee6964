"""`Lock` in place of redis-py's `redis.lock.Lock`. DROP_IN.md has the differences."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
import uuid
import weakref
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Literal

import redis
import redis.exceptions as base
import redis.lock

from slock._acquisitions import Acquisitions
from slock._answers import error_of, is_lost_connection, is_temporary, may_be_executed
from slock._asking import ANSWER_OVERDUE, Asking, Granted
from slock._commands import Channel, Command, Key
from slock._connection import Answer, Connection
from slock._giving_up import CALLER_WAITS, GivingUp
from slock._options import DEFAULT_RETRY_FOR, DEFAULT_TTL
from slock._pauses import retry_pauses
from slock._recipe import Recipe, recipe
from slock._requests import Requests
from slock._route import Pool
from slock._schedule import RENEW_AFTER, TRY_AGAIN_AFTER
from slock._slots import redirection
from slock._time import whole_ms
from slock._validity import is_prompt, valid_until
from slock._watchdog import Watchdog
from slock.errors import TimedOut

__all__ = ["Lock"]

_log = logging.getLogger("slock")

Name = Any  # text, bytes or memoryview, as redis-py takes it

# How long a command is sent again after a connection error, in seconds.
RETRY_FOR = DEFAULT_RETRY_FOR.total_seconds()

# A batch of renewals has at least this time, in seconds.
LEAST_TIME = 0.05

# How long an interrupted command may take until its answer is there, in seconds.
INTERRUPTED_TIME = 2.0


class Lock(redis.lock.Lock):
    """A lock of the SLOCK module with the interface of redis-py's, for `lock_class=slock.Lock`.

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

        `thread_local`: each thread sees only the lock that it acquired itself.

        `raise_on_release_error`: whether it is an error that the lock is no longer owned when a `with` block
        ends. Otherwise it is logged.
        """
        super().__init__(
            redis, name, timeout, sleep, blocking, blocking_timeout, thread_local, raise_on_release_error
        )
        self.local = ThreadOwner() if self.thread_local else Owner()

    def register_scripts(self) -> None:
        """Does nothing: the server has the commands."""

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
        refuses the command, and `slock.ModuleNotLoaded` when it does not know the command.
        """
        owner = uuid.uuid4().hex.encode() if token is None else self.redis.get_encoder().encode(token)
        if blocking is None:
            blocking = self.blocking
        if blocking_timeout is None:
            blocking_timeout = self.blocking_timeout
        end = end_of_wait(blocking, blocking_timeout, time.monotonic())
        attempt = _Acquisition(self.redis, self.name, owner, ttl_ms_of(self), not self.timeout)
        try:
            sent = attempt.run(end)
            if sent is None:
                return False
            self._own(attempt, sent)
        except BaseException as error:
            if attempt.may_hold(error):
                if self.local.token == owner:
                    self._disown()
                attempt.give_up(error)
            raise
        finally:
            attempt.close()
        return True

    def do_acquire(self, token: Any) -> bool:
        """Asks once, without waiting. A part of `acquire` in redis-py, for subclasses."""
        return bool(self._call("SLOCK.LOCK", self.name, token, ttl_ms_of(self))[0])

    def locked(self) -> bool:
        """Whether somebody has the lock."""
        return is_held(self._call("SLOCK.INFO", self.name)[0])

    def owned(self) -> bool:
        """Whether this thread has it by this lock. `False` for ever once the watchdog has noticed a loss."""
        token = self.local.token
        if token is None or is_lost(self.local.renewal):
            return False
        left = self._call("SLOCK.PTTL", self.name, token)[0]
        return int(left) >= 0 and not is_lost(self.local.renewal)

    def release(self) -> None:
        """Releases the lock.

        Raises `LockError` when it has not been acquired, and `LockNotOwnedError` when it is no longer owned.
        """
        if self.local.token is None:
            raise base.LockError("cannot release a lock that has not been acquired", text(self.name))
        self.do_release(self.local.token)

    def do_release(self, expected_token: Any) -> None:
        """What `release` does after its check."""
        renewal, valid = self.local.renewal, time.monotonic() < self.local.valid_until
        try:
            self._disown()
            released, in_doubt = self._call("SLOCK.UNLOCK", self.name, expected_token)
        except Exception:
            raise
        except BaseException:
            giving_up = _giving_up_of(self.redis)
            giving_up.withdraw(_ClientRoute(self.redis), [self.name], expected_token, seconds=RETRY_FOR)
            raise
        # A release whose answer was lost is done when the hold was there before it.
        if is_lost(renewal) or not (released or (in_doubt and valid)):
            raise not_owned(self, "release")

    def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        """What `extend` does after its checks."""
        ttl_ms = int(additional_time * 1000)
        if not replace_ttl:
            left = self._call("SLOCK.PTTL", self.name, self.local.token)[0]
            if left < 0:
                raise not_owned(self, "extend")
            ttl_ms += left
        self._set_ttl(ttl_ms, "extend")
        return True

    def do_reacquire(self) -> Literal[True]:
        """What `reacquire` does after its checks."""
        self._set_ttl(ttl_ms_of(self), "reacquire")
        return True

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Adds `additional_time` seconds to the life of the lock. With `replace_ttl` it ends in so many.

        Raises `LockError` when the lock has not been acquired or has no `timeout`, and `LockNotOwnedError`
        when it is no longer owned.
        """
        check_extensible(self, "extend")
        return self.do_extend(additional_time, replace_ttl)

    def reacquire(self) -> Literal[True]:
        """Lets the lock live for `timeout` seconds from now on. Raises what `extend` raises."""
        check_extensible(self, "reacquire")
        return self.do_reacquire()

    def _set_ttl(self, ttl_ms: int, verb: str) -> None:
        sent = time.monotonic()
        answer, in_doubt = self._call(*extension(self.name, self.local.token, ttl_ms))
        # A ttl of nothing is a release, and is done when the hold was there before it.
        if not answer and not (in_doubt and ttl_ms < 1 and sent < self.local.valid_until):
            raise not_owned(self, verb)
        self.local.valid_until = valid_until(sent, ttl_ms)

    def _call(self, *command: Any) -> tuple[Any, bool]:
        """The answer to a command, and whether an earlier attempt may have been executed before it."""
        return _ClientRoute(self.redis).call(*command)

    def _own(self, acquired: _Acquisition, sent: float) -> None:
        self._disown()
        self.local.valid_until = valid_until(sent, acquired.ttl_ms)
        if acquired.renewed:
            keeper = self.local.new_keeper()
            renewal = Renewal(keeper, self.redis, self.name, acquired.token, acquired.ttl_ms, sent)
            self.local.renewal = renewal
            _watchdog_of(self.redis).add(renewal)
        self.local.token = acquired.token

    def _disown(self) -> None:
        """Forgets the hold. No renewal is sent after it."""
        renewal = self.local.renewal
        self.local.token, self.local.renewal, self.local.valid_until = None, None, -math.inf
        if renewal is not None:
            renewal.end()
            if renewal.is_of_this_process:
                _watchdog_of(self.redis).remove(renewal)


# --- what a lock knows of its hold


class Keeper:
    """Lives as long as somebody can release the hold."""


class Owner:
    """What a lock has acquired."""

    token: bytes | None = None
    renewal: Renewal | None = None
    valid_until: float = -math.inf
    releasing: bool = False
    """Whether a release began that was cancelled. What it did is not known."""
    keeper: Keeper | None = None

    def new_keeper(self) -> weakref.ref[Keeper]:
        self.keeper = Keeper()
        return weakref.ref(self.keeper)


class ThreadOwner(threading.local, Owner):
    """The same, for each thread."""


class Renewal:
    """A hold that a watchdog renews until it is released or lost, or nobody can release it any more."""

    def __init__(
        self, keeper: weakref.ref[Keeper], client: Any, name: Name, token: bytes, ttl_ms: int, sent: float
    ) -> None:
        self.client, self.name = client, name
        self.command: Command = ("SLOCK.EXTEND", name, token, ttl_ms)
        self.ttl_seconds = ttl_ms / 1000
        self._keeper = keeper
        self._ttl_ms = ttl_ms
        self._process = os.getpid()
        self.failed = False
        """Whether the last renewal had no answer, because a connection was lost."""
        self._over = False
        self._lost = False
        self._warned = False
        self.valid_until = valid_until(sent, ttl_ms)
        self.renew_at = sent + self.ttl_seconds * RENEW_AFTER

    @property
    def is_of_this_process(self) -> bool:
        """Whether it was made here, and not before a fork."""
        return self._process == os.getpid()

    @property
    def ended(self) -> bool:
        return self._over or self._lost or self._keeper() is None

    @property
    def lost(self) -> bool:
        """Whether the hold ended before it was released. It stays so, whatever the server says later."""
        if not self._over and time.monotonic() >= self.valid_until:
            self._lost = True
        return self._lost

    def expire(self) -> None:
        self._lost = True

    def end(self) -> None:
        """The hold is released: its time does not matter any more."""
        _ = self.lost
        self._over = True

    def answered(self, sent: float, answer: object) -> None:
        """What the server said to a renewal that was sent at `sent`: 1, 0, or an error."""
        if self.ended or self.lost:
            return  # too late
        self.failed = isinstance(answer, BaseException) and is_lost_connection(answer)
        if answer == 1:
            self.valid_until = valid_until(sent, self._ttl_ms)
            self.renew_at = sent + self.ttl_seconds * RENEW_AFTER
        elif answer == 0:
            self._lost = True
        else:
            self.renew_at = time.monotonic() + self.ttl_seconds * TRY_AGAIN_AFTER
            if isinstance(answer, BaseException) and not is_temporary(answer) and not self._warned:
                self._warned = True
                _log.warning("the server refuses to renew the lock %s: %s", text(self.name), answer)


def is_lost(renewal: Renewal | None) -> bool:
    """Whether a watchdog knows that a hold is lost. After a fork the child does not know."""
    return renewal is not None and renewal.is_of_this_process and renewal.lost


# --- what the two locks, synchronous and asyncio, have in common


def end_of_wait(blocking: bool, blocking_timeout: float | None, now: float) -> float:
    """When a wait ends, on the monotonic clock: `now` when there is none, infinity without limit."""
    if not blocking:
        return now
    return math.inf if blocking_timeout is None else now + max(blocking_timeout, 0)


def end_of_retries(end: float, now: float) -> float:
    """How long a command is sent again before a wait that ends at `end`."""
    return min(end, now + RETRY_FOR) if end > now else now + RETRY_FOR


def check_extensible(lock: Any, verb: str) -> None:
    """Raises `LockError` when a lock cannot be extended, whoever has it."""
    if lock.local.token is None:
        raise base.LockError(f"cannot {verb} a lock that has not been acquired", text(lock.name))
    if not lock.timeout:
        raise base.LockError(f"cannot {verb} a lock without a timeout", text(lock.name))


def not_owned(lock: Any, verb: str) -> base.LockNotOwnedError:
    """The error of a lock that ended, or that another has."""
    return base.LockNotOwnedError(f"cannot {verb} a lock that is no longer owned", text(lock.name))


def ttl_ms_of(lock: Any) -> int:
    """The time to live of a hold, cut to whole milliseconds as redis-py does."""
    return int(lock.timeout * 1000) if lock.timeout else whole_ms(lock.watchdog_ttl)


def extension(name: Name, token: bytes, ttl_ms: int) -> Command:
    """Sets the time to live of a hold. One of nothing ends it."""
    if ttl_ms < 1:
        return ("SLOCK.UNLOCK", name, token)
    return ("SLOCK.EXTEND", name, token, ttl_ms)


def is_held(info: Any) -> bool:
    """Whether SLOCK.INFO names a holder."""
    if info is None:
        return False
    fields = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2], strict=True))
    return fields.get(b"mode", fields.get("mode")) not in (b"free", "free")


def is_redirection(error: Exception) -> bool:
    """Whether the slot of the key is at another node, or nobody is known to have it."""
    return isinstance(error, base.SlotNotCoveredError) or redirection(error, ("", 0)) is not None


def text(name: Name) -> str:
    """The name of a lock as errors show it."""
    return name if isinstance(name, str) else bytes(name).decode(errors="backslashreplace")


# --- commands over the connections of the client


class _ClientRoute:
    """A `slock._route.Route` with connections like those of the client. It sends each command once.

    redis-py's own retries would hide that a release was done, and would exceed the time. They are left to it
    only in a cluster, for an attempt after which it does not matter any more. A new one is made for each
    call.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._cluster = isinstance(client, redis.RedisCluster)
        self._suspected = False
        self._waiting: Pool | None = None
        self.in_doubt = False
        """Whether an attempt that was not answered may have been executed."""

    def call(self, *command: Any, end: float | None = None) -> tuple[Any, bool]:
        """The answer to a command, and whether an earlier attempt may have been executed before it.

        It is sent again after a connection error, and after an answer that may be different next time, until
        `end`, by default for `RETRY_FOR`.
        """
        if end is None:
            end = time.monotonic() + RETRY_FOR
        pauses = retry_pauses()
        while True:
            try:
                [answer] = self.ask(command[1], command, end=end + ANSWER_OVERDUE)
                if not isinstance(answer, BaseException):
                    return answer, self.in_doubt
            except (base.RedisError, OSError) as error:
                answer = error
                self.suspect()
            self.in_doubt = self.in_doubt or may_be_executed(answer)
            pause = next(pauses)
            if not is_temporary(answer) or time.monotonic() + pause > end:
                raise error_of(answer) from answer
            time.sleep(pause)

    def ask(self, key: Key, *commands: Command, end: float | None = None) -> list[Answer]:
        if self._cluster:
            return [self._ask_cluster(key, command, end) for command in commands]
        return _ask_pool(_pool_of(self._client.connection_pool), commands, end)

    def pool_of(self, key: Key, end: float | None = None) -> Pool:
        """Connections for waiting, apart from those of the client."""
        if self._waiting is None:
            self._waiting = Pool(_recipe_for(self._client, key, self._suspected))
        return self._waiting

    def groups(self, keys: Sequence[Key], end: float) -> list[tuple[Recipe, list[int]]]:
        return [(self.pool_of(key).recipe, [position]) for position, key in enumerate(keys)]

    def redirected(self, key: Key, answer: object) -> bool:
        if not self._cluster or not isinstance(answer, Exception) or not is_redirection(answer):
            return False
        # The client follows the redirection, and remembers it.
        self._client.execute_command("SLOCK.INFO", key)
        self.close()
        return True

    def importer(self, answer: object) -> Pool | None:
        return None

    def suspect(self) -> None:
        self._suspected = True
        self.close()

    def close(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.close()

    def _ask_cluster(self, key: Key, command: Command, end: float | None) -> Answer:
        try:
            if not self._suspected:
                with contextlib.suppress(base.SlotNotCoveredError):
                    [answer] = _ask_pool(_pool_of(_node_pool(self._client, key)), [command], end)
                    if not isinstance(answer, Exception) or not is_redirection(answer):
                        return answer
            return self._client.execute_command(*command)  # which finds the node and remembers it
        except base.ResponseError as error:
            return error


def _ask_pool(pool: Pool, commands: Sequence[Command], end: float | None) -> list[Answer]:
    connection = pool.take()
    try:
        answers = connection.ask(*commands, end=end)
    except BaseException as error:
        # An interrupted command gets its answer, so that what is sent next is not executed before it.
        with contextlib.suppress(Exception):
            if connection.unanswered and not isinstance(error, Exception):
                connection.receive(time.monotonic() + INTERRUPTED_TIME)
        connection.close()
        pool.close()
        raise
    pool.give_back(connection)
    return answers


_pools: weakref.WeakKeyDictionary[Any, Pool] = weakref.WeakKeyDictionary()
_pools_change = threading.Lock()


def _pool_of(pool: Any) -> Pool:
    """Connections like those of a pool of redis-py, without its retries."""
    with _pools_change:
        found = _pools.get(pool)
        if found is None:
            found = _pools[pool] = Pool(recipe(pool.connection_class, pool.connection_kwargs))
        return found


def _node_pool(client: Any, name: Name) -> Any:
    return client.get_redis_connection(client.get_node_from_key(name)).connection_pool


def _recipe_for(client: Any, name: Name, refresh: bool = False) -> Recipe:
    """Connections like those of the client, to the server that has the lock.

    `refresh`: a connection was lost. In a cluster another node may serve by now.
    """
    try:
        if refresh and isinstance(client, redis.RedisCluster):
            client.nodes_manager.initialize()
        pool = _node_pool(client, name) if isinstance(client, redis.RedisCluster) else client.connection_pool
    except base.SlotNotCoveredError as error:
        raise base.ClusterDownError(str(error)) from error
    return recipe(pool.connection_class, pool.connection_kwargs)


# --- acquiring

_givings_up: weakref.WeakKeyDictionary[Any, GivingUp] = weakref.WeakKeyDictionary()


def _giving_up_of(client: Any) -> GivingUp:
    """What withdraws the requests of all locks of a client."""
    with _pools_change:
        return _givings_up.setdefault(client, GivingUp())


class _Acquisition:
    """One call of `acquire`."""

    def __init__(self, client: Any, name: Name, token: bytes, ttl_ms: int, renewed: bool) -> None:
        self.token, self.ttl_ms = token, ttl_ms
        self.renewed = renewed
        """Whether a watchdog is to renew the hold."""
        self._client, self._name = client, name
        self._route = _ClientRoute(client)
        self._asking: Asking[Connection] = Asking([name], self._command, None, once=False)

    def run(self, end: float) -> float | None:
        """When the request was sent from which the hold counts; None when there is no hold."""
        asking = self._asking
        sent = time.monotonic()
        asking.errors_end = end_of_retries(end, sent)
        fence, in_doubt = self._route.call(*self._command(None, None), end=asking.errors_end)
        asking.uncertain = bool(fence) or in_doubt  # until there is a hold that somebody releases
        if fence:
            return sent
        asking.end, asking.errors_end = None if end == math.inf else end, math.inf
        try:
            while not asking.is_over:
                granted = Requests(self._route, None, Acquisitions()).ask(asking)
                assert granted is not None, "a request that waits is not refused"
                asking.uncertain = True
                counts_from = self._counts_from(granted)
                if counts_from is not None:
                    return counts_from
        except TimedOut as error:
            if asking.uncertain:
                self.give_up(error)
            return None
        self.give_up(None)
        return None

    def may_hold(self, error: BaseException) -> bool:
        """Whether something may be left on the server when the acquisition ends with `error`."""
        return self._asking.uncertain or self._route.in_doubt or not isinstance(error, Exception)

    def give_up(self, error: BaseException | None) -> None:
        """Leaves neither a request nor a hold. While the server does not answer, it goes on in a thread."""
        token: Any = self.token
        seconds = self._asking.time_to_give_up(CALLER_WAITS)
        if error is not None and not isinstance(error, Exception):
            seconds = RETRY_FOR  # the program may end with it, and the thread too
        route, pending = _ClientRoute(self._client), self._asking.pending
        _giving_up_of(self._client).withdraw(route, [self._name], token, pending, seconds=seconds)

    def close(self) -> None:
        """Closes the connection on which it waited."""
        self._route.close()

    def _command(self, wait_ms: int | None, _: Channel | None) -> Command:
        command: Command = ("SLOCK.LOCK", self._name, self.token, self.ttl_ms)
        return command if wait_ms is None else (*command, "WAIT", wait_ms)

    def _counts_from(self, granted: Granted) -> float | None:
        if not self.renewed or is_prompt(granted.sent, granted.received, self.ttl_ms):
            return granted.sent
        # It is not known when the grant was made.
        sent = time.monotonic()
        end = end_of_retries(self._asking.end or math.inf, sent)
        extended, _ = self._route.call(*extension(self._name, self.token, self.ttl_ms), end=end)
        return sent if extended else None


# --- renewing

_watchdogs: weakref.WeakKeyDictionary[Any, Watchdog[Renewal]] = weakref.WeakKeyDictionary()
_watchdogs_change = threading.Lock()


def _after_fork() -> None:
    """Other threads of the parent may have had the locks."""
    global _pools_change, _watchdogs_change
    _pools_change, _watchdogs_change = threading.Lock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _watchdog_of(client: Any) -> Watchdog[Renewal]:
    """The watchdog of all locks of a client."""
    with _watchdogs_change:
        watchdog = _watchdogs.get(client)
        if watchdog is None:
            watchdog = _watchdogs[client] = Watchdog(_renew)
        return watchdog


def _renew(holds: Sequence[Renewal], end: float) -> None:
    """Renews on a connection that is opened for it, so that a pool in use by others cannot delay it."""
    for server, group in by_server([(hold, _server_of(hold)) for hold in holds if not hold.ended]):
        sent = time.monotonic()
        answers: list[Answer]
        try:
            if server is None:
                raise base.ConnectionError("no server is known for the lock")
            answers = _ask_all(server, [hold.command for hold in group], max(end - sent, LEAST_TIME))
        except (base.RedisError, OSError) as error:
            answers = [error] * len(group)
        for hold, answer in zip(group, answers, strict=True):
            if isinstance(answer, Exception) and is_redirection(answer):
                answer = _renew_elsewhere(hold)
            hold.answered(sent, answer)


def by_server(
    holds: Iterable[tuple[Renewal, Recipe | None]],
) -> list[tuple[Recipe | None, list[Renewal]]]:
    """The holds of each server, from holds and how to connect to the server of each."""
    groups: dict[object, tuple[Recipe | None, list[Renewal]]] = {}
    for hold, server in holds:
        where = None if server is None else (server.connection_class, repr(server.arguments))
        groups.setdefault(where, (server, []))[1].append(hold)
    return list(groups.values())


def _server_of(hold: Renewal) -> Recipe | None:
    try:
        return _recipe_for(hold.client, hold.name, hold.failed)
    except (base.RedisError, OSError):
        return None


def _ask_all(server: Recipe, commands: list[Command], seconds: float) -> list[Answer]:
    connection = Connection(server._replace(timeout=seconds, connect_timeout=seconds))
    try:
        return connection.ask(*commands)
    finally:
        connection.close()


def _renew_elsewhere(hold: Renewal) -> Answer:
    """Over the client of the cluster, which finds the node and remembers it."""
    try:
        return hold.client.execute_command(*hold.command)
    except (base.RedisError, OSError) as error:
        return error
