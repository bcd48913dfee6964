"""The settings of a `Locks`. Durations are in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from slock_client.hooks import Hooks
from slock_client.polling import Strategy

COUNTED_LESS = 0.001  # the part of a ttl that does not count, since a clock that is slewed runs up to 500 ppm fast


@dataclass(frozen=True)
class QuorumSettings:
    node_timeout: float | None
    drift_factor: float
    fail_fast: bool
    poll: Strategy


@dataclass
class Settings:
    prefix: str
    retry_for: float  # how long a request goes on without a reply, if there never was one
    retry_wait_for: float  # the same after one
    hooks: Hooks
    quorum: QuorumSettings | None
    is_closing: bool = False  # waits and renewals end

    def counted(self, ttl: float) -> float:
        """The part of a ttl that counts for the validity. The server counts in milliseconds."""
        if self.quorum is not None:
            return ttl - ttl * self.quorum.drift_factor - 0.002
        return ttl - ttl * COUNTED_LESS - 0.001
