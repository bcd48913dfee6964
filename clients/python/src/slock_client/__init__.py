"""Read-write locks in Redis and Valkey with the SLOCK module.

`slock_client.Locks` is for synchronous programs, `slock_client.asyncio.Locks` for those that use asyncio.

Decision: each rule stands once, in `asyncio/`. `scripts/synchronous.py` makes `_sync/` and `drop_in.py` of
it: a coroutine becomes a function that blocks. What differs by nature is written by hand in both halves:
`asyncio/_tasks.py` and `_threads.py`, `asyncio/_connection.py` and `_thread_connection.py`,
`asyncio/_guard.py` and `_thread_guard.py`. Only asyncio has waits that share a connection,
`asyncio/_listener.py`.
"""

from slock_client import polling as polling
from slock_client import status as status
from slock_client._clock import now as now
from slock_client._options import HoldOptions as HoldOptions
from slock_client._options import ReadOptions as ReadOptions
from slock_client._options import RequestOptions as RequestOptions
from slock_client._sync._hold import Hold as Hold
from slock_client._sync._locks import Locks as Locks
from slock_client._sync._quorum import Quorum as Quorum
from slock_client._sync._quorum import QuorumHold as QuorumHold
from slock_client._sync._request import Request as Request
from slock_client.errors import ClosedError as ClosedError
from slock_client.errors import DeadlockError as DeadlockError
from slock_client.errors import LostError as LostError
from slock_client.errors import ModuleNotLoadedError as ModuleNotLoadedError
from slock_client.errors import NotHeldError as NotHeldError
from slock_client.errors import QueueFullError as QueueFullError
from slock_client.errors import QuorumMissedError as QuorumMissedError
from slock_client.errors import RefusedError as RefusedError
from slock_client.errors import SlockError as SlockError
from slock_client.errors import TimedOutError as TimedOutError
from slock_client.errors import TooFewReplicasError as TooFewReplicasError
from slock_client.errors import WrongModeError as WrongModeError
from slock_client.hooks import Hooks as Hooks
