"""What both drop-ins do: redis-py's lock in terms of `Locks`. DROP_IN.md has the differences."""

from __future__ import annotations

import math
import threading
import weakref
from datetime import timedelta
from typing import Any, ClassVar

import redis.exceptions as base

from slock_client._clock import now
from slock_client._commands import WRITE, Command, text_of
from slock_client._durations import LEAST_TTL_MS, whole_ms
from slock_client._hold import ServerHold
from slock_client._lease import Drift
from slock_client._locks import LocksRules
from slock_client._options import DEFAULT_TTL, Options, Wanted
from slock_client._shared import Answered
from slock_client.errors import TimedOutError


class Keeper:
    """Lives as long as somebody can release the hold."""


class Owner:
    """What a lock has acquired."""

    token: bytes | None = None
    hold: ServerHold | None = None
    keeper: Keeper | None = None
    releasing: bool = False
    """Whether a release began that was cancelled. What it did is not known."""

    def own(self, hold: ServerHold, token: bytes) -> None:
        """A hold that nobody can release any more is not renewed."""
        self.disown()
        self.keeper = Keeper()
        weakref.finalize(self.keeper, hold.end).atexit = False
        self.hold, self.token = hold, token

    def disown(self) -> None:
        self.token, self.hold, self.keeper, self.releasing = None, None, None, False


class ThreadOwner(threading.local, Owner):
    """The same, for each thread."""


class DropIn:
    """The rules of redis-py's lock. A half gives `_rules`, and the base class what its constructor sets."""

    watchdog_ttl: ClassVar[timedelta] = DEFAULT_TTL
    """How long a lock without a `timeout` lives after its last renewal. A subclass may change it."""

    name: Any
    timeout: float | None
    blocking: bool
    blocking_timeout: float | None
    local: Any

    @property
    def fence(self) -> int | None:
        """Rises with each new hold of the server: send it with every write. None when it is not acquired."""
        return None if self.local.hold is None else self.local.hold.fence

    def register_scripts(self) -> None:
        """Does nothing: the server has the commands."""

    def _rules(self) -> LocksRules:
        raise NotImplementedError

    def _encoded(self, value: Any) -> bytes:
        raise NotImplementedError

    async def _acquire(self, blocking: bool | None, blocking_timeout: float | None, given_token: Any) -> bool:
        if blocking is None:
            blocking = self.blocking
        if blocking_timeout is None:
            blocking_timeout = self.blocking_timeout
        once = not blocking or (blocking_timeout is not None and blocking_timeout <= 0)
        wait = None if once or blocking_timeout is None else timedelta(seconds=blocking_timeout)
        token = None if given_token is None else self._encoded(given_token)
        options = Options(
            ttl=timedelta(milliseconds=max(self._ttl_ms(), LEAST_TTL_MS)),
            wait=wait,
            renew=not self.timeout,
            token=token,  # type: ignore[arg-type] # bytes: it is sent as it is
        )
        try:
            hold = await self._rules().acquire(Wanted((self._key,), WRITE, options), once=once)
        except TimedOutError as error:
            if error.answered or error.__cause__ is None:
                return False
            raise error.__cause__ from error
        if hold is None:
            return False
        self.local.own(hold, hold.token.encode() if token is None else token)
        return True

    async def _release(self, token: Any) -> None:
        hold, was_releasing = self.local.hold, self.local.releasing
        self.local.releasing = True
        if hold is not None and not hold.is_of_another_process:
            self.local.hold = None
            try:
                released = await hold.release()
            except TimedOutError as error:
                raise error.__cause__ or error from None
        else:
            answered = await self._ask(("SLOCK.UNLOCK", self._key, token))
            released = bool(answered.answers[0]) or answered.after_unanswered or was_releasing
        self.local.disown()
        if not released:
            raise self._not_owned("release")

    async def _extend(self, additional_time: float, replace_ttl: bool) -> None:
        ttl_ms = int(additional_time * 1000)
        if not replace_ttl:
            left = (await self._ask(("SLOCK.PTTL", self._key, self.local.token))).answers[0]
            if left < 0:
                raise self._not_owned("extend")
            ttl_ms += left
        await self._set_ttl(ttl_ms, "extend")

    async def _set_ttl(self, ttl_ms: int, verb: str) -> None:
        """As redis-py does it, also to less. A ttl that comes to nothing ends the hold."""
        token, hold, sent = self.local.token, self.local.hold, now()
        valid_until = math.inf if hold is None else hold.held.lease.valid_until
        command: Command = ("SLOCK.UNLOCK", self._key, token)
        if ttl_ms >= 1:
            command = ("SLOCK.EXTEND", self._key, token, ttl_ms)
        if hold is not None:
            command += ("FENCE", hold.fence)
            hold.held.lease.shortened(sent, ttl_ms)
        answered = await self._ask(command)
        done_before = answered.after_unanswered and ttl_ms < 1 and sent < valid_until
        if not answered.answers[0] and not done_before:
            raise self._not_owned(verb)
        if hold is not None:
            hold.held.lease.valid_until = Drift().valid_until(answered.sent, ttl_ms)

    async def _owned(self) -> bool:
        """`False` for ever once the watchdog has noticed a loss."""
        token = self.local.token
        if token is None or self._is_lost():
            return False
        left = (await self._ask(("SLOCK.PTTL", self._key, token))).answers[0]
        return int(left) >= 0 and not self._is_lost()

    async def _locked(self) -> bool:
        return (await self._rules().info(self._key)).mode != "free"

    def _is_lost(self) -> bool:
        hold = self.local.hold
        return hold is not None and not self.timeout and not hold.is_of_another_process and hold.lost

    async def _ask(self, command: Command) -> Answered:
        """The answer. A connection error is one of redis-py."""
        shared = self._rules().shared
        try:
            return await shared.insist(self._text, self._key, command, end=now() + shared.retry_for)
        except TimedOutError as error:
            raise error.__cause__ or error from None

    def _check_extensible(self, verb: str) -> None:
        if self.local.token is None:
            raise base.LockError(f"cannot {verb} a lock that has not been acquired", self._text)
        if not self.timeout:
            raise base.LockError(f"cannot {verb} a lock without a timeout", self._text)

    def _check_acquired(self) -> None:
        if self.local.token is None:
            raise base.LockError("cannot release a lock that has not been acquired", self._text)

    def _not_owned(self, verb: str) -> base.LockNotOwnedError:
        return base.LockNotOwnedError(f"cannot {verb} a lock that is no longer owned", self._text)

    def _ttl_ms(self) -> int:
        """The time to live of a hold, cut to whole milliseconds as redis-py does."""
        ttl_ms = int(self.timeout * 1000) if self.timeout else whole_ms(self.watchdog_ttl)
        if ttl_ms < 1:
            raise base.ResponseError(f"{self._text}: the timeout of a lock must be a millisecond at least")
        return ttl_ms

    @property
    def _key(self) -> bytes:
        return self._encoded(self.name)

    @property
    def _text(self) -> str:
        return text_of(self.name) if isinstance(self.name, (str, bytes)) else text_of(bytes(self.name))
