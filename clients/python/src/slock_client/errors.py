"""The errors of this library. All are `SlockError`; any other error is one of redis-py."""

from __future__ import annotations

from collections.abc import Mapping


class SlockError(Exception):
    """The base of all errors of this library."""


class TimedOutError(SlockError, TimeoutError):
    """The call did not succeed within its limit. Where there was an error, it is the cause (`__cause__`)."""

    answered = True
    """Whether the server has answered at all: then another has the lock, else the server is out of reach."""


class LostError(SlockError):
    """The hold ended and nobody released it through this library: stop the work."""

    def __init__(self, label: str, names: str, reason: str, cause: BaseException | None = None) -> None:
        """`names` are the keys; `cause` is the error of the last renewal."""
        explained = _REASONS.get(reason, reason)
        told = f" ({cause})" if cause is not None and str(cause) else ""
        super().__init__(f"the hold of {names} is lost: {explained}{told}")
        self.__cause__ = cause
        self.label = label
        self.names = names
        self.reason = reason
        """`gone`, `expired` or `lease ended`."""


_REASONS = {
    "gone": "gone: the server says that the token does not hold it any more. It was deleted, or released "
    "from elsewhere, or its ttl ended before a renewal arrived",
    "expired": "expired: its ttl ended and no renewal was answered before",
    "lease ended": "lease ended: `longest_lease` is over, or it is not known whether its block has ended",
}


class NotHeldError(SlockError):
    """The token does not hold the lock, or the hold was released."""


class WrongModeError(SlockError):
    """The token holds the lock in the other mode: upgrade or downgrade that hold."""


class DeadlockError(SlockError):
    """The wait would close a cycle of owners that wait for each other. The text names the cycle."""


class QueueFullError(SlockError):
    """The server lets no more requests wait."""


class RefusedError(SlockError):
    """The server was told to refuse this token for a while, by `SLOCK.CANCEL … REFUSE`. Final.

    A change of a hold's mode is refused too while another one goes on.
    """


class QuorumMissedError(SlockError):
    """Fewer than the majority of the nodes granted or extended the lock."""

    def __init__(self, text: str, answers: Mapping[str, str]) -> None:
        told = ", ".join(f"{node}: {answer}" for node, answer in answers.items())
        super().__init__(f"{text} ({told})")
        self.answers = dict(answers)
        """What each node answered, by its address."""


class TooFewReplicasError(SlockError):
    """Fewer replicas than `min_replicas` have confirmed the hold in time. It has been released."""


class ClosedError(SlockError):
    """The `Locks` or `Quorum` was closed. An acquisition that ends so leaves no hold and no request."""

    def __init__(self) -> None:
        super().__init__("the locks have been closed")


class ModuleNotLoadedError(SlockError):
    """The server does not know the SLOCK commands."""

    def __init__(self) -> None:
        super().__init__(
            "the server does not have the SLOCK module: start it with `loadmodule /path/to/libslock.so` in "
            "its configuration, or run `MODULE LOAD /path/to/libslock.so`"
        )
