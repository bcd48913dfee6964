"""When which hold is renewed, and when it is over. Pure: it reads no clock and does no I/O."""

from __future__ import annotations

import heapq
import itertools
from typing import Generic, Protocol, TypeVar

# A renewal is due after this part of the ttl, and after an error again after that part.
RENEW_AFTER = 1 / 3
TRY_AGAIN_AFTER = 1 / 10

# What is due within so long, in seconds, is renewed with what is due now: in one pipeline.
EARLY = 0.02


class Timed(Protocol):
    """What has its time. All times are seconds on the clock of the library."""

    @property
    def ttl_seconds(self) -> float:
        """How long a renewal keeps the hold."""

    @property
    def renew_at(self) -> float:
        """When the next renewal is due. Infinity: no more renewals."""

    @property
    def valid_until(self) -> float:
        """When the hold is over unless a renewal is answered."""

    @property
    def ended(self) -> bool:
        """Whether the hold was released or lost. Such a hold is neither renewed nor looked at again."""


H = TypeVar("H", bound=Timed)


class Schedule(Generic[H]):
    """The holds in the order in which something is to be done. Not safe for threads."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, H]] = []
        self._entries: dict[int, int] = {}  # which entry in the heap counts, by the id of the hold
        self._busy: set[int] = set()  # the ids of those whose renewal is under way
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, hold: H) -> bool:
        return id(hold) in self._entries

    def put(self, hold: H) -> None:
        """Adds a hold, or moves it to where its times now put it."""
        number = next(self._numbers)
        self._entries[id(hold)] = number
        time = hold.valid_until if id(hold) in self._busy else min(hold.renew_at, hold.valid_until)
        heapq.heappush(self._heap, (time, number, hold))

    def answered(self, hold: H) -> None:
        """Its renewal is not under way any more."""
        self._busy.discard(id(hold))
        if hold in self:
            self.put(hold)

    def remove(self, hold: H) -> None:
        """Forgets a hold. Nothing happens when it is not there."""
        self._entries.pop(id(hold), None)
        # Old entries are skipped when their time comes. Very many of them are removed at once.
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        self._heap.clear()
        self._entries.clear()
        self._busy.clear()

    def next_time(self) -> float | None:
        """When something is to be done; None when there is no hold."""
        self._skip()
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> tuple[list[H], list[H]]:
        """The holds that are over, which are forgotten, and those to be renewed, until `answered` is
        called.
        """
        over: list[H] = []
        due: list[H] = []
        later: list[H] = []
        self._skip()
        while self._heap and self._heap[0][0] <= now + EARLY:
            hold = heapq.heappop(self._heap)[2]
            if hold.ended:
                self._entries.pop(id(hold), None)
            elif hold.valid_until <= now:
                self._entries.pop(id(hold), None)
                over.append(hold)
            else:
                if hold.renew_at <= now + EARLY and id(hold) not in self._busy:
                    self._busy.add(id(hold))
                    due.append(hold)
                later.append(hold)
            self._skip()
        for hold in later:
            self.put(hold)
        return over, due

    def _counts(self, entry: tuple[float, int, H]) -> bool:
        return self._entries.get(id(entry[2])) == entry[1]

    def _skip(self) -> None:
        while self._heap and not self._counts(self._heap[0]):
            heapq.heappop(self._heap)
