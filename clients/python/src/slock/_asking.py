"""One acquisition: what it wants, and what it knows about its attempts. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from slock._commands import Channel, Command, Key
from slock._time import ms_left
from slock.errors import TimedOut

# The server ends a wait by itself. When nothing comes so long after that, in seconds, the client gives up.
ANSWER_OVERDUE = 2.0

Build = Callable[["int | None", "Channel | None"], Command]

P = TypeVar("P")


class Granted(NamedTuple):
    """A fence, and when its request was sent and answered, in seconds on the monotonic clock."""

    fence: int
    sent: float
    received: float


@dataclass
class Asking(Generic[P]):
    """The state of an acquisition, an upgrade or a downgrade over all its attempts."""

    key: Key
    build: Build
    """The command for a wait of so many ms, which ends on a channel."""
    end: float | None
    """When the wait is over; None: it waits until it is granted."""
    once: bool
    """Whether a refusal ends it."""
    errors_end: float = math.inf
    """Without an end: when temporary errors are no longer followed by another attempt."""
    poll_pauses: Iterator[float] | None = None
    uncertain: bool = False
    """Whether the server may hold or queue something that the client does not know of."""
    pending: P | None = None
    """Where an attempt still waits for its answer."""

    @property
    def is_over(self) -> bool:
        return self.end is not None and time.monotonic() >= self.end

    @property
    def answer_end(self) -> float | None:
        """Until when an answer may come after the wait is over."""
        return None if self.end is None else self.end + ANSWER_OVERDUE

    def wait_ms(self) -> int:
        """What is left of the wait, as the server takes it: 0 is without limit."""
        return 0 if self.end is None else ms_left(self.end, time.monotonic())

    def pause_after_error(self, error: BaseException, pause: float) -> float:
        """How long to pause before the next attempt. When none is left, `TimedOut` or the error is raised."""
        now = time.monotonic()
        if self.end is None:
            if now + pause >= self.errors_end:
                raise error
            return pause
        if now >= self.end:
            raise TimedOut("the wait is over") from error
        return min(pause, self.end - now)

    def pause_to_poll(self) -> float:
        """How long to pause after a refusal. `TimedOut` is raised when no attempt is left."""
        assert self.poll_pauses is not None
        pause = next(self.poll_pauses, None)
        if pause is None:
            raise TimedOut("the lock is not free, and no attempt is left")
        if self.end is None:
            return pause
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimedOut("the wait is over")
        return min(pause, left)


def granted(answer: object, sent: float) -> Granted | None:
    """A grant, or None for a refusal. An error of the server is raised."""
    if isinstance(answer, BaseException):
        raise answer
    assert isinstance(answer, int)
    return Granted(answer, sent, time.monotonic()) if answer else None
