"""The one task that renews all holds of one `Locks`, or of one `Quorum`, and notices when one is over.

It waits for no server: what is due is sent by others, and what is not answered is due again later.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from slock_client._answers import Answer
from slock_client._clock import now
from slock_client._commands import Command, Key
from slock_client._fork import track
from slock_client._lease import RENEW_AFTER
from slock_client.asyncio import _tasks as io
from slock_client.asyncio._node import Node
from slock_client.asyncio._servers import Servers, ask
from slock_client.hooks import call

# What is due within so long, in seconds, or within this part of its ttl, goes with what is due now: in one
# pipeline.
EARLY = 0.02
EARLY_PART = 1 / 20

# So many renewals go in one pipeline at most.
MOST_IN_PIPELINE = 500

# Renewals may take this part of the shortest ttl among them, so that there is time for another try.
ANSWER_PART = 1 / 5
# And they always have so long, in seconds.
LEAST_TIME = 0.05


class Renewable(Protocol):
    """What is renewed, or only watched. All times are seconds on the clock of the library."""

    shared: Any
    key: Key
    ttl_ms: int
    """How long a renewal keeps the hold."""
    renew_at: float
    """When the next renewal is due. Infinity: no more renewals."""
    ended: bool
    """Whether the hold was released or lost. Such a hold is neither renewed nor looked at again."""

    @property
    def valid_until(self) -> float:
        """When the hold is over unless a renewal is answered."""

    def renewal(self) -> tuple[Command, Callable[[float, object], object]]:
        """A command, and what takes the moment at which it was sent and its answer, which may be an error."""

    def expire(self) -> None:
        """Called when `valid_until` has passed. It must not block."""


class Watchdog:
    """Started with the first hold, and ended some time after the last."""

    def __init__(self) -> None:
        self._closed = False
        self.after_fork()
        track(self)

    def after_fork(self) -> None:
        """The holds are the parent's, and it renews them."""
        self._changing = io.Mutex()
        self._heap: list[tuple[float, int, Renewable]] = []
        self._entries: dict[Renewable, int] = {}  # which entry in the heap counts
        self._numbers = itertools.count()
        self._runs = False
        self._wakes_at = math.inf
        self._changed = io.Event()

    def add(self, hold: Renewable) -> None:
        """From now on it is renewed. For one that is there already: its times have changed."""
        with self._changing:
            if hold.ended:
                return
            if not self._runs:
                io.start(self._run, "watchdog")
                self._runs = True
            self._put(hold)
            if self.next_time() < self._wakes_at:
                self._changed.set()

    def remove(self, hold: Renewable) -> None:
        """No renewal of it begins after this. Nothing happens when it is not there.

        The task is not woken: when no other comes, it ends when it would have renewed this one.
        """
        with self._changing:
            self._entries.pop(hold, None)
            # Old entries are skipped when their time comes. Very many of them are removed at once.
            if len(self._heap) > 2 * len(self._entries) + 64:
                self._heap = [entry for entry in self._heap if self._counts(entry)]
                heapq.heapify(self._heap)

    def close(self) -> None:
        """Renews no more. It still notices when holds are over."""
        self._closed = True

    def take(self, moment: float) -> tuple[list[Renewable], list[Renewable]]:
        """The holds that are over, which are forgotten, and those to be renewed.

        These are due again after the usual time, or when their answer says.
        """
        over, due, later = list[Renewable](), list[Renewable](), list[Renewable]()
        while self._heap and self._heap[0][0] <= moment + EARLY:
            entry = heapq.heappop(self._heap)
            hold = entry[2]
            if not self._counts(entry):
                continue
            if hold.ended or hold.valid_until <= moment:
                del self._entries[hold]
                if not hold.ended:
                    over.append(hold)
                continue
            early = min(EARLY, hold.ttl_ms / 1000 * EARLY_PART)
            if hold.renew_at <= moment + early and not self._closed:
                hold.renew_at = moment + hold.ttl_ms / 1000 * RENEW_AFTER
                due.append(hold)
            later.append(hold)
        for hold in later:
            self._put(hold)
        return over, due

    def next_time(self) -> float:
        """When something is to be done; infinity when there is no hold."""
        while self._heap and not self._counts(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def _put(self, hold: Renewable) -> None:
        number = self._entries[hold] = next(self._numbers)
        time = hold.valid_until if self._closed else min(hold.renew_at, hold.valid_until)
        heapq.heappush(self._heap, (time, number, hold))

    def _counts(self, entry: tuple[float, int, Renewable]) -> bool:
        return self._entries.get(entry[2]) == entry[1]

    async def _run(self) -> None:
        while True:
            with self._changing:
                over, due = self.take(now())
                self._changed = changed = io.Event()
                wakes_at = self._wakes_at = self.next_time()
                if wakes_at == math.inf and not over and not due:
                    self._runs = False
                    return
            groups: dict[Servers, list[Renewable]] = {}
            for hold in due:
                groups.setdefault(hold.shared.servers, []).append(hold)
            for servers, holds in groups.items():
                for first in range(0, len(holds), MOST_IN_PIPELINE):
                    self._begin(servers, holds[first : first + MOST_IN_PIPELINE])
            for hold in over:
                call(hold.expire)
            if not over and not due:
                await changed.wait(wakes_at)

    def _begin(self, servers: Servers, holds: Sequence[Renewable]) -> None:
        end = now() + max(min(hold.ttl_ms for hold in holds) / 1000 * ANSWER_PART, LEAST_TIME)

        async def work() -> None:
            await _renew(servers, holds, end)
            for hold in holds:
                self.add(hold)

        try:
            io.start(work, "renewal")
        except RuntimeError as error:  # no thread can be started now
            for hold in holds:
                hold.renewal()[1](now(), error)
                self.add(hold)


async def _renew(servers: Servers, holds: Sequence[Renewable], end: float) -> None:
    """Sends the renewals in a pipeline for each server, and gives each hold its answer."""
    groups: dict[Node, list[Renewable]] = {}
    for hold in holds:
        try:
            groups.setdefault((await servers.place_of(hold.key, end)).node, []).append(hold)
        except Exception as error:
            hold.renewal()[1](now(), error)
    works = [functools.partial(_renew_at, servers, node, holds, end) for node, holds in groups.items()]
    if len(works) == 1:  # as a rule
        await works[0]()
        return
    async for _ in io.each(works):
        pass


async def _renew_at(servers: Servers, node: Node, holds: Sequence[Renewable], end: float) -> None:
    asked = [(hold, *hold.renewal()) for hold in holds if not hold.ended]
    if not asked:
        return
    sent = now()
    answers: Sequence[Answer]
    try:
        answers = await node.ask([command for _, command, _ in asked], end)
        servers.note(None)
    except Exception as error:
        servers.suspect()
        servers.note(error)
        answers = [error] * len(asked)
    for (hold, command, take), answer in zip(asked, answers, strict=True):
        if servers.redirected(hold.key, answer) is not None:
            try:
                [answer] = await ask(servers, hold.key, command, end=end)
            except Exception as error:
                answer = error
        take(sent, answer)
