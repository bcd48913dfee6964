"""The errors of this library. All are `SlockError`; any other error is one of redis-py."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "Closed",
    "Deadlock",
    "Lost",
    "ModuleNotLoaded",
    "NotHeld",
    "QueueFull",
    "QuorumMissed",
    "SlockError",
    "TimedOut",
    "TooFewReplicas",
    "WrongMode",
]


class SlockError(Exception):
    """The base of all errors of this library."""


class TimedOut(SlockError, TimeoutError):
    """The lock was not granted within the wait. Nothing is held, and nothing waits in the queue."""


class Lost(SlockError):
    """The hold ended and nobody released it through this library: stop the work."""

    def __init__(self, label: str, reason: str) -> None:
        super().__init__(f"the hold of {label} is lost: {reason}")
        self.label = label
        self.reason = reason
        """`gone`, `expired` or `lease ended`."""


class NotHeld(SlockError):
    """The token does not hold the lock."""


class WrongMode(SlockError):
    """The token holds the lock in the other mode: upgrade or downgrade that hold."""


class Deadlock(SlockError):
    """The wait would close a cycle of owners that wait for each other. The text names the cycle."""


class QueueFull(SlockError):
    """The server lets no more requests wait."""


class QuorumMissed(SlockError):
    """Fewer than the majority of the nodes granted or extended the lock."""

    def __init__(self, text: str, answers: Mapping[str, str]) -> None:
        told = ", ".join(f"{node}: {answer}" for node, answer in answers.items())
        super().__init__(f"{text} ({told})")
        self.answers = dict(answers)
        """What each node answered, by its address."""


class TooFewReplicas(SlockError):
    """Fewer replicas than `min_replicas` have confirmed the hold in time. It has been released."""


class Closed(SlockError):
    """The `Locks` or `Quorum` was closed. Nothing is held by this request, and nothing waits in the queue."""

    def __init__(self) -> None:
        super().__init__("the locks have been closed")


class ModuleNotLoaded(SlockError):
    """The server does not know the SLOCK commands."""

    def __init__(self) -> None:
        super().__init__(
            "the server does not have the SLOCK module: start it with `loadmodule /path/to/libslock.so` in "
            "its configuration, or run `MODULE LOAD /path/to/libslock.so`"
        )
