"""Read-write locks for programs that use asyncio.

Errors, hooks and strategies are those of `slock_client`.
"""

from slock_client.asyncio._hold import Hold
from slock_client.asyncio._locks import Locks
from slock_client.asyncio._quorum import Quorum, QuorumHold
from slock_client.asyncio._request import Request

__all__ = ["Hold", "Locks", "Quorum", "QuorumHold", "Request"]
