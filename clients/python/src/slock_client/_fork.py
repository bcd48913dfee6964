"""What a forked process must not share with its parent."""

from __future__ import annotations

import os
import weakref
from typing import Any

_tracked: weakref.WeakSet[Any] = weakref.WeakSet()


def track(one: Any) -> None:
    """From now on its `after_fork` is called in each child: threads and connections are the parent's, and its
    locks may be taken.
    """
    _tracked.add(one)


def _after_fork() -> None:
    for one in list(_tracked):
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
