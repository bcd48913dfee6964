"""Read-write locks in Redis and Valkey with the SLOCK module.

`slock.Locks` is for synchronous programs, `slock.asyncio.Locks` for those that use asyncio.
"""

from slock import polling
from slock._hold import Hold
from slock._locks import Locks
from slock._options import HoldOptions, ReadOptions, RequestOptions
from slock._quorum_hold import QuorumHold
from slock._quorum_locks import Quorum
from slock._request import Request
from slock.drop_in import Lock
from slock.errors import (
    Closed,
    Deadlock,
    Lost,
    ModuleNotLoaded,
    NotHeld,
    QueueFull,
    QuorumMissed,
    SlockError,
    TimedOut,
    TooFewReplicas,
    WrongMode,
)
from slock.hooks import Hooks

__all__ = [
    "Closed",
    "Deadlock",
    "Hold",
    "HoldOptions",
    "Hooks",
    "Lock",
    "Locks",
    "Lost",
    "ModuleNotLoaded",
    "NotHeld",
    "QueueFull",
    "Quorum",
    "QuorumHold",
    "QuorumMissed",
    "ReadOptions",
    "Request",
    "RequestOptions",
    "SlockError",
    "TimedOut",
    "TooFewReplicas",
    "WrongMode",
    "polling",
]
