"""The one task or thread that looks after all holds of a `Locks`: it renews them, and ends those whose time is over or
whose owner has gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from slock_client._clock import now
from slock_client._crew import Crew
from slock_client._lease import Lease
from slock_client._protocol import explained
from slock_client._server import Server
from slock_client._transport import NoReply, Runtime, ServerError
from slock_client.errors import SlockError

_LONGEST_PAUSE = 1.0  # seconds. Timers stop while the machine sleeps, and owners vanish at any time.
_LEAST_PAUSE = 20  # times that a look at all holds took: so it costs a twentieth of a core at most
_IDLE = 10.0  # seconds without holds and waits, after which it ends
_AT_ONCE = 50  # renewals, however many holds are due
_LONG = 3600.0  # seconds after which a hold without a limit is worth a warning


class Watchdog:
    def __init__(self, io: Runtime, servers: Sequence[Server]) -> None:
        self._io, self._servers = io, servers
        self.holds: dict[Lease, None] = {}
        self._inbox = io.mailbox()
        self._wakes_at = float("-inf")  # when it looks next
        self._calls = 0  # of `wake`
        self._permit = deque([None])  # for the one that runs
        self._renewals = Crew(io, _AT_ONCE, self._renew)

    def add(self, lease: Lease) -> None:
        lease.holds = self.holds
        self.holds[lease] = None
        self.wake(lease.renew_at if lease.options.renew else lease.last)

    def wake(self, due: float) -> None:
        """Has it look at that time."""
        self._calls += 1
        if self._permit:
            self._io.start(self._run)
        elif due < self._wakes_at:
            self._inbox.put(None)

    def confirm(self) -> None:
        """Has all holds extended: the primary may be another one, which has not all of them."""
        for lease in list(self.holds):
            lease.renew_at = float("-inf")
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
                due = min((self._look(lease, began) for lease in list(self.holds)), default=float("inf"))
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

    def _look(self, lease: Lease, at: float) -> float:
        """Does what is due for a hold, and tells when to look again."""
        is_renewed, is_abandoned = lease.options.renew, lease.is_abandoned()
        if not (is_renewed or lease.watchers) and (is_abandoned or at >= lease.last):
            self.holds.pop(lease, None)  # it ends by its ttl, and its owner learns that by asking
            return float("inf")
        if is_abandoned or (lease.alive is None and at >= lease.last):
            lease.abandon()
            return float("inf")
        if lease.problem() is not None:
            return float("inf")
        if not is_renewed or lease.options.closing.is_set():
            return lease.last
        if at >= lease.renew_at and not lease.is_renewing and lease.alive is not None:
            lease.is_renewing = True
            self._renewals.put(lease)
        if at - lease.granted > _LONG:
            lease.warn_of_age()
        return lease.last if lease.is_renewing else min(lease.last, lease.renew_at)

    async def _renew(self, lease: Lease) -> None:
        try:
            # A reply may be waited for in vain, so it is not waited for long.
            at = now()
            await lease.extend(lease.keeper, lease.ttl, at + min(lease.ttl / 4, lease.last - at))
        except (NoReply, ServerError, SlockError) as error:
            if lease.problem() is None:
                lease.tell_renewal_failed(explained(error))
        finally:
            lease.is_renewing = False
            self.wake(lease.renew_at)
