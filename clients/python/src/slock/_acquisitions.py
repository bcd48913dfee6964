"""What `close` has to wait for: the acquisitions that are under way."""

from __future__ import annotations

import threading

from slock._fork import track
from slock.errors import Closed


class Acquisitions:
    """Those of one `Locks` or `Quorum`, in all its threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way: set[int] = set()
        self._closed = False
        track(self)

    def check_open(self) -> None:
        """Raises `Closed` after `close`."""
        if self._closed:
            raise Closed

    def begin(self, one: object) -> None:
        """`one` is under way. `Closed` is raised after `close`."""
        with self._changed:
            self.check_open()
            self._under_way.add(id(one))

    def end(self, one: object) -> None:
        """It has ended. Nothing happens when it never began."""
        with self._changed:
            self._under_way.discard(id(one))
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Waits between two attempts. `Closed` is raised as soon as `close` is called."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)
            self.check_open()

    def close(self) -> None:
        """From now on none begins, and pauses end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_ended(self) -> None:
        """Returns when none is under way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way)

    def after_fork(self) -> None:
        """What is under way is the parent's."""
        self._changed, self._under_way = threading.Condition(), set()
