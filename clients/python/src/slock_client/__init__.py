"""Read-write locks in Redis and Valkey with the SLOCK module.

`slock_client.Locks` is for synchronous programs, `slock_client.asyncio.Locks` for those that use asyncio.

Decision: each rule stands once, as a coroutine that waits only for what `_io.py` names. In asyncio these
coroutines are awaited. In the synchronous half nothing that they wait for ever suspends, it blocks the thread
instead, so a coroutine runs to its end in one step (`_io.finish`). So no half is generated, tracebacks and
debuggers show the code as it is written, and what differs by nature (a thread that blocks on a connection, a
task that is told by NOTIFY) is in `_threads.py` and `_thread_link.py`, and in `asyncio/`.
"""

from slock_client import polling, status
from slock_client._clock import now
from slock_client._options import HoldOptions, ReadOptions, RequestOptions
from slock_client._sync import Hold, Locks, Quorum, QuorumHold, Request
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
