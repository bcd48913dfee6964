# SPDX-License-Identifier: MIT OR Apache-2.0

"""The one task or thread that looks after all holds of a `Locks`: it renews them, and ends those whose time is over or
whose owner has gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from slock_client._clock import now
from slock_client._hold import Claim, HoldBase
from slock_client._server import Crew, Server
from slock_client._transport import Runtime

_LONGEST_PAUSE = 1.0  # seconds. Timers stop while the machine sleeps, and owners vanish at any time.
_LEAST_PAUSE = 20  # times that a look at all holds took: so it costs a twentieth of a core at most
_IDLE = 10.0  # seconds without holds and waits, after which it ends
_AT_ONCE = 50  # renewals, however many holds are due
_LONG = 3600.0  # seconds after which a hold without a limit is worth a warning


class Watchdog:
    def __init__(self, io: Runtime, servers: Sequence[Server]) -> None:
        self._io, self._servers = io, servers
        self.holds: dict[Claim, None] = {}  # those that are live
        self._inbox = io.mailbox()
        self._wakes_at = float("-inf")  # when it looks next
        self._calls = 0  # of `wake`
        self._permit = deque([None])  # for the one that runs
        self._renewals = Crew(io, _AT_ONCE, HoldBase._renew)

    def add(self, claim: Claim, hold: HoldBase) -> None:
        self.holds[claim] = None
        self.wake(hold._renew_at if hold._options.renew else hold._last)

    def wake(self, due: float) -> None:
        """Has it look at that time."""
        self._calls += 1
        if self._permit:
            if not self._io.is_ending():
                self._io.start(self._run)
        elif due < self._wakes_at:
            self._inbox.put(None)

    def confirm(self) -> None:
        """Has all holds extended: the primary may be another one, which has not all of them."""
        for hold in filter(None, (claim.get() for claim in list(self.holds))):
            hold._renew_at = float("-inf")
        self._inbox.put(None)

    async def _run(self) -> None:
        try:
            self._permit.pop()
        except IndexError:
            return  # another one runs
        last_use = now()
        try:
            while True:
                self._follow(True)
                began, calls = now(), self._calls
                if self.holds or any(server.listener.tickets for server in self._servers):
                    last_use = began
                elif began - last_use > _IDLE:
                    return
                due = min((self._look(claim, began) for claim in list(self.holds)), default=float("inf"))
                soon = began + (now() - began) * (1 + _LEAST_PAUSE)
                self._wakes_at = max(min(due, began + _LONGEST_PAUSE), soon)
                if calls != self._calls:  # another thread has called during the look
                    self._wakes_at = soon
                await self._inbox.get(self._wakes_at - now())
                self._wakes_at = float("-inf")
        finally:
            self._permit.append(None)
            self._follow(False)
            for server in self._servers:
                if not server.listener.tickets:
                    server.listener.close()
            if self.holds:  # one came after the last look
                self.wake(0)

    def _follow(self, is_wanted: bool) -> None:
        for server in self._servers:
            server.link.follow(is_wanted)

    def _look(self, claim: Claim, at: float) -> float:
        """Does what is due for a hold, and tells when to look again."""
        hold, is_renewed = claim.get(), claim.options.renew
        if hold is None:
            self._abandon(claim)
            return float("inf")
        if not (is_renewed or hold._watchers):
            if at < hold._last:
                return hold._last
            self.holds.pop(claim, None)  # it ends by its ttl, and its owner learns that by asking
            return float("inf")
        if not hold._is_live():
            return float("inf")
        if not is_renewed or claim.options.closing.is_set():
            return hold._last
        if at >= hold._renew_at and not hold._is_renewing:
            hold._is_renewing = True
            self._renewals.put(hold)
        if at - hold._granted > _LONG:
            hold._warn_of_age()
        return hold._last if hold._is_renewing else min(hold._last, hold._renew_at)

    def _abandon(self, claim: Claim) -> None:
        """Nobody can release the hold any more."""
        left, is_live = claim.hold(), self.holds.pop(claim, claim) is None
        if claim.options.renew and (is_live if left is None else left._end(None)):
            claim.drop()
