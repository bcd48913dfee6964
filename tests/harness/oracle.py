"""Who holds what, by nothing but what the clients themselves were told: the judge of a soak.

A client surely holds from the reply that grants until it sends its release, or until its ttl has passed since
it asked. Two such times may not overlap, unless both only read.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class _Hold:
    token: str
    mode: str
    fence: int
    until: float


@dataclass
class _Lock:
    inside: dict[str, _Hold] = field(default_factory=dict)
    fences: set[int] = field(default_factory=set)
    greatest: int = 0


class Oracle:
    """May be told from several threads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._locks: dict[str, _Lock] = {}
        self.violations: list[str] = []
        self.grants = 0

    def asks(self, key: str) -> int:
        """Call it before a request: whatever this gives, the fence of that request must be greater."""
        with self._mutex:
            return self._lock(key).greatest

    def granted(
        self, key: str, token: str, mode: str, fence: int, asked_at: int, until: float = float("inf")
    ) -> None:
        """A reply has granted the lock; `until` is the time.monotonic() up to which it surely is held."""
        with self._mutex:
            lock, now = self._lock(key), time.monotonic()
            self.grants += 1
            if fence <= asked_at or fence in lock.fences:
                self.violations.append(f"{key}: {token} got fence {fence}, known before: {asked_at}")
            lock.fences.add(fence)
            lock.greatest = max(lock.greatest, fence)
            if now >= until:
                return
            lock.inside = {name: hold for name, hold in lock.inside.items() if hold.until > now}
            mine = _Hold(token, mode, fence, until)
            for other in lock.inside.values():
                if "write" in (mode, other.mode):
                    self.violations.append(f"{key}: at {now} {mine} beside {other}")
            lock.inside[token] = mine

    def leaves(self, key: str, token: str) -> bool:
        """Call it before a release. Whether the client must still hold, so that its release must be 1."""
        with self._mutex:
            hold = self._lock(key).inside.pop(token, None)
            return hold is not None and hold.until > time.monotonic()

    def _lock(self, key: str) -> _Lock:
        return self._locks.setdefault(key, _Lock())
