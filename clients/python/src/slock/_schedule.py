"""When which hold is renewed, and when it is over. Pure: it reads no clock and does no I/O."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

# A renewal is due after this part of the ttl, and after an error again after that part.
RENEW_AFTER = 1 / 3
TRY_AGAIN_AFTER = 1 / 10

# A batch of renewals may take this part of the shortest ttl in it, so that there is time for another try.
BATCH_PART = 1 / 5
# And it always gets this long, in seconds, also when some hold is nearly over.
LEAST_BATCH_TIME = 0.05


class Renewable(Protocol):
    """What a watchdog renews. All times are seconds on the monotonic clock."""

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

    def expire(self) -> None:
        """Called when `valid_until` has passed: the hold is lost. It must not block."""


H = TypeVar("H", bound=Renewable)


class Schedule(Generic[H]):
    """The holds in the order in which something is to be done. Not safe for threads."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, H]] = []
        self._entries: dict[int, int] = {}  # which entry in the heap counts, by the id of the hold
        self._validity: list[tuple[float, int, H]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, hold: H) -> bool:
        return id(hold) in self._entries

    def put(self, hold: H) -> None:
        """Adds a hold, or moves it to where its times now put it."""
        number = next(self._numbers)
        self._entries[id(hold)] = number
        heapq.heappush(self._heap, (min(hold.renew_at, hold.valid_until), number, hold))
        heapq.heappush(self._validity, (hold.valid_until, number, hold))

    def remove(self, hold: H) -> None:
        """Forgets a hold. Nothing happens when it is not there."""
        self._entries.pop(id(hold), None)
        # Old entries are skipped when their time comes. Very many of them are removed at once.
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapq.heapify(self._heap)
        if len(self._validity) > 2 * len(self._entries) + 64:
            self._validity = [entry for entry in self._validity if self._counts(entry)]
            heapq.heapify(self._validity)

    def holds(self) -> list[H]:
        """All of them."""
        return [entry[2] for entry in self._validity if self._counts(entry)]

    def clear(self) -> None:
        self._heap.clear()
        self._validity.clear()
        self._entries.clear()

    def next_time(self) -> float | None:
        """When something is to be done; None when there is no hold."""
        self._skip(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> tuple[list[H], list[H]]:
        """The holds that are over, which are forgotten, and those to be renewed, which must be put back."""
        over: list[H] = []
        due: list[H] = []
        self._skip(self._heap)
        while self._heap and self._heap[0][0] <= now:
            hold = heapq.heappop(self._heap)[2]
            if hold.ended:
                self._entries.pop(id(hold), None)
            elif hold.valid_until <= now:
                self._entries.pop(id(hold), None)
                over.append(hold)
            elif hold.renew_at <= now:
                due.append(hold)
            else:
                self.put(hold)
            self._skip(self._heap)
        return over, due

    def batch_end(self, due: Iterable[H], now: float) -> float:
        """Until when a batch of renewals may take: then a hold may be over, or another try is due."""
        self._skip(self._validity)
        first = self._validity[0][0] if self._validity else now
        end = min(first, now + min(hold.ttl_seconds for hold in due) * BATCH_PART)
        return max(end, now + LEAST_BATCH_TIME)

    def _counts(self, entry: tuple[float, int, H]) -> bool:
        return self._entries.get(id(entry[2])) == entry[1]

    def _skip(self, heap: list[tuple[float, int, H]]) -> None:
        while heap and not self._counts(heap[0]):
            heapq.heappop(heap)
