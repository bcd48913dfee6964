"""Work in the background, on so many items at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from slock_client._transport import Runtime

T = TypeVar("T")


class Crew(Generic[T]):
    """Works on items, on at most so many at once. The others cost their memory only."""

    def __init__(self, io: Runtime, most: int, work: Callable[[T], Awaitable[None]]) -> None:
        self._io, self._most, self._work = io, most, work
        self._items: deque[T] = deque()
        self._permits = deque([None] * most)

    def put(self, item: T, is_first: bool = False) -> None:
        (self._items.appendleft if is_first else self._items.append)(item)
        if self._permits:
            self._io.spawn(self._run)

    def is_idle(self) -> bool:
        return not self._items and len(self._permits) == self._most

    async def _run(self) -> None:
        try:
            self._permits.pop()
        except IndexError:
            return  # so many others take what is there
        try:
            while True:
                try:
                    item = self._items.popleft()
                except IndexError:
                    break
                await self._work(item)
        finally:
            self._permits.append(None)
            if self._items:  # it came after the last look here
                self._io.spawn(self._run)
