"""A hold on the majority of several independent servers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from slock import _commands, _quorum, _validity
from slock._answers import is_temporary
from slock._options import Wanted
from slock._quorum import Tally
from slock._time import ttl_ms
from slock.asyncio._guarded_hold import GuardedHold
from slock.errors import QuorumMissed

if TYPE_CHECKING:
    from slock.asyncio._quorum_locks import Quorum


class QuorumHold(GuardedHold):
    """A lock that is held on the majority of the servers. `Quorum` makes it; `release` ends it.

    `async with hold:` works as with a `Hold`.
    """

    fences: Mapping[str, int]
    """The fence of each node that granted it, by address. Those of different nodes cannot be compared."""

    def __init__(
        self, quorum: Quorum, wanted: Wanted, token: str, fences: Mapping[str, int], sent: float
    ) -> None:
        super().__init__(wanted, token, quorum._hooks, quorum._watchdog)
        self.fences = dict(fences)
        self._quorum = quorum
        self._count_from(sent, self._ttl_ms)
        if wanted.options.renew:
            quorum._watchdog.add(self)

    async def release(self) -> bool:
        """Releases the hold on all nodes, and tells whether the majority still had it.

        `QuorumMissed` when too many nodes did not answer to know. A second call changes nothing and gives
        False, and so does a call in a process that was forked after the grant. For a hold that is lost
        nothing is sent where `token` was given, because that may have a later hold.
        """
        if self._releasing or self._is_of_another_process:
            return False
        self._quorum._acquisitions.check_open()
        held = self._begin_release()
        if self._wanted.options.renew:
            self._quorum._watchdog.remove(self)
        if not held and self._has_given_token:
            return False
        release = _commands.release(self.keys, self.token)
        tally = await self._quorum._nodes.release(release, self._quorum._node_timeout(self.ttl))
        if tally.has_majority:
            return held
        if not tally.is_refused:
            told = tally.told("released", "not held")
            raise QuorumMissed(f"the release of {self.label} has no majority", told)
        if held:
            self._note_gone()
        return False

    async def extend(self, ttl: timedelta | None = None) -> None:
        """Sets the ttl, from now on, also for renewals. Without an argument the present ttl begins anew.

        A node that has lost the hold is asked to grant it anew, as long as the majority has it. `Lost` when
        the majority has lost it, `NotHeld` when it has been released, `QuorumMissed` when too many nodes did
        not answer. After a command that a node did not answer the hold counts no answer for longer than the
        ttl of that command.
        """
        self._quorum._acquisitions.check_open()
        async with self._alone():
            new_ms = self._ttl_ms if ttl is None else ttl_ms(ttl)
            async with self._extending(new_ms):
                tally = await self._extend_everywhere(new_ms)
            self.check()
            if not tally.has_majority:
                raise self._missed(tally)

    async def _extend_everywhere(self, ttl_ms: int | None = None) -> Tally:
        """For the present ttl, if none is given."""
        nodes, ttl_ms = self._quorum._nodes, self._ttl_ms if ttl_ms is None else ttl_ms
        timeout = self._quorum._node_timeout(timedelta(milliseconds=ttl_ms))
        sent = time.monotonic()
        extend = _commands.extend(self.keys, self.token, ttl_ms)
        try:
            tally = await nodes.ask(extend, timeout, wanted=lambda: not self.ended)
        except BaseException as error:  # it was cancelled
            self._note_error(error, sent, ttl_ms)
            raise
        self._note_errors(tally.errors(), sent, ttl_ms)
        if self.ended or self.lost:
            return tally
        if tally.has_majority:
            self._problem = None
            self._count_from(sent, ttl_ms)
            if tally.refused:
                await self._grant_anew(tally, timeout, ttl_ms)
        elif tally.is_refused:
            self._lose(_validity.GONE)
        else:
            refused = any(not is_temporary(error) for error in tally.errors())
            self._renewal_failed(self._missed(tally), is_refused=refused)
        return tally

    async def _grant_anew(self, tally: Tally, timeout: float, ttl_ms: int) -> None:
        options, sent = self._wanted.options, time.monotonic()
        acquire = _commands.acquire(
            self.keys, self.mode, self.token, ttl_ms, metadata=options.metadata, limit=options.limit
        )
        # After a release began it is not sent any more: the release would not end it.
        granted = await self._quorum._nodes.ask(
            acquire, timeout, only=tally.refused, wanted=lambda: not self.ended
        )
        self._note_errors(granted.errors(), sent, ttl_ms)
        self.fences = {**self.fences, **granted.given}

    def _missed(self, tally: Tally) -> QuorumMissed:
        told = tally.told("extended", "not held")
        return QuorumMissed(f"the extension of {self.label} has no majority", told)

    def _end_of(self, sent: float, ttl_ms: float) -> float:
        return _quorum.valid_until(sent, ttl_ms, self._quorum._drift_factor)
