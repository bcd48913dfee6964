"""Who holds what, by nothing but what the clients themselves were told: the judge of a soak.

A client surely holds from the reply that grants until it sends its release, or until its ttl has passed since
it asked. Two such times may not overlap, unless both only read.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict


class Oracle:
    """May be told from several threads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        # Of each key: who is inside, with its mode and until when; all fences, and the greatest.
        self._inside: dict[str, dict[str, tuple[str, float]]] = defaultdict(dict)
        self._fences: dict[str, set[int]] = defaultdict(set)
        self._greatest: dict[str, int] = defaultdict(int)
        self.violations: list[str] = []
        self.grants = 0

    def asks(self, key: str) -> int:
        """Call it before a request: whatever this gives, the fence of that request must be greater."""
        with self._mutex:
            return self._greatest[key]

    def granted(
        self, key: str, token: str, mode: str, fence: int, asked_at: int, until: float = float("inf")
    ) -> None:
        """A reply has granted the lock; `until` is the time.monotonic() up to which it surely is held."""
        with self._mutex:
            now, inside, fences = time.monotonic(), self._inside[key], self._fences[key]
            self.grants += 1
            if fence <= asked_at or fence in fences:
                self.violations.append(f"{key}: {token} got fence {fence}, known before: {asked_at}")
            fences.add(fence)
            self._greatest[key] = max(self._greatest[key], fence)
            if now >= until:
                return
            for other, (its_mode, its_end) in inside.items():
                if its_end > now and "write" in (mode, its_mode):
                    self.violations.append(f"{key}: at {now} {token} ({mode}) beside {other} ({its_mode})")
            inside[token] = mode, until

    def leaves(self, key: str, token: str) -> bool:
        """Call it before a release. Whether the client must still hold, so that its release must be 1."""
        with self._mutex:
            _, until = self._inside[key].pop(token, ("", 0.0))
            return until > time.monotonic()
