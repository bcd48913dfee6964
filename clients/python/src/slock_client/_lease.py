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
from typing import Any

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
        self.mode: Mode = mode
        self.label = options.label or owner.names[0]
        self._context = contextvars.copy_context()
        self.pid = os.getpid()
        self.reason: Reason | None = None  # why it was lost
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
        self.mode, self.fence = mode, answer.number
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

    @property
    def is_live(self) -> bool:
        """Whether it has not ended, as far as that has been noticed."""
        return bool(self._claims)

    def is_abandoned(self) -> bool:
        """Whether nobody can release it any more."""
        return self.alive is not None and self.alive() is None

    def end(self, reason: Reason | None) -> bool:
        """Ends the hold, as lost if there is a reason. From then on nothing renews it. Tells whether it was live."""
        try:
            self._claims.pop()
        except IndexError:
            return False
        self.holds.pop(self, None)
        if reason is not None:
            # By the fence, because another hold of a token of the program's stays.
            self.keeper.drop(self.owner, self.named())
            self.tell_loss(reason)
        self._tell("held", now() - self.granted)
        for watcher in list(self.watchers):
            watcher()
        return True

    def finish(self) -> None:
        """Ends the hold for the program, before anything is sent. Raises `LostError` or `NotHeldError`."""
        if not self.end(self._overdue()) or self.reason is not None:
            raise self._error()

    def abandon(self) -> None:
        if self.end(None):
            self.keeper.drop(self.owner, self.named())

    def _overdue(self) -> Reason | None:
        last = self.last
        if now() < last:
            return None
        if last < self.until:
            return "max hold"
        return "closed" if self.options.closing.is_set() else "expired"

    def problem(self) -> SlockError | None:
        """`None` while the hold is live."""
        reason = self._overdue() if self.is_live else None
        if reason is not None:
            self.end(reason)
        return None if self.is_live else self._error()

    def raise_problem(self) -> None:
        problem = self.problem()
        if problem is not None:
            raise problem

    def _error(self) -> SlockError:
        if self.reason is None:
            return not_held(self.owner.names, self.mode)
        loss = LostError(f"the lock was lost, {self.reason}", self.owner.names)
        loss.reason = self.reason
        if self.reason == "expired":
            loss.__cause__ = self.failed
        return loss

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
            self.end("gone")
        self.raise_problem()

    # --- what the program is told

    def _tell(self, hook: str, told: Any) -> None:
        """Calls a hook in the context of the acquisition."""
        function = getattr(self.options.hooks, hook)
        if function is not None:
            self._context.copy().run(function, self.label, told)  # a context is for one thread at a time

    def tell_loss(self, reason: Reason) -> SlockError:
        self.reason = reason
        loss = self._error()
        _log.warning("slock: a lock was lost: %s (label %s, reason %s)", loss, self.label, reason)
        self._tell("lost", loss)
        return loss

    def tell_renewal_failed(self, error: BaseException) -> None:
        _log.debug("slock: a renewal failed (%s): %s", self, error)
        self._tell("renewal_failed", error)

    def tell_release_failed(self, error: BaseException) -> None:
        _log.warning("slock: a release failed; the lock ends by its ttl (%s): %s", self, error)
        self._tell("release_failed", error)

    def warn_of_age(self) -> None:
        if not self.is_warned and self.options.max_hold is None:
            self.is_warned = True
            _log.warning("slock: a lock has been held for an hour and has no max_hold (%s)", self)

    def __str__(self) -> str:
        return f"lock {', '.join(self.owner.names)}, label {self.label}"
