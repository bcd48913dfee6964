# SPDX-License-Identifier: MIT OR Apache-2.0

"""Functions of the program that are called when something happens to a lock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slock_client.errors import LostError

__all__ = ["Hooks"]

_log = logging.getLogger("slock_client")


@dataclass(frozen=True)
class Hooks:
    """Functions that are called when a lock is granted, released or lost, with the label of the request.

    They are called in the context of the acquisition, so that its span is the current one, perhaps from another thread.
    They must not block. What one of them raises is logged as a warning and changes nothing. Durations are in seconds.

    - `waited(label, duration, outcome)`: an acquisition ended: `granted`, `refused`, `timed out`, `cancelled`, or the
      name of an error, such as `Deadlock`.
    - `held(label, duration)`: a hold ended, released or lost; with the time since the grant.
    - `lost(label, error)`: a hold is lost. The `LostError` has `keys` and `reason`.
    - `renewal_failed(label, error)`: a renewal got an error or no reply. It is sent again until the hold expires.
    - `release_failed(label, error)`: a release got an error or no reply in time. The lock ends by its ttl.
    """

    waited: Callable[[str, float, str], object] | None = None
    held: Callable[[str, float], object] | None = None
    lost: Callable[[str, LostError], object] | None = None
    renewal_failed: Callable[[str, BaseException], object] | None = None
    release_failed: Callable[[str, BaseException], object] | None = None

    def _call(self, name: str, *told: Any) -> None:
        function = getattr(self, name)
        if function is None:
            return
        try:
            function(*told)
        except Exception:
            _log.warning("slock: the hook %s failed", name, exc_info=True)
