"""How a client asks again where the server does not wait for it."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from datetime import timedelta

from slock_client._durations import positive

__all__ = ["Constant", "Exponential", "Once", "Strategy"]


class Strategy:
    """The base of the strategies. An object is not changed by its use and can be shared."""

    _attempts: int | None = None

    def limit(self, attempts: int) -> Strategy:
        """The same strategy with at most so many further attempts after the first."""
        if attempts < 0:
            raise ValueError("attempts must not be negative")
        limited = copy.copy(self)
        limited._attempts = attempts
        return limited

    def pauses(self) -> Iterator[float]:
        """The pauses of one acquisition, in seconds: before the second attempt, the third, and so on.

        When they end, no further attempt is made.
        """
        yield from itertools.islice(self._endless(), self._attempts)

    def _endless(self) -> Iterator[float]:
        raise NotImplementedError


class Once(Strategy):
    """Asks once, and not again."""

    def _endless(self) -> Iterator[float]:
        return iter(())


class Constant(Strategy):
    """Asks again after the same pause each time."""

    def __init__(self, pause: timedelta) -> None:
        self.pause = positive("pause", pause)

    def _endless(self) -> Iterator[float]:
        return itertools.repeat(self.pause.total_seconds())


class Exponential(Strategy):
    """Asks again after `first`, then after twice as long each time, up to `most`.

    Each pause is shortened by chance, by up to a half, so that clients that were refused together do not ask
    together again.
    """

    def __init__(self, first: timedelta, most: timedelta) -> None:
        self.first = positive("first", first)
        self.most = positive("most", most)

    def _endless(self) -> Iterator[float]:
        pause, most = self.first.total_seconds(), self.most.total_seconds()
        while True:
            yield min(pause, most) * random.uniform(0.5, 1)
            pause = min(pause * 2, most)
