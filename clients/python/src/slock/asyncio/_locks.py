"""The locks of a program that uses asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

import redis.asyncio

from slock import _commands, _validity
from slock._answers import error_of, is_lost_connection, is_temporary, is_wrong_server, may_be_executed
from slock._asking import ANSWER_OVERDUE, Answered, Asking, Granted
from slock._commands import READ, WRITE, Command, Key
from slock._connection import LOOK_UP_AFTER
from slock._holders import find_holder
from slock._options import (
    DEFAULT_REPLICA_TIMEOUT,
    DEFAULT_RETRY_FOR,
    DEFAULT_TTL,
    HoldOptions,
    Options,
    ReadOptions,
    RequestOptions,
    Wanted,
    names_of,
)
from slock._outcome import outcome_of
from slock._pauses import retry_pauses
from slock._schedule import LEAST_BATCH_TIME
from slock._time import positive, whole_ms
from slock.asyncio._acquisitions import Acquisitions
from slock.asyncio._connection import Connection
from slock.asyncio._giving_up import CALLER_WAITS, GivingUp
from slock.asyncio._hold import Hold
from slock.asyncio._listener import Listening
from slock.asyncio._request import Request
from slock.asyncio._requests import Pending, Requests
from slock.asyncio._route import Route, route_of
from slock.asyncio._until import until
from slock.asyncio._watchdog import Watchdog
from slock.errors import NotHeld, SlockError, TooFewReplicas, WrongMode
from slock.hooks import Hooks
from slock.polling import Strategy

if TYPE_CHECKING:
    from typing_extensions import Unpack


# So many renewals are sent at once. Their answers count before the next are sent.
RENEWALS_AT_ONCE = 500


class Locks:
    """Makes requests for locks. One for a program and event loop, from a client of `redis.asyncio`.

    `client`: `Redis`, also one for a primary that Sentinels name, or `RedisCluster`. `Locks` opens
    connections of its own with the options of the client: one for commands (in a cluster one for each
    node), and one on which waits end when the first request has to wait. Its answers may take as long as
    the client's `socket_timeout`.

    `waiting`: `"notify"`: all waits share one connection. `"block"`: each wait has a connection of its own. A
    strategy of `slock.polling`: asks again and again.

    `retry_for`: how long a command is sent again after a connection error, where neither a wait nor the
    validity of a hold says when to stop.

    The other arguments are the defaults of requests:

    - `ttl`: how long a hold lives without a renewal.
    - `wait`: how long `acquire` waits at most; without one, until the lock is granted.
    - `renew`: whether the hold is renewed, after a third of its ttl each time.
    - `longest_lease`: a hold is renewed no longer than this after the grant, and is lost then.
    - `min_replicas`, `replica_timeout`: the hold counts only when so many replicas confirm it in this time.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        *,
        waiting: str | Strategy = "notify",
        retry_for: timedelta = DEFAULT_RETRY_FOR,
        hooks: Hooks | None = None,
        ttl: timedelta = DEFAULT_TTL,
        wait: timedelta | None = None,
        renew: bool = True,
        longest_lease: timedelta | None = None,
        min_replicas: int = 0,
        replica_timeout: timedelta = DEFAULT_REPLICA_TIMEOUT,
    ) -> None:
        if waiting not in ("notify", "block") and not isinstance(waiting, Strategy):
            raise ValueError("waiting must be 'notify', 'block' or a strategy of slock.polling")
        self._options = Options(
            ttl=ttl,
            wait=wait,
            renew=renew,
            longest_lease=longest_lease,
            min_replicas=min_replicas,
            replica_timeout=replica_timeout,
        )
        self._hooks = hooks or Hooks()
        self._retry_for = positive("retry_for", retry_for).total_seconds()
        self._route: Route = route_of(client)
        self._listening = Listening(self._route)
        self._acquisitions = Acquisitions()
        self._requests = Requests(self._route, self._listening, waiting, self._acquisitions)
        self._giving_up = GivingUp(self._route)
        self._watchdog: Watchdog[Hold] = Watchdog(self._renew)

    def write(self, *keys: Key, **options: Unpack[RequestOptions]) -> Request[Hold]:
        """A request to be the only one that holds all of `keys`."""
        return Request(self, Wanted(keys, WRITE, self._options.changed(**options)))

    def read(self, *keys: Key, **options: Unpack[ReadOptions]) -> Request[Hold]:
        """A request to hold `keys` together with other readers.

        Options as those of `write`, and `limit`: at most so many readers at once.
        """
        return Request(self, Wanted(keys, READ, self._options.changed(**options)))

    async def adopt(
        self, keys: Key | Sequence[Key], token: str, mode: str, **options: Unpack[HoldOptions]
    ) -> Hold:
        """The hold that another process took with `token`. It gets a whole ttl, and is renewed from now on.

        Options as those of `write`. `NotHeld` when the token holds nothing, `WrongMode` when it holds in
        the other mode.
        """
        wanted = Wanted(names_of(keys), mode, self._options.changed(**options, token=token))
        extend = _commands.extend(wanted.keys, token, wanted.options.ttl_ms)
        answered = await self._ask(wanted.keys[0], extend, _commands.holders(wanted.keys[0]))
        extended, info = answered.answers
        holder = find_holder(info, token)
        if not extended or holder is None:
            raise NotHeld(f"the token does not hold {wanted.label}")
        if holder.mode != mode:
            raise WrongMode(f"the token holds {wanted.label} for {holder.mode}")
        hold = Hold(self, wanted, token, holder.fence, answered.sent, unanswered=answered.after_unanswered)
        hold.metadata = holder.metadata
        return hold

    async def release(self, keys: Key | Sequence[Key], token: str) -> int:
        """Releases what `token` holds, in whichever mode: how many of the keys it held.

        After a connection error it is sent again for `retry_for`. Then 0 can also mean that the first
        attempt did it.
        """
        names = names_of(keys)
        [released] = (await self._ask(names[0], _commands.release(names, token))).answers
        return int(released)

    async def close(self) -> None:
        """Stops renewing and closes the connections. Acquisitions that wait end with `Closed`.

        It releases nothing: holds end at their ttl.
        """
        await self._watchdog.close()
        self._acquisitions.close()
        await self._requests.end_waits()
        await self._acquisitions.wait_ended()
        await self._giving_up.close()
        await self._requests.close()
        await self._route.close()

    async def __aenter__(self) -> Locks:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _ask(self, key: Key, *commands: Command) -> Answered:
        """The answers. Temporary errors are repeated, for `retry_for`."""
        self._acquisitions.check_open()
        end, unanswered = time.monotonic() + self._retry_for, False
        for pause in retry_pauses():
            sent = time.monotonic()
            try:
                answers = await until(end + ANSWER_OVERDUE, self._route.ask(key, *commands))
            except Exception as error:
                self._route.suspect()
                answers = [error]
            problem = next((one for one in answers if isinstance(one, BaseException)), None)
            if problem is None:
                return Answered(sent, answers, unanswered)
            unanswered = unanswered or may_be_executed(problem)
            if not is_temporary(problem) or time.monotonic() + pause >= end:
                raise error_of(problem)
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def _acquire(self, wanted: Wanted, *, once: bool) -> Hold | None:
        options, token, began = wanted.options, wanted.new_token(), time.monotonic()
        once_only = once or options.wait == timedelta(0)
        end = None if once_only or options.wait is None else began + options.wait.total_seconds()

        def build(wait_ms: int | None, channel: _commands.Channel | None) -> Command:
            return _commands.acquire(
                wanted.keys,
                wanted.mode,
                token,
                options.ttl_ms,
                metadata=options.metadata,
                limit=options.limit,
                wait_ms=wait_ms,
                channel=channel,
            )

        asking: Asking[Pending] = Asking(wanted.keys, build, end, once_only)
        if once_only:
            asking.errors_end = began + self._retry_for
        hold: Hold | None = None
        problem: BaseException | None = None
        try:
            with self._acquisitions.one():
                await self._wait_for_last_use(wanted, asking)
                hold = await self._acquired(wanted, token, asking)
            if hold is None and not once:
                raise asking.timed_out("the lock is not free")
            return hold
        except BaseException as error:
            problem = error
            raise
        finally:
            self._hooks.tell_waited(wanted.label, time.monotonic() - began, outcome_of(hold, problem))

    async def _acquired(self, wanted: Wanted, token: str, asking: Asking[Pending]) -> Hold | None:
        """The hold, or None for a refusal. An error leaves nothing behind."""
        try:
            return await self._granted(wanted, token, asking)
        except BaseException as error:
            if not isinstance(error, Exception) or (asking.uncertain and not isinstance(error, WrongMode)):
                await self._give_up(wanted.keys, token, asking, error)
            raise

    async def _granted(self, wanted: Wanted, token: str, asking: Asking[Pending]) -> Hold | None:
        """Asks until a grant counts, or until there is none to be had."""
        while True:
            granted = await self._requests.ask(asking)
            if granted is None:
                return None
            asking.uncertain = True  # until there is a hold that somebody releases
            sent = await self._counts_from(wanted, token, granted, asking)
            if sent is not None:
                return Hold(self, wanted, token, granted.fence, sent, unanswered=asking.unanswered)
            if asking.once or asking.is_over:
                raise asking.timed_out("the hold was over before the answer came")

    async def _counts_from(
        self, wanted: Wanted, token: str, granted: Granted, asking: Asking[Pending]
    ) -> float | None:
        """When the request was sent that the validity is counted from; None when the hold is over."""
        ttl_ms = wanted.options.ttl_ms
        if not wanted.options.min_replicas and _validity.is_prompt(granted.sent, granted.received, ttl_ms):
            return granted.sent
        pauses = retry_pauses()
        while True:
            sent = time.monotonic()
            try:
                if wanted.options.min_replicas:
                    extended = await self._replicated(wanted, token, asking)
                else:
                    extend = _commands.extend(wanted.keys, token, ttl_ms)
                    [extended] = await until(asking.answer_end, self._route.ask(asking.key, extend))
                if isinstance(extended, BaseException):
                    raise extended
            except SlockError:
                raise
            except Exception as error:
                if is_wrong_server(error):
                    self._route.suspect()
                if not is_temporary(error):
                    raise error_of(error) from None
                asking.note_problem(error)
                await asyncio.sleep(asking.pause_after_error(error, next(pauses)))
                continue
            if not extended:
                return None
            if time.monotonic() < _validity.valid_until(sent, ttl_ms):
                return sent

    async def _replicated(self, wanted: Wanted, token: str, asking: Asking[Pending]) -> int:
        """Extends the hold: the replicas have it when they have what this connection wrote. 0: it is over."""
        end, options = asking.answer_end, wanted.options
        if end is not None:
            end += options.replica_timeout.total_seconds()
        extended, confirmed = await until(end, self._ask_replicas(wanted, token))
        for answer in (extended, confirmed):
            if isinstance(answer, BaseException):
                raise answer
        if confirmed < options.min_replicas:
            raise TooFewReplicas(f"{confirmed} of {options.min_replicas} replicas have {wanted.label}")
        return int(extended)

    async def _ask_replicas(self, wanted: Wanted, token: str) -> list[Any]:
        options, key = wanted.options, wanted.keys[0]
        timeout_ms = whole_ms(options.replica_timeout)
        _, recipe = await self._route.server_of(key)
        recipe = recipe._replace(timeout=recipe.timeout + timeout_ms / 1000)
        connection = Connection(recipe)  # WAIT blocks it
        try:
            return await connection.ask(
                _commands.extend(wanted.keys, token, options.ttl_ms),
                _commands.wait_for_replicas(options.min_replicas, timeout_ms),
            )
        finally:
            await connection.close()

    async def _wait_for_last_use(self, wanted: Wanted, asking: Asking[Pending]) -> None:
        """What still releases or withdraws a token that the program chose would end its next hold too."""
        token, end = wanted.options.token, asking.errors_end if asking.end is None else asking.end
        while token is not None and not await self._giving_up.wait_ended(token, LOOK_UP_AFTER):
            self._acquisitions.check_open()
            if time.monotonic() >= end:
                raise asking.timed_out("the last use of its token is still being released")

    async def _give_up(
        self,
        keys: Sequence[Key],
        token: str,
        asking: Asking[Pending],
        error: BaseException,
        *,
        release: bool = True,
    ) -> None:
        task = self._giving_up.start(keys, token, asking.pending, release=release)
        if isinstance(error, (Exception, asyncio.CancelledError)):
            await asyncio.wait([task], timeout=asking.time_to_give_up(CALLER_WAITS))

    async def _change_mode(self, hold: Hold, mode: str, asking: Asking[Pending], ttl_ms: int) -> None:
        """Upgrades or downgrades. `ttl_ms` is in the commands."""
        began = time.monotonic()
        with self._acquisitions.one():
            try:
                granted = await self._requests.ask(asking)
            except NotHeld:
                hold._lose(_validity.GONE)
                hold.check()
                raise
            except BaseException as error:
                if not isinstance(error, Exception) or asking.uncertain:
                    # The hold stays, in whichever mode it is. Its release does not depend on the mode.
                    asking.unanswered = True
                    await self._give_up(hold.keys, hold.token, asking, error, release=False)
                raise
            finally:
                if asking.unanswered:
                    hold._note_change_unanswered(mode, began, ttl_ms)
        if granted is None:
            raise asking.timed_out("other readers hold it")
        hold.fence, hold.mode = granted.fence, mode
        hold.check()
        if _validity.is_prompt(granted.sent, granted.received, ttl_ms):
            hold._count_from(granted.sent, ttl_ms)
        else:
            await hold._extend(ttl_ms)

    async def _renew(self, holds: Sequence[Hold], end: float) -> None:
        for first in range(0, len(holds), RENEWALS_AT_ONCE):
            batch = [hold for hold in holds[first : first + RENEWALS_AT_ONCE] if not hold.ended]
            commands = [
                (hold.keys[0], _commands.extend(hold.keys, hold.token, hold._ttl_ms)) for hold in batch
            ]
            ttls = [hold._ttl_ms for hold in batch]
            sent = time.monotonic()
            answers = await self._route.ask_each(commands, max(end, sent + LEAST_BATCH_TIME))
            for hold, ttl_ms, answer in zip(batch, ttls, answers, strict=True):
                hold._renewed(sent, ttl_ms, answer)
                if is_lost_connection(answer):
                    self._route.suspect()
