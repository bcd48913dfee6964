"""What a hold knows about itself. It does no I/O: the synchronous hold and that of asyncio add it."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Iterable
from datetime import timedelta

from slock import _validity
from slock._answers import is_temporary, may_be_executed
from slock._commands import READ, Key
from slock._options import Wanted
from slock._schedule import RENEW_AFTER, TRY_AGAIN_AFTER
from slock.errors import Lost, NotHeld, TimedOut, WrongMode
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
        self._unanswered_ms = math.inf
        self._downgrade_unanswered = False
        self._granted_at = time.monotonic()
        self._lease_end = math.inf
        if wanted.options.longest_lease is not None:
            self._lease_end = self._granted_at + wanted.options.longest_lease.total_seconds()
        self._sent = -math.inf
        self._server_until = math.inf
        self._renew_at = math.inf
        self._held_back = False
        self._releasing = False
        self._reason: str | None = None
        self._problem: BaseException | None = None
        self._warned = False
        self._changing = threading.RLock()
        self._process = os.getpid()

    # --- what the watchdog asks

    @property
    def ttl_seconds(self) -> float:
        return self._certain_ms(self._ttl_ms) / 1000

    @property
    def renew_at(self) -> float:
        return math.inf if self._held_back else self._renew_at

    @property
    def ended(self) -> bool:
        return self._releasing or self._reason is not None

    def expire(self) -> None:
        """Notes that the hold is over when its time has passed."""
        with self._changing:
            lost = self._note_lost(self._reason_to_end())
        self._tell_if(lost)

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
    #
    # Hooks run when `_changing` is free again: they may call the hold, and others may wait for the lock.

    def _count_from(self, sent: float, ttl_ms: int) -> None:
        """The deadline was set by a request sent at `sent` with `ttl_ms`, which has been answered."""
        with self._changing:
            if sent < self._sent:
                return
            certain = self._certain_ms(ttl_ms)
            self._sent, self._ttl_ms = sent, ttl_ms
            self._set_until(self._end_of(sent, certain))
            if self._wanted.options.renew:
                self._renew_at = sent + certain / 1000 * RENEW_AFTER

    def _end_of(self, sent: float, ttl_ms: float) -> float:
        """Until when the hold is valid when a request sent at `sent` set its deadline."""
        return _validity.valid_until(sent, ttl_ms)

    def _certain_ms(self, ttl_ms: int) -> float:
        """How much of a ttl counts: a command without an answer may still set a shorter one."""
        return min(ttl_ms, self._unanswered_ms)

    def _set_until(self, until: float) -> None:
        is_earlier, self._server_until = until < self._server_until, until
        if is_earlier:
            self._wake()

    def _end_by(self, until: float) -> None:
        """The hold may end at `until`. It is renewed at once if that is earlier than before."""
        if until < self._server_until:
            self._set_until(until)
            if self._wanted.options.renew:
                self._renew_at = min(self._renew_at, time.monotonic())

    def _note_error(self, error: BaseException, sent: float, ttl_ms: int) -> None:
        """A command that sets the deadline, sent at `sent` or later, ended with an error."""
        if not isinstance(error, Exception) or may_be_executed(error):
            self._note_unanswered(sent, ttl_ms)

    def _note_errors(self, errors: Iterable[BaseException], sent: float, ttl_ms: int) -> None:
        for error in errors:
            self._note_error(error, sent, ttl_ms)

    def _note_unanswered(self, sent: float, ttl_ms: int) -> None:
        with self._changing:
            self._unanswered_ms = self._certain_ms(ttl_ms)
            # What is carried out before the last answer does not count. What comes after it sets this ttl.
            self._end_by(self._end_of(max(sent, self._sent), ttl_ms))

    def _note_change_unanswered(self, mode: str, sent: float, ttl_ms: int) -> None:
        """An upgrade or a downgrade to `mode` got no answer, so it may be carried out at any later time."""
        self._note_unanswered(sent, ttl_ms)
        if mode == READ:
            self._downgrade_unanswered = True
            self.mode = READ

    def _check_upgrade(self) -> None:
        if self._downgrade_unanswered:
            raise WrongMode(
                "a downgrade of this hold got no answer and may still be carried out; "
                "release it and acquire anew"
            )

    def _begin_extension(self, ttl_ms: int) -> None:
        """A ttl is about to be sent. A shorter one counts at once: the server may have it already."""
        with self._changing:
            self._end_by(self._end_of(time.monotonic(), self._certain_ms(ttl_ms)))

    def _extension_refused(self) -> None:
        """The server did not take the ttl. What it had confirmed before counts again."""
        with self._changing:
            until = self._end_of(self._sent, self._certain_ms(self._ttl_ms))
            self._server_until = max(self._server_until, until)

    def _renewed(self, sent: float, ttl_ms: int, answer: object) -> None:
        """What the server answered to a renewal: 1, 0, or an error."""
        with self._changing:
            if isinstance(answer, BaseException):
                self._note_error(answer, sent, ttl_ms)
            reason = self._reason_to_end()  # a hold that is lost stays lost, whatever the answer is
            if reason is None and answer == 0:
                reason = _validity.GONE
            lost = self._note_lost(reason)
            if not self.ended and isinstance(answer, BaseException):
                self._renewal_failed(answer, is_refused=not is_temporary(answer))
            elif not self.ended:
                self._problem = None
                self._count_from(sent, ttl_ms)
        self._tell_if(lost)

    def _renewal_failed(self, problem: BaseException, *, is_refused: bool) -> None:
        """It is tried again. When the hold is lost because of it, `problem` is the cause."""
        self._problem = problem
        self._renew_at = time.monotonic() + self.ttl_seconds * TRY_AGAIN_AFTER
        if is_refused and not self._warned:
            self._warned = True
            _log.warning("the server refuses to renew the hold of %s: %s", self.label, problem)

    def _lose(self, reason: str) -> None:
        with self._changing:
            lost = self._note_lost(reason)
        self._tell_if(lost)

    def _reason_to_end(self) -> str | None:
        """Why the hold is over by the clock."""
        now = time.monotonic()
        if now >= self._lease_end:
            return _validity.LEASE_ENDED
        return _validity.EXPIRED if now >= self._server_until else None

    def _note_lost(self, reason: str | None) -> bool:
        """Whether the hold is lost by this. Then `_tell_if` must follow, when `_changing` is free."""
        if reason is None or self.ended:
            return False
        self._reason = reason
        return True

    def _tell_if(self, lost: bool) -> None:
        if lost and self._reason is not None:
            self._hooks.tell_lost(self.label, self._reason)
            self._hooks.tell_held(self.label, time.monotonic() - self._granted_at)
            self._tell_lost()

    def _tell_lost(self) -> None:
        """Tells those who work under the hold. Called once."""
        raise NotImplementedError

    def _wake(self) -> None:
        """The hold may end earlier than those think who wait for its end."""
        raise NotImplementedError

    @property
    def _is_of_another_process(self) -> bool:
        """Whether the process was forked after the grant. The hold is its parent's."""
        return os.getpid() != self._process

    def _check_change(self) -> None:
        """Raises an error when the hold cannot be changed."""
        if self._is_of_another_process:
            raise NotHeld(f"the hold of {self.label} is that of the process that this one was forked from")
        self.check()

    def _check_turn(self, end: float) -> None:
        if time.monotonic() >= end:
            raise TimedOut(f"{self._wanted.names}: another change of the hold is under way")

    def _begin_release(self) -> bool:
        """No renewal begins after this. Whether the hold was there as far as this process knows."""
        with self._changing:
            lost = self._note_lost(self._reason_to_end())
            held = self._reason is None
            self._releasing = True
        self._tell_if(lost)
        if held:
            self._hooks.tell_held(self.label, time.monotonic() - self._granted_at)
        return held

    def _note_gone(self) -> None:
        """The release found nothing: the hold had ended before."""
        with self._changing:
            self._reason = _validity.GONE
        self._hooks.tell_lost(self.label, _validity.GONE)

    @property
    def _has_given_token(self) -> bool:
        """Whether the program chose the token. It may have a later hold by then."""
        return self._wanted.options.token is not None

    def _lost_error(self) -> Lost:
        assert self._reason is not None
        error = Lost(self.label, self._reason)
        error.__cause__ = self._problem if self._reason == _validity.EXPIRED else None
        return error
