# SPDX-License-Identifier: MIT OR Apache-2.0

"""The errors of this library. Each survives pickling, so that it reaches the parent of a worker process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Reason = Literal["gone", "expired", "max hold", "closed"]


@dataclass(frozen=True)
class NodeReply:
    """The reply of one node of a quorum. If `granted` is false and `error` is empty, others have the lock there."""

    node: str
    granted: bool
    error: str = ""

    def __str__(self) -> str:
        return f"{self.node}: {self.error or ('granted' if self.granted else 'refused')}"


class SlockError(Exception):
    """The base of all errors of this library.

    `keys` are the keys of the request, without the prefix. `holders` are texts about holders of a key, at most 10, when
    a wait was over. `nodes` are the replies of the nodes of a quorum, in the order of the clients. The error of the
    Redis client library, if there is one, is `__cause__`.
    """

    def __init__(
        self, text: str, keys: Iterable[str] = (), holders: Sequence[str] = (), nodes: Sequence[NodeReply] = ()
    ) -> None:
        super().__init__(text)
        self.text, self.keys, self.holders, self.nodes = text, tuple(keys), tuple(holders), tuple(nodes)
        self._cause_text = ""

    def __str__(self) -> str:
        text = self.text
        if self.keys:
            text += f" (lock {', '.join(self.keys)})"
        if self.holders:
            text += f", held by {' and '.join(self.holders)}"
        cause = self._told_cause()
        if cause and cause not in text:
            text += f": {cause}"
        return "; ".join([text, *map(str, self.nodes)])

    def _told_cause(self) -> str:
        cause = self.__cause__
        if cause is None:
            return self._cause_text
        text, of_system = str(cause) or type(cause).__name__, cause.__cause__ or cause.__context__
        if isinstance(of_system, OSError) and of_system.errno:
            reason = os.strerror(of_system.errno)
            return text if reason in text else f"{text} ({reason})"
        return text

    def __reduce__(self) -> Any:
        # The cause may be of a class that cannot be pickled: its text goes along.
        return type(self), (self.text,), {**self.__dict__, "_cause_text": self._told_cause()}


class TimedOutError(SlockError, TimeoutError):
    """The server replied, and others held the lock until the wait was over. `holders` says who."""


class NoAnswerError(SlockError, ConnectionError):
    """No reply came from the server within the limit, or none that decides."""


class LostError(SlockError):
    """The hold ended, and nobody released it through this library. `reason` says why."""

    reason: Reason = "gone"


class NotHeldError(SlockError):
    """The owner token does not hold all the keys, for example because the hold was released."""


class WrongModeError(SlockError):
    """The owner token holds the lock in the other mode."""


class DeadlockError(SlockError):
    """The wait would have closed a cycle of owners that wait for each other. The text names it."""


class QueueFullError(SlockError):
    """The server lets no more requests wait."""


class RefusedError(SlockError):
    """The server refuses the owner token, because its acquisition has been ended."""


class QuorumMissedError(SlockError):
    """Neither a majority of the nodes of a quorum granted the lock, nor a majority refused it. See `nodes`."""


class TooFewReplicasError(SlockError):
    """The lock was granted, but too few replicas acknowledged it. It has been released."""


class ModuleNotLoadedError(SlockError):
    """The server does not know the commands of the module."""


class ClosedError(SlockError):
    """The `Locks` has been closed."""


def outcome_of(error: BaseException) -> str:
    """How an acquisition ended, for hooks and metrics."""
    if isinstance(error, TimedOutError):
        return "timed out"
    if isinstance(error, SlockError):
        return type(error).__name__.removesuffix("Error")
    return "Other" if isinstance(error, Exception) else "cancelled"
