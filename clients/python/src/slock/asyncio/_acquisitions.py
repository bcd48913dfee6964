"""What `close` has to wait for: the acquisitions that are under way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from slock.errors import Closed


class Acquisitions:
    """Those of one `Locks` or `Quorum`, in all its tasks."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Future[None]] = set()
        self._closing = asyncio.Event()

    def check_open(self) -> None:
        """Raises `Closed` after `close`."""
        if self._closing.is_set():
            raise Closed

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """One is under way until the block ends. `Closed` is raised after `close`."""
        self.check_open()
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(ended)
        try:
            yield
        finally:
            self._under_way.discard(ended)
            ended.set_result(None)

    async def pause(self, seconds: float) -> None:
        """Waits between two attempts. `Closed` is raised as soon as `close` is called."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)
        self.check_open()

    def close(self) -> None:
        """From now on none begins, and pauses end."""
        self._closing.set()

    async def wait_ended(self) -> None:
        """Returns when none is under way."""
        while self._under_way:
            await asyncio.wait(self._under_way)
