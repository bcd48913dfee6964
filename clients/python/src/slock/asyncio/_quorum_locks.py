"""Locks on the majority of several independent servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

import redis.asyncio

from slock import _commands, _quorum
from slock._answers import error_of, is_temporary
from slock._commands import READ, WRITE, Key
from slock._options import (
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
from slock._quorum import Tally
from slock.asyncio._acquisitions import Acquisitions
from slock.asyncio._nodes import Nodes
from slock.asyncio._quorum_hold import QuorumHold
from slock.asyncio._request import Request
from slock.asyncio._watchdog import Watchdog
from slock.errors import NotHeld, QuorumMissed, TimedOut
from slock.hooks import Hooks
from slock.polling import Strategy

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Quorum:
    """Makes requests for locks that more than half of several independent servers must grant.

    It stays usable while a minority of them is away. There is no one fence: where the lock protects something
    that can compare fences, one server with replicas is the better choice.

    `clients`: one of `redis.asyncio` for each server. `node_timeout`: how long a node may take for an
    answer; without one a twentieth of the ttl, at least 50 ms; never more than a third of the ttl.
    `drift_factor`: which part of the ttl the clocks may drift. `fail_fast`: an attempt ends as soon as the
    majority cannot be reached. `poll`: how it asks again when it is refused. `ttl`, `wait`, `renew` and
    `longest_lease` are the defaults of requests, as those of `Locks`.

    A node is named by its address; behind Sentinels by the name of the service. Nodes of one name also have
    their number in `clients`: `main (2)`.
    """

    def __init__(
        self,
        clients: Sequence[redis.asyncio.Redis],
        *,
        node_timeout: timedelta | None = None,
        drift_factor: float = _quorum.DEFAULT_DRIFT_FACTOR,
        fail_fast: bool = False,
        poll: Strategy = _quorum.DEFAULT_POLL,
        hooks: Hooks | None = None,
        ttl: timedelta = DEFAULT_TTL,
        wait: timedelta | None = None,
        renew: bool = True,
        longest_lease: timedelta | None = None,
        **others: NoReturn,
    ) -> None:
        _quorum.refuse(others)
        self._options = Options(ttl=ttl, wait=wait, renew=renew, longest_lease=longest_lease)
        self._chosen_timeout = node_timeout
        self._drift_factor = drift_factor
        self._fail_fast = fail_fast
        self._poll = poll
        self._hooks = hooks or Hooks()
        self._acquisitions = Acquisitions()
        self._nodes = Nodes(clients, DEFAULT_RETRY_FOR.total_seconds())
        self._watchdog: Watchdog[QuorumHold] = Watchdog(self._renew)

    def write(self, *keys: Key, **options: Unpack[RequestOptions]) -> Request[QuorumHold]:
        """A request to be the only one that holds all of `keys`. Options as those of `Locks.write`."""
        return Request(self, Wanted(keys, WRITE, _quorum.changed(self._options, options)))

    def read(self, *keys: Key, **options: Unpack[ReadOptions]) -> Request[QuorumHold]:
        """A request to hold `keys` together with other readers. Options as those of `Locks.read`."""
        return Request(self, Wanted(keys, READ, _quorum.changed(self._options, options)))

    async def adopt(
        self, keys: Key | Sequence[Key], token: str, mode: str, **options: Unpack[HoldOptions]
    ) -> QuorumHold:
        """The hold that another process took with `token`. It gets a whole ttl, and is renewed from now on.

        Its `fences` are empty. `NotHeld` when the majority says that the token holds nothing,
        `QuorumMissed` when too many nodes did not answer.
        """
        wanted = Wanted(names_of(keys), mode, _quorum.changed(self._options, options, token=token))
        extend = _commands.extend(wanted.keys, token, wanted.options.ttl_ms)
        self._acquisitions.check_open()
        sent = time.monotonic()
        tally = await self._nodes.ask(extend, self._node_timeout(wanted.options.ttl))
        if tally.has_majority:
            hold = QuorumHold(self, wanted, token, {}, sent)
            hold._note_errors(tally.errors(), sent, wanted.options.ttl_ms)
            return hold
        if tally.is_refused:
            raise NotHeld(f"the token does not hold {wanted.label}")
        raise self._missed(wanted, tally)

    async def release(self, keys: Key | Sequence[Key], token: str) -> int:
        """Releases what `token` holds on all nodes, in whichever mode: how many nodes released something.

        It waits for all nodes, for each at most the `node_timeout`. One that does not answer in time is not
        counted.
        """
        self._acquisitions.check_open()
        names = names_of(keys)
        timeout = self._node_timeout(self._options.ttl)
        return len(
            (await self._nodes.release(_commands.release(names, token), timeout, all_nodes=True)).given
        )

    async def close(self) -> None:
        """Stops renewing and closes the connections. Acquisitions that wait end with `Closed`.

        It releases nothing: holds end at their ttl.
        """
        await self._watchdog.close()
        self._acquisitions.close()
        await self._acquisitions.wait_ended()
        await self._nodes.close()

    async def __aenter__(self) -> Quorum:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _node_timeout(self, ttl: timedelta) -> float:
        return _quorum.node_timeout(self._chosen_timeout, ttl)

    async def _acquire(self, wanted: Wanted, *, once: bool) -> QuorumHold | None:
        began, wait = time.monotonic(), wanted.options.wait
        end = None if wait is None else began + wait.total_seconds()
        pauses = iter(()) if once else self._poll.pauses()
        hold: QuorumHold | None = None
        problem: BaseException | None = None
        try:
            with self._acquisitions.one():
                while True:
                    token = wanted.new_token()
                    tally, hold = await self._attempt(wanted, token)
                    if hold is not None:
                        return hold
                    pause = next(pauses, None)
                    if pause is None or (end is not None and time.monotonic() + pause >= end):
                        break
                    await self._acquisitions.pause(pause)
            if tally.errors() and not tally.is_refused:
                raise self._missed(wanted, tally)
            if once:
                return None
            raise TimedOut(f"{wanted.names}: the lock is not free") from self._missed(wanted, tally)
        except BaseException as error:
            problem = error
            raise
        finally:
            self._hooks.tell_waited(wanted.label, time.monotonic() - began, outcome_of(hold, problem))

    async def _attempt(self, wanted: Wanted, token: str) -> tuple[Tally, QuorumHold | None]:
        options = wanted.options
        acquire = _commands.acquire(
            wanted.keys, wanted.mode, token, options.ttl_ms, metadata=options.metadata, limit=options.limit
        )
        timeout = self._node_timeout(options.ttl)
        release = _commands.release(wanted.keys, token)
        sent = time.monotonic()
        try:
            tally = await self._nodes.ask(acquire, timeout, fail_fast=self._fail_fast)
        except BaseException:
            await self._nodes.release(release, timeout)
            raise
        until = _quorum.valid_until(sent, options.ttl_ms, self._drift_factor)
        if tally.has_majority and time.monotonic() < until:
            hold = QuorumHold(self, wanted, token, tally.given, sent)
            hold._note_errors(tally.errors(), sent, options.ttl_ms)
            return tally, hold
        for error in tally.errors():
            if not is_temporary(error) and tally.is_hopeless and error_of(error) is not error:
                await self._nodes.release(release, timeout)
                raise error_of(error)
        await self._nodes.release(release, timeout)
        return tally, None

    def _missed(self, wanted: Wanted, tally: Tally) -> QuorumMissed:
        return QuorumMissed(f"no majority for {wanted.label}", tally.told("granted", "refused"))

    async def _renew(self, holds: Sequence[QuorumHold], end: float) -> None:
        await asyncio.gather(*(hold._extend_everywhere() for hold in holds if not hold.ended))
