"""What a program can have itself told about its locks, for metrics and logs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from slock_client._clock import now

__all__ = ["Hooks", "log"]

log = logging.getLogger("slock_client")
"""Where the library logs: at level warning what an operator must know, else at level debug."""


@dataclass(frozen=True)
class Hooks:
    """Functions that the library calls. They must return at once: the library waits for them.

    An exception from one of them is logged under the name `slock_client` and changes nothing.
    """

    waited: Callable[[str, timedelta, str], object] | None = None
    """`waited(label, duration, outcome)` when an acquisition has ended: `granted`, `refused` (a `try_acquire`
    that got nothing), `timed out`, `cancelled`, or the name of the error."""

    held: Callable[[str, timedelta], object] | None = None
    """`held(label, duration)` when a hold has ended: released, handed over or lost."""

    lost: Callable[[str, str], object] | None = None
    """`lost(label, reason)` when a hold is lost: `gone`, `expired` or `lease ended`."""

    renewal_failed: Callable[[str, BaseException], object] | None = None
    """`renewal_failed(label, error)` for each renewal without an answer, or with an error.

    It is tried again.
    """

    release_failed: Callable[[str, BaseException], object] | None = None
    """`release_failed(label, error)` when a release had no answer. The lock ends by its ttl."""

    def tell(self, name: str, *arguments: Any) -> None:
        """Calls the function of this name, if there is one."""
        hook = getattr(self, name)
        if hook is not None:
            call(hook, *arguments)

    def tell_time(self, name: str, label: str, began: float, *arguments: Any) -> None:
        """The same with how long it took since `began`."""
        self.tell(name, label, timedelta(seconds=now() - began), *arguments)


def call(function: Callable[..., object], *arguments: Any) -> None:
    """Calls a function of the program. The library goes on when it fails, or calls `sys.exit`."""
    try:
        function(*arguments)
    except (Exception, SystemExit):
        log.exception("a function that the program gave to slock_client failed")
