# SPDX-License-Identifier: MIT OR Apache-2.0

"""Read-write locks in Redis and Valkey with the SLOCK module.

`slock_client.Locks` is for synchronous programs, `slock_client.asyncio.Locks` for those that use asyncio.
"""

from slock_client import errors, info
from slock_client._options import Mode, ReadOptions, RequestOptions
from slock_client._sync import Hold, Locks, Quorum, Request
from slock_client.errors import (
    ClosedError,
    DeadlockError,
    LostError,
    ModuleNotLoadedError,
    NoAnswerError,
    NotHeldError,
    QueueFullError,
    QuorumMissedError,
    Reason,
    RefusedError,
    SlockError,
    TimedOutError,
    TooFewReplicasError,
    WrongModeError,
)
from slock_client.hooks import Hooks

__all__ = [
    "ClosedError",
    "DeadlockError",
    "Hold",
    "Hooks",
    "Locks",
    "LostError",
    "Mode",
    "ModuleNotLoadedError",
    "NoAnswerError",
    "NotHeldError",
    "QueueFullError",
    "Quorum",
    "QuorumMissedError",
    "ReadOptions",
    "Reason",
    "RefusedError",
    "Request",
    "RequestOptions",
    "SlockError",
    "TimedOutError",
    "TooFewReplicasError",
    "WrongModeError",
    "errors",
    "info",
]
