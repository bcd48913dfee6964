"""Strategies of a quorum: the pauses between its attempts."""

from __future__ import annotations

import copy
import random
from datetime import timedelta

from slock_client._options import seconds

__all__ = ["Constant", "Exponential", "Once", "Strategy"]


class Strategy:
    """Gives the pause before each further attempt."""

    _most: int | None = None

    def limit(self, attempts: int) -> Strategy:
        """The same pauses, for at most so many further attempts."""
        limited = copy.copy(self)
        limited._most = attempts
        return limited

    def pause(self, attempt: int) -> float | None:
        """Seconds before the further attempt with this number, counted from 0. `None`: there is none."""
        return None if self._most is not None and attempt >= self._most else self._pause(attempt)

    def _pause(self, attempt: int) -> float:
        raise NotImplementedError


class Constant(Strategy):
    """The same pause each time."""

    def __init__(self, pause: float | timedelta) -> None:
        self._seconds = seconds(pause, "pause")

    def _pause(self, attempt: int) -> float:
        return self._seconds


class Exponential(Strategy):
    """Pauses that begin with `first` and double up to `most`. Each is shortened by a random part of up to a half, so
    that contenders do not try in step."""

    def __init__(self, first: float | timedelta, most: float | timedelta) -> None:
        self._first, self._longest = seconds(first, "first"), seconds(most, "most")

    def _pause(self, attempt: int) -> float:
        return min(self._first * 2.0 ** min(attempt, 30), self._longest) * random.uniform(0.5, 1)


class Once(Constant):
    """No further attempt."""

    _most = 0

    def __init__(self) -> None:
        super().__init__(0)
