# SPDX-License-Identifier: MIT OR Apache-2.0

"""Read-write locks in Redis and Valkey with the SLOCK module, for programs that use asyncio."""

from slock_client.asyncio._asyncio import Hold, Locks, Quorum, Request

__all__ = ["Hold", "Locks", "Quorum", "Request"]
