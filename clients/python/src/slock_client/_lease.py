"""What is known of a hold. It is kept apart from the object that the program has, which is only referred to weakly: a
hold that nobody can release any more is not renewed.

Threads change it without a lock, which an exception of a signal handler might leave locked. Where one of several
threads has to win, the operation is one of C, such as `list.pop`.
"""

from __future__ import annotations

import contextvars
import logging
import os
from collections.abc import Callable
from typing import Any, Literal

from slock_client._clock import now
from slock_client._options import Mode, Options
from slock_client._protocol import Owner, explained, not_held
from slock_client._quorum import Votes
from slock_client._server import Answer, Server
from slock_client._transport import NoReply, ServerError
from slock_client.errors import LostError, Reason, SlockError

_log = logging.getLogger("slock_client")

_AGAIN = 0.1  # seconds until a renewal is sent again, where another primary may have to confirm it


Keeper = Server | Votes  # where a hold is kept


class Lease:
    def __init__(self, keeper: Keeper, owner: Owner, mode: Mode, options: Options, grant: Answer) -> None:
        self.keeper, self.owner, self.options = keeper, owner, options
        self.label = options.label or owner.names[0]
        self._context = contextvars.copy_context()
        self.pid = os.getpid()
        self.state: Literal["live", "over", "lost"] = "live"
        self.reason: Reason | None = None
        self.ttl = options.ttl
        self.granted = grant.sent  # when it was granted, at the earliest
        self.until = float("-inf")  # valid until then
        self.is_changing = False  # a change of mode is under way
        self.is_renewing = False
        self.is_warned = False  # that nothing limits the hold
        self.failed: BaseException | None = None  # what the last renewal said, unless one has succeeded since
        self.alive: Callable[[], Any] | None = None  # gives None if nobody can release the hold; None: not handed out
        self.watchers: list[Callable[[], object]] = []  # called when the hold is over
        self.holds: dict[Lease, None] = {}  # where it is until it is over
        self._claims = [None]  # who takes the one element ends the hold
        self.grant(mode, grant)

    # --- what the server has said

    def grant(self, mode: Mode, answer: Answer) -> None:
        self.mode: Mode = mode
        self.fence = answer.number
        self.is_open = False  # the server may have changed the mode and the fence: renewals name no fence
        self.lengthen(answer.sent, self.ttl)

    def lengthen(self, sent: float, ttl: float) -> None:
        """The server lets the hold live for a ttl, or longer, from a moment on."""
        self.ttl, self.until = max(self.ttl, ttl), max(self.until, sent + self.options.counted(ttl))
        self.renew_at, self.failed = sent + self.ttl / 3, None

    def named(self) -> int:
        """The fence that commands name, or 0."""
        return 0 if self.is_open else self.fence

    @property
    def last(self) -> float:
        """When the hold is over, whatever the server says."""
        most = self.options.max_hold
        return self.until if most is None else min(self.until, self.granted + most)

    # --- its end

    def is_abandoned(self) -> bool:
        """Whether nobody can release it any more."""
        return self.alive is not None and self.alive() is None

    def _claim(self) -> bool:
        """Whether the caller is the one who ends the hold. From then on nothing renews it."""
        try:
            self._claims.pop()
        except IndexError:
            return False
        self.holds.pop(self, None)
        return True

    def finish(self) -> None:
        """Ends the hold for the program, before anything is sent. Raises `LostError` or `NotHeldError`."""
        is_mine = self._claim()
        if is_mine:
            self.state = "over"
            reason = self._overdue()
            if reason is not None:
                self._become_lost(reason)
            self._notify()
        if not is_mine or self.state == "lost":
            raise self.error()

    def lose(self, reason: Reason) -> None:
        if self._claim():
            self._become_lost(reason)
            self._notify()

    def abandon(self) -> None:
        if self._claim():
            self.state = "over"
            self.keeper.drop(self.owner, self.named())
            self._notify()

    def find_gone(self) -> LostError:
        """The release found nothing."""
        self.state, self.reason = "lost", "gone"
        return self._tell_loss()

    def _become_lost(self, reason: Reason) -> None:
        self.state, self.reason = "lost", reason
        # By the fence, because another hold of a token of the program's stays.
        self.keeper.drop(self.owner, self.named())
        self._tell_loss()

    def _overdue(self) -> Reason | None:
        last = self.last
        if now() < last:
            return None
        if last < self.until:
            return "max hold"
        return "closed" if self.options.closing.is_set() else "expired"

    def problem(self) -> SlockError | None:
        """`None` while the hold is live."""
        if self.state == "live":
            reason = self._overdue()
            if reason is not None:
                self.lose(reason)
            elif self._claims:
                return None
        return self.error()

    def error(self) -> SlockError:
        return self._loss() if self.state == "lost" else not_held(self.owner.names, self.mode)

    def _loss(self) -> LostError:
        loss = LostError(f"the lock was lost, {self.reason}", self.owner.names)
        loss.reason = self.reason or "gone"
        if self.reason == "expired":
            loss.__cause__ = self.failed
        return loss

    def raise_problem(self) -> None:
        problem = self.problem()
        if problem is not None:
            raise problem

    # --- extension

    async def extend(self, keeper: Keeper, ttl: float, until: float) -> None:
        """Sends one extension to at least the ttl. What is wrong with the hold is raised before another error."""
        self.raise_problem()
        ttl, fence = max(self.ttl, ttl), self.named()
        try:
            answer = await keeper.extend(self.owner, ttl, fence, self.options, until)
        except (NoReply, ServerError, SlockError) as error:
            self.renew_at = now() + min(self.ttl / 10, _AGAIN if isinstance(error, NoReply) else self.ttl)
            self.failed = explained(error)
            self.raise_problem()
            raise
        if answer.number:
            self.lengthen(answer.sent, ttl)
        elif fence == self.named():  # else it was about another fence
            self.lose("gone")
        self.raise_problem()

    # --- what the program is told

    def _call(self, hook: Callable[..., object] | None, *arguments: Any) -> None:
        """Calls a hook in the context of the acquisition."""
        if hook is not None:
            self._context.copy().run(hook, self.label, *arguments)  # a context is for one thread at a time

    def _notify(self) -> None:
        self._call(self.options.hooks.held, now() - self.granted)
        for watcher in list(self.watchers):
            watcher()

    def _tell_loss(self) -> LostError:
        loss = self._loss()
        _log.warning("slock: a lock was lost: %s (label %s, reason %s)", loss, self.label, loss.reason)
        self._call(self.options.hooks.lost, loss)
        return loss

    def tell_renewal_failed(self, error: BaseException) -> None:
        _log.debug("slock: a renewal failed (%s): %s", self, error)
        self._call(self.options.hooks.renewal_failed, error)

    def tell_release_failed(self, error: BaseException) -> None:
        _log.warning("slock: a release failed; the lock ends by its ttl (%s): %s", self, error)
        self._call(self.options.hooks.release_failed, error)

    def warn_of_age(self) -> None:
        if not self.is_warned and self.options.max_hold is None:
            self.is_warned = True
            _log.warning("slock: a lock has been held for an hour and has no max_hold (%s)", self)

    def __str__(self) -> str:
        return f"lock {', '.join(self.owner.names)}, label {self.label}"
