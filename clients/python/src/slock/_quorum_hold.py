"""A hold on the majority of several independent servers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from slock import _commands, _quorum, _validity
from slock._answers import is_temporary
from slock._block_hold import BlockHold
from slock._nodes import Asked
from slock._options import Wanted
from slock._quorum import Tally
from slock._time import ttl_ms
from slock.errors import QuorumMissed

if TYPE_CHECKING:
    from slock._quorum_locks import Quorum


class Extension(NamedTuple):
    """What the nodes were asked, and for which ttl."""

    asked: Asked
    ttl_ms: int


class QuorumHold(BlockHold):
    """A lock that is held on the majority of the servers. `Quorum` makes it; `release` ends it.

    `with hold:` works as with a `Hold`.
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

    def release(self) -> bool:
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
        tally = self._quorum._nodes.release(release, self._quorum._node_timeout(self.ttl))
        if tally.has_majority:
            return held
        if not tally.is_refused:
            told = tally.told("released", "not held")
            raise QuorumMissed(f"the release of {self.label} has no majority", told)
        if held:
            self._note_gone()
        return False

    def extend(self, ttl: timedelta | None = None) -> None:
        """Sets the ttl, from now on, also for renewals. Without an argument the present ttl begins anew.

        A node that has lost the hold is asked to grant it anew, as long as the majority has it. `Lost` when
        the majority has lost it, `NotHeld` when it has been released, `QuorumMissed` when too many nodes did
        not answer. After a command that a node did not answer the hold counts no answer for longer than the
        ttl of that command.
        """
        self._quorum._acquisitions.check_open()
        with self._alone():
            new_ms = self._ttl_ms if ttl is None else ttl_ms(ttl)
            with self._extending(new_ms):
                tally = self._finish_extension(*self._ask_to_extend(new_ms))
            self.check()
            if not tally.has_majority:
                raise self._missed(tally)

    def _ask_to_extend(self, ttl_ms: int | None = None) -> tuple[Extension, float]:
        """Asks all nodes and does not wait. Without a ttl: for the present one. What was asked, and when."""
        ttl_ms, sent = self._ttl_ms if ttl_ms is None else ttl_ms, time.monotonic()
        extend = _commands.extend(self.keys, self.token, ttl_ms)
        timeout = self._quorum._node_timeout(timedelta(milliseconds=ttl_ms))
        asked = self._quorum._nodes.begin(extend, timeout, wanted=lambda: not self.ended)
        return Extension(asked, ttl_ms), sent

    def _finish_extension(self, extension: Extension, sent: float) -> Tally:
        """Waits for the answers and takes note of them."""
        asked, ttl_ms = extension
        try:
            tally = self._quorum._nodes.collect(asked)
        except BaseException as error:  # Ctrl-C
            self._note_error(error, sent, ttl_ms)
            raise
        self._note_errors(tally.errors(), sent, ttl_ms)
        if self.ended or self.lost:
            return tally
        if tally.has_majority:
            self._problem = None
            self._count_from(sent, ttl_ms)
            if tally.refused:
                self._grant_anew(tally, ttl_ms)
        elif tally.is_refused:
            self._lose(_validity.GONE)
        else:
            refused = any(not is_temporary(error) for error in tally.errors())
            self._renewal_failed(self._missed(tally), is_refused=refused)
        return tally

    def _grant_anew(self, tally: Tally, ttl_ms: int) -> None:
        options = self._wanted.options
        acquire = _commands.acquire(
            self.keys, self.mode, self.token, ttl_ms, metadata=options.metadata, limit=options.limit
        )
        nodes, timeout = self._quorum._nodes, self._quorum._node_timeout(timedelta(milliseconds=ttl_ms))
        sent = time.monotonic()
        # After a release began it is not sent any more: the release would not end it.
        asked = nodes.begin(acquire, timeout, only=tally.refused, wanted=lambda: not self.ended)
        granted = nodes.collect(asked)
        self._note_errors(granted.errors(), sent, ttl_ms)
        self.fences = {**self.fences, **granted.given}

    def _missed(self, tally: Tally) -> QuorumMissed:
        told = tally.told("extended", "not held")
        return QuorumMissed(f"the extension of {self.label} has no majority", told)

    def _end_of(self, sent: float, ttl_ms: float) -> float:
        return _quorum.valid_until(sent, ttl_ms, self._quorum._drift_factor)
