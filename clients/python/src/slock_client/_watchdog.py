"""The one task that renews all holds of one `Locks`, or of one `Quorum`.

It waits for no server: what is due is sent by others, and what is not answered is due again later.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from slock_client._answers import Answer
from slock_client._clock import now
from slock_client._commands import Command, Key
from slock_client._fork import track
from slock_client._io import Event, Io, Link, all_of
from slock_client._schedule import Schedule, Timed
from slock_client._servers import ask
from slock_client._shared import Shared
from slock_client.hooks import call, log

# So many renewals go in one pipeline at most.
MOST_IN_PIPELINE = 500

# Renewals may take this part of the shortest ttl among them, so that there is time for another try.
ANSWER_PART = 1 / 5
# And they always have so long, in seconds.
LEAST_TIME = 0.05


class Renewable(Timed, Protocol):
    """What is renewed, or only watched."""

    @property
    def shared(self) -> Shared: ...

    @property
    def key(self) -> Key: ...

    def renewal(self) -> tuple[Command, Callable[[float, object], None]]:
        """A command, and what takes the moment at which it was sent and its answer, which may be an error."""

    def expire(self) -> None:
        """Called when `valid_until` has passed. It must not block."""


class Watchdog:
    """Started with the first hold, and ended some time after the last."""

    def __init__(self, io: Io) -> None:
        self._io = io
        self._closed = False
        self.after_fork()
        track(self)

    def after_fork(self) -> None:
        """The holds are the parent's, and it renews them."""
        self._changing = threading.RLock()
        self._schedule: Schedule[Renewable] = Schedule()
        self._runs = False
        self._wakes_at: float | None = None
        self._changed: Event = self._io.event()

    def add(self, hold: Renewable) -> None:
        """From now on it is renewed. For one that is there already: its times have changed."""
        with self._changing:
            if self._closed:
                return
            self._schedule.put(hold)
            if not self._runs:
                self._runs = True
                self._io.start(self._run, "watchdog")
            elif self._wakes_at is None or min(hold.renew_at, hold.valid_until) < self._wakes_at:
                self._changed.set()

    def remove(self, hold: Renewable) -> None:
        """No renewal of it begins after this. Nothing happens when it is not there.

        The task is not woken: when no other comes, it ends when it would have renewed this one.
        """
        with self._changing:
            self._schedule.remove(hold)

    def close(self) -> None:
        """Renews no more."""
        with self._changing:
            self._closed = True
            self._schedule.clear()
            self._changed.set()

    async def _run(self) -> None:
        while True:
            with self._changing:
                over, due = self._schedule.take(now())
                self._changed.clear()
                wakes_at = self._wakes_at = self._schedule.next_time()
                if wakes_at is None and not over and not due:
                    self._runs = False
                    return
            self._begin(due)
            for hold in over:
                call(hold.expire)
            if not over and not due:
                await self._changed.wait(wakes_at)

    def _begin(self, due: Sequence[Renewable]) -> None:
        groups: dict[Shared, list[Renewable]] = {}
        for hold in due:
            groups.setdefault(hold.shared, []).append(hold)
        for shared, holds in groups.items():
            for first in range(0, len(holds), MOST_IN_PIPELINE):
                batch = _Batch(shared, holds[first : first + MOST_IN_PIPELINE])
                self._io.start(functools.partial(self._renew, batch), "renewal")

    async def _renew(self, batch: _Batch) -> None:
        try:
            await batch.renew()
        except Exception:
            log.exception("a renewal failed")
        with self._changing:
            for hold in batch.holds:
                self._schedule.answered(hold)
            time = self._schedule.next_time()
            if time is not None and (self._wakes_at is None or time < self._wakes_at):
                self._changed.set()


class _Batch:
    """What is renewed at once at the servers of one client."""

    def __init__(self, shared: Shared, holds: Sequence[Renewable]) -> None:
        self.holds = holds
        self._shared = shared
        shortest = min(hold.ttl_seconds for hold in holds)
        self._end = now() + max(shortest * ANSWER_PART, LEAST_TIME)

    async def renew(self) -> None:
        """Sends the renewals in a pipeline for each server, and gives each hold its answer."""
        groups: dict[Link, list[Renewable]] = {}
        for hold in self.holds:
            if hold.ended:
                continue
            try:
                place = await self._shared.servers.place_of(hold.key, self._end)
            except Exception as error:
                hold.renewal()[1](now(), error)
            else:
                groups.setdefault(place.link, []).append(hold)
        works = [lambda link=link, holds=holds: self._renew_at(link, holds) for link, holds in groups.items()]
        await all_of(self._shared.io, works)

    async def _renew_at(self, link: Link, holds: Sequence[Renewable]) -> None:
        asked = [(hold, *hold.renewal()) for hold in holds if not hold.ended]
        if not asked:
            return
        sent = now()
        answers: Sequence[Answer]
        try:
            answers = await link.ask(*(command for _, command, _ in asked), end=self._end)
        except Exception as error:
            self._shared.servers.suspect()
            answers = [error] * len(asked)
        for (hold, command, take), answer in zip(asked, answers, strict=True):
            if self._shared.servers.redirected(hold.key, answer) is not None:
                try:
                    [answer] = await ask(self._shared.servers, hold.key, command, end=self._end)
                except Exception as error:
                    answer = error
            take(sent, answer)
