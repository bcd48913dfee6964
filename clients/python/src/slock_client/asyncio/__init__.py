"""Read-write locks for programs that use asyncio.

Errors, hooks and strategies are those of `slock_client`.
"""

from slock_client.asyncio._faces import Hold, Locks, Quorum, QuorumHold, Request

__all__ = ["Hold", "Locks", "Quorum", "QuorumHold", "Request"]
