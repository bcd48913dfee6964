"""What a program can have itself told about its locks, for metrics and logs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

__all__ = ["Hooks"]

_log = logging.getLogger("slock")


@dataclass(frozen=True)
class Hooks:
    """Functions that the library calls. They must return at once: the library waits for them.

    An exception from one of them is logged under the name `slock` and changes nothing.
    """

    waited: Callable[[str, timedelta, str], None] | None = None
    """`waited(label, duration, outcome)` when an acquisition has ended: `granted`, `refused` (a `try_acquire`
    that got nothing), `timed out`, `cancelled`, or the name of the error."""

    held: Callable[[str, timedelta], None] | None = None
    """`held(label, duration)` when a hold has ended, released or lost."""

    lost: Callable[[str, str], None] | None = None
    """`lost(label, reason)` when a hold is lost: `gone`, `expired` or `lease ended`."""

    def tell_waited(self, label: str, seconds: float, outcome: str) -> None:
        """Calls `waited`."""
        if self.waited is not None:
            try:
                self.waited(label, timedelta(seconds=seconds), outcome)
            except Exception:
                _log.exception("the hook `waited` failed")

    def tell_held(self, label: str, seconds: float) -> None:
        """Calls `held`."""
        if self.held is not None:
            try:
                self.held(label, timedelta(seconds=seconds))
            except Exception:
                _log.exception("the hook `held` failed")

    def tell_lost(self, label: str, reason: str) -> None:
        """Calls `lost`."""
        if self.lost is not None:
            try:
                self.lost(label, reason)
            except Exception:
                _log.exception("the hook `lost` failed")
