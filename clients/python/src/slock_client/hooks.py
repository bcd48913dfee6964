"""Hooks, and what the log says."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slock_client._clock import now
from slock_client.errors import LostError

__all__ = ["Hooks"]

_log = logging.getLogger("slock_client")

# Seconds without a reply before that is logged: a connection may be lost at any time.
_OUTAGE = 1.0


@dataclass(frozen=True)
class Hooks:
    """Functions that are called when a lock is granted, released or lost, with the label of the request.

    They are called in the context of the acquisition, so that its span is the current one, perhaps from another thread.
    They must not block. Durations are in seconds.

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


class Report:
    """Calls the hooks and writes the log of one `Locks`. It decides nothing."""

    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks
        self._failing: float | None = None  # since when no reply comes
        self._is_logged = False

    def lost(self, context: contextvars.Context, label: str, loss: LostError) -> None:
        _log.warning("slock: a lock was lost: %s (label %s, reason %s)", loss, label, loss.reason)
        _call(context, self.hooks.lost, label, loss)

    def held(self, context: contextvars.Context, label: str, duration: float) -> None:
        _call(context, self.hooks.held, label, duration)

    def renewal_failed(
        self, context: contextvars.Context, label: str, keys: tuple[str, ...], error: BaseException
    ) -> None:
        _log.debug("slock: a renewal failed (lock %s, label %s): %s", ", ".join(keys), label, error)
        _call(context, self.hooks.renewal_failed, label, error)

    def release_failed(
        self, context: contextvars.Context, label: str, keys: tuple[str, ...], error: BaseException
    ) -> None:
        _log.warning(
            "slock: a release failed; the lock ends by its ttl (lock %s, label %s): %s",
            *(", ".join(keys), label, error),
        )
        _call(context, self.hooks.release_failed, label, error)

    def held_long(self, label: str, keys: tuple[str, ...]) -> None:
        _log.warning(
            "slock: a lock has been held for an hour and has no max_hold (lock %s, label %s)", ", ".join(keys), label
        )

    def polls(self, error: BaseException) -> None:
        _log.warning("slock: waits poll, and are not served in order, because the user may not use channels: %s", error)

    def reached(self, error: BaseException | None) -> None:
        """Notes whether the server replied, and logs when that changes."""
        if error is None:
            if self._failing is not None:
                self._failing = None
                if self._is_logged:
                    self._is_logged = False
                    _log.info("slock: the server replies again")
        elif self._failing is None:
            self._failing = now()
        elif now() - self._failing > _OUTAGE and not self._is_logged:
            self._is_logged = True
            _log.warning("slock: no reply from the server: %s", error)


def _call(context: contextvars.Context, hook: Callable[..., object] | None, *arguments: Any) -> None:
    if hook is not None:
        context.copy().run(hook, *arguments)  # a context is for one thread at a time
