"""One acquisition: what it wants, and what it knows about its attempts. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from slock._answers import may_be_executed
from slock._commands import Channel, Command, Key, text_of
from slock._time import ms_left
from slock.errors import TimedOut

# The server ends a wait by itself. When nothing comes so long after that, in seconds, the client gives up.
ANSWER_OVERDUE = 0.25

# A call ends at most about so long after its wait, in seconds. What is left to do goes on without it.
CALL_OVERDUE = 0.5

# In this time, in seconds, a server that works answers.
LEAST_TIME = 0.1

Build = Callable[["int | None", "Channel | None"], Command]

P = TypeVar("P")


class Granted(NamedTuple):
    """A fence, and when its request was sent and answered, in seconds on the monotonic clock."""

    fence: int
    sent: float
    received: float


class Answered(NamedTuple):
    """Answers of the server, and how they came."""

    sent: float
    """When the commands were sent, in seconds on the monotonic clock."""
    answers: list[Any]
    after_unanswered: bool
    """Whether an attempt before got no answer, so that the server may carry it out at any later time."""


@dataclass
class Asking(Generic[P]):
    """The state of an acquisition, an upgrade or a downgrade over all its attempts."""

    keys: Sequence[Key]
    build: Build
    """The command for a wait of so many ms, which ends on a channel."""
    end: float | None
    """When the wait is over; None: it waits until it is granted."""
    once: bool
    """Whether a refusal ends it."""
    errors_end: float = math.inf
    """Without an end: when temporary errors are no longer followed by another attempt."""
    poll_pauses: Iterator[float] | None = None
    unanswered: bool = False
    """Whether an attempt got no answer, so that the server may carry it out at any later time."""
    uncertain: bool = False
    """Whether the server may hold or queue something that the client does not know of."""
    pending: P | None = None
    """Where an attempt still waits for its answer."""
    problem: BaseException | None = None
    """The error of the last attempt; None when the server has answered it."""

    @property
    def key(self) -> Key:
        return self.keys[0]

    @property
    def is_over(self) -> bool:
        return self.end is not None and time.monotonic() >= self.end

    @property
    def answer_end(self) -> float | None:
        """Until when an answer may come after the time is over."""
        end = self._last_end
        return None if end is None else end + ANSWER_OVERDUE

    def time_to_give_up(self, otherwise: float) -> float:
        """How long the caller waits for its request to be withdrawn, in seconds."""
        end = self._last_end
        if end is None:
            return otherwise
        return min(otherwise, max(LEAST_TIME, end + CALL_OVERDUE - time.monotonic()))

    def wait_ms(self) -> int:
        """What is left of the wait, as the server takes it: 0 is without limit."""
        return 0 if self.end is None else ms_left(self.end, time.monotonic())

    def note_problem(self, error: BaseException) -> None:
        """An attempt ended with an error that may pass."""
        self.problem = error
        self.unanswered = self.unanswered or may_be_executed(error)
        self.uncertain = self.uncertain or self.unanswered

    def timed_out(self, text: str = "the wait is over") -> TimedOut:
        """The error of a wait that is over. Its cause is the error of the last attempt."""
        error = TimedOut(f"{', '.join(map(text_of, self.keys))}: {text}")
        error.__cause__ = self.problem
        return error

    def pause_after_error(self, error: BaseException, pause: float) -> float:
        """How long to pause before the next attempt. When none is left, `TimedOut` or the error is raised."""
        now = time.monotonic()
        if self.end is None:
            if now + pause >= self.errors_end:
                raise error
            return pause
        self.problem = error
        if now >= self.end:
            raise self.timed_out()
        return min(pause, self.end - now)

    def pause_to_poll(self) -> float:
        """How long to pause after a refusal. `TimedOut` is raised when no attempt is left."""
        assert self.poll_pauses is not None
        pause = next(self.poll_pauses, None)
        if pause is None:
            raise self.timed_out("the lock is not free, and no attempt is left")
        if self.end is None:
            return pause
        left = self.end - time.monotonic()
        if left <= 0:
            raise self.timed_out()
        return min(pause, left)

    @property
    def _last_end(self) -> float | None:
        if self.end is not None:
            return self.end
        return None if self.errors_end == math.inf else self.errors_end


def granted(answer: object, sent: float) -> Granted | None:
    """A grant, or None for a refusal. An error of the server is raised."""
    if isinstance(answer, BaseException):
        raise answer
    assert isinstance(answer, int)
    return Granted(answer, sent, time.monotonic()) if answer else None
