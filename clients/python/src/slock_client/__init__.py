"""Read-write locks in Redis and Valkey with the SLOCK module.

`slock_client.Locks` is for synchronous programs, `slock_client.asyncio.Locks` for those that use asyncio.

Decision: each rule stands once, in `asyncio/`. `scripts/synchronous.py` makes `_sync/` and `drop_in.py` of
it: a coroutine becomes a function that blocks. What differs by nature is written by hand in both halves:
`asyncio/_tasks.py` and `_threads.py`, `asyncio/_connection.py` and `_thread_connection.py`,
`asyncio/_guard.py` and `_thread_guard.py`. Only asyncio has a connection on which many waits end,
`asyncio/_listener.py`.
"""

from slock_client import polling, status
from slock_client._clock import now
from slock_client._options import HoldOptions, ReadOptions, RequestOptions
from slock_client._sync._hold import Hold
from slock_client._sync._locks import Locks
from slock_client._sync._quorum import Quorum, QuorumHold
from slock_client._sync._request import Request
from slock_client.errors import (
    ClosedError,
    DeadlockError,
    LostError,
    ModuleNotLoadedError,
    NotHeldError,
    QueueFullError,
    QuorumMissedError,
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
    "HoldOptions",
    "Hooks",
    "Locks",
    "LostError",
    "ModuleNotLoadedError",
    "NotHeldError",
    "QueueFullError",
    "Quorum",
    "QuorumHold",
    "QuorumMissedError",
    "ReadOptions",
    "RefusedError",
    "Request",
    "RequestOptions",
    "SlockError",
    "TimedOutError",
    "TooFewReplicasError",
    "WrongModeError",
    "now",
    "polling",
    "status",
]
