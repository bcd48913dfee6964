"""Locks for programs that use asyncio."""

from slock.asyncio._hold import Hold
from slock.asyncio._locks import Locks
from slock.asyncio._quorum_hold import QuorumHold
from slock.asyncio._quorum_locks import Quorum
from slock.asyncio._request import Request
from slock.asyncio.drop_in import Lock

__all__ = ["Hold", "Lock", "Locks", "Quorum", "QuorumHold", "Request"]
