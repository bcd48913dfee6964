"""What a hold knows about itself. It does no I/O: the synchronous hold and that of asyncio add it."""

from __future__ import annotations

import logging
import math
import threading
import time
from datetime import timedelta

from slock import _validity
from slock._answers import is_temporary
from slock._commands import Key
from slock._options import Wanted
from slock._schedule import RENEW_AFTER, TRY_AGAIN_AFTER
from slock._time import ttl_ms
from slock.errors import Lost, NotHeld
from slock.hooks import Hooks

_log = logging.getLogger("slock")


class BaseHold:
    """A lock that is held, until it is released or lost."""

    def __init__(self, wanted: Wanted, token: str, hooks: Hooks) -> None:
        self.keys: tuple[Key, ...] = wanted.keys
        """The names of the lock."""
        self.mode: str = wanted.mode
        """`write` or `read`."""
        self.token: str = token
        """The owner's identity. Another process can `adopt` or release the hold with it."""
        self.metadata: str | None = wanted.options.metadata
        """The text that the server shows beside the hold."""
        self.label: str = wanted.label
        """The name under which hooks and errors report the hold."""
        self._wanted = wanted
        self._hooks = hooks
        self._ttl_ms = wanted.options.ttl_ms
        self._granted_at = time.monotonic()
        self._lease_end = math.inf
        if wanted.options.longest_lease is not None:
            self._lease_end = self._granted_at + wanted.options.longest_lease.total_seconds()
        self._sent = -math.inf
        self._server_until = math.inf
        self._renew_at = math.inf
        self._releasing = False
        self._reason: str | None = None
        self._problem: BaseException | None = None
        self._warned = False
        self._changing = threading.RLock()

    # --- what the watchdog asks

    @property
    def ttl_seconds(self) -> float:
        return self._ttl_ms / 1000

    @property
    def renew_at(self) -> float:
        return self._renew_at

    @property
    def ended(self) -> bool:
        return self._releasing or self._reason is not None

    def expire(self) -> None:
        """Notes that the hold is over when its time has passed."""
        now = time.monotonic()
        if now >= self._lease_end:
            self._lose(_validity.LEASE_ENDED)
        elif now >= self._server_until:
            self._lose(_validity.EXPIRED)

    # --- what a program asks

    @property
    def ttl(self) -> timedelta:
        """How long a renewal keeps the hold."""
        return timedelta(milliseconds=self._ttl_ms)

    @property
    def valid_until(self) -> float:
        """Until when the hold is certain, as `time.monotonic()` counts, in seconds. Renewals move it."""
        return min(self._server_until, self._lease_end)

    @property
    def time_left(self) -> timedelta:
        """How long the hold is certain from now on; zero when it is not."""
        if self.ended:
            return timedelta(0)
        return timedelta(seconds=max(0.0, self.valid_until - time.monotonic()))

    @property
    def lost(self) -> bool:
        """Whether the hold ended and nobody released it. Asks the clock, not the server."""
        if not self.ended and time.monotonic() >= self.valid_until:
            self.expire()
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        """Why the hold is lost: `gone`, `expired` or `lease ended`; None when it is not."""
        return self._reason if self.lost else None

    def check(self) -> None:
        """Raises `Lost` when the hold is lost, and `NotHeld` when it has been released.

        Asks the clock, not the server: call it before each step.
        """
        if self.lost:
            raise self._lost_error()
        if self._releasing:
            raise NotHeld(f"the hold of {self.label} has been released")

    def __repr__(self) -> str:
        state = "released" if self._releasing else self._reason or "held"
        return f"<{type(self).__name__} {self.label!r} {self.mode} {state}>"

    # --- changes

    def _count_from(self, sent: float) -> None:
        """The deadline was set by a request sent at `sent`, which has been answered."""
        with self._changing:
            if sent < self._sent:
                return
            self._sent = sent
            self._server_until = self._end_of(sent)
            if self._wanted.options.renew:
                self._renew_at = sent + self.ttl_seconds * RENEW_AFTER

    def _end_of(self, sent: float) -> float:
        """Until when the hold is valid when a request sent at `sent` set its deadline."""
        return _validity.valid_until(sent, self._ttl_ms)

    def _begin_extension(self, ttl: timedelta | None, now: float) -> None:
        """From now on the ttl is `ttl`. A shorter one counts at once: the server may have it already."""
        self.check()
        with self._changing:
            if ttl is not None:
                self._ttl_ms = ttl_ms(ttl)
            self._server_until = min(self._server_until, self._end_of(now))

    def _renewed(self, sent: float, ttl_ms: int, answer: object) -> None:
        """What the server answered to a renewal: 1, 0, or an error."""
        with self._changing:
            if self.ended or self.lost:
                return  # the answer came too late: a hold that is lost stays lost
            if answer == 0:
                self._lose(_validity.GONE)
            elif isinstance(answer, BaseException):
                self._renewal_failed(answer, is_refused=not is_temporary(answer))
            elif ttl_ms == self._ttl_ms:  # else an extension with another ttl is under way
                self._problem = None
                self._count_from(sent)

    def _renewal_failed(self, problem: BaseException, *, is_refused: bool) -> None:
        """It is tried again. When the hold is lost because of it, `problem` is the cause."""
        self._problem = problem
        self._renew_at = time.monotonic() + self.ttl_seconds * TRY_AGAIN_AFTER
        if is_refused and not self._warned:
            self._warned = True
            _log.warning("the server refuses to renew the hold of %s: %s", self.label, problem)

    def _lose(self, reason: str) -> None:
        with self._changing:
            if self.ended:
                return
            self._reason = reason
        self._hooks.tell_lost(self.label, reason)
        self._hooks.tell_held(self.label, time.monotonic() - self._granted_at)
        self._tell_lost()

    def _tell_lost(self) -> None:
        """Tells those who work under the hold. Called once."""
        raise NotImplementedError

    def _begin_release(self) -> bool:
        """No renewal begins after this. Whether the hold was there as far as this process knows."""
        with self._changing:
            if self.lost:
                self._releasing = True
                return False
            self._releasing = True
        self._hooks.tell_held(self.label, time.monotonic() - self._granted_at)
        return True

    def _note_gone(self) -> None:
        """The release found nothing: the hold had ended before."""
        with self._changing:
            self._reason = _validity.GONE
        self._hooks.tell_lost(self.label, _validity.GONE)

    def _lost_error(self) -> Lost:
        assert self._reason is not None
        error = Lost(self.label, self._reason)
        error.__cause__ = self._problem if self._reason == _validity.EXPIRED else None
        return error
